"""Which model auto chooses on which machine, and what answers where that one cannot be had."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

import pytest
import torch

from triforce_chat.errors import ModelError, UsageError
from triforce_chat.loading import choose_model
from triforce_chat.loading.choose_model import BEST, MIDDLE, SMALL, Computer, choose, obtain
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.plan import Memory
from triforce_chat.models.describe import Description, describe
from triforce_chat.models.packed import QWEN_CODER_0_5B, QWEN_CODER_1_5B
from triforce_chat.models.stored_format import StoredWeights
from triforce_chat.settings.paths import failed_download_mark
from triforce_chat.settings.settings import AUTO, Settings

GB = 10**9


def cpu(memory: int | None = 64 * GB, best_ms: float = 100.0) -> Computer:
    """A CPU that decodes with the best model in that time, and with others in proportion to their weights."""
    whole = Dimensions.of(describe(BEST).fields).parameters()
    return Computer(
        (torch.device("cpu"), torch.float32, Memory(memory, memory, is_host=True)),
        None,
        lambda model: best_ms * Dimensions.of(model.fields).parameters() / whole,
    )


def gpu(whole: int, free: int | None = None) -> Computer:
    def step(_model: Description) -> float:
        pytest.fail("a GPU's speed does not matter")

    memory = Memory(whole if free is None else free, 64 * GB)
    return Computer((torch.device("cuda"), torch.bfloat16, memory), whole, step)


@pytest.mark.parametrize(
    ("computer", "model"),
    [
        (gpu(80 * GB), BEST),
        (gpu(8 * GB), BEST),
        (gpu(8 * GB - 1), MIDDLE),
        (gpu(4 * GB), MIDDLE),
        (gpu(1 * GB), SMALL),
        (gpu(80 * GB, free=3 * GB), MIDDLE),  # another program holds the rest
        (gpu(80 * GB, free=1 * GB), SMALL),
        (cpu(), BEST),
        (cpu(None), BEST),  # a system that does not tell
        (cpu(best_ms=149.9), BEST),
        (cpu(best_ms=150), MIDDLE),
        (cpu(best_ms=10_000), MIDDLE),
        (cpu(3 * GB), BEST),
        (cpu(2 * GB), MIDDLE),
        (cpu(1 * GB), SMALL),
    ],
)
def test_the_best_model_that_the_machine_holds_and_decodes_quickly(computer: Computer, model: str) -> None:
    assert choose(Settings(), computer).model == model


@pytest.mark.parametrize(("memory", "model"), [(12, BEST), (7, MIDDLE), (3, SMALL)])
def test_expanded_weights_need_more_memory(memory: int, model: str) -> None:
    assert choose(Settings(dtype="float32"), cpu(memory * GB)).model == model


def test_the_step_is_that_of_the_weights_as_they_would_be_used() -> None:
    seen: list[StoredWeights | None] = []

    def step(model: Description) -> float:
        seen.append(model.stored)
        return 1000.0

    machine = torch.device("cpu"), torch.float32, Memory(64 * GB, 64 * GB, is_host=True)
    for dtype in (AUTO, "float32"):
        choose(Settings(dtype=dtype), Computer(machine, None, step))
    *kept, best, middle = seen
    assert (best, middle) == (None, None)
    for stored, packed in zip(kept, (QWEN_CODER_1_5B, QWEN_CODER_0_5B), strict=True):
        assert stored is not None
        assert (
            packed.stored.step_bytes < stored.step_bytes < 1.06 * packed.stored.step_bytes
        )  # with an adapter


def test_what_a_better_model_would_cost() -> None:
    assert choose(Settings(), cpu()).advice is None
    assert choose(Settings(), gpu(80 * GB)).advice is None
    assert (
        choose(Settings(), cpu(best_ms=412)).advice
        == f"--model {BEST} answers better and takes about 410 ms a token here instead of 150"
    )
    assert choose(Settings(), gpu(6 * GB)).advice == (
        f"--model {BEST} answers better; it is meant for GPUs of 8.0 GB or more"
    )
    short = choose(Settings(), cpu(1 * GB)).advice or ""
    assert short.startswith(f"{MIDDLE} answers better, but with 16,384 tokens it takes ")
    assert short.endswith(" of memory; 1.0 GB are free")


def test_the_context_that_is_wanted_counts() -> None:
    assert choose(Settings(context=4096), cpu(1 * GB)).model == MIDDLE
    assert choose(Settings(context=131_072), cpu(2 * GB)).model == SMALL
    told = choose(Settings(context=1_000_000), cpu())
    assert told.model == SMALL
    assert "made for 131,072 tokens at most" in (told.advice or "")


def test_processes_share_a_model_that_they_can_divide() -> None:
    assert choose(Settings(tp=2), gpu(80 * GB)).model == BEST  # 12 heads on 2 KV heads
    assert choose(Settings(tp=3), gpu(80 * GB)).model == SMALL  # 9 heads on 3 KV heads
    assert "3 processes cannot share it" in (choose(Settings(tp=3), gpu(80 * GB)).advice or "")


def test_smaller_ones_follow() -> None:
    assert [*choose(Settings(), cpu()).models] == [BEST, MIDDLE, SMALL]
    assert [*choose(Settings(), cpu(best_ms=400)).models] == [MIDDLE, SMALL]
    assert [*choose(Settings(), cpu(1 * GB)).models] == [SMALL]


class Source:
    """Where models are fetched from: some of them cannot be had."""

    def __init__(self, broken: Collection[str]) -> None:
        self.broken, self.asked = broken, list[str]()

    def __call__(self, name: str) -> None:
        self.asked.append(name)
        if name in self.broken:
            raise ModelError(f"no network for {name}")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models on this machine."""
    names: list[str] = []
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path))
    monkeypatch.setattr(choose_model, "is_missing", lambda name: name not in names)
    return names


@pytest.mark.usefixtures("here")
def test_the_first_that_can_be_had() -> None:
    models = (BEST, MIDDLE, SMALL)
    assert obtain(models, Source(())) == (BEST, None)
    assert obtain(models, Source((BEST,))) == (
        MIDDLE,
        f"{MIDDLE} answers, because {BEST} cannot be had now: no network for {BEST}",
    )
    name, line = obtain(models, Source((BEST, MIDDLE)))
    assert (name, line) == (
        SMALL,
        f"{SMALL} answers, because {BEST} cannot be had now: no network for {BEST}",
    )
    with pytest.raises(ModelError, match=f"no network for {BEST}"):
        obtain(models, Source(models))
    with pytest.raises(ModelError, match=f"no network for {SMALL}"):
        obtain((SMALL,), Source(models))


def test_what_is_here_comes_before_another_download(here: list[str]) -> None:
    here.append(SMALL)
    source = Source((BEST, MIDDLE))
    assert obtain((BEST, MIDDLE, SMALL), source)[0] == SMALL
    assert source.asked == [BEST, SMALL]


def test_a_start_without_a_network_waits_once_an_hour(here: list[str]) -> None:
    here.append(SMALL)
    models, unreachable = (BEST, MIDDLE, SMALL), Source((BEST, MIDDLE))
    first, second = (obtain(models, unreachable) for _ in range(2))
    assert first[0] == second[0] == SMALL
    assert unreachable.asked == [BEST, SMALL, SMALL]
    assert second[1] is not None
    assert f"'triforce-chat models pull {BEST}' tries again now" in second[1]
    mark = failed_download_mark()
    os.utime(mark, (time.time() - 3601,) * 2)
    assert obtain(models, Source(()))[0] == BEST
    mark.touch()
    here.remove(SMALL)
    assert obtain(models, Source(()))[0] == BEST  # nothing else could answer


def test_other_errors_are_not_hidden() -> None:
    def fetch(_name: str) -> None:
        raise UsageError("wrong")

    with pytest.raises(UsageError):
        obtain((BEST, SMALL), fetch)


def test_this_computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the measured bandwidth decides."""
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path))
    settings = Settings(device="cpu")
    monkeypatch.setattr(choose_model, "available_memory", lambda *_: Memory(64 * GB, 64 * GB, is_host=True))
    for rate, model in ((1e11, BEST), (2e10, MIDDLE)):
        monkeypatch.setattr("triforce_chat.loading.cpu_speed.bandwidth", lambda _, rate=rate: rate)
        assert choose(settings, choose_model.this_computer(settings)).model == model
