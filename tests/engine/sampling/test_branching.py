"""The rule for trees at one place, and how children are drawn."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.branching import draw_children, penalized_paths, verify_tree
from triforce_chat.engine.sampling.ops import GREEDY, PenaltyContext, Uniforms, penalized, verify
from triforce_chat.engine.tree import Parents, family

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
    assert tree.rows.tolist() == [[*range(k + 1), *(4 - k) * [k]]]
    assert tree.numbers.shape == chain.shape


def test_siblings_have_random_numbers_of_their_own() -> None:
    """With the same number for both, a rejection of the first would say something about the second."""
    tokens, target = torch.tensor([[0, 1]]), torch.tensor([[[0.5, 0.5]] * 3])
    draft = Draft(tokens, torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), parents=(-1, -1))
    last = torch.zeros(1, 1, dtype=torch.float64)
    found = {
        pair: verify_tree(draft, target, Uniforms(torch.tensor([pair]), last)).rows[0, :2].tolist()
        for pair in itertools.product((0.1, 0.9), repeat=2)
    }
    assert found == {(0.1, 0.1): [0, 1], (0.1, 0.9): [0, 1], (0.9, 0.1): [0, 2], (0.9, 0.9): [0, 2]}


def test_greedily_the_path_of_the_best_tokens_passes() -> None:
    target = torch.nn.functional.one_hot(torch.tensor([[2, 0, 1, 4, 3]]), V).float()
    tokens = torch.tensor([[0, 2, 1, 4]])
    draft = Draft(tokens, torch.nn.functional.one_hot(tokens, V).float(), parents=(-1, -1, 1, 1))
    numbers, rows = verify_tree(draft, target, GREEDY)
    assert rows.tolist() == [[0, 2, 3, 3, 3]]  # 2, then 1 after it; its row says 4
    assert numbers[0, :4].tolist() == [2, 2, 1, 4]


class Likeliest:
    """Draws what has the most weight."""

    def only(self, i: int) -> Likeliest:  # noqa: ARG002
        return self

    def of(self, row: int) -> Likeliest:  # noqa: ARG002
        return self

    def accepts(self, p: Tensor, q: Tensor) -> Tensor:  # noqa: ARG002
        raise AssertionError("nothing is judged")

    def draw(self, weights: Tensor) -> Tensor:
        return weights.argmax(-1)

    def rejected(self, p: Tensor, q: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        raise AssertionError("nothing is judged")


def children_of(
    given: Tensor, scores: Tensor, parents: Parents, rows: list[int], independent: bool = False
) -> tuple[list[int], Tensor]:
    n = len(parents)
    tokens, probs = torch.zeros(1, n, dtype=torch.long), torch.zeros(1, n, V)
    shape, numbers = family(parents, n), Uniforms.empty(1, n, given.device)
    copies = given[None].clone(), scores[None].clone()
    draw_children(*copies, Likeliest(), numbers, shape, torch.tensor([rows]), tokens, probs, independent)
    return tokens[0].tolist(), probs[0]


def test_children_are_distinct_and_know_their_distributions() -> None:
    given = torch.tensor([[0.5, 0.3, 0.2, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0], [1.0, 0, 0, 0, 0]])
    scores = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0], [0.0, 1.0, 9.0, 3.0, 2.0], [1.0, 0, 0, 0, 0]])
    tokens, found = children_of(given, scores, (-1, -1, -1, -1, 0, 0, 0), [0, 1, -1])
    assert tokens == [0, 1, 2, 3, 2, 3, 4]
    torch.testing.assert_close(found[1], torch.tensor([0.0, 0.6, 0.4, 0.0, 0.0]))
    assert found[3].tolist() == [0, 0, 0, 1, 0]  # nothing was left: for certain
    assert found[5].tolist() == [0, 0, 0, 1, 0]


def test_independent_children_may_be_alike() -> None:
    given = torch.tensor([[0.6, 0.4, 0.0, 0.0, 0.0]])
    tokens, found = children_of(given, given, (-1, -1, -1), [0], independent=True)
    assert tokens == [0, 0, 0]
    assert torch.equal(found, given.expand(3, V))


def test_the_penalty_follows_the_path() -> None:
    logits = torch.randn(1, 4, V, generator=torch.Generator().manual_seed(1))
    answer, tokens = torch.tensor([[1, 1, 3]]), torch.tensor([[0, 2, 4]])
    said = PenaltyContext(answer, torch.tensor([2]))  # the third is no part of it
    context = PenaltyContext(torch.cat([answer[:, :2], tokens], 1), torch.tensor([5]))
    expected = penalized(logits, context, None, 1.5)
    chain, tree = (family(parents, 3).lines for parents in ((-1, 0, 1), (-1, -1, 1)))
    assert torch.equal(penalized_paths(logits, said, tokens, chain, 1.5), expected)
    assert tree.tolist() == [[[3, 3], [0, 3], [1, 3], [1, 2]]]
    other = penalized_paths(logits, said, tokens, tree, 1.5)
    assert torch.equal(other[:, :2], expected[:, :2])
    assert not torch.equal(other[:, 2], expected[:, 2])
