"""Ray actors on this machine: the same driver, over actors that are killed and a machine that is lost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import batch_toys
from support.batch_toys import HEAD, Overslept, Toy, toys
from support.commands import run
from support.serving import save_chat_model

from triforce_chat.batch import ray_actors
from triforce_chat.batch import run as batch_run
from triforce_chat.batch.driver import Driver, NoWorkerLeft
from triforce_chat.batch.output_file import OutputFile
from triforce_chat.batch.ray_actors import RayActors, Share, share
from triforce_chat.batch.run import answer_lines
from triforce_chat.batch.worker import Load
from triforce_chat.errors import UsageError
from triforce_chat.settings.settings import Settings
from triforce_chat.ui.batch_progress import BatchView

ray = pytest.importorskip("ray", reason="NOT RUN: Ray is not installed (pip install ray)")
cluster_utils = pytest.importorskip("ray.cluster_utils")

WORKERS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without workers of its own, and a machine with room for them until a test loses it."""
    for name, value in ray_actors.QUIET.items():
        os.environ.setdefault(name, value)
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": ray_actors.OBJECT_STORE}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    add_machine(made)
    yield made
    made.shutdown()


def add_machine(cluster: Any, cpus: int = WORKERS) -> Any:
    return cluster.add_node(num_cpus=cpus, object_store_memory=ray_actors.OBJECT_STORE)


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OutputFile]:
    monkeypatch.chdir(tmp_path)
    with OutputFile(tmp_path / "out.jsonl", "id", HEAD) as made:
        yield made


def pool(cluster: Any, load: Load = batch_toys.load_toy) -> RayActors:
    settings = Settings(device="cpu")
    return RayActors(load, cluster.address, settings, WORKERS, groups=9, limit=None)


class Meddling(BatchView):
    """Does something once, when an answer has come."""

    def __init__(self, lines: Sequence[Toy], then: Any = None) -> None:
        super().__init__([line.name for line in lines], True)
        self.then = then

    def answered(self, worker: int, tokens: int, failed: bool) -> None:
        super().answered(worker, tokens, failed)
        if self.then:
            then, self.then = self.then, None
            then(self)


def records(output: OutputFile) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.path.read_text().splitlines()]


def test_actors_answer_and_one_that_is_killed_is_replaced(cluster: Any, output: OutputFile) -> None:
    # The first answer comes when both actors have begun, and the second line waits for the one that replaces one.
    lines = [Toy(f"meet{2 if line.id.endswith('0') else 3}-{line.id}", line.group) for line in toys(12, 2)]
    lines += [
        Toy("once", "mishap"),
        Toy("die", "mishap"),
        Toy("die-too", "another"),
        Toy("die-three", "another"),
    ]

    def kill_one(view: BatchView) -> None:  # noqa: ARG001
        os.kill(records(output)[0]["worker"], signal.SIGKILL)

    view = Meddling(lines, kill_one)
    assert not answer_lines(lines, pool(cluster), output, view)
    assert output.answered == {line.id for line in lines} - {"die", "die-too", "die-three"}
    assert len(records(output)) == len(lines)
    errors = [record["error"] for record in records(output) if record["error"]]
    assert {error["code"] for error in errors} == {"worker_lost"}
    assert all("\n" not in error["message"] for error in errors)
    assert len({record["worker"] for record in records(output) if not record["error"]}) > WORKERS
    assert view.load_s == 0.5


def test_an_actor_that_does_not_answer_in_time_is_replaced(
    cluster: Any, output: OutputFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [Toy("sleep", "a"), Toy("b", "b")]
    view = Overslept(lines)
    monkeypatch.setattr(batch_run, "Driver", partial(Driver, clock=view.clock))
    answer_lines(lines, pool(cluster), output, view, 0.5)
    assert (output.answered, output.failed) == ({"b"}, {"sleep"})


def test_the_command(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = save_chat_model(tmp_path / "model")
    Path("a.txt").write_text("The keeper's log. " * 20)
    flags = ("--model", model, "--device", "cpu", "--draft", "none", "--no-cache", "--stack", "lookup")
    asked = ("batch", "a.txt", "gone.txt", "--question", "Who?", "--out", "out.jsonl", "--max-tokens", "5")
    done = run(*asked, *flags, "--ray", cluster.address, "--json")
    assert (done.code, done.crash) == (9, None)
    assert (json.loads(done.out)["answered"], json.loads(done.out)["failed"]) == (1, 1)
    assert run(*asked, "--ray", "auto", "--model", "auto").err.startswith("error: --ray needs a --model")


def test_a_lost_machine_costs_nothing_but_time(cluster: Any, output: OutputFile) -> None:
    lines = [Toy(f"slow-{line.id}", line.group) for line in toys(3, 3)]
    (machine,) = cluster.worker_nodes

    def lose_the_machine(view: BatchView) -> None:  # noqa: ARG001
        # There is no room for all actors any more; those that find none must not keep their books.
        add_machine(cluster, 1)
        cluster.remove_node(machine, allow_graceful=False)  # kills its raylet

    assert not answer_lines(lines, pool(cluster), output, Meddling(lines, lose_the_machine))
    assert output.answered == {line.id for line in lines}
    assert len(records(output)) == len(lines)


def test_when_all_machines_are_gone_that_is_said(cluster: Any, output: OutputFile) -> None:
    (machine,) = cluster.worker_nodes  # the one that took the place of a lost one
    lines = [Toy(f"slow-{line.id}", line.group) for line in toys(4, 9)]
    workers = pool(cluster)

    lost = []

    def lose_the_machine(view: BatchView) -> None:  # noqa: ARG001
        workers.patience = 1.0  # no sooner: the first actors may take longer to start
        cluster.remove_node(machine, allow_graceful=False)
        lost.append(time.monotonic())

    with pytest.raises(NoWorkerLeft, match="no worker is left: none could be started within 1 s"):
        answer_lines(lines, workers, output, Meddling(lines, lose_the_machine))
    assert time.monotonic() - lost[0] < ray_actors.PATIENCE / 4
    assert output.answered


def test_no_cluster() -> None:
    with pytest.raises(UsageError, match=r"no Ray cluster at 127\.0\.0\.1:1: .*refused"):
        ray_actors.connected("127.0.0.1:1")


def test_ranks_on_two_machines_answer_as_one_process_does(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = save_chat_model(tmp_path / "model", padding=1)
    Path("a.txt").write_text("The keeper's log. " * 20)
    flags = ("--model", model, "--device", "cpu", "--draft", "none", "--no-cache", "--stack", "lookup")
    asked = ("batch", "a.txt", "--question", "Who?", "--max-tokens", "5", *flags, "--json")
    for machine in [*cluster.worker_nodes]:  # for two with room for one rank each
        cluster.remove_node(machine)
    for _ in range(2):
        add_machine(cluster, 1)
    told = [run(*asked, "--out", "one.jsonl")]
    told.append(run(*asked, "--out", "two.jsonl", "--tp", "2", "--ray", cluster.address))
    assert [(each.code, each.crash, each.err) for each in told] == [(0, None, "")] * 2
    one, two = (json.loads(Path(f"{name}.jsonl").read_text().splitlines()[-1]) for name in ("one", "two"))
    assert (two["text"], two["usage"]) == (one["text"], one["usage"])


def test_shares() -> None:
    gpus, cores = {"GPU": 8.0, "CPU": 64.0}, {"CPU": 64.0}
    assert share(gpus, 2, Settings(), None, 99) == Share(8, 1, 1, 1)
    assert share(gpus, 2, Settings(tp=4), None, 99) == Share(2, 4, 1, 1)
    assert share(gpus, 2, Settings(tp=8), None, 99) == Share(1, 8, 1, 1)  # over both machines
    assert share(gpus, 2, Settings(), None, 3) == Share(3, 1, 1, 1)
    assert share(gpus, 2, Settings(device="cpu"), None, 99) == Share(2, 1, 0, 32)
    assert share(cores, 2, Settings(), 16, 99) == Share(16, 1, 0, 4)
    assert share(cores, 2, Settings(tp=2), None, 99) == Share(1, 2, 0, 32)
    with pytest.raises(UsageError, match="3 workers with --tp 4 need 12 GPUs; the cluster has 8"):
        share(gpus, 2, Settings(tp=4), 3, 99)


def test_without_ray_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actors, "find_spec", lambda name: None)  # noqa: ARG005
    with pytest.raises(UsageError, match=r"extra 'ray'; install it: pip install ray$"):
        ray_actors.require_extra()
