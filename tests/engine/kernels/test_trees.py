"""The kernels of trees against the same functions in torch: by Triton's interpreter, or on the GPU if there is one."""

from __future__ import annotations

import pytest
import torch
from support import triton_interpreter
from torch import Tensor
from torch.nn.functional import pad

pytest.importorskip("triton")

from triforce_chat.engine import kernels
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.branching import draw_children, walked, walked_along
from triforce_chat.engine.sampling.ops import GREEDY, Randomness, Uniforms
from triforce_chat.engine.speculation.stack_specs import MAX_TREE
from triforce_chat.engine.speculation.tree_draft import growth
from triforce_chat.engine.speculation.tree_shapes import best_shape, sequences
from triforce_chat.engine.tree import Parents, branches, families, family, paths, verified, words_of

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


def assert_ancestors_are_seen(parents: Parents, at: int, group: int, heads: int, dim: int = 16) -> None:
    n, room = len(parents) + 1, at + len(parents) + 60
    q, keys, values = noise(n, group * heads, dim), *noise(2, heads, room, dim)
    keys[:, at + n :] = values[:, at + n :] = float("nan")
    seen = seen_by(parents, at)
    scores = torch.einsum("nhd,hsd->hns", q, keys[:, : at + n].repeat_interleave(group, 0)) * 0.25
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    expected = torch.einsum("hns,hsd->nhd", weights, values[:, : at + n].repeat_interleave(group, 0))
    masks, origin = moved(verified(parents, 1).masks, torch.tensor([at + 1]))
    q, keys, values, first = moved(q, keys, values, torch.tensor([at]))
    tree = kernels.Ancestors(masks, origin)
    found = kernels.decode_attention(q, keys, values, first, 0.25, room, tree=tree)
    torch.testing.assert_close(found.cpu(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("parents", [*TREES, best_shape((0.5, 0.2, 0.1), 64, 9)])
@pytest.mark.parametrize(("at", "group", "heads"), [(0, 1, 2), (60, 3, 1), (127, 2, 2), (200, 1, 1)])
def test_nodes_see_their_ancestors(parents: Parents, at: int, group: int, heads: int) -> None:
    assert_ancestors_are_seen(parents, at, group, heads)


@pytest.mark.parametrize("size", [65, 127, 128, 150])
@pytest.mark.parametrize("at", [0, 1, 63, 64, 100])
@pytest.mark.parametrize("dim", [16, 64])
def test_nodes_of_large_trees_see_their_ancestors(size: int, at: int, dim: int) -> None:
    """Their masks are several words; tiles of slots are as wide as one, or as two."""
    assert_ancestors_are_seen(best_shape((0.6, 0.2, 0.1), size, 20), at, 1, 1, dim)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("at", [5, 300])
def test_large_trees_on_tensor_cores(dim: int, at: int) -> None:
    """Each node pays all of its attention to a single slot, which it sees or not."""
    parents = best_shape((0.6, 0.2, 0.1), 200, 20)
    n = len(parents) + 1
    seen, slots = seen_by(parents, at), torch.arange(at + n) % dim
    keys = values = (20 * torch.eye(dim)[slots])[None].bfloat16()
    masks, origin, first = moved(verified(parents, 1).masks, torch.tensor([at + 1]), torch.tensor([at]))
    for wanted in (0, dim // 2, dim - 1):
        q = (20 * torch.eye(dim)[wanted]).expand(n, 1, dim).bfloat16()
        scores = torch.einsum("nhd,hsd->hns", q.float(), keys.float()) * 0.1
        weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
        expected = torch.einsum("hns,hsd->nhd", weights, values.float())
        tree = kernels.Ancestors(masks, origin)
        given = moved(q, keys, values)
        found = kernels.decode_attention(given[0], given[1], given[2], first, 0.1, at + n, tree=tree)
        torch.testing.assert_close(found.float().cpu(), expected, atol=0.1, rtol=0.02)


def test_nodes_of_the_largest_tree_see_their_ancestors() -> None:
    assert_ancestors_are_seen(best_shape((0.7, 0.2, 0.1), MAX_TREE, 32), 37, 2, 1)


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
    n, rows = len(parents), torch.tensor([[*range(len(parents) + 1), -1]])
    given = laws(n + 2, vocabulary, n, kind)[None]
    scores = torch.where(given > 0, given.log(), -20 + noise(n + 2, vocabulary))
    numbers = Uniforms.empty(1, 0, torch.device("cpu"))._replace(
        last=torch.rand(1, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    )
    own, own_laws = torch.full((1, n), -7), torch.full((1, n, vocabulary), torch.nan)
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
    tokens, probs, target, tests, links = moved(tokens[None], probs[None], target[None], tests, links)
    made = kernels.walk(tokens, probs, target, None if kind == "one" else tests, links)
    assert made.accepted.tolist() == count.tolist()
    assert made.rows.tolist() == path.tolist()
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
    n, generator = len(parents), torch.Generator().manual_seed(seed)
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
    given = moved(tokens[None], probs[None], target[None], tests, *family(parents, n), forced[None])
    tokens, probs, target, tests, links, lines, forced = given
    decided = None if kind == "one" else tests
    made = kernels.walk_along(tokens, probs, target, decided, links, lines, forced, independent)
    assert made.accepted.tolist() == count.tolist()
    assert made.rows.tolist() == path.tolist()
    expected = left / left.sum()
    torch.testing.assert_close((made.left / made.left.sum()).cpu(), expected, atol=1e-5, rtol=1e-4)


def test_what_rounding_leaves_nothing_of_stays_as_it_was() -> None:
    """A token whose distribution is the target's own, rejected nevertheless."""
    law = torch.tensor([[0.25, 0.75]])
    tokens, links = torch.tensor([[0, 1]]), family((-1, -1), 2).links
    target, probs = law.expand(1, 3, 2).contiguous(), torch.tensor([[[0.25, 0.75], [0.0, 1.0]]])
    tokens, probs, target, links = moved(tokens, probs, target, links)
    made = kernels.walk(tokens, probs, target, torch.tensor([[1.0, 0.9]], device=DEVICE), links)
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


# Trees of several sequences at once


def stacked(parts: list[Tensor], n: int, fill: float = 0) -> Tensor:
    """Parts [m, ...] of different m, one for each tree, with room for n rows: [B, n, ...]."""
    return torch.stack(
        [torch.cat([part, part.new_full((n - len(part), *part.shape[1:]), fill)]) for part in parts]
    )


# The last ones have masks of several words.
FORESTS: list[list[Parents]] = [
    [TREES[3], (-1, 0, 1), TREES[2]],
    [best_shape((0.6, 0.2, 0.1), 95, 20), (-1, 0, 1), best_shape((0.5, 0.2, 0.1), 70, 9)],
]


@pytest.mark.parametrize("shared", [0, 70])
@pytest.mark.parametrize("shapes", FORESTS)
def test_nodes_of_several_trees_see_their_own_ancestors(shapes: list[Parents], shared: int) -> None:
    """Beside a chain and a sequence without tokens, whose keys nobody reads."""
    group, heads, dim, most = 2, 2, 16, 1 + max(map(len, shapes))
    new, at, places = [len(parents) + 1 for parents in shapes], [60, 3, 17], [2, 0, 3]
    q = noise(sum(new), group * heads, dim)
    own, before = noise(2, 4, heads, 192, dim), noise(2, heads, 96, dim, seed=1)
    own[:, 1], before[:, :, shared:] = float("nan"), float("nan")
    starts = [sum(new[:i]) for i in range(4)]
    each = [verified(parents, 1).masks for parents in shapes]
    masks = torch.cat([pad(part, (0, words_of(most - 1) - part.shape[1])) for part in each])
    numbers = moved(*(torch.tensor(each) for each in ([*starts, starts[-1]], [*at, 0], [*places, 1])))
    origins = moved(torch.tensor([*(slot + 1 for slot in at), 1]))[0]
    sequences = kernels.Sequences(numbers[0], numbers[1], numbers[2], most)
    q, own, before, masks, length, everybody = moved(
        q, own, before, masks, torch.tensor([shared]), torch.tensor([0, sum(new)])
    )
    prefix = kernels.Prefix(before[0], before[1], length, everybody) if shared else None
    tree = kernels.Ancestors(masks, origins)
    found = kernels.attend_together(q, own[0], own[1], sequences, 0.25, 192, prefix, tree)
    for i, place in enumerate(places):
        rows, first = slice(starts[i], starts[i + 1]), at[i] + shared
        keys, values = (
            torch.cat([early[:, :shared], late[place]], 1) for early, late in zip(before, own, strict=True)
        )
        alone = kernels.Ancestors(masks[rows].clone(), torch.tensor([first + 1], device=DEVICE))
        slot = torch.tensor([first], device=DEVICE)
        expected = kernels.decode_attention(
            q[rows].contiguous(), keys.contiguous(), values.contiguous(), slot, 0.25, 256, tree=alone
        )
        torch.testing.assert_close(found[rows], expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("kind", ["all", "few", "one"])
@pytest.mark.parametrize("vocabulary", [7, WIDE])
@pytest.mark.parametrize("along", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_several_trees_are_walked_as_each_alone(kind: str, vocabulary: int, along: bool, seed: int) -> None:
    shapes, generator = [TREES[3], TREES[0], TREES[5]], torch.Generator().manual_seed(seed)
    n = max(map(len, shapes)) + 2
    given: list[tuple[Tensor, ...]] = []
    for at, parents in enumerate(shapes):
        m = len(parents)
        target, rows = laws(m + 1, vocabulary, seed + at, kind), torch.tensor([each + 1 for each in parents])
        probs = 0.5 * target[rows] + 0.5 * laws(m, vocabulary, seed + at + 1, kind)
        tokens = torch.multinomial(probs, 1, generator=generator)[:, 0]
        if kind == "one":
            probs = torch.nn.functional.one_hot(tokens, vocabulary).float()
        forced = torch.multinomial(target, 1, generator=generator)[:, 0]
        given.append((tokens, probs, target, torch.rand(m, generator=generator), forced))

    def walk(each: list[Tensor], shape: tuple[Tensor, ...]) -> kernels.AcceptedPaths:
        tokens, probs, target, tests, forced = moved(*each)
        decided, (links, lines) = None if kind == "one" else tests, moved(*shape)
        if along:
            return kernels.walk_along(tokens, probs, target, decided, links, lines, forced, False)
        return kernels.walk(tokens, probs, target, decided, links)

    sizes = n, n, n + 1, n, n + 1
    wide = [stacked([*parts], size) for parts, size in zip(zip(*given, strict=True), sizes, strict=True)]
    together = walk(wide, families(shapes, n))
    for at, parents in enumerate(shapes):
        alone = walk([each[None].clone() for each in given[at]], family(parents, len(parents)))
        count = int(alone.accepted)
        assert int(together.accepted[at]) == count
        assert together.rows[at, : count + 1].tolist() == alone.rows[0, : count + 1].tolist()
        assert {*together.rows[at, count:].tolist()} == {int(alone.rows[0, count])}
        torch.testing.assert_close(together.left[at], alone.left[0])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_several_trees_are_drawn_as_each_alone(temperature: float, penalty: float) -> None:
    """Whose answers and forced tokens are their own."""
    # Of two levels with children each.
    shapes, widths, n, vocabulary = [(-1, -1, 0, 0, 1), (-1, 0)], (2, 3), 10, 700
    generator = torch.Generator().manual_seed(3)
    scores = 3 * torch.randn(2, sum(widths), vocabulary, generator=generator)
    numbers = torch.rand(2, n, dtype=torch.float64, generator=generator)
    answer, forced = (
        torch.randint(vocabulary, (2, 9), generator=generator),
        torch.tensor([[-1, 5], [-1, 600]]),
    )
    length = torch.tensor([9, 4])

    def drawn(trees: list[Parents], only: slice) -> tuple[Tensor, Tensor]:
        how = [
            torch.cat(parts) for parts in zip(*(growth(parents, widths, n) for parents in trees), strict=True)
        ]
        links, lines, rows, _ = moved(*how)
        own, uniforms, said, wanted, ends = moved(
            *(each[only] for each in (scores, numbers, answer, forced, length))
        )
        since = kernels.since_written(said, ends, vocabulary) if penalty != 1 else None
        drawing = kernels.Drawing(temperature, uniforms, penalty, since, wanted)
        tokens, probs = moved(
            torch.zeros(len(trees), n, dtype=torch.long), torch.zeros(len(trees), n, vocabulary)
        )
        for depth, level in enumerate((slice(0, 2), slice(2, 5))):
            kernels.draw_children(own[:, level], drawing, links, lines, rows[:, level], depth, tokens, probs)
        return tokens, probs

    tokens, probs = drawn(shapes, slice(0, 2))
    for at, parents in enumerate(shapes):
        own, own_probs = drawn([parents], slice(at, at + 1))
        m = len(parents)
        assert tokens[at, :m].tolist() == own[0, :m].tolist()
        assert torch.equal(probs[at, :m], own_probs[0, :m])
    assert tokens[1, 1] == 600
