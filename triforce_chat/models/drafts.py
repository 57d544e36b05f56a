"""Which model drafts for a target when the user does not say: a small one that knows exactly its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triforce_chat.errors import ModelError
from triforce_chat.models.describe import Description
from triforce_chat.models.inventory import folder_of, size_of
from triforce_chat.models.load import live_tokens, tokens_of
from triforce_chat.models.presets import PRESETS, find_preset
from triforce_chat.models.quiet import quiet
from triforce_chat.models.registry import ModelSource

SMALLER = 3  # a draft that is not at least this many times smaller than its target gains nothing


def draft_for(target: Description) -> str | None:
    """A name for ``load_model``: the preset's draft, else a known one on this machine; None for neither.

    Downloads nothing itself; only a preset's own draft may be one that still has to be fetched.
    """
    if target.preset is not None:
        return target.preset.draft
    source = target.source
    return next((name for name, folder in _known() if source and _suits(folder, source)), None)


def _known() -> Iterator[tuple[str, Path]]:
    """Drafts of presets that are on this machine: (name, folder)."""
    for name in dict.fromkeys(preset.draft for preset in PRESETS if preset.draft):
        preset = find_preset(name)
        folder = folder_of(preset) if preset else None
        if folder is not None:
            yield name, folder


def _suits(folder: Path, source: ModelSource) -> bool:
    """Whether the tokens are the same; reads no weights."""
    size = (source.folder / source.gguf_file).stat().st_size if source.gguf_file else size_of(source.folder)
    if size_of(folder) * SMALLER > size:
        return False
    try:
        tokenizer, width = _vocabulary(folder)
    except (OSError, ValueError, ModelError):
        return False
    return live_tokens(tokenizer, width) == tokens_of(source)


def _vocabulary(folder: Path) -> tuple[Any, int]:
    """(tokenizer, width of the logits)."""
    from transformers import AutoConfig, AutoTokenizer

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with quiet():
        config = AutoConfig.from_pretrained(folder, **options)
        return AutoTokenizer.from_pretrained(folder, **options), config.vocab_size
