"""Wrong acceptance rules, which tests of distributions must notice."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.ops import Randomness, row_of, verify


def numbers(tokens: list[Tensor], n: int) -> Tensor:
    """The result of a rule that commits ``tokens``, of which the last was not among the n drafted."""
    filled = [*tokens, *[torch.tensor(0)] * (n + 1 - len(tokens))]
    return torch.stack([torch.tensor(len(tokens) - 1), *filled])[None]


def middle_draws_from_its_target(
    draft: Draft, target: Tensor, random: Randomness, _: Tensor | None = None
) -> Tensor:
    """Defect D1: the recovered token is drawn from the level's own distribution, not from the residual."""
    index, n = draft.tokens[..., None], len(draft)
    p, q = target[:, :n].gather(-1, index)[..., 0], draft.probs.gather(-1, index)[..., 0]
    accepted = int(random.accepts(p, q)) if n else 0
    return numbers([*draft.tokens[0, :accepted], random.draw(target[:, accepted])[0]], n)


def middle_hands_up_the_drafter_s_vectors(
    draft: Draft, target: Tensor, random: Randomness, _: Tensor | None = None
) -> Tensor:
    judged = verify(draft, target, random)
    accepted = int(judged[0, 0])
    target[:, :accepted] = draft.probs[:, :accepted]
    return judged


def middle_accepts_everything(
    draft: Draft, target: Tensor, random: Randomness, _: Tensor | None = None
) -> Tensor:
    return numbers([*draft.tokens[0], random.draw(target[:, -1])[0]], len(draft))


def middle_withholds_unlikely_tokens(
    draft: Draft, target: Tensor, random: Randomness, _: Tensor | None = None
) -> Tensor:
    """Dropping the last token because of what it is: decisions may look at revealed tokens only."""
    judged = verify(draft, target, random)
    accepted = judged[0, 0]
    last = row_of(target, accepted[None])[0, judged[0, 1 + accepted]]
    judged[0, 0] -= int(accepted > 0 and bool(last < 0.4))
    return judged
