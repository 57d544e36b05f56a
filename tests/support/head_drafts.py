"""Random drafts that are built on their target, in memory and in a folder."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import Parameter

from support.labs import Lab, perturbed
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.forward.target_state import StateReader, TargetState
from triforce_chat.models.draft_head import OF_TARGET, DraftHead
from triforce_chat.models.draft_vocabulary import DraftVocabulary
from triforce_chat.models.tokenizer import vocabulary_hash

AGES = 3


def random_head(hidden: int, strength: float = 0.1, width: int | None = None) -> DraftHead:
    """One that reads a state with that strength; without a ``width`` it takes over the target's own vectors."""
    wide = width or hidden
    spread = hidden**-0.5
    embed = torch.eye(hidden) if width is None else spread * torch.randn(wide, hidden)
    state, ages = strength * torch.randn(wide, hidden), strength * torch.randn(AGES, wide)
    return DraftHead(embed, state, ages, embed.T.contiguous())


def head_pair(
    target: Any, known: Sequence[int], noise: float = 0.1, strength: float = 0.1
) -> tuple[Runner, Runner]:
    """Forwards of a target and of a draft on it: its own layers, a little off, and a random head."""
    return joined(
        copy.deepcopy(target),
        perturbed(target, noise),
        random_head(target.config.hidden_size, strength),
        known,
    )


def joined(target: Any, draft: Any, head: DraftHead, known: Sequence[int]) -> tuple[Runner, Runner]:
    """Forwards of both models, the draft with the head and with what that makes of the target's matrices."""
    use_matrices(draft, target, head, known)
    state = TargetState(target.config.hidden_size, target.dtype, target.device)
    reader = StateReader(state, head.state.to(state.hidden), head.ages.to(state.hidden))
    width, ids = target.config.vocab_size, torch.tensor(known)
    return Runner(target, state=state), Runner(draft, width, target_ids=ids, reader=reader)


def use_matrices(draft: Any, target: Any, head: DraftHead, known: Sequence[int]) -> None:
    """Give the draft's model the embedding and the output matrix that the head makes of the target's."""
    ids = torch.tensor(known, device=target.device)
    draft.config.vocab_size = len(known) + 1
    into, out = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    with torch.no_grad():
        draft.get_input_embeddings().weight = Parameter(head.embedding(into, ids))
        draft.get_output_embeddings().weight = Parameter(head.output_matrix(out, ids))


def with_head_draft(lab: Lab, known: Sequence[int], noise: float = 0.1, strength: float = 0.1) -> Lab:
    torch.manual_seed(0)
    target, draft = head_pair(lab.stock, known, noise, strength)
    return replace(lab, target=target, draft=draft)


def save_head_draft(
    folder: Path, target: Any, tokenizer: Any, known: Tensor, head: DraftHead | None = None, **changes: Any
) -> Path:
    """A draft's folder as training leaves it: decoder layers and final norm, vocabulary, head; no tokenizer.

    The layers are the target's, a little off, or with ``changes`` of its configuration random ones.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    model = perturbed(target, 0.1)
    fields = {
        **target.config.to_dict(),
        "vocab_size": len(known) + 1,
        "tie_word_embeddings": False,
        **changes,
    }
    if changes:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields))
        fields = model.config.to_dict()
    weights = {name: weight for name, weight in model.state_dict().items() if name not in OF_TARGET}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(fields))
    DraftVocabulary(known, vocabulary_hash(tokenizer)).save(folder)
    channels = target.config.hidden_size
    width = None if model.config.hidden_size == channels else model.config.hidden_size
    (head or random_head(channels, width=width)).save(folder)
    return folder
