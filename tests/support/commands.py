"""Runs commands of the CLI inside the test process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from triforce_chat.cli.app import app


class Outcome:
    """Output, exit code and exception of one run."""

    def __init__(self, result: Any) -> None:
        self.code: int = result.exit_code
        self.out: str = result.stdout
        self.err: str = result.stderr
        self.crash = None if isinstance(result.exception, SystemExit) else result.exception

    @property
    def json(self) -> dict[str, Any]:
        assert self.crash is None
        assert self.code == 0, self.err
        value: dict[str, Any] = json.loads(self.out)
        return value

    def is_refusal(self, code: int, told: str) -> None:
        """One clear line on stderr, nothing on stdout, the documented exit code."""
        assert self.crash is None
        assert told in self.err
        assert (self.code, self.out) == (code, "")
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1


def run(*arguments: object, stdin: str | bytes | None = None) -> Outcome:
    return Outcome(CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin))
