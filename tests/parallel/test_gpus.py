"""Two GPUs over NCCL against one: the same tokens with every stack, on chip and streamed; and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.places import SUPPORT
from support.tiny_models import mute_special_tokens, save_model

from triforce_chat.settings.settings import STACKS

PROBE = SUPPORT / "rank_probe.py"
PATIENCE = 300  # seconds until something that should succeed has failed
SOON = 5.0  # seconds in which a lost rank must end all
LOST = 8  # exit code
SIZES: dict[str, Any] = {"max_position_embeddings": 65_536, "vocab_size": 100, "initializer_range": 0.3}
SIZES |= {"head_dim": 16}  # the smallest that is fused
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="one GPU only"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gpus")
    torch.manual_seed(3)
    save_model(made / "llama", **SIZES)
    save_model(made / "draft", **SIZES)
    return made


def probed(models: Path, folder: Path, **more: str) -> dict[str, Any]:
    """The results of one process and of two ranks, each on a GPU of its own."""
    folder.mkdir()
    command = [sys.executable, str(PROBE), "2", str(folder), str(models / "llama"), str(models / "llama.big")]
    environ = {**os.environ, "PROBE_DEVICE": "cuda", **more}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    states = [(folder / f"{rank}.jsonl").read_text() for rank in range(2)]
    assert states[0] == states[1]
    return found


@pytest.fixture(scope="module", params=["device", "host"])
def found(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    more = {"PROBE_OFFLOAD": "1"} if request.param == "host" else {}
    return probed(models, tmp_path_factory.mktemp("probed") / request.param, **more)


@pytest.mark.parametrize("model", ["llama", "llama.big"])
def test_greedy_tokens_are_those_of_one_gpu(found: dict[str, Any], model: str) -> None:
    plain = found[model]["alone"]["plain"]
    assert len(set(plain)) > 3  # it does not repeat one token
    assert found[model]["shared"]["plain"] == plain


def test_every_stack_says_what_one_gpu_says(found: dict[str, Any]) -> None:
    assert found["llama"]["stacks"] == dict.fromkeys(STACKS, found["llama"]["alone"]["plain"])


def test_scores_are_those_of_one_gpu(found: dict[str, Any]) -> None:
    alone, shared = (torch.tensor(found["llama"][who]["scores"]) for who in ("alone", "shared"))
    assert (shared - alone).abs().max() <= 1e-4 * alone.abs().max()


def test_forwards_over_resident_caches_are_captured(
    found: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("triton")
    resident = request.node.callspec.params["found"] == "device"
    assert bool(found["llama"]["captured"]) == resident
    assert bool(found["llama.big"]["captured"]) == resident


@pytest.mark.parametrize("model", ["llama", "llama.big"])
def test_logits_are_those_of_one_gpu(found: dict[str, Any], model: str) -> None:
    """Fused blocks match; in 8 bits each rank has its own scales, and the errors are about as large."""
    pytest.importorskip("triton")
    alone, shared = (
        {name: torch.tensor(rows) for name, rows in each.items()} for each in found[model]["logits"]
    )
    exact = alone["dense"]
    assert (shared["dense"] - exact).abs().max() <= 1e-4 * exact.abs().max()
    off = [(each["int8"] - exact).norm() / exact.norm() for each in (alone, shared)]
    assert 0 < off[1] < 1.2 * off[0] < 0.1


def test_a_middle_in_8_bits_changes_no_answer(found: dict[str, Any]) -> None:
    assert found["llama"]["int8"] == found["llama"]["alone"]["plain"]


def test_sampling_with_a_seed_gives_the_same_tokens(found: dict[str, Any]) -> None:
    assert found["llama"]["shared"]["seeded"] == found["llama"]["alone"]["seeded"]


def test_after_an_interrupt_the_next_question_is_answered_alike(found: dict[str, Any]) -> None:
    alone, shared = found["llama"]["interrupts"]
    assert shared[1::2] == alone[1::2]


def test_each_gpu_has_its_part_of_the_heads(found: dict[str, Any]) -> None:
    assert found["llama"]["heads"] == [2, 1]


def asked(models: Path, home: Path, tokens: int) -> subprocess.Popen[str]:
    """Start an answer on two GPUs of at most ``tokens`` tokens."""
    flags = ("--model", "llama", "--draft", "none", "--device", "cuda", "--tp", "2", "--jsonl", "--no-cache")
    command = [sys.executable, "-m", "triforce_chat", "ask", "Why?", *flags, "--max-tokens", str(tokens)]
    environ = {**os.environ, "XDG_STATE_HOME": str(home)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=models, env=environ, stdout=pipe, stderr=pipe, text=True)


def test_graphs_with_collectives_do_not_keep_a_process_alive(models: Path, tmp_path: Path) -> None:
    """NCCL does not shut down while a graph holds one of its calls."""
    process = asked(models, tmp_path, 20)
    try:
        assert process.stdout is not None
        while '"finished"' not in process.stdout.readline():
            assert process.poll() is None, process.communicate()
        finished = time.monotonic()
        _, stderr = process.communicate(timeout=PATIENCE)
        assert time.monotonic() - finished < SOON
        assert process.returncode == 0, stderr
    finally:
        process.kill()


@pytest.fixture
def endless(models: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A long answer on two GPUs; a remaining process is killed."""
    mute_special_tokens(models / "llama")
    process = asked(models, tmp_path, 60_000)
    yield process
    process.kill()
    process.communicate()


def until_it_speaks(process: subprocess.Popen[str]) -> int:
    """Wait for the middle of an answer; returns the other rank."""
    assert process.stdout is not None
    while '"text"' not in process.stdout.readline():
        assert process.poll() is None, process.communicate()
    (worker,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(worker)


def alive(pid: int) -> bool:
    """True if the process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_lost_gpu_ends_all(endless: subprocess.Popen[str]) -> None:
    """Even though the other GPU waits for it in a collective."""
    os.kill(until_it_speaks(endless), signal.SIGKILL)
    killed = time.monotonic()
    _, stderr = endless.communicate(timeout=PATIENCE)
    assert time.monotonic() - killed < SOON
    assert "error: rank 1 of --tp ended without an error message; all ranks have ended" in stderr
    assert endless.returncode == LOST


def test_no_rank_outlives_rank_0(endless: subprocess.Popen[str]) -> None:
    worker = until_it_speaks(endless)
    endless.kill()
    end = time.monotonic() + SOON
    while alive(worker):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ctrl_c_ends_all(endless: subprocess.Popen[str]) -> None:
    worker = until_it_speaks(endless)
    endless.send_signal(signal.SIGINT)
    endless.communicate(timeout=PATIENCE)
    assert endless.returncode == 130
    assert not alive(worker)
