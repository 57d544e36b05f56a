"""What of the known models is on this machine, how much room it takes, and how to be rid of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from triforce_chat.errors import ModelError
from triforce_chat.models.cache import MANIFEST
from triforce_chat.models.fetch import DEFAULT_WHEEL
from triforce_chat.models.pickles import conversion_folder
from triforce_chat.models.presets import PRESETS, Preset
from triforce_chat.settings.paths import models_folder


def folder_of(preset: Preset) -> Path | None:
    """Where a preset's weights lie in a form that can be loaded; None if they are not here. No network."""
    own = own_folder(preset)
    if (own / MANIFEST).is_file():
        return own
    if preset.repository is None:
        return None
    from triforce_chat.models.hub import local_snapshot

    return local_snapshot(preset.repository)


def own_folder(preset: Preset) -> Path:
    """Where in this program's cache its weights would lie, converted."""
    if preset.repository is None:
        return models_folder() / DEFAULT_WHEEL.model
    return conversion_folder(preset.repository)


def folders_to_remove(preset: Preset) -> list[Path]:
    """Everything that a preset left on the disk: in this program's cache, and in the hub's."""
    hub = [] if preset.repository is None else [_hub_folder(preset.repository)]
    return [folder for folder in (own_folder(preset), *hub) if folder.is_dir()]


def sharing(preset: Preset, folders: list[Path]) -> list[str]:
    """Names of other presets that lose their weights with these folders."""
    return [
        other.name
        for other in PRESETS
        if other.name != preset.name and not set(folders).isdisjoint(folders_to_remove(other))
    ]


def remove(folders: list[Path]) -> None:
    """Delete them. Raises ModelError when the disk refuses."""
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise ModelError(f"cannot delete {folder}: {error.strerror or error}") from error
        folder.with_name(f"{folder.name}.lock").unlink(missing_ok=True)


def size_of(folder: Path) -> int:
    """Bytes on the disk of all files below; links count as what they lead to, once."""
    files = {path.resolve() for path in folder.rglob("*") if path.is_file()}
    return sum(path.stat().st_size for path in files)


def _hub_folder(repository: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")
