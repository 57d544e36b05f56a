"""What the host reads from the device while it drafts and verifies: each read waits for all that was queued."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.no_sync import no_waits
from support.toys import ToyCache
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from triforce_chat.engine.speculation.level import Autoregressive, Speculative
from triforce_chat.engine.speculation.step_times import StepTimes, clock_of

from triforce_chat.engine.sampling.sampler import NUCLEUS_GUESS, Sampler, Sampling
from triforce_chat.engine.speculation.lookup import NgramLookup, NoLookup
from triforce_chat.engine.speculation.planner import Arm, Planner

READS = ("_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "masked_select", "is_nonzero", "equal")
COPIES = ("tolist", "numpy", "cpu")
WARPS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=0.8, seed=1),
    "top-p": Sampling(temperature=0.8, top_p=0.9, seed=1),
    "everything": Sampling(0.7, top_k=30, top_p=0.9, min_p=0.05, repetition_penalty=1.2, seed=1),
    "greedy penalty": Sampling(repetition_penalty=1.2),
}


class Reads(TorchDispatchMode):
    """Counts operators whose result the host must wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = Copies()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in READS or masked:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Reads:
        self.copies.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.copies.__exit__(*error)

    @property
    def count(self) -> int:
        return len(self.seen) + len(self.copies.seen)


class Copies(TorchFunctionMode):
    """Counts methods that hand a tensor to the host without an operator."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in COPIES:
            self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Blind:
    """A model that never looks at its tokens; ``tilt`` sets its law apart from others'."""

    vocabulary = 2 * NUCLEUS_GUESS

    def __init__(self, tilt: float = 0.0, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.row = torch.arange(self.vocabulary, device=device).remainder(7 + tilt)

    def __call__(self, ids: Tensor, cache: ToyCache, rows: int) -> Tensor:
        cache.fed = [0] * len(ids)
        cache.advance(len(ids))
        return self.row.expand(rows, -1)


def test_reads_are_counted() -> None:
    """Whatever the tests below forbid is seen here."""
    x = torch.tensor([0.0, 1.0])
    for read in (
        lambda: int(x[0]),
        lambda: bool(x.any()),
        lambda: x[x[1].long()],
        x.tolist,
        x.nonzero,
        x.unique,
        lambda: x[x > 0],
        x.numpy,
    ):
        with Reads() as reads:
            read()
        assert reads.count >= 1


@pytest.mark.parametrize("warp", WARPS)
def test_drafting_reads_nothing(warp: str) -> None:
    level, sampler = Autoregressive(Blind(), ToyCache()), Sampler(WARPS[warp], 2)
    with Reads() as reads:
        made = level.propose(torch.tensor([3, 4, 3, 5]), 5, sampler)
    assert (reads.count, len(made)) == (0, 5)


@pytest.mark.parametrize("tilt", [0, 1, 5], ids=["the same", "alike", "different"])
@pytest.mark.parametrize("warp", WARPS)
def test_a_round_reads_once(warp: str, tilt: int) -> None:
    drafter = Autoregressive(Blind(tilt), ToyCache())
    level = Speculative("x", Blind(), ToyCache(), drafter, 4, lambda _: None)
    tokens, sampler = torch.tensor([3, 4, 3, 5]), Sampler(WARPS[warp], 2)
    for _ in range(4):
        with Reads() as reads:
            made = level.step(tokens, sampler, 4)
        assert reads.count == 1
        tokens = torch.cat([tokens, made.tokens])


def test_a_planner_reads_no_more() -> None:
    """In a planned round over a planned middle: once for each verification, none to choose."""
    rounds = 0

    def count(_: object) -> None:
        nonlocal rounds
        rounds += 1

    below = Planner(StepTimes(), NoLookup(Blind.vocabulary), [Arm(Autoregressive(Blind(), ToyCache()))])
    middle = Speculative("middle", Blind(1), ToyCache(), below, 8, count)
    planner = Planner(StepTimes(), NoLookup(Blind.vocabulary), [Arm(middle)])
    top = Speculative("top", Blind(), ToyCache(), planner, 16, count)
    tokens, sampler = torch.tensor([3, 4, 3, 5]), Sampler(WARPS["top-p"])
    with Reads() as reads:
        for _ in range(20):
            tokens = torch.cat([tokens, top.step(tokens, sampler, 16).tokens])
    assert reads.count == rounds > 20


def test_lookup_reads_nothing_that_a_verdict_has_told() -> None:
    """Above and below the middle level, whose own verdicts are told as well."""
    rounds = []
    below = Planner(StepTimes(), NgramLookup(Blind.vocabulary), [Arm(Autoregressive(Blind(), ToyCache()))])
    middle = Speculative("middle", Blind(1), ToyCache(), below, 8, rounds.append)
    planner = Planner(StepTimes(), NgramLookup(Blind.vocabulary), [Arm(middle)])
    top = Speculative("top", Blind(), ToyCache(), planner, 16, rounds.append)
    tokens, sampler = torch.tensor([3, 4, 3, 5]), Sampler(WARPS["top-p"])
    while {event.level for event in rounds} != {
        "top",
        "middle",
    }:  # both have looked around for the first time
        tokens = torch.cat([tokens, top.step(tokens, sampler, 16).tokens])
    rounds.clear()
    with Reads() as reads:
        for _ in range(30):
            tokens = torch.cat([tokens, top.step(tokens, sampler, 16).tokens])
    assert reads.count == len(rounds) > 30


def test_lookup_reads_what_is_new_once() -> None:
    lookup, tokens = NgramLookup(9), torch.tensor([1, 2, 3, 1, 2])
    for _ in range(3):
        with Reads() as reads:
            lookup.propose(tokens, 4, Sampler(Sampling()))
        assert reads.count <= 2  # a copy, and its view as an array
        tokens = torch.cat([tokens, torch.tensor([3, 1])])


@pytest.mark.gpu
@pytest.mark.parametrize("warp", WARPS)
def test_drafting_on_a_gpu_waits_for_nothing(warp: str) -> None:
    """The driver's own word for it, which knows of waits that no operator is named after."""
    level, sampler = Autoregressive(Blind(device="cuda"), ToyCache()), Sampler(WARPS[warp], 2)
    tokens = torch.tensor([3, 4, 3, 5], device="cuda")
    level.propose(tokens, 2, sampler)  # whatever is set up once
    level.rollback(0)
    with no_waits():
        made = level.propose(tokens, 5, sampler)
    assert len(made) == 5


@pytest.mark.gpu
def test_a_queue_is_timed_without_waiting() -> None:
    clock, work = clock_of(torch.device("cuda")), torch.ones(4096, 4096, device="cuda")
    work @ work
    torch.cuda.synchronize()
    began, first = clock.now(), clock.mark()
    for _ in range(50):
        work @ work
    last, queued = clock.mark(), clock.now() - began
    torch.cuda.synchronize()
    assert queued < clock.between(first, last) <= clock.now() - began
