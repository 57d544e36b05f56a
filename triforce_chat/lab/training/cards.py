"""Model cards: what was trained, on what, how long, by which command, and how well it does."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from triforce_chat.lab.machine import machine
from triforce_chat.models.presets import find_preset

TABLE = "| | |\n|---|---|\n"


def write_card(
    folder: Path,
    title: str,
    purpose: str,
    base: str,
    recipe: Any,
    texts: Sequence[str],
    figures: Mapping[str, float],
) -> None:
    """Write README.md into ``folder``. ``recipe`` is a dataclass; ``texts`` are titles of what was read."""
    known = find_preset(base)
    licence = known.licence if known and known.licence else "that of the base model"
    front = f"---\nlicense: {licence.lower()}\nbase_model: {base}\n---\n\n"
    parts = [
        f"# {title}\n\n{purpose}\n",
        "## Training\n\n" + TABLE + _rows(asdict(recipe)),
        "## Figures at the end of the training\n\n" + TABLE + _rows(figures),
        "## Machine\n\n" + TABLE + _rows(machine()),
        "## Command\n\n```\ntriforce-chat " + " ".join(sys.argv[1:]) + "\n```\n",
        "## Data\n\n" + "".join(f"- {text}\n" for text in texts),
    ]
    (folder / "README.md").write_text(front + "\n".join(parts), "utf-8")


def _rows(values: Mapping[str, Any]) -> str:
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in values.items()}
    return "".join(f"| {name.replace('_', ' ')} | {value} |\n" for name, value in shown.items())
