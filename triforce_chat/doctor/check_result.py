"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triforce_chat.errors import TriforceError

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The name of a check, its status, a message, and advice for the user."""

    name: str
    status: Status
    message: str
    advice: str = ""
    exit_code: int = 0  # of the program, if this is a problem


def ok(name: str, message: str) -> CheckResult:
    return CheckResult(name, "ok", message)


def warning(name: str, message: str, advice: str) -> CheckResult:
    """Something works less well than it could, or will be repaired automatically."""
    return CheckResult(name, "warning", message, advice)


def problem(name: str, message: str, advice: str, kind: type[TriforceError]) -> CheckResult:
    """Something keeps the program from working; other commands would exit with the code of ``kind``."""
    return CheckResult(name, "problem", message, advice, kind.exit_code)
