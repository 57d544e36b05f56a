"""Drafts that know only some of their target's tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import Parameter

from support.labs import Lab, perturbed
from triforce_chat.engine.forward.runner import Runner


def reduced(model: Any, known: Sequence[int]) -> Any:
    """A copy that knows these tokens; what it would say most often is that none of them follows."""
    made = copy.deepcopy(model)
    made.config.vocab_size = len(known) + 1
    head, embedding = made.lm_head.weight.data, made.get_input_embeddings().weight.data
    mean = embedding.mean(0, keepdim=True)
    made.get_input_embeddings().weight = Parameter(torch.cat([embedding[list(known)], mean]))
    made.lm_head.weight = Parameter(torch.cat([head[list(known)], 9 * head.abs().amax(0, keepdim=True)]))
    return made


def with_reduced_draft(lab: Lab, known: Sequence[int], noise: float = 0.2) -> Lab:
    torch.manual_seed(0)
    model = reduced(perturbed(lab.stock, noise), known)
    return replace(lab, draft=Runner(model, lab.target.vocabulary, target_ids=torch.tensor(known)))
