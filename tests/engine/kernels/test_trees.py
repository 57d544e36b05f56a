"""The kernels of trees against the same functions in torch: by Triton's interpreter, or on the GPU if there is one."""

from __future__ import annotations

import pytest
import torch
from support import triton_interpreter
from torch import Tensor

pytest.importorskip("triton")

from triforce_chat.engine import kernels
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.branching import draw_children, walked, walked_along
from triforce_chat.engine.sampling.ops import GREEDY, Randomness, Uniforms
from triforce_chat.engine.speculation.tree_shapes import best_shape, sequences
from triforce_chat.engine.tree import Parents, branches, family, paths, verified

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    triton_interpreter.patch()

TREES: list[Parents] = [
    (-1,),
    (-1, 0, 1, 2),
    (-1, -1, -1, -1),
    (-1, -1, 0, 0, 1, 3, 3, 1),
    sequences(3, 4),
    best_shape((0.5, 0.2, 0.1), 20, 5),
]
WIDE = 9000  # tokens of a vocabulary, more than a block


def noise(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size) + seed))


def moved(*tensors: Tensor) -> list[Tensor]:
    return [each.to(DEVICE) for each in tensors]


def seen_by(parents: Parents, at: int) -> Tensor:
    """Which slots the root, in slot ``at``, and every node see: [n+1, at+n+1]."""
    seen = torch.zeros(len(parents) + 1, at + len(parents) + 1, dtype=torch.bool)
    seen[:, : at + 1] = True
    for node, path in enumerate(paths(parents)):
        seen[node + 1, [at + 1 + each for each in path]] = True
    return seen


@pytest.mark.parametrize("parents", [*TREES, best_shape((0.5, 0.2, 0.1), 64, 9)])
@pytest.mark.parametrize(("at", "group", "heads"), [(0, 1, 2), (60, 3, 1), (127, 2, 2), (200, 1, 1)])
def test_nodes_see_their_ancestors(parents: Parents, at: int, group: int, heads: int) -> None:
    n, dim = len(parents) + 1, 16
    q, keys, values = noise(n, group * heads, dim), *noise(2, heads, 320, dim)
    keys[:, at + n :] = values[:, at + n :] = float("nan")
    seen = seen_by(parents, at)
    scores = torch.einsum("nhd,hsd->hns", q, keys[:, : at + n].repeat_interleave(group, 0)) * 0.25
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    expected = torch.einsum("hns,hsd->nhd", weights, values[:, : at + n].repeat_interleave(group, 0))
    masks, origin = moved(verified(parents, 1).masks, torch.tensor([at + 1]))
    q, keys, values, first = moved(q, keys, values, torch.tensor([at]))
    tree = kernels.Ancestors(masks, origin)
    found = kernels.decode_attention(q, keys, values, first, 0.25, 320, tree=tree)
    torch.testing.assert_close(found.cpu(), expected, atol=2e-5, rtol=2e-5)


def test_a_level_of_a_tree_sees_the_levels_before_it() -> None:
    """As draft models feed them: the first row lies some slots after the root."""
    at, dim, order = 70, 16, (0, 1, 3)
    own = branches((-1, -1, 0, 0, 1), order, 2, 1)  # the root, then the last of these nodes
    q, keys, values = noise(1, 2, dim), *noise(2, 2, 128, dim)
    slots = [*range(at + 1), at + 1, at + 3]  # history and root, node 0, node 3
    weights = torch.softmax(torch.einsum("nhd,hsd->hns", q, keys[:, slots]) * 0.25, -1)
    expected = torch.einsum("hns,hsd->nhd", weights, values[:, slots])
    masks, origin, first = moved(own.masks[1:], torch.tensor([at + 1]), torch.tensor([at + 3]))
    tree = kernels.Ancestors(masks, origin)
    q, keys, values = moved(q, keys, values)
    found = kernels.decode_attention(q, keys, values, first, 0.25, 128, tree=tree)
    torch.testing.assert_close(found.cpu(), expected, atol=2e-5, rtol=2e-5)


def test_a_chain_as_a_tree_attends_as_a_chain() -> None:
    q, keys, values = moved(noise(6, 4, 16), *noise(2, 2, 128, 16))
    at, origin, masks = moved(torch.tensor([63]), torch.tensor([64]), verified((-1, 0, 1, 2, 3), 1).masks)
    chain = kernels.decode_attention(q, keys, values, at, 0.25, 128)
    tree = kernels.decode_attention(q, keys, values, at, 0.25, 128, tree=kernels.Ancestors(masks, origin))
    assert torch.equal(chain, tree)


def laws(n: int, vocabulary: int, seed: int, kind: str) -> Tensor:
    """Distributions [n, V]: over all tokens, over a few of them, or one-hot."""
    scores = 3 * noise(n, vocabulary, seed=seed)
    if kind == "few":
        scores[scores < scores.topk(3, -1).values[:, -1:]] = -torch.inf
    if kind == "one":
        return torch.nn.functional.one_hot(scores.argmax(-1), vocabulary).float()
    return torch.softmax(scores, -1)


@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize("kind", ["all", "few", "one"])
@pytest.mark.parametrize("vocabulary", [7, WIDE])
@pytest.mark.parametrize("independent", [False, True])
def test_children_are_those_that_torch_draws(
    parents: Parents, kind: str, vocabulary: int, independent: bool
) -> None:
    n, rows = len(parents), torch.tensor([*range(len(parents) + 1), -1])
    given = laws(n + 2, vocabulary, n, kind)
    scores = torch.where(given > 0, given.log(), -20 + noise(n + 2, vocabulary))
    numbers = Uniforms.empty(1, 0, torch.device("cpu"))._replace(
        last=torch.rand(1, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    )
    own, own_laws = torch.full((n,), -7), torch.full((n, vocabulary), torch.nan)
    shape = family(parents, n)
    copies = given.clone(), scores.clone()
    tokens, probs = moved(own.clone(), own_laws.clone())
    draw_children(*copies, numbers, numbers, shape, rows, own, own_laws, independent)
    given, scores, uniforms, links, lines, rows = moved(given, scores, numbers.last, *shape, rows)
    how = kernels.Drawing(1.0, uniforms)
    kernels.draw_children(scores, how, links, lines, rows, 0, tokens, probs, independent, given)
    assert torch.equal(tokens.cpu(), own)
    torch.testing.assert_close(probs.cpu(), own_laws, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize("kind", ["all", "few", "one"])
@pytest.mark.parametrize("vocabulary", [7, WIDE])
@pytest.mark.parametrize("seed", range(4))
def test_the_path_is_the_one_that_torch_walks(
    parents: Parents, kind: str, vocabulary: int, seed: int
) -> None:
    n, links = len(parents), family(parents, len(parents)).links
    generator = torch.Generator().manual_seed(seed)
    target, rows = laws(n + 1, vocabulary, seed, kind), torch.tensor([parent + 1 for parent in parents])
    probs = 0.5 * target[rows] + 0.5 * laws(n, vocabulary, seed + 1, kind)
    tokens = torch.multinomial(probs, 1, generator=generator)[:, 0]
    if kind == "one":
        probs = torch.nn.functional.one_hot(tokens, vocabulary).float()
    tests = torch.rand(1, n, generator=generator)
    random: Randomness = GREEDY if kind == "one" else Uniforms(tests, torch.zeros(1, 1).double())
    count, path, left = walked(Draft(tokens[None], probs[None], parents=parents), target[None], random)
    tokens, probs, target, tests, links = moved(tokens, probs, target, tests[0], links)
    made = kernels.walk(tokens, probs, target, None if kind == "one" else tests, links)
    assert made.accepted.tolist() == count.tolist()
    assert made.rows.tolist() == path[0].tolist()
    expected = left / left.sum()
    torch.testing.assert_close((made.left / made.left.sum()).cpu(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize("kind", ["all", "few", "one"])
@pytest.mark.parametrize("vocabulary", [7, WIDE])
@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_along_a_given_text_the_path_is_the_one_that_torch_walks(
    parents: Parents, kind: str, vocabulary: int, independent: bool, seed: int
) -> None:
    n, links = len(parents), family(parents, len(parents)).links
    generator = torch.Generator().manual_seed(seed)
    target, rows = laws(n + 1, vocabulary, seed, kind), torch.tensor([parent + 1 for parent in parents])
    probs = 0.5 * target[rows] + 0.5 * laws(n, vocabulary, seed + 1, kind)
    tokens = torch.multinomial(probs, 1, generator=generator)[:, 0]
    if kind == "one":
        probs = torch.nn.functional.one_hot(tokens, vocabulary).float()
    forced = torch.multinomial(target, 1, generator=generator)[:, 0]
    forced[2:] = torch.where(torch.arange(2, n + 1) % 2 > 0, -1, forced[2:])  # some places are free
    tests = torch.rand(1, n, generator=generator)
    random: Randomness = GREEDY if kind == "one" else Uniforms(tests, torch.zeros(1, 1).double())
    draft = Draft(tokens[None], probs[None], parents=parents, independent=independent)
    count, path, left = walked_along(draft, target[None], random, forced[None])
    tokens, probs, target, tests, links, forced = moved(tokens, probs, target, tests[0], links, forced)
    decided = None if kind == "one" else tests
    made = kernels.walk_along(tokens, probs, target, decided, links, forced, independent)
    assert made.accepted.tolist() == count.tolist()
    assert made.rows.tolist() == path[0].tolist()
    expected = left / left.sum()
    torch.testing.assert_close((made.left / made.left.sum()).cpu(), expected, atol=1e-5, rtol=1e-4)


def test_what_rounding_leaves_nothing_of_stays_as_it_was() -> None:
    """A token whose distribution is the target's own, rejected nevertheless."""
    law = torch.tensor([[0.25, 0.75]])
    tokens, links = torch.tensor([0, 1]), family((-1, -1), 2).links
    target, probs = law.expand(3, 2).contiguous(), torch.tensor([[0.25, 0.75], [0.0, 1.0]])
    tokens, probs, target, links = moved(tokens, probs, target, links)
    made = kernels.walk(tokens, probs, target, torch.tensor([1.0, 0.9], device=DEVICE), links)
    assert made.accepted.tolist() == [0]
    torch.testing.assert_close(made.left.cpu(), torch.tensor([[0.25, 0.0]]))


@pytest.mark.parametrize("path", [(), (0,), (2,), (1, 3, 4), (0, 1, 2), (5, 6, 9, 11)])
@pytest.mark.parametrize("dim", [16, 24])
def test_slots_of_a_path_move_together(path: tuple[int, ...], dim: int) -> None:
    keys, values = noise(2, 3, 2, 40, dim)
    at, kept = 9, torch.tensor(path, dtype=torch.long)
    found = moved(keys.clone(), values.clone())
    kernels.keep_slots(found[0], found[1], *moved(torch.tensor([at]), kept))
    for before, after in zip((keys, values), found, strict=True):
        expected = before.clone()
        expected[:, :, at : at + len(path)] = before[:, :, at + kept]
        assert torch.equal(after.cpu(), expected)
