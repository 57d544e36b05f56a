"""Trees drawn from logits by kernels: the tokens and distributions of operations, by the interpreter or on a GPU."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from support import triton_interpreter
from torch import Tensor

pytest.importorskip("triton")

from triforce_chat.engine import kernels
from triforce_chat.engine.draft import FREE
from triforce_chat.engine.sampling.executor import Verification
from triforce_chat.engine.sampling.ops import CANDIDATES, PenaltyContext, Uniforms
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation import tree_draft
from triforce_chat.engine.speculation.tree_draft import Draws, grown, growth, widths_of
from triforce_chat.engine.speculation.tree_shapes import best_shape
from triforce_chat.engine.tree import Parents, family

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    triton_interpreter.patch()

TREES: list[Parents] = [
    (-1, 0, 1, 2),
    (-1, -1, 0, 0, 1, 3, 3, 1, 5),
    best_shape((0.5, 0.2, 0.1), 20, 4),
]
VOCABULARIES = (30, 1024, 2500)  # part of a tile, two whole ones, more


def logits_of(how: tree_draft.Growth, vocabulary: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of all rows; the first tokens are likely ones, and some tokens cannot be, of one tile none."""
    generator = torch.Generator().manual_seed(vocabulary)
    made = torch.randn(how.rows.numel(), vocabulary, generator=generator) * 3
    made[:, :3] += 4
    made[:, 5::7] = made[:, 512:1024] = -torch.inf
    return made.to(DEVICE, dtype)


def drawn(
    parents: Parents,
    vocabulary: int,
    sampling: Sampling,
    monkeypatch: pytest.MonkeyPatch,
    by_kernels: bool,
    independent: bool = False,
    forced: Tensor | None = None,
    numbers: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A tree with room for further tokens, in a graph whose levels are wider than its own."""
    n, widths = len(parents) + 3, tuple(width + (depth > 0) for depth, width in enumerate(widths_of(parents)))
    how = tree_draft.Growth(*(each.to(DEVICE) for each in growth(parents, widths, n)))
    if numbers is None:
        numbers = torch.rand(1, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    uniforms = Uniforms(torch.empty(1, 0, device=DEVICE), numbers.to(DEVICE))
    answer = None
    if sampling.repetition_penalty != 1:
        answer = PenaltyContext(torch.tensor([[1, 4, 9, 2]], device=DEVICE), torch.tensor([3], device=DEVICE))
    op = Verification(sampling, CANDIDATES, forced is not None)
    logits, levels = logits_of(how, vocabulary), [*pairwise((0, *accumulate(widths)))]
    by = Draws(op, answer, uniforms, independent, None if forced is None else forced[None], vocabulary)
    with monkeypatch.context() as patch:
        patch.setattr(Verification, "draws_by_kernels", property(lambda _: by_kernels))
        if by_kernels:  # on a CPU, too
            patch.setattr(tree_draft, "by_operations", tree_draft.by_kernels)
        tokens, probs = grown(how, widths, lambda depth, _: logits[None, slice(*levels[depth])], by)
    return tokens[0, : len(parents)], probs[0, : len(parents)]


@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.7])
def test_tokens_and_distributions_are_those_of_operations(
    parents: Parents, vocabulary: int, penalty: float, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = parents, vocabulary, Sampling(temperature, repetition_penalty=penalty), monkeypatch
    (tokens, probs), (expected, laws) = drawn(*given, True), drawn(*given, False)
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(probs, laws, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("independent", [False, True])
def test_forced_tokens_replace_those_of_their_depth(
    temperature: float, independent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others stay as they were drawn, and the forced ones count as written."""
    parents, forced = TREES[1], torch.tensor([6, FREE, 2, FREE], device=DEVICE)
    given = parents, 30, Sampling(temperature, repetition_penalty=1.5), monkeypatch
    (tokens, probs), (expected, laws) = (drawn(*given, each, independent, forced) for each in (True, False))
    assert tokens.tolist() == expected.tolist()
    assert tokens[:2].tolist() == [6, 6]
    torch.testing.assert_close(probs, laws, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("number", [0.0, 0.4, 1 - 2.0**-53])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_siblings_are_distinct_and_possible(
    number: float, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the numbers, and where next to nothing is left."""
    parents = (-1,) * 12
    numbers = torch.full((1, 15), number, dtype=torch.float64)
    given = parents, 1100, Sampling(temperature), monkeypatch, True
    tokens, probs = drawn(*given, numbers=numbers)
    assert len({*tokens.tolist()}) == 12
    assert (probs[torch.arange(12), tokens] > 0).all()
    for node, token in enumerate(tokens.tolist()):
        assert not probs[node, tokens[:node]].any()
        assert token % 7 != 5
    torch.testing.assert_close(probs.sum(-1), torch.ones(12, device=DEVICE))


def test_more_children_than_tokens_that_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that follow have no weight, but are what the operations take."""
    parents = (-1,) * 29
    given = parents, 30, Sampling(1.0), monkeypatch
    (tokens, probs), (expected, laws) = drawn(*given, True), drawn(*given, False)
    assert tokens[:26].tolist() == expected[:26].tolist()
    torch.testing.assert_close(probs[:26], laws[:26], atol=1e-6, rtol=1e-5)


def drawn_at_once(logits: Tensor, temperature: float, n: int, number: float = 0.5) -> tuple[Tensor, Tensor]:
    """The n children of a root, by kernels."""
    links, lines = (each.to(DEVICE) for each in family((-1,) * n, n))
    tokens = torch.zeros(1, n, dtype=torch.long, device=DEVICE)
    probs = torch.empty(1, n, logits.shape[1], device=DEVICE)
    how = kernels.Drawing(temperature, torch.full((1, n), number, dtype=torch.float64, device=DEVICE))
    rows = torch.zeros(1, 1, dtype=torch.long, device=DEVICE)
    kernels.draw_children(logits[None], how, links, lines, rows, 0, tokens, probs)
    return tokens[0], probs[0]


@pytest.mark.parametrize("number", [0.0, 0.9])
def test_next_to_nothing_is_nothing(number: float) -> None:
    """What is left could not be told from rounding: the next best token follows for certain, and is said to."""
    logits = torch.full((1, 700), -torch.inf, device=DEVICE)
    logits[0, [3, 600, 9, 650]] = torch.tensor([0.0, -75.0, -76.0, -76.5], device=DEVICE)
    tokens, probs = drawn_at_once(logits, 1.0, 3, number)
    assert tokens.tolist() == [3, 600, 9]
    assert probs[1:].nonzero().tolist() == [[0, 600], [1, 9]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_first_of_equal_logits_is_likeliest(dtype: torch.dtype) -> None:
    logits = torch.zeros(1, 2500, dtype=dtype, device=DEVICE)
    logits[0, [1100, 40, 2400]] = 2.0
    tokens, probs = drawn_at_once(logits, 0.0, 5)
    assert tokens.tolist() == [40, 1100, 2400, 0, 1]
    assert probs.nonzero().tolist() == [[node, token] for node, token in enumerate(tokens.tolist())]
