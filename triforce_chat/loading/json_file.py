"""Small JSON files in the cache folder: read leniently, replaced at once."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def read_object(path: Path) -> dict[str, Any]:
    """The object in the file; an empty one if it is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text("utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def write_object(path: Path, values: dict[str, Any]) -> None:
    """Replace the file at once, so that no reader sees half of it. A folder that cannot be written keeps nothing."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(values, file, indent=1)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
