"""Token trees of one sequence: how children are drawn, and which path through the tree is accepted.

Each token of a tree has the distribution that it was drawn from, given its elder siblings; so one rule serves
draws without replacement (Sequoia, arXiv 2402.12374), independent ones (SpecInfer, arXiv 2305.09781) and looked-up
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft, one_hot
from triforce_chat.engine.sampling.ops import Randomness, residual
from triforce_chat.engine.tree import children, paths


class PathVerdict(NamedTuple):
    """``numbers`` [1, n+2] as of ``verify``, and the rows of the target that gave the committed tokens."""

    numbers: Tensor
    rows: list[int]


def verify_tree(draft: Draft, target: Tensor, random: Randomness) -> PathVerdict:
    """``verify`` along a tree: each child in turn is tested against what its rejected siblings left over.

    target: [1, n+1, V], the distributions after the root and after every token of the tree. A token drawn from q passes
    with probability min(1, r/q), where r is the target's distribution at first and, after each rejection, what it has
    above that child's q, normalized. So the output is distributed as the target, as for a chain, which is a special
    case. Every decision has a random number of its own.
    """
    assert draft.parents is not None
    following, rows, left = children(draft.parents), [0], target[:, 0]
    while True:
        passed, left = first_passing(following.get(rows[-1] - 1, ()), draft, left, random)
        if passed is None:
            break
        rows.append(passed + 1)
        left = target[:, passed + 1]
    last, kept = random.draw(left)[:, None], draft.tokens[:, [row - 1 for row in rows[1:]]]
    count, unused = last.new_tensor([[len(rows) - 1]]), last.expand(1, len(draft) + 1 - len(rows))
    return PathVerdict(torch.cat([count, kept, last, unused], -1), rows)


def first_passing(
    nodes: Sequence[int], draft: Draft, left: Tensor, random: Randomness
) -> tuple[int | None, Tensor]:
    """The first of these siblings that passes, None if none does, and the weights [1, V] that remain."""
    for at, node in enumerate(nodes):
        if at:
            left = left / left.sum(-1, keepdim=True)
        token, law = draft.tokens[:, node, None], draft.probs[:, node]
        if int(random.only(node).accepts(left.gather(-1, token), law.gather(-1, token))):
            return node, left
        left = residual(left, law)
    return None, left


def drawn_children(
    laws: Tensor,
    scores: Tensor,
    counts: Sequence[int],
    draw: Callable[[Tensor], Tensor],
    independent: bool = False,
) -> tuple[Tensor, Tensor]:
    """Draw ``counts`` [m] children after each of m tokens: ids [k] and their distributions [k, V], parent by parent.

    laws: [m, V]; ``draw`` takes one index per row of weights. Without replacement unless ``independent``; where a law
    has nothing left, the token with the next best score follows for certain.
    """
    left, scores = laws.clone(), scores.clone()
    drawn: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    for rank in range(max(counts, default=0)):
        rows = [row for row, count in enumerate(counts) if count > rank]
        each = laws[rows] if independent or not rank else distinct(left[rows], scores[rows])
        tokens = draw(each)
        left[rows, tokens], scores[rows, tokens] = 0, -torch.inf
        for row, token, law in zip(rows, tokens, each, strict=True):
            drawn[row, rank] = token, law
    ordered = [drawn[place] for place in sorted(drawn)]
    return torch.stack([token for token, _ in ordered]), torch.stack([law for _, law in ordered])


def distinct(left: Tensor, scores: Tensor) -> Tensor:
    """What is left of distributions, normalized; all mass on the best score where nothing is: [m, V] each."""
    total = left.sum(-1, keepdim=True)
    best = one_hot(scores.argmax(-1), left.shape[-1], left.dtype)
    return torch.where(total >= torch.finfo(left.dtype).tiny, left / total, best)


def penalized_paths(logits: Tensor, answer: Tensor, seen: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Apply the repetition penalty to logits [m, V]: to the tokens of the answer [a] and, row by row, those ``seen``.

    Returns at least fp32.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if penalty == 1:
        return logits
    known = torch.zeros_like(logits, dtype=torch.bool)
    known[:, answer] = True
    for row, tokens in zip(known, seen, strict=True):
        row[list(tokens)] = True
    return torch.where(known, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def tokens_before(draft: Draft) -> list[list[int]]:
    """The drafted tokens that each row of a verification follows: [n+1] lists, the first of them empty."""
    assert draft.parents is not None
    ids = draft.tokens[0].tolist()
    return [[], *([ids[node] for node in path] for path in paths(draft.parents))]
