"""Token trees: how children are drawn, and which path through the tree is accepted.

Each token of a tree has the distribution that it was drawn from, given its earlier siblings; so one rule serves
draws without replacement (Sequoia, arXiv 2402.12374), independent ones (SpecInfer, arXiv 2305.09781) and looked-up
tokens. On a GPU both are kernels, which a CUDA graph can hold; the same functions in torch are here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine.draft import FREE, Draft, one_hot
from triforce_chat.engine.sampling.ops import PenaltyContext, Randomness, Uniforms, imposed, residual
from triforce_chat.engine.tree import Family


class PathVerdict(NamedTuple):
    """``numbers`` [B, n+2] as of ``verify``, and the target's rows [B, n+1] that gave the committed tokens.

    The last of these rows is repeated.
    """

    numbers: Tensor
    rows: Tensor


def verify_tree(
    draft: Draft, target: Tensor, random: Randomness, forced: Tensor | None = None
) -> PathVerdict:
    """``verify`` along a tree: each child in turn is tested against what its rejected siblings left over.

    target: [B, n+1, V], the distributions after the root and after every token of the tree. A token drawn from q passes
    with probability min(1, r/q), where r is the target's distribution at first and, after each rejection, what it has
    above that child's q, normalized. So the output is distributed as the target, as for a chain, which is a special
    case. Every decision has a random number of its own.

    ``forced`` [B, n+1], for benchmarks: what the output is going to be, by depth, as of ``verify``. All tokens of a
    depth are that one then, so whichever child has given it is followed by what was drafted after it. Given the output
    y, the first child was accepted with probability min(1, q(y)/r(y)); if it was not, it was a token x drawn from what
    q has above r. So x is drawn, and the next child's distribution is q without x, unless children are independent.
    """
    if forced is None:
        count, rows, left = (walked_by_kernel if target.is_cuda else walked)(draft, target, random)
    else:
        walk = walked_along_by_kernel if target.is_cuda else walked_along
        count, rows, left = walk(draft, target, random, forced)
    last = random.draw(left)[:, None]
    if forced is not None:
        last = imposed(forced.gather(1, count[:, None]), last)
    n = len(draft)
    passed = torch.arange(n, device=target.device) < count[:, None]
    along = draft.tokens.gather(1, (rows[:, 1:] - 1).clamp_min(0))
    return PathVerdict(torch.cat([count[:, None], torch.where(passed, along, last), last], -1), rows)


Walk = tuple[
    Tensor, Tensor, Tensor
]  # nodes that pass [B], rows [B, n+1] as of ``PathVerdict``, weights [B, V]


def walked_by_kernel(draft: Draft, target: Tensor, random: Randomness) -> Walk:
    """``walked`` on a GPU."""
    from triforce_chat.engine import kernels

    shape = draft.family
    assert shape is not None
    tests = random.tests if isinstance(random, Uniforms) else None
    return kernels.walk(draft.tokens, draft.probs, target, tests, shape.links)


def walked(draft: Draft, target: Tensor, random: Randomness) -> Walk:
    """The path of each tree that passes, and weights for what follows it."""
    return together([path_of(*each) for each in apart(draft, target, random)])


def apart(draft: Draft, target: Tensor, random: Randomness) -> Iterator[tuple[Draft, Tensor, Randomness]]:
    """Each sequence's tree by itself."""
    assert draft.family is not None
    shapes = zip(*(part.split(1) for part in draft.family), strict=True)
    given = zip(draft.tokens.split(1), draft.probs.split(1), shapes, target.split(1), strict=True)
    for row, (tokens, probs, shape, own) in enumerate(given):
        alone = Draft(tokens, probs, shape=Family(*shape), independent=draft.independent)
        yield alone, own, random.of(row)


def together(each: Sequence[Walk]) -> Walk:
    counts, rows, left = (torch.cat(parts) for parts in zip(*each, strict=True))
    return counts, rows, left


def path_of(draft: Draft, target: Tensor, random: Randomness) -> Walk:
    """``walked`` of one sequence."""
    assert draft.family is not None
    first, following = draft.family.links[0].tolist()
    rows, left = [0], target[:, 0]
    passed = first[0]
    while passed >= 0:
        passed, left = first_passing(passed, following, draft, left, random)
        if passed >= 0:
            rows.append(passed + 1)
            left, passed = target[:, passed + 1], first[passed + 1]
    count = draft.tokens.new_tensor([len(rows) - 1])
    padded = rows + [rows[-1]] * (len(draft) + 1 - len(rows))
    return count, draft.tokens.new_tensor([padded]), left


def first_passing(
    node: int, following: list[int], draft: Draft, left: Tensor, random: Randomness
) -> tuple[int, Tensor]:
    """The first of a node and its later siblings that passes, -1 if none does, and the weights [1, V] that remain."""
    first_sibling = node
    while node >= 0:
        if node != first_sibling:
            left = left / left.sum(-1, keepdim=True)
        token, dist = draft.tokens[:, node, None], draft.probs[:, node]
        if int(random.only(node).accepts(left.gather(-1, token), dist.gather(-1, token))):
            return node, left
        left, node = residual(left, dist), following[node + 1]
    return -1, left


def walked_along_by_kernel(draft: Draft, target: Tensor, random: Randomness, forced: Tensor) -> Walk:
    """``walked_along`` on a GPU."""
    from triforce_chat.engine import kernels

    shape = draft.family
    assert shape is not None
    tests = random.tests if isinstance(random, Uniforms) else None
    return kernels.walk_along(draft.tokens, draft.probs, target, tests, *shape, forced, draft.independent)


def walked_along(draft: Draft, target: Tensor, random: Randomness, forced: Tensor) -> Walk:
    """``walked`` where the output is going to be ``forced`` [B, n+1]; see ``verify_tree``."""
    each = zip(apart(draft, target, random), forced.split(1), strict=True)
    return together([path_along(*given, wanted) for given, wanted in each])


def path_along(draft: Draft, target: Tensor, random: Randomness, forced: Tensor) -> Walk:
    """``walked_along`` of one sequence."""
    assert draft.family is not None
    first, following = draft.family.links[0].tolist()
    rows, left, node = [0], target[:, 0], first[0]
    dist = draft.probs[:, node]
    while node >= 0:
        wanted, one = forced[:, len(rows) - 1, None], random.only(node)
        free = bool(wanted == FREE)
        own = draft.tokens[:, node, None] if free else wanted
        odds = left.gather(-1, own), dist.gather(-1, own)
        odds = odds if free else odds[::-1]
        if int(one.accepts(*odds)):
            rows.append(node + 1)
            left, node = target[:, node + 1], first[node + 1]
            dist = draft.probs[:, node]
            continue
        above, rest, node = (dist - left).clamp_min(0), residual(left, dist), following[node + 1]
        if node >= 0:
            recorded = draft.probs[:, node]
            same = free or draft.independent
            dist = recorded if same else without(dist, one.rejected(*odds, above), recorded)
        left = rest / rest.sum(-1, keepdim=True)
    count = draft.tokens.new_tensor([len(rows) - 1])
    padded = rows + [rows[-1]] * (len(draft) + 1 - len(rows))
    return count, draft.tokens.new_tensor([padded]), left


def without(dist: Tensor, token: Tensor, certain: Tensor) -> Tensor:
    """A distribution [1, V] without ``token`` [1]; ``certain`` where nothing remains."""
    fewer = dist.scatter(-1, token[:, None], 0)
    total = fewer.sum(-1, keepdim=True)
    return torch.where(total >= torch.finfo(dist.dtype).tiny, fewer / total, certain)


def draw_children(
    dists: Tensor,
    scores: Tensor,
    random: Randomness,
    numbers: Uniforms,
    shape: Family,
    rows: Tensor,
    tokens: Tensor,
    probs: Tensor,
    independent: bool = False,
) -> None:
    """Draw the children of each tree's ``rows`` [B, m], -1 for none, into ``tokens`` [B, n] and ``probs`` [B, n, V].

    dists and scores [B, m, V] are those after each row, and may be overwritten. Without replacement unless
    ``independent``; where a distribution has nothing left, the token with the next best score follows for certain.
    ``random`` decides by ``numbers``, whose ``last`` has one for each node.
    """
    if dists.is_cuda:
        from triforce_chat.engine import kernels

        how = kernels.Drawing(1.0, numbers.last)
        kernels.draw_children(scores, how, *shape, rows, 0, tokens, probs, independent, dists)
        return
    for at, ((first, following), own_rows) in enumerate(
        zip(shape.links.tolist(), rows.tolist(), strict=True)
    ):
        decides = random.of(at)
        for row, dist, ranked in zip(own_rows, dists[at], scores[at], strict=True):
            left, node = dist[None].clone(), first[row] if row >= 0 else -1
            first_sibling = node
            while node >= 0:
                own = left if independent or node == first_sibling else distinct(left, ranked[None])
                token = decides.only(node).draw(own)
                tokens[at, node], probs[at, node] = token[0], own[0]
                if not independent:
                    left[0, token], ranked[token] = 0, -torch.inf
                node = following[node + 1]


def distinct(left: Tensor, scores: Tensor) -> Tensor:
    """What is left of distributions, normalized; all mass on the best score where nothing is: [m, V] each."""
    total = left.sum(-1, keepdim=True)
    best = one_hot(scores.argmax(-1), left.shape[-1], left.dtype)
    return torch.where(total >= torch.finfo(left.dtype).tiny, left / total, best)


def penalized_paths(
    logits: Tensor, answer: PenaltyContext | None, drafted: Tensor, lines: Tensor, penalty: float
) -> Tensor:
    """Apply the repetition penalty to logits [B, m, V] of trees' rows; returns at least fp32.

    To the tokens of each answer, and to those of ``drafted`` [B, n] that a row follows: ``lines`` [B, m, d], n if none.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if answer is None:
        return logits
    (sequences, m, nothing), room = logits.shape, answer.tokens.shape[1]
    places = torch.arange(room, device=logits.device)
    generated = torch.where(places < answer.length[:, None], answer.tokens, nothing)
    ended = torch.cat([drafted, drafted.new_full((sequences, 1), nothing)], 1)
    seen = ended.gather(1, lines.flatten(1)).view(lines.shape)
    known = torch.zeros(sequences, m, nothing + 1, dtype=torch.bool, device=logits.device)
    known.scatter_(2, generated[:, None].expand(-1, m, -1), True).scatter_(2, seen, True)
    known = known[..., :nothing]
    return torch.where(known, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
