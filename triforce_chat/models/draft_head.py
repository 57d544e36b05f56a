"""A draft that is built on its target: it starts from the target's last hidden state and shares its largest matrices.

The target's last hidden state says more about what comes next than a short window of tokens does, and a draft that
reads it needs few weights of its own (EAGLE, arXiv 2401.15077; Hydra, arXiv 2402.05109). Embedding and output matrix
are made from the target's when both are loaded, so that the draft's folder need not hold them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from triforce_chat.errors import ModelError

FILE = "draft_head.safetensors"
OF_TARGET = ("model.embed_tokens.weight", "lm_head.weight")  # weights that such a draft's folder lacks


@dataclass(frozen=True, slots=True, eq=False)
class DraftHead:
    """What joins a draft of width D to its target of width H.

    ``embed``: [D, H], from the target's embedding of a token to the draft's. ``state``: [D, H], from the target's last
    hidden state, as its output matrix reads it, to what is added to the embeddings of the tokens after it. ``ages``:
    [K, D], added along with that: row 0 for the token that the state predicted, row k for the k-th after it, the last
    row for all later ones. ``output``: [H, D], from the draft's last hidden state to what the target's output matrix
    reads. A target that a smaller one was written into has more channels: its first H are meant.
    """

    embed: Tensor
    state: Tensor
    ages: Tensor
    output: Tensor

    def save(self, folder: Path) -> None:
        """Write the file that belongs into the draft's folder, in bf16."""
        tensors = {each.name: getattr(self, each.name).bfloat16().cpu().contiguous() for each in fields(self)}
        save_file(tensors, folder / FILE)

    def embedding(self, target: Tensor, known: Tensor) -> Tensor:
        """The draft's embedding [n + 1, D] of the target's [V, H] for n ``known`` ids; the last row: of all others."""
        rows = target[known][:, : self.embed.shape[1]]
        return torch.cat([rows, rows.mean(0, keepdim=True)]) @ self.embed.to(target).T

    def output_matrix(self, target: Tensor, known: Tensor) -> Tensor:
        """The draft's output matrix [n + 1, D] of the target's [V, H] for n ``known`` ids; its last row is zero."""
        rows = target[known][:, : len(self.output)] @ self.output.to(target)
        return torch.cat([rows, torch.zeros_like(rows[:1])])


def read_draft_head(folder: Path) -> DraftHead | None:
    """The head of the draft in ``folder``; None if it stands alone. Raises ModelError for a damaged file."""
    if not is_built_on_target(folder):
        return None
    try:
        head = DraftHead(**load_file(folder / FILE))
        width, wide = head.embed.shape
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise ModelError(f"{folder}: {FILE} is damaged; copy or train the draft again") from error
    fits = (head.state.shape, head.output.shape, head.ages.shape[1:]) == (
        (width, wide),
        (wide, width),
        (width,),
    )
    if not fits or not len(head.ages):
        raise ModelError(
            f"{folder}: the matrices in {FILE} do not fit each other; copy or train the draft again"
        )
    return head


def is_built_on_target(folder: Path) -> bool:
    """Whether the model in ``folder`` is a draft that needs its target."""
    return (folder / FILE).is_file()


def check_answers(name: str, folder: Path) -> None:
    """Raises ModelError for a draft that is built on its target: it cannot answer by itself."""
    if is_built_on_target(folder):
        raise ModelError(
            f"{name} is a draft that reads its target's states: pass it as --draft, and its target as --model"
        )
