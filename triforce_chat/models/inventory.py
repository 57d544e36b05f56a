"""Finds, measures and deletes the files of presets and the converted GGUF files on this machine."""

from __future__ import annotations

import shutil
from os.path import expanduser
from pathlib import Path

from triforce_chat.errors import ModelError
from triforce_chat.models.fetch import download_folder, is_complete, packed_folder
from triforce_chat.models.gguf_cache import Conversion, conversions
from triforce_chat.models.model_cache import LOCK, MANIFEST
from triforce_chat.models.pickles import conversion_folder
from triforce_chat.models.presets import PRESETS, Preset, find_preset


def is_missing(name: str) -> bool:
    """True if no preset has this name, or its weights are not on this machine."""
    preset = find_preset(name)
    return preset is None or folder_of(preset) is None


def folder_of(preset: Preset) -> Path | None:
    """The folder of a preset's loadable weights; None if they are not on this machine. Never uses the network."""
    own = own_folder(preset)
    if preset.packed is not None:
        return own if is_complete(preset.packed) else None
    if (own / MANIFEST).is_file():
        return own
    assert preset.repository is not None
    from triforce_chat.models.hub import local_snapshot

    return local_snapshot(preset.repository)


def own_folder(preset: Preset) -> Path:
    """The folder in this program's cache for the preset's weights, which may not exist."""
    if preset.packed is not None:
        return packed_folder(preset.packed)
    assert preset.repository is not None
    return conversion_folder(preset.repository)


def folders_to_remove(preset: Preset) -> list[Path]:
    """A preset's existing folders in this program's cache and in the hub's cache, with what it was converted into."""
    hub = [] if preset.repository is None else [_hub_folder(preset.repository)]
    begun = [] if preset.packed is None else [download_folder(preset.packed)]
    own = own_folder(preset)
    converted = [each.folder for each in conversions() if each.file.parent == own.resolve()]
    return [folder for folder in (own, *begun, *converted, *hub) if folder.is_dir()]


def presets_sharing(preset: Preset, folders: list[Path]) -> list[str]:
    """Names of other presets whose weights are in these folders, too."""
    return [
        other.name
        for other in PRESETS
        if other.name != preset.name and not set(folders).isdisjoint(folders_to_remove(other))
    ]


def conversions_of(name: str) -> list[Conversion]:
    """What the GGUF file of that name, or at that path, was converted into. Raises ModelError for two such files."""
    path = str(Path(expanduser(name)).resolve())
    everything = conversions()
    found = [each for each in everything if each.origin.file == path]
    found = found or [each for each in everything if each.file.name == name]
    files = sorted({each.origin.file for each in found})
    if len(files) > 1:
        raise ModelError(f"{len(files)} files are named {name}: give the path of one ({', '.join(files)})")
    return found


def remove(folders: list[Path]) -> None:
    """Delete folders. Raises ModelError if one cannot be deleted."""
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise ModelError(f"cannot delete {folder}: {error.strerror or error}") from error
        folder.with_name(f"{folder.name}{LOCK}").unlink(missing_ok=True)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder; the target of links counts once."""
    files = {path.resolve() for path in folder.rglob("*") if path.is_file()}
    return sum(path.stat().st_size for path in files)


def _hub_folder(repository: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")
