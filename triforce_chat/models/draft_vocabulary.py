"""A draft that knows some of its target's tokens only (FR-Spec, arXiv 2502.14856; EAGLE-3, arXiv 2503.01840).

What it doesn't know it never proposes, so that outputs stay exact, and its embedding and output matrix, most of a small
model with a large vocabulary, shrink.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from triforce_chat.errors import ModelError

FILE = "draft_vocabulary.safetensors"
TARGET_IDS, TOKENIZER = "target_ids", "tokenizer"


@dataclass(frozen=True, slots=True, eq=False)
class DraftVocabulary:
    """Which of its target's tokens a draft knows.

    ``target_ids``: [D], int64, the target's id of each token; the draft's next id, D, stands for all others.
    ``tokenizer``: the ``vocabulary_hash`` of the target's tokenizer.
    """

    target_ids: Tensor
    tokenizer: str

    def save(self, folder: Path) -> None:
        """Write the file that belongs into the draft's folder."""
        save_file({TARGET_IDS: self.target_ids.int().cpu()}, folder / FILE, {TOKENIZER: self.tokenizer})


def read_draft_vocabulary(folder: Path) -> DraftVocabulary | None:
    """The vocabulary of the draft in ``folder``; None if it has its target's. Raises ModelError for a damaged file."""
    if not (folder / FILE).is_file():
        return None
    try:
        with safe_open(folder / FILE, "pt") as file:
            ids: Tensor = file.get_tensor(TARGET_IDS)
            return DraftVocabulary(ids.to(torch.int64), file.metadata()[TOKENIZER])
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise ModelError(f"{folder}: {FILE} is damaged; copy or train the draft again") from error
