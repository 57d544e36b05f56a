"""One line of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triforce_chat.errors import TriforceError

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and what the user can do about it."""

    name: str
    status: Status
    told: str
    advice: str = ""
    exit_code: int = 0  # of the program, if this is a problem


def ok(name: str, told: str) -> Finding:
    return Finding(name, "ok", told)


def warning(name: str, told: str, advice: str) -> Finding:
    """Something works less well than it could, or will be repaired by itself."""
    return Finding(name, "warning", told, advice)


def problem(name: str, told: str, advice: str, kind: type[TriforceError]) -> Finding:
    """Something keeps the program from working; other commands would end with the code of ``kind``."""
    return Finding(name, "problem", told, advice, kind.exit_code)
