"""From the name a user typed to a folder of weights on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from triforce_chat.errors import ModelError
from triforce_chat.models.fetch import wheel_model
from triforce_chat.models.progress import Report, unheard


@dataclass(frozen=True, slots=True)
class Preset:
    """A model that this program knows by a short name, with what suits it."""

    name: str
    repository: str | None  # hub id; None: the built-in default model
    draft: str | None  # name of the draft model to use unless the user names one
    context: int  # tokens the preset is meant for
    sampling: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    aliases: tuple[str, ...] = ()


PRESETS = (
    Preset(
        name="default",
        repository=None,
        draft=None,
        context=8192,
        sampling=MappingProxyType({"temperature": 0.0, "repetition_penalty": 1.1}),  # it loops without one
        aliases=("smollm2-135m",),
    ),
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the weights lie: ``gguf_file`` names a file in ``folder``, None means safetensors."""

    name: str
    folder: Path
    gguf_file: str | None
    preset: Preset | None


def find_preset(name: str) -> Preset | None:
    """The preset of that name or alias, if there is one."""
    return next((preset for preset in PRESETS if name in (preset.name, *preset.aliases)), None)


def resolve(name: str, *, report: Report = unheard) -> ModelSource:
    """Find a preset, a local folder, a .gguf file or a hub id ``owner/name``, in this order.

    Fetches what is not on the machine yet. Raises ModelError when there is no such model.
    """
    preset = find_preset(name)
    if preset is not None:
        return _of_preset(name, preset, report)
    path = Path(name).expanduser()
    if path.is_file():
        return _of_file(name, path)
    if path.is_dir():
        return _of_folder(name, path)
    return _of_hub(name, name, None, report)


def _of_preset(name: str, preset: Preset, report: Report) -> ModelSource:
    if preset.repository is not None:
        return _of_hub(name, preset.repository, preset, report)
    return ModelSource(name, wheel_model(report=report), None, preset)


def _of_file(name: str, path: Path) -> ModelSource:
    if path.suffix.lower() != ".gguf":
        raise ModelError(f"{name}: a model is a folder or a .gguf file")
    return ModelSource(name, path.absolute().parent, path.name, None)


def _of_folder(name: str, path: Path) -> ModelSource:
    if any(path.glob("*.safetensors")):
        check_complete(name, path)
        return ModelSource(name, path.absolute(), None, None)
    ggufs = sorted(file.name for file in path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelSource(name, path.absolute(), ggufs[0], None)
    if ggufs:
        raise ModelError(f"{name}: holds {len(ggufs)} .gguf files ({', '.join(ggufs)}); name one of them")
    raise ModelError(f"{name}: {_what_is_missing(path)}")


def _of_hub(name: str, repository: str, preset: Preset | None, report: Report) -> ModelSource:
    if not looks_like_hub_id(repository):
        known = ", ".join(preset.name for preset in PRESETS)
        raise ModelError(
            f"no model {name!r}: give a preset ({known}), a folder, a .gguf file or a hub id owner/name"
        )
    from triforce_chat.models.hub import snapshot

    return ModelSource(name, snapshot(repository, check_complete, report), None, preset)


def looks_like_hub_id(name: str) -> bool:
    """Whether the name has the form owner/name and cannot be meant as a path."""
    owner, _, rest = name.partition("/")
    return bool(owner and rest) and "/" not in rest and "\\" not in name and owner[0] not in ".~"


def check_complete(name: str, folder: Path) -> None:
    """Raise ModelError unless the folder holds a config and every safetensors file its index names."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name}: config.json is missing beside the weights")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{name}: {_what_is_missing(folder)}")
    missing = [file for file in _indexed(folder) if not (folder / file).is_file()]
    if missing:
        raise ModelError(f"{name}: incomplete, {missing[0]} is missing; copy or download the model again")


def _indexed(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return []
    try:
        return sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{folder.name}: {index.name} is damaged; copy or download the model again"
        ) from error


def _what_is_missing(folder: Path) -> str:
    pickles = [file for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern)]
    if pickles:
        return f"holds only pickled weights ({pickles[0].name}), which are never read; convert to safetensors"
    return "holds neither .safetensors nor .gguf weights"
