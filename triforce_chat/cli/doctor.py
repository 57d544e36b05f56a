"""``triforce-chat doctor``: checks for everything that can keep this installation from working."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer

from triforce_chat.cli.failures import failures
from triforce_chat.cli.options import Debug, Json
from triforce_chat.cli.output import print_line, print_record, screen_of
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from rich.console import Console

    from triforce_chat.doctor.check_result import Finding

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(json: Json = False, debug: Debug = False) -> None:
    """Check versions, GPU, models, caches, settings and terminal; exits with the code of the first problem:
    2 for settings, 5 for anything that keeps models from running."""
    with failures(debug):
        from triforce_chat.doctor.run_checks import examine

        screen = screen_of(Options())
        found = []
        for finding in examine(screen):
            found.append(finding)
            if not json:
                show(finding, screen.out)
        code = next((finding.exit_code for finding in found if finding.status == "problem"), 0)
        if json:
            records = [dataclasses.asdict(finding) for finding in found]
            print_record({"ok": not code, "findings": records})
        if code:
            raise typer.Exit(code)


def show(finding: Finding, console: Console) -> None:
    """Print a finding on one line, however long: it may be pasted into a report."""
    style = STYLES[finding.status]
    console.print(f"[{style}]{finding.status:8}[/] ", end="", highlight=False)
    advice = f" -> {finding.advice}" if finding.advice else ""
    print_line(console, f"{finding.name:14} {finding.told}{advice}")
