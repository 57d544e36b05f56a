"""Keeps calibrations in the cache folder: what planners have measured, for each combination that changes costs.

An entry's key is a hash of everything that its figures depend on: versions, device, models and the stack's options.
A new driver or another number of threads simply has another key; the entries that were written longest ago are dropped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import torch

from triforce_chat import __version__
from triforce_chat.engine.forward.attention_backend import USUAL
from triforce_chat.engine.speculation.calibration import DAMAGED, Calibration
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_rates import rates_of
from triforce_chat.engine.speculation.tree_shapes import Rates
from triforce_chat.loading.json_file import read_object, write_object
from triforce_chat.models.draft_head import DraftHead
from triforce_chat.models.load import LoadedModel
from triforce_chat.models.memory import processor
from triforce_chat.models.presets import short_name
from triforce_chat.settings.paths import calibration_file

FORMAT = 1  # of the file; another one is ignored
KEPT = 50  # entries
KEY_DIGITS = 12

About = Mapping[str, Any]  # what an entry is valid for


@dataclass(frozen=True, slots=True)
class Entry:
    """One calibration in the file."""

    key: str
    about: About
    written: float  # seconds since the epoch
    calibration: Calibration


class CalibrationFile:
    """A ``CalibrationStore`` in a file that several processes may use."""

    def __init__(self, about: About, path: Path | None = None) -> None:
        """``about``: what the figures depend on besides a stack's options. ``path``: None for the usual place."""
        self.about, self.path = about, path or calibration_file()

    def key(self, options: StackOptions) -> str:
        return key_of(self._about(options))

    def read(self, options: StackOptions) -> Calibration:
        return _calibration(_entries(self.path).get(self.key(options)))

    def write(self, options: StackOptions, news: Calibration) -> Calibration:
        # A folder that cannot be written keeps nothing.
        with suppress(OSError), filelock.FileLock(f"{self.path}.lock"):
            return self._add(options, news)
        return Calibration()

    def ranks(self) -> Rates | None:
        found = _entries(self.path).get(key_of(self._about_ranks))
        with suppress(*DAMAGED):
            return rates_of(found["ranks"]) if found else None
        return None

    def keep_ranks(self, rates: Rates) -> None:
        with suppress(OSError), filelock.FileLock(f"{self.path}.lock"):
            self._put(_entries(self.path), self._about_ranks, {"ranks": list(rates)})

    def _add(self, options: StackOptions, news: Calibration) -> Calibration:
        entries = _entries(self.path)
        # Another process may have written since this one read.
        known = _calibration(entries.get(self.key(options)))
        known.absorb(news)
        self._put(entries, self._about(options), known.plain())
        return known

    def _put(self, entries: dict[str, Any], about: About, figures: Mapping[str, Any]) -> None:
        """Write the file with these figures and the newest other entries."""
        key = key_of(about)
        entries.pop(key, None)
        fresh = {"about": about, "written": time.time(), **figures}
        newest = sorted(entries.items(), key=lambda item: -_written(item[1]))[: KEPT - 1]
        write_object(self.path, {"format": FORMAT, "entries": {key: fresh, **dict(newest)}})

    @property
    def _about_ranks(self) -> About:
        """Of acceptance by rank, which no options of a stack change."""
        return {**self.about, "figures": "ranks"}

    def _about(self, options: StackOptions) -> dict[str, Any]:
        own = dataclasses.asdict(options)
        # As before there were trees.
        own = {name: value for name, value in own.items() if name != "tree" or value}
        return {**self.about, **own}


def key_of(about: About) -> str:
    """The name of an entry."""
    text = json.dumps(about, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def about(target: LoadedModel, draft: LoadedModel | None, ranks: int) -> dict[str, Any]:
    """What the times of these models depend on, besides the stack's options."""
    return {
        **about_machine(target.model.device),
        "dtype": target.format,
        "model": target.name,
        "shape": _digest(target.model.config),
        "draft": short_name(draft.name) if draft else None,
        "draft_shape": _digest(draft.model.config, draft.head) if draft else None,
        "draft_dtype": draft.format if draft else None,
        **({"kv": target.kv_format} if target.kv_format else {}),
        **({"attention": target.attention} if target.attention != USUAL else {}),
        "offloaded": target.offloaded,
        **({"gpu_layers": target.streamed.resident} if target.streamed else {}),
        "ranks": ranks,
    }


def about_machine(device: torch.device) -> dict[str, Any]:
    """What all times on this device depend on."""
    versions = {"program": __version__, "torch": torch.__version__}
    if device.type == "cuda":
        driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()
        return {
            **versions,
            "device": torch.cuda.get_device_name(device),
            "cuda": f"{torch.version.cuda}, driver {driver}",
        }
    return {**versions, "device": processor(), "threads": torch.get_num_threads()}


def entries_for(machine: About, model: str, path: Path | None = None) -> list[Entry]:
    """The entries of a model that are valid on this machine, those written last first."""
    found = [
        Entry(key, each["about"], _written(each), _calibration(each))
        for key, each in _entries(path or calibration_file()).items()
        if isinstance(each, dict) and isinstance(each.get("about"), dict)
    ]
    wanted = {**machine, "model": model}.items()
    valid = [each for each in found if all(each.about.get(name) == value for name, value in wanted)]
    return sorted(valid, key=lambda each: -each.written)


def _digest(config: Any, head: DraftHead | None = None) -> str:
    """A hash of a model's configuration: models of one name may have been replaced or inflated."""
    fields = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
    if head is not None:
        fields["draft_head"] = [list(head.state.shape), len(head.ages)]
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def _entries(path: Path) -> dict[str, Any]:
    """The entries of the file by key; none if it is missing, damaged or of another format."""
    found = read_object(path)
    entries = found.get("entries")
    return entries if found.get("format") == FORMAT and isinstance(entries, dict) else {}


def _written(entry: Any) -> float:
    written = entry.get("written") if isinstance(entry, dict) else None
    return float(written) if isinstance(written, int | float) else 0.0


def _calibration(entry: Any) -> Calibration:
    return Calibration.of(entry)
