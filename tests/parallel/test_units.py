"""One rank at a time: rank numbers, refused settings, commands, and values that rank 0 decides."""

from __future__ import annotations

import copy
import gc
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import run
from support.labs import Lab
from support.tiny_models import save_model
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from triforce_chat.cli.engines import require_one_process
from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward import runner
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.group import SINGLE, SingleRank
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.errors import DoesNotFit, ModelError, OutOfMemory, RankLost, UsageError
from triforce_chat.loading.planning import memory_plan
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.memory_plan import inputs
from triforce_chat.memory_plan.plan import Memory
from triforce_chat.models.describe import describe_source
from triforce_chat.models.registry import resolve
from triforce_chat.models.sharding import check_ranks, divided_sizes
from triforce_chat.parallel import rendezvous, worker
from triforce_chat.parallel.commands import Call, Command, Step
from triforce_chat.parallel.failure import describe_error, is_lost_peer
from triforce_chat.parallel.group import DistributedGroup, device_of
from triforce_chat.parallel.launcher import Launcher
from triforce_chat.parallel.rank_info import RankInfo, this_rank
from triforce_chat.parallel.rank_zero import RankZeroEngine, shut_down_on_error, with_seed
from triforce_chat.parallel.rendezvous import create_store, join_store
from triforce_chat.settings.settings import Settings

PROMPT = list(range(3, 40))
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN |= {"MASTER_ADDR": "node0", "MASTER_PORT": "1234"}


class Closed:
    """The inbox of a rank that is told to end."""

    def receive(self) -> Any:
        raise worker.Stopped


def test_a_rank_imports_without_garbage_collection() -> None:
    """Which takes a fifth of its start."""
    collecting: list[bool] = []
    worker.execute_commands(Closed(), RankInfo(1, 1, 2, 2), lambda: collecting.append(gc.isenabled()))  # type: ignore[arg-type,return-value]
    assert collecting == [False]
    assert gc.isenabled()


class FakeWorkers:
    """Records the commands that it is to send."""

    def __init__(self, lost: RankLost | None = None) -> None:
        self.commands: list[Command] = []
        self.closed, self.lost = False, lost

    def send(self, command: Command) -> None:
        self.commands.append(command)

    def shut_down(self) -> None:
        self.closed = True

    def loss(self) -> RankLost | None:
        return self.lost


class Follower(SingleRank):
    """Rank 1 of two; rank 0 always decides for ``token``, one at a time, and plans no drafts."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.asked: set[str] = set()

    def broadcast_tokens(self, own: Tensor) -> Tensor:
        self.asked.add("broadcast_tokens")
        return torch.full_like(own, self.token)

    def broadcast_ints(self, own: tuple[int, ...]) -> tuple[int, ...]:
        self.asked.add("broadcast_ints")
        return (0,) * len(own)

    def broadcast(self, own: Tensor) -> Tensor:
        """A verdict that accepts nothing, from distributions that were not cut short."""
        self.asked.add("broadcast")
        packed = torch.full_like(own, self.token)
        packed[:, 0], packed[:, -2], packed[:, -1] = 1, own[:, -2], 1
        return packed


def follower(lab: Lab, group: SingleRank, name: str) -> Engine:
    engine = lab.engine(name)
    engine.group = group
    engine.restack(engine.options)
    return engine


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("triforce", {"broadcast_tokens", "broadcast"}),
        ("auto", {"broadcast_ints", "broadcast"}),
        ("retrieval", {"broadcast"}),
        ("lookup", {"broadcast"}),
        ("autoregressive", {"broadcast"}),
    ],
)
def test_a_rank_generates_the_tokens_of_rank_0(lab: Lab, name: str, asked: set[str]) -> None:
    group = Follower(7)
    engine = follower(lab, group, name)
    assert tokens_of(engine, Request(PROMPT, 9)) == [7] * 9
    assert group.asked == asked


def test_a_rank_drafts_the_tokens_of_rank_0(lab: Lab) -> None:
    engine = follower(lab, Follower(7), "naive")
    drafter = engine.top.planner.arms[0].drafter
    drafted = drafter.propose(TokenBuffer.of(PROMPT, 64, engine.target.device), 3, Sampler(Sampling()))
    assert drafted.tokens.tolist() == [[7, 7, 7]]


def test_a_call_and_its_steps_reach_all_ranks(lab: Lab) -> None:
    workers: Any = FakeWorkers()
    request = Request(PROMPT, 4, Sampling(seed=1))
    events = list(RankZeroEngine(lab.engine("lookup"), workers).answer(request))
    assert workers.commands == [Call("answer", (request, False)), *[Step.NEXT] * len(events)]


def test_a_generator_is_closed_on_all_ranks(lab: Lab) -> None:
    workers: Any = FakeWorkers()
    engine = lab.engine("lookup")
    answer: Any = RankZeroEngine(engine, workers).answer(Request(PROMPT, 40))
    for _ in range(4):
        next(answer)
    answer.close()
    assert workers.commands[1:] == [Step.NEXT, Step.NEXT, Step.NEXT, Step.CLOSE]
    assert engine.cached[: len(PROMPT)] == PROMPT
    assert not workers.closed


def test_the_return_value_of_a_generator_is_passed_on(lab: Lab) -> None:
    workers: Any = FakeWorkers()
    rank_zero = RankZeroEngine(lab.engine("lookup"), workers)
    made = tokens_of(rank_zero, Request(PROMPT, 4))
    attended = rank_zero.attribute(Request(PROMPT, 4), made)

    def returned() -> Iterator[Any]:
        weights.extend((yield from attended))

    weights: list[float] = []
    list(returned())
    assert len(weights) == len(PROMPT)


def test_other_calls_reach_all_ranks_unless_they_are_refused(lab: Lab) -> None:
    workers: Any = FakeWorkers()
    rank_zero = RankZeroEngine(lab.engine("lookup", draft=False), workers)
    options = rank_zero.options
    rank_zero.restack(options)
    rank_zero.settle([0])
    assert workers.commands == [Call("restack", (options,)), Call("settle", ([0],))]
    with pytest.raises(UsageError, match="naive"):
        rank_zero.restack(type(options)("naive"))
    assert len(workers.commands) == 2


def test_all_ranks_get_the_same_seed(lab: Lab) -> None:
    workers: Any = FakeWorkers()
    rank_zero = RankZeroEngine(lab.engine("lookup"), workers)
    for _ in range(2):
        list(rank_zero.answer(Request(PROMPT, 4, Sampling(temperature=1.0))))
    seeds = {command.arguments[0].sampling.seed for command in workers.commands if isinstance(command, Call)}
    assert len(seeds) == 2
    assert None not in seeds


def test_other_ranks_are_called_before_they_are_needed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks build a stack together: among other things they agree on the free memory."""
    workers: Any = FakeWorkers()
    rank_zero, sent = RankZeroEngine(lab.engine("lookup"), workers), []
    monkeypatch.setattr(rank_zero.engine, "restack", lambda _: sent.extend(workers.commands))
    rank_zero.restack(rank_zero.options)
    assert sent == [Call("restack", (rank_zero.options,))]


class SmallerRank(SingleRank):
    """Another rank has at most ``has``."""

    def __init__(self, has: int) -> None:
        self.has = has

    def all_reduce_min(self, own: int) -> int:
        return min(own, self.has)


def test_all_ranks_plan_with_the_smallest_memory_of_any() -> None:
    assert inputs.smallest_memory(Memory(9, None), SmallerRank(7)) == Memory(7, 7)
    assert inputs.smallest_memory(Memory(9, None), SmallerRank(1 << 62)) == Memory(9, None)


def test_blocks_are_fused_on_all_ranks_or_none(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(runner, "fusible", lambda _: True)
    for has, fused in ((1, True), (0, False)):
        made = Runner(copy.deepcopy(lab.stock), group=SmallerRank(has))
        assert bool(made.decoder) == fused


def test_eight_bits_need_room_on_all_ranks(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(runner, "fusible", lambda _: True)
    monkeypatch.setattr(runner, "allowed_bytes", lambda _: 80 << 30)
    for has, room in ((80 << 30, True), (1 << 30, False)):
        made = Runner(copy.deepcopy(lab.stock), group=SmallerRank(has))
        made.device, made.shape = torch.device("cuda"), replace(made.shape, dtype=torch.bfloat16)
        assert made.room_for_int8 == room


def test_graphs_are_discarded_before_the_group_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    happened: list[str] = []

    class Graphs:
        def forget(self) -> None:
            happened.append("discarded")

    graphs = Graphs()
    group = DistributedGroup(RankInfo(0, 0, 1, 1), HashStore(), "cpu")
    group.register_graphs(graphs)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: happened.append("destroyed"))
    group.close()
    assert happened == ["discarded", "destroyed"]
    monkeypatch.undo()
    group.close()


def test_the_users_seed_is_kept() -> None:
    request = Request(PROMPT, 4, Sampling(temperature=1.0, seed=3))
    assert with_seed(request) is request


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x"), KeyboardInterrupt()])
def test_an_error_on_rank_zero_shuts_down_the_other_ranks(error: BaseException) -> None:
    workers: Any = FakeWorkers()
    with pytest.raises(type(error)), shut_down_on_error(workers):
        raise error
    assert workers.closed


def test_a_broken_connection_is_reported_by_its_cause() -> None:
    workers: Any = FakeWorkers(RankLost("rank 2: out of memory", OutOfMemory.exit_code))
    with pytest.raises(RankLost, match="rank 2"), shut_down_on_error(workers):
        raise RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:3")


@pytest.mark.parametrize(
    ("error", "words", "exit_code"),
    [
        (DoesNotFit("too long"), "too long", 4),
        (MemoryError(), "out of memory", 6),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory", 6),
        (KeyError("x"), "KeyError: 'x'", 8),
    ],
)
def test_errors_are_described_in_one_line(error: BaseException, words: str, exit_code: int) -> None:
    line, code = describe_error(error)
    assert line.startswith(words)
    assert code == exit_code


def test_only_a_broken_connection_is_a_lost_peer() -> None:
    assert is_lost_peer(RuntimeError("Connection reset by peer"))
    assert not is_lost_peer(RuntimeError("cache overflow"))
    assert is_lost_peer(ModelError("tiny cannot be loaded: Connection closed by peer"))
    assert not is_lost_peer(KeyboardInterrupt())


def test_rank_from_the_environment() -> None:
    assert this_rank(2, {}) == RankInfo(0, 0, 2, 2)
    assert this_rank(4, TORCHRUN) == RankInfo(3, 1, 4, 2, by_torchrun=True)
    alone = {**TORCHRUN, "WORLD_SIZE": "1"}  # as clusters set it for single-process programs
    assert this_rank(2, alone) == RankInfo(0, 0, 2, 2)
    with pytest.raises(UsageError, match="--tp 2, but 4 ranks were started"):
        this_rank(2, TORCHRUN)


def test_every_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of("cuda", RankInfo(3, 1, 4, 2)) == "cuda:1"
    assert device_of("cpu", RankInfo(3, 1, 4, 2)) == "cpu"
    with pytest.raises(UsageError, match="a GPU for each of 4 ranks; this machine has 2"):
        device_of("cuda", RankInfo(0, 0, 4, 4))
    with pytest.raises(UsageError, match="--device cuda, not cuda:1"):
        device_of("cuda:1", RankInfo(0, 0, 2, 2))


SMOLLM = {
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49_152,
}


def test_heads_that_do_not_divide_are_refused_with_the_numbers_that_do() -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(**SMOLLM)
    sizes = divided_sizes(config)
    check_ranks("default", config, 3, sizes)
    with pytest.raises(UsageError, match=r"--tp 2 .* default .*9 query heads, 3 KV heads.*choose --tp 3$"):
        check_ranks("default", config, 2, sizes)
    with pytest.raises(UsageError, match=r"choose --tp 2 or 4$"):
        check_ranks("other", config, 3, {"query heads": 8, "KV heads": 4})
    with pytest.raises(UsageError, match=r"leave out --tp$"):
        check_ranks("odd", config, 2, {"query heads": 7, "KV heads": 3})
    config.base_model_tp_plan = None
    with pytest.raises(UsageError, match="no plan to split 'llama'"):
        check_ranks("planless", config, 3, sizes)


def test_a_refusal_comes_before_any_rank_loads(tmp_path: Path) -> None:
    save_model(tmp_path / "odd", num_attention_heads=3, num_key_value_heads=3, hidden_size=24, head_dim=8)
    (tmp_path / "odd" / "model.safetensors").write_bytes(b"no weights")
    workers: Any = FakeWorkers()
    settings = Settings(str(tmp_path / "odd"), device="cpu", tp=2)
    with pytest.raises(UsageError, match="3 KV heads"):
        Launcher(RankInfo(0, 0, 2, 2), workers, None).load(EngineSpec(settings))  # type: ignore[arg-type]
    assert workers.closed
    assert not workers.commands


def test_ranks_on_one_cpu_share_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "free_bytes", lambda _: 6 * 10**9)
    settings = Settings(model=str(save_model(tmp_path / "model")), device="cpu")
    three = SingleRank()
    three.size, three.sharing = 2, 3
    model = describe_source(resolve(settings.model))
    whole = memory_plan(EngineSpec(settings), model, None, 128, SINGLE)
    shared = memory_plan(EngineSpec(settings), model, None, 128, three)
    assert shared.workload.layer_kv * 2 == whole.workload.layer_kv
    assert (whole.memory.device, shared.memory.device) == (6 * 10**9, 2 * 10**9)


@pytest.mark.parametrize("method", ["restack", "settle"])
def test_an_interrupt_between_the_ranks_ends_all(
    lab: Lab, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one rank would wait forever for the others."""
    workers, engine = FakeWorkers(), lab.engine("triforce")
    rank_zero = RankZeroEngine(engine, workers)  # type: ignore[arg-type]

    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        workers if method == "restack" else engine, "send" if method == "restack" else method, broken
    )
    with pytest.raises(KeyboardInterrupt):
        getattr(rank_zero, method)(engine.options if method == "restack" else [0])
    assert workers.closed


def test_commands_for_one_process_refuse_tp() -> None:
    require_one_process(Settings())
    with pytest.raises(UsageError, match="runs in one process"):
        require_one_process(Settings(tp=2))


def test_the_store_is_not_reachable_from_the_network() -> None:
    store = create_store(2)
    store.set("here", "yes")
    assert join_store(store.port, 2).get("here") == b"yes"
    with pytest.raises(OSError, match=r"refused|unreachable|assign"):  # another address of this machine
        socket.create_connection(("127.0.0.2", store.port), timeout=5).close()


def test_a_split_that_cannot_be_is_refused_before_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "connect_workers", lambda _: pytest.fail("started"))
    model = save_model(tmp_path / "model")
    (tmp_path / "book.txt").write_text("some words")
    done = run("ask", "--model", model, "--device", "cpu", "--tp", 999, tmp_path / "book.txt", "Why?")
    done.is_refusal(2, "--tp 999 does not divide what")
