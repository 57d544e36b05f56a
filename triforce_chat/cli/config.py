"""``triforce-chat config`` and ``paths``: the user's own defaults, and where the program keeps its files."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from triforce_chat.cli.failures import failures
from triforce_chat.cli.options import App, Debug, Json
from triforce_chat.cli.output import print_line, print_record, screen_of
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options

app = App(
    help="Show and edit your settings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

EDITORS = ("sensible-editor", "nano", "vim", "vi", "notepad")


@app.command("show")
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Show where each value was set.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the settings in effect as TOML; flags override them."""
    with failures(debug):
        from triforce_chat.settings.layers import effective, persistent
        from triforce_chat.settings.toml import lines

        layer, screen = effective(), screen_of(Options())
        if json:
            values = {key: layer.values[spec.name] for key, spec in persistent().items()}
            record = {"settings": values, "problems": layer.problems}
            origins = {key: layer.origins[spec.name] for key, spec in persistent().items()}
            print_record({**record, "origins": origins} if origin else record)
            return
        for problem in layer.problems:
            print_line(screen.err, f"warning: {problem}")
        for line in lines(layer, origin):
            print_line(screen.out, line)


@app.command("edit")
def edit(debug: Debug = False) -> None:
    """Open the configuration file in $VISUAL or $EDITOR and check it afterwards."""
    with failures(debug):
        from triforce_chat.settings.layers import from_file
        from triforce_chat.settings.paths import config_file
        from triforce_chat.settings.toml import template

        path = config_file()
        if not path.exists():
            create(path, template())
        open_editor(path)
        problems = from_file(path).problems
        if problems:
            raise UsageError(problems[0])


def paths(json: Json = False, debug: Debug = False) -> None:
    """Print where settings, caches, models and histories are kept."""
    with failures(debug):
        from triforce_chat.settings.paths import all_paths

        found = {name: str(path) for name, path in all_paths().items()}
        if json:
            print_record(found)
            return
        screen = screen_of(Options())
        for name, path in found.items():
            print_line(screen.out, f"{name}: {path}")


def create(path: Path, text: str) -> None:
    """Write a new file that only its owner can read. Raises UsageError if the system refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        from triforce_chat.settings.paths import CONFIG_VARIABLE

        reason = error.strerror or str(error)
        raise UsageError(
            f"{path}: cannot be written ({reason}); {CONFIG_VARIABLE} names another file"
        ) from None


def open_editor(path: Path) -> None:
    """Open the file in the user's editor and wait for it. Raises UsageError if there is none, or if it fails."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    try:
        words = shlex.split(named) or [next(filter(shutil.which, EDITORS), "")]
        code = subprocess.run([*words, str(path)], check=False).returncode
    except (ValueError, OSError):
        raise UsageError(f"no editor {named!r}; set EDITOR, or edit {path} yourself") from None
    if code:
        raise UsageError(f"the editor failed with code {code}; EDITOR names another one")
