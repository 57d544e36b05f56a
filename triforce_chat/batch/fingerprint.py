"""What an answer was made of, so that the next run notices that a book, the model or the settings have changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triforce_chat.batch.lines import Line
from triforce_chat.documents.addresses import is_url
from triforce_chat.errors import DocumentError
from triforce_chat.models.presets import find_preset
from triforce_chat.settings.options import OPTIONS, Options
from triforce_chat.settings.specification import SettingSpec
from triforce_chat.ui.clean import one_line

# What changes an answer besides the model. A stack does not: its output is distributed as the target's own.
ALSO = frozenset({"max_tokens", "passages", "dtype", "system", "pages", "ocr"})
NEW = frozenset(
    {"kv", "think"}
)  # count where they are not at their defaults, so that earlier answers stay valid
DIGITS = 32  # hexadecimal ones of a hash
SAMPLES, SAMPLE = 64, 4096  # of a file of weights so many parts of so many bytes are compared
Fingerprint = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Maker:
    """What all answers of a run are made of: the model, the settings, and documents before those of a line."""

    model: str
    settings: str
    shared: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Options, shared: Sequence[str] = ()) -> Maker:
        """The fingerprints of a run whose model has been chosen."""
        changes = {
            spec.name: getattr(options, spec.name)
            for spec in OPTIONS
            if spec.details.sampling or spec.name in ALSO or _is_new(spec, options)
        }
        settings = hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:DIGITS]
        return cls(identity(options.model), settings, tuple(shared))

    def fingerprint(self, documents: Sequence[str]) -> dict[str, Any]:
        """The fingerprint of answers about these documents as they are now. Raises OSError."""
        files = [stamp(path) for path in (*self.shared, *documents)]
        return {"files": files, "model": self.model, "settings": self.settings}

    def changes(self, found: Fingerprint, line: Line) -> str:
        """What is different now from what an answer to this line was made of, in words; empty if nothing is."""
        for name in ("model", "settings"):
            if found.get(name) != getattr(self, name):
                return f"another {name}" if name == "model" else f"other {name}"
        if found.get("request", line.digest) != line.digest:
            return "another request"
        if [file["path"] for file in found["files"]] != [*self.shared, *line.documents]:
            return "other documents"
        changed = next((file["path"] for file in found["files"] if not is_same(**file)), None)
        return f"another {changed}" if changed else ""


def _is_new(spec: SettingSpec, options: Options) -> bool:
    """Whether a setting that earlier versions lacked differs from what they did."""
    return spec.name in NEW and getattr(options, spec.name) != spec.default


def identity(model: str) -> str:
    """The name of a preset or of a model in the hub; of a model on this machine a hash of parts of its files."""
    path = Path(os.path.expanduser(model))
    if find_preset(model) is not None or not path.exists():
        return model
    files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for each in files:
        digest.update(f"{each.name} {each.stat().st_size}\n".encode("utf-8", "surrogatepass"))
        for part in _parts(each):
            digest.update(part)
    return digest.hexdigest()[:DIGITS]


def _parts(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        for start in range(0, size, max(SAMPLE, size // SAMPLES)):
            file.seek(start)
            yield file.read(SAMPLE)


def require_file(path: str) -> None:
    """Raises DocumentError for what is there but is no file: it could block a reader for ever, or change unnoticed."""
    named = os.path.expanduser(path)
    if is_url(path):
        raise DocumentError(f"{one_line(path)}: an address; a batch reads files, whose changes it notices")
    if os.path.exists(named) and not (os.path.isfile(named) or os.path.isdir(named)):
        raise DocumentError(f"{one_line(path)}: a pipe or a device; a batch reads files")


def stamp(path: str) -> dict[str, Any]:
    """A file as it is now. Raises OSError."""
    named = os.path.expanduser(path)
    now = os.stat(named)
    return {"path": path, "size": now.st_size, "modified_ns": now.st_mtime_ns, "sha256": _hash(named)}


def is_same(path: str, size: int, modified_ns: int, sha256: str) -> bool:
    """True if a file has the content that it had, or is gone. It is read only if its time alone is another one."""
    named = os.path.expanduser(path)
    try:
        now = os.stat(named)
        return now.st_size == size and (now.st_mtime_ns == modified_ns or _hash(named) == sha256)
    except OSError:
        return True


def _hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
