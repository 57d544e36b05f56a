"""Drafts that are trees: a small model drafts a whole level per forward, and lookup adds a branch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft, TokenBuffer, one_hot
from triforce_chat.engine.sampling.branching import drawn_children
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.tree import ROOT, Parents, branches, children, extended, paths


def grow(
    drafter: DraftModel, seq: TokenBuffer, parents: Parents, sampler: Sampler, independent: bool = False
) -> Draft:
    """Draft a tree of that shape after ``seq``, by one forward for each level that has children.

    Children are drawn without replacement, or independently of one another. What the draft's cache then holds is the
    history alone: the accepted path is fed again together with the token that follows it.
    """
    following, lines = children(parents), paths(parents)
    inner = tuple(node for node in range(len(parents)) if node in following)  # level by level, as parents are
    tokens: list[Tensor] = []
    laws: list[Tensor] = []
    level, fed = [ROOT], 0
    cache, model = drafter.cache, drafter.model
    ids = cache.pending(seq.tokens, len(inner))
    while level:
        tree = None if level == [ROOT] else branches(parents, inner[: fed + len(level)], fed)
        logits = model(ids[None], cache, len(level), tree=tree)[0]
        seen = [[int(tokens[each]) for each in (lines[node] if node != ROOT else ())] for node in level]
        scores, given = sampler.branch_laws(logits, seq, seen)
        counts = [len(following[node]) for node in level]
        drawn, from_ = drawn_children(given, scores, counts, sampler.draw, independent)
        tokens += drawn
        laws += from_
        fed += 0 if level == [ROOT] else len(level)
        level = [node for parent in level for node in following[parent] if node in following]
        ids = torch.stack([tokens[node] for node in level]) if level else ids
    cache.truncate(seq.known)
    return Draft(torch.stack(tokens)[None], torch.stack(laws)[None], parents=parents)


def grafted(draft: Draft, branch: Tensor) -> Draft:
    """The tree with the looked-up tokens ``branch`` [m] as a further path, where they leave those that it has.

    They are certain, and come after all siblings that were drawn.
    """
    assert draft.parents is not None
    ids, wanted = draft.tokens[0].tolist(), branch.tolist()
    node = ROOT
    while wanted:
        same = [each for each in children(draft.parents).get(node, ()) if ids[each] == wanted[0]]
        if not same:
            break
        node = same[0]
        del wanted[0]
    if not wanted:
        return draft
    new = branch[len(branch) - len(wanted) :][None]
    certain = one_hot(new, draft.probs.shape[-1], draft.probs.dtype)
    return replace(
        draft,
        tokens=torch.cat([draft.tokens, new], 1),
        probs=torch.cat([draft.probs, certain], 1),
        parents=extended(draft.parents, node, len(wanted)),
    )
