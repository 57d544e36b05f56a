"""``triforce-chat doctor``: checks for everything that can keep this installation from working."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from triforce_chat.cli.failures import failures
from triforce_chat.cli.options import Debug, Json
from triforce_chat.cli.output import print_record, screen_of
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from rich.console import Console

    from triforce_chat.doctor.check_result import CheckResult

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(json: Json = False, debug: Debug = False) -> None:
    """Check versions, GPU, models, caches, settings and terminal; exits with the code of the first problem:
    2 for settings, 5 for anything that keeps models from running."""
    with failures(debug):
        from triforce_chat.doctor.run_checks import run_checks

        screen = screen_of(Options())
        results = []
        for result in run_checks(screen):
            results.append(result)
            if not json:
                show(result, screen.out)
        code = next((result.exit_code for result in results if result.status == "problem"), 0)
        if json:
            print_record({"ok": not code, "findings": [record_of(result) for result in results]})
        if code:
            raise typer.Exit(code)


def record_of(result: CheckResult) -> dict[str, Any]:
    """A check's result as plain values, with the field names of ``--json``."""
    return {
        "name": result.name,
        "status": result.status,
        "told": result.message,
        "advice": result.advice,
        "exit_code": result.exit_code,
    }


def show(result: CheckResult, console: Console) -> None:
    """Print a result on one line, which a terminal gets wrapped between words."""
    from rich.text import Text

    from triforce_chat.ui.clean import clean
    from triforce_chat.ui.terminal import print_line

    style = STYLES[result.status]
    advice = f" -> {result.advice}" if result.advice else ""
    told = clean(f" {result.name:14} {result.message}{advice}")
    print_line(console, Text.assemble((f"{result.status:8}", style), told))
