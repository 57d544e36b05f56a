"""Chooses the draft model for a target if the user names none: a small model with the same vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from triforce_chat.errors import ModelError
from triforce_chat.models.describe import Description
from triforce_chat.models.inventory import folder_of, size_of
from triforce_chat.models.presets import PRESETS, find_preset
from triforce_chat.models.registry import ModelSource

MIN_RATIO = 3  # a draft must be at least this many times smaller than its target to gain anything


def draft_for(target: Description) -> str | None:
    """The name of a draft for ``load_model``: the preset's, else one on this machine that fits, else None.

    Downloads nothing, but a preset's draft may still have to be downloaded.
    """
    if target.preset is not None:
        return target.preset.draft
    source = target.source
    return next((name for name, folder in _local_drafts() if source and _suits(folder, source)), None)


def _local_drafts() -> Iterator[tuple[str, Path]]:
    """(name, folder) of presets' drafts that are on this machine."""
    for name in dict.fromkeys(preset.draft for preset in PRESETS if preset.draft):
        preset = find_preset(name)
        folder = folder_of(preset) if preset else None
        if folder is not None:
            yield name, folder


def _suits(folder: Path, source: ModelSource) -> bool:
    """True if a draft is small enough and has the same tokens; reads no weights."""
    size = (source.folder / source.gguf_file).stat().st_size if source.gguf_file else size_of(source.folder)
    if size_of(folder) * MIN_RATIO > size:
        return False
    from triforce_chat.models.load import tokens_of  # imports torch

    try:
        own = tokens_of(ModelSource(folder.name, folder, None, None))
    except ModelError:
        return False
    return own == tokens_of(source)
