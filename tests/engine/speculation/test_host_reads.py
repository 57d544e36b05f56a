"""A round reads one message from the device, and drafting none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.emulated_graphs import emulate
from support.host_reads import WARPS, Blind, Reads
from support.no_sync import no_waits
from support.toys import CPU, ToyCache, nothing

from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.host_copy import HostCopy
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.cost_model import clock_of
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative


def level(name: str, tilt: float, *drafters: Any, most: int = 4, emit: Any = nothing) -> Any:
    planner = Planner([Arm(each) for each in drafters], most=most)
    return Speculative(name, Blind(tilt), ToyCache(), planner, emit)  # type: ignore[arg-type]


def fixed(tilt: float, drafter: Any, gamma: int) -> Any:
    planner = Planner([Arm(drafter)], gamma=gamma, plain=False)
    return Speculative("x", Blind(tilt), ToyCache(), planner, nothing)  # type: ignore[arg-type]


def history(device: str = "cpu") -> TokenBuffer:
    return TokenBuffer.of([3, 4, 3, 5], 600, torch.device(device))


def draft(tilt: float = 0.0, device: str = "cpu") -> Any:
    return DraftModel(Blind(tilt, device), ToyCache())  # type: ignore[arg-type]


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
    seq, drafter = history(), draft()
    with Reads() as reads:
        made = drafter.propose(seq, 5, Sampler(WARPS[warp], 2))
    assert (reads.count, len(made)) == (0, 5)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("tilt", [0, 1, 5], ids=["equal", "alike", "different"])
@pytest.mark.parametrize("warp", WARPS)
def test_a_round_reads_once(warp: str, tilt: int, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if graphs:
        emulate(monkeypatch)
    one, seq = fixed(0, draft(tilt), 4), history()
    sampler = Sampler(WARPS[warp], 2, executor=GraphExecutor() if graphs else None)
    for _ in range(4):
        known = seq.known
        with Reads() as reads:
            made = one.step(seq, sampler, 4)[1].ids
        assert reads.count == 1
        assert seq.ids[0, known : seq.known].tolist() == made
        assert int(seq.length) == seq.known


def test_a_planner_reads_no_more() -> None:
    """In a planned round over a planned middle: once for each verification, none to choose."""
    rounds: list[Any] = []
    middle = level("middle", 1, draft(), most=8, emit=rounds.append)
    top, seq = level("top", 0, middle, most=16, emit=rounds.append), history()
    sampler = Sampler(WARPS["top-p"])
    with Reads() as reads:
        for _ in range(20):
            top.step(seq, sampler, 16)
    assert reads.count == len(rounds) > 20


@pytest.mark.parametrize("warp", WARPS)
def test_the_next_forward_is_launched_before_a_token_is_read(
    warp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triforce_chat.engine.speculation import speculative

    happened: list[str] = []

    class Told(Blind):
        def __call__(self, *given: Any) -> Any:
            happened.append("forward")
            return super().__call__(*given)

    class Read(HostCopy):
        def read(self) -> Any:
            happened.append("read")
            return super().read()

    monkeypatch.setattr(speculative, "HostCopy", Read)
    cache: Any = ToyCache()
    top = Speculative("x", Told(), cache, Planner(), nothing, overlap=True)  # type: ignore[arg-type]
    seq = TokenBuffer.of([3, 4], 300, CPU)
    with Reads() as reads:
        made = list(top.decode(seq, Sampler(WARPS[warp], 2), 5))
    assert happened == ["forward", *["forward", "read"] * 4, "read"]
    assert reads.count == len(made) == 5
    assert cache.length == 2 + 5 - 1  # nothing is fed behind the last token
    assert seq.ids[0, 2 : seq.known].tolist() == [token for ids in made for token in ids]


@pytest.mark.gpu
@pytest.mark.parametrize("warp", WARPS)
def test_drafting_on_a_gpu_waits_for_nothing(warp: str) -> None:
    """The driver's own word for it, which knows of waits that no operator is named after."""
    drafter, sampler = draft(device="cuda"), Sampler(WARPS[warp], 2)
    seq = history("cuda")
    drafter.propose(seq, 2, sampler)  # whatever is set up once
    drafter.rollback(0)
    with no_waits():
        made = drafter.propose(seq, 5, sampler)
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
