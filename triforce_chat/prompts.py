"""The one reader of the prompt files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_FOLDERS = (_HERE / "_prompts", _HERE.parent / "prompts")  # in a wheel; in a source tree


@cache
def prompt(name: str) -> str:
    """The text of ``prompts/<name>.md`` without its last line end."""
    folder = next(folder for folder in _FOLDERS if folder.is_dir())
    return (folder / f"{name}.md").read_text("utf-8").removesuffix("\n")
