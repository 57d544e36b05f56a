"""Consoles that write to memory."""

from __future__ import annotations

import io

from rich.console import Console


def written(console: Console) -> str:
    """Everything that was written to a console whose file is a ``StringIO``."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
