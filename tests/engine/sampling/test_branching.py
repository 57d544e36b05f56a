"""The rule for trees at one place, and how children are drawn."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.branching import (
    drawn_children,
    penalized_paths,
    tokens_before,
    verify_tree,
)
from triforce_chat.engine.sampling.ops import GREEDY, PenaltyContext, Uniforms, penalized, verify

V = 5


def laws(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(torch.randn(1, n, V, generator=generator), -1)


@pytest.mark.parametrize("seed", range(40))
def test_a_chain_as_a_tree_is_judged_the_same_bit_by_bit(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs, target = laws(4, seed), laws(5, seed + 1)
    tokens = torch.multinomial(probs[0], 1, generator=generator)[:, 0][None]
    random = Uniforms(torch.rand(1, 4, generator=generator), torch.rand(1, 1, generator=generator).double())
    chain = verify(Draft(tokens, probs), target, random)
    tree = verify_tree(Draft(tokens, probs, parents=(-1, 0, 1, 2)), target, random)
    k = int(chain[0, 0])
    assert torch.equal(tree.numbers[:, : k + 2], chain[:, : k + 2])
    assert tree.rows == list(range(k + 1))
    assert tree.numbers.shape == chain.shape


def test_siblings_have_random_numbers_of_their_own() -> None:
    """With the same number for both, a rejection of the first would say something about the second."""
    tokens, target = torch.tensor([[0, 1]]), torch.tensor([[[0.5, 0.5]] * 3])
    draft = Draft(tokens, torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), parents=(-1, -1))
    last = torch.zeros(1, 1, dtype=torch.float64)
    found = {
        pair: verify_tree(draft, target, Uniforms(torch.tensor([pair]), last)).rows
        for pair in itertools.product((0.1, 0.9), repeat=2)
    }
    assert found == {(0.1, 0.1): [0, 1], (0.1, 0.9): [0, 1], (0.9, 0.1): [0, 2], (0.9, 0.9): [0, 2]}


def test_greedily_the_path_of_the_best_tokens_passes() -> None:
    target = torch.nn.functional.one_hot(torch.tensor([[2, 0, 1, 4, 3]]), V).float()
    tokens = torch.tensor([[0, 2, 1, 4]])
    draft = Draft(tokens, torch.nn.functional.one_hot(tokens, V).float(), parents=(-1, -1, 1, 1))
    numbers, rows = verify_tree(draft, target, GREEDY)
    assert rows == [0, 2, 3]  # 2, then 1 after it; its row says 4
    assert numbers[0, :4].tolist() == [2, 2, 1, 4]


def test_children_are_distinct_and_know_their_distributions() -> None:
    given = torch.tensor([[0.5, 0.3, 0.2, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    scores = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0], [0.0, 1.0, 9.0, 3.0, 2.0]])
    tokens, found = drawn_children(given, scores, [4, 3], lambda rows: rows.argmax(-1))
    assert tokens.tolist() == [0, 1, 2, 3, 2, 3, 4]
    torch.testing.assert_close(found[1], torch.tensor([0.0, 0.6, 0.4, 0.0, 0.0]))
    assert found[3].tolist() == [0, 0, 0, 1, 0]  # nothing was left: for certain
    assert found[5].tolist() == [0, 0, 0, 1, 0]
    assert scores[0, 0] == 5
    assert given[0, 0] == 0.5


def test_independent_children_may_be_alike() -> None:
    given = torch.tensor([[0.6, 0.4, 0.0, 0.0, 0.0]])
    tokens, found = drawn_children(given, given, [3], lambda rows: rows.argmax(-1), independent=True)
    assert tokens.tolist() == [0, 0, 0]
    assert torch.equal(found, given.expand(3, V))


def test_the_penalty_follows_the_path() -> None:
    logits = torch.randn(1, 4, V, generator=torch.Generator().manual_seed(1))
    answer, tokens = torch.tensor([1, 1]), torch.tensor([[0, 2, 4]])
    context = PenaltyContext(torch.cat([answer[None], tokens], 1), torch.tensor([5]))
    chain = Draft(tokens, laws(3, 0), parents=(-1, 0, 1))
    expected = penalized(logits, context, None, 1.5)[0]
    assert torch.equal(penalized_paths(logits[0], answer, tokens_before(chain), 1.5), expected)
    tree = Draft(tokens, laws(3, 0), parents=(-1, -1, 1))
    assert tokens_before(tree) == [[], [0], [2], [2, 4]]
    other = penalized_paths(logits[0], answer, tokens_before(tree), 1.5)
    assert torch.equal(other[:2], expected[:2])
    assert not torch.equal(other[2], expected[2])
