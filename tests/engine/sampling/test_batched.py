"""Verifications of several sequences as one: each gets the tokens and distributions that it gets alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from support.emulated_graphs import emulate

from triforce_chat.engine.draft import Draft, one_hot
from triforce_chat.engine.gathered import Ended, Gathered
from triforce_chat.engine.sampling.batched import BatchedExecutor
from triforce_chat.engine.sampling.executor import (
    EagerExecutor,
    Executor,
    GraphExecutor,
    SamplerInputs,
    SamplerOutput,
    Verification,
)
from triforce_chat.engine.sampling.ops import PenaltyContext, Uniforms
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.tree import Parents

WIDTH = 40
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SAMPLINGS = [
    Sampling(),
    Sampling(0.8, top_p=0.9, repetition_penalty=1.3),
    Sampling(1.1, top_k=12, min_p=0.01),
]
Case = tuple[Verification, SamplerInputs, int]  # and the seed


def inputs_of(seed: int, n: int, op: Verification, device: str, counted: bool = False) -> SamplerInputs:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(1, n, WIDTH, generator=generator).softmax(-1).to(device)
    tokens = torch.randint(WIDTH, (1, n), generator=generator).to(device)
    count = torch.tensor([max(0, n - 1)], device=device) if counted else None
    logits = (3 * torch.randn(1, n + 1, WIDTH, generator=generator)).to(device)
    penalty = None
    if op.sampling.repetition_penalty != 1:
        answer = torch.randint(WIDTH, (1, 7 + 5 * seed), generator=generator).to(device)
        penalty = PenaltyContext(answer, torch.tensor([6 + 4 * seed], device=device))
    forced = torch.randint(-1, WIDTH, (1, n + 1), generator=generator).to(device) if op.forced else None
    return SamplerInputs(logits, Draft(tokens, probs, count), penalty, forced)


def drawn(seed: int, device: str) -> Callable[[Uniforms], None]:
    generator = torch.Generator(device).manual_seed(seed)

    def fill(uniforms: Uniforms) -> None:
        for out in uniforms:
            torch.rand(out.shape, generator=generator, dtype=out.dtype, device=out.device, out=out)

    return fill


def executor_of(graphs: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> Executor:
    """One that runs eagerly, or in CUDA graphs, which are emulated on a CPU."""
    if graphs and device == "cpu":
        emulate(monkeypatch)
    return GraphExecutor() if graphs else EagerExecutor()


def alone(executor: Executor, case: Case, device: str) -> SamplerOutput:
    op, inputs, seed = case
    made = executor.run(op, inputs, drawn(seed, device))
    rows = None if made.rows is None else made.rows.clone()
    return SamplerOutput(made.probs.clone(), made.packed.clone(), rows)


def together(executor: Executor, cases: list[Case], device: str) -> list[SamplerOutput]:
    gathered: Gathered[SamplerOutput] = Gathered()
    found: dict[int, SamplerOutput] = {}

    def work(case: Case):  # type: ignore[no-untyped-def]
        op, inputs, seed = case
        yield BatchedExecutor(executor, gathered).run(op, inputs, drawn(seed, device))

    for number, case in enumerate(cases):
        gathered.add(number, lambda case=case: work(case))  # type: ignore[misc]
    with closing(gathered):
        while gathered.members:
            for number, made in gathered.step():
                if isinstance(made, SamplerOutput):
                    found[number] = made
                else:
                    assert isinstance(made, Ended)
                    assert made.error is None
    return [found[number] for number in range(len(cases))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("forced", [False, True])
def test_each_gets_what_it_gets_alone(
    device: str, sampling: Sampling, graphs: bool, forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = Verification(sampling, WIDTH, forced)
    executor = executor_of(graphs, device, monkeypatch)
    lengths = [(3, False), (0, False), (5, True), (3, True), (0, False)]
    cases: list[Case] = [
        (op, inputs_of(seed, n, op, device, counted), seed) for seed, (n, counted) in enumerate(lengths)
    ]
    expected = [alone(executor, case, device) for case in cases]
    for want, got, (n, _) in zip(expected, together(executor, cases, device), lengths, strict=True):
        count = int(want.packed[0, 0])
        assert got.packed[0, : 1 + count].tolist() == want.packed[0, : 1 + count].tolist()
        assert got.packed[0, -2:].tolist() == want.packed[0, -2:].tolist()
        torch.testing.assert_close(got.probs[:, : n + 1], want.probs[:, : n + 1])


TREES: list[Parents] = [(-1, -1, 0, 0, 1), (-1,), (-1, 0, 1, 2, 3, 3, 0), (-1, -1, -1)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("forced", [False, True])
def test_trees_of_different_shapes_get_what_each_gets_alone(
    device: str, sampling: Sampling, graphs: bool, forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside chains, which are verified by themselves."""
    op = Verification(sampling, WIDTH, forced)
    executor = executor_of(graphs, device, monkeypatch)
    cases: list[Case] = [(op, inputs_of(9, 4, op, device), 9)]
    for seed, parents in enumerate([*TREES, *reversed(TREES)]):  # so that shapes change places
        inputs = inputs_of(seed, len(parents), op, device)
        if sampling.greedy:
            certain = one_hot(inputs.draft.tokens, WIDTH)
            inputs = inputs._replace(draft=replace(inputs.draft, probs=certain))
        cases.append((op, inputs._replace(draft=replace(inputs.draft, parents=parents)), seed))
    expected = [alone(executor, case, device) for case in cases]
    made = [*together(executor, cases[:5], device), *together(executor, cases[5:], device)]
    for want, got, (_, inputs, _) in zip(expected, made, cases, strict=True):
        count, n = int(want.packed[0, 0]), len(inputs.draft)
        assert got.packed[0, : 1 + count].tolist() == want.packed[0, : 1 + count].tolist()
        torch.testing.assert_close(got.probs[:, : n + 1], want.probs[:, : n + 1])
        if want.rows is None:
            assert got.rows is None
            continue
        assert got.rows is not None
        assert got.rows[0, :count].tolist() == want.rows[0, :count].tolist()
        m = (
            got.packed.shape[1] - got.rows.shape[1] - 2
        )  # the number of drafted tokens, and whether all is well
        assert got.packed[0, m : m + 2].tolist() == [n, 1]


def test_alike_ones_run_as_one_and_others_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[int, int]] = []
    run = EagerExecutor.run

    def counted(self: EagerExecutor, op: Verification, inputs: SamplerInputs, fill: object) -> SamplerOutput:
        runs.append(tuple(inputs.draft.tokens.shape))  # type: ignore[arg-type]
        return run(self, op, inputs, fill)  # type: ignore[arg-type]

    monkeypatch.setattr(EagerExecutor, "run", counted)
    warm, hot = (Verification(Sampling(temperature), WIDTH) for temperature in (0.5, 0.9))
    wanted = [(warm, 3), (hot, 3), (warm, 4), (warm, 0), (warm, 0)]
    cases: list[Case] = [(op, inputs_of(seed, n, op, "cpu"), seed) for seed, (op, n) in enumerate(wanted)]
    together(EagerExecutor(), cases, "cpu")
    assert sorted(runs) == [(1, 3), (2, 0), (2, 4)]


def test_a_cut_nucleus_concerns_its_sequence_alone() -> None:
    op = Verification(Sampling(1.0, top_p=0.95), 4)
    flat, sharp = (inputs_of(seed, 2, op, "cpu") for seed in (0, 1))
    flat = flat._replace(logits=torch.zeros_like(flat.logits))
    sharp = sharp._replace(logits=30 * one_hot(sharp.logits.argmax(-1), WIDTH))
    made = together(EagerExecutor(), [(op, flat, 0), (op, sharp, 1)], "cpu")
    assert [int(each.packed[0, -1]) for each in made] == [0, 1]
