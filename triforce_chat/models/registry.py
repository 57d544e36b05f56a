"""Resolves the model name that a user typed to a folder of weights on this machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path

from triforce_chat.errors import ModelError, reason_of
from triforce_chat.models.adapter import Adapter, is_adapter, read_adapter
from triforce_chat.models.completeness import check_complete, no_weights
from triforce_chat.models.fetch import wheel_model
from triforce_chat.models.presets import PRESETS, Preset, find_preset, near_presets
from triforce_chat.models.progress import Report, ignore_progress


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The location of a model's weights: ``gguf_file`` in ``folder``, or safetensors if that is None."""

    name: str
    folder: Path
    gguf_file: str | None
    preset: Preset | None
    adapter: Adapter | None = None


def resolve(name: str, *, report: Report = ignore_progress) -> ModelSource:
    """Find a preset, a local folder, a .gguf file or a hub id ``owner/name``, in this order.

    Downloads a model that is not on this machine yet. Raises ModelError if there is no such model.
    """
    preset = find_preset(name)
    if preset is not None:
        return _of_preset(name, preset, report)
    path = Path(expanduser(name))
    if path.is_file():
        return _of_file(name, path)
    if path.is_dir():
        try:
            return _of_folder(name, path, report)
        except OSError as error:
            raise ModelError(f"{name}: {reason_of(error)}") from error
    return _of_hub(name, report)


def _of_preset(name: str, preset: Preset, report: Report) -> ModelSource:
    if preset.adapter is not None:
        adapted = _of_folder(name, Path(preset.adapter), report)
        return dataclasses.replace(adapted, preset=preset)
    if preset.packed is not None:
        folder = wheel_model(packed=preset.packed, report=report)
        return dataclasses.replace(_of_folder(name, folder, report), preset=preset)
    assert preset.repository is not None
    from triforce_chat.models.pickles import snapshot_or_converted

    return ModelSource(name, snapshot_or_converted(preset.repository, report), None, preset)


def _of_file(name: str, path: Path) -> ModelSource:
    if path.suffix.lower() != ".gguf":
        raise ModelError(f"{name}: a model is a folder or a .gguf file")
    return ModelSource(name, path.absolute().parent, path.name, None)


def _of_folder(name: str, path: Path, report: Report) -> ModelSource:
    if is_adapter(path):
        return _of_adapter(name, path, report)
    if any(path.glob("*.safetensors")):
        check_complete(name, path)
        return ModelSource(name, path.absolute(), None, None)
    ggufs = sorted(file.name for file in path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelSource(name, path.absolute(), ggufs[0], None)
    if ggufs:
        raise ModelError(f"{name}: contains {len(ggufs)} .gguf files ({', '.join(ggufs)}); name one of them")
    raise no_weights(name, path)


def _of_adapter(name: str, path: Path, report: Report) -> ModelSource:
    adapter = read_adapter(path.absolute())
    if is_adapter(Path(expanduser(adapter.base))) or getattr(find_preset(adapter.base), "adapter", None):
        raise ModelError(
            f"{name}: its base {adapter.base} is itself an adapter; name the model that both are based on"
        )
    return dataclasses.replace(resolve(adapter.base, report=report), name=name, adapter=adapter)


def _of_hub(name: str, report: Report) -> ModelSource:
    if not looks_like_hub_id(name):
        known = ", ".join(preset.name for preset in PRESETS)
        choices = f": give a preset ({known}), a folder, a .gguf file or a hub id owner/name"
        raise ModelError(f"no model {name!r}{near_presets(name) or choices}")
    from triforce_chat.models.hub import snapshot

    return ModelSource(name, snapshot(name, report), None, None)


def looks_like_hub_id(name: str) -> bool:
    """True if the name has the form owner/name and cannot be a path."""
    owner, _, rest = name.partition("/")
    return bool(owner and rest) and "/" not in rest and "\\" not in name and owner[0] not in ".~"
