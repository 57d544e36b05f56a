"""``triforce-chat config`` and ``paths``: a user's own defaults, and where everything lies."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triforce_chat.cli.models import Debug, Json
from triforce_chat.cli.options import Options, failures, print_record, screen_of
from triforce_chat.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    help="Settings: what is in effect and from where, and changing it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

EDITORS = ("sensible-editor", "nano", "vim", "vi", "notepad")


@app.command("show")
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the settings in effect as TOML; flags come on top of them."""
    with failures(debug):
        from triforce_chat.settings.layers import in_effect, keys
        from triforce_chat.settings.toml import lines

        layer, screen = in_effect(), screen_of(Options())
        if json:
            values = {name: layer.values[key.field] for name, key in keys().items()}
            record = {"settings": values, "problems": layer.problems}
            origins = {name: layer.origins[key.field] for name, key in keys().items()}
            print_record({**record, "origins": origins} if origin else record)
            return
        for problem in layer.problems:
            tell(screen.err, f"warning: {problem}")
        for line in lines(layer, origin):
            tell(screen.out, line)


@app.command("edit")
def edit(debug: Debug = False) -> None:
    """Open the file in $VISUAL or $EDITOR and check it afterwards."""
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
    """Print where settings, caches, models and histories lie."""
    with failures(debug):
        from triforce_chat.settings.paths import all_paths

        found = {name: str(path) for name, path in all_paths().items()}
        if json:
            print_record(found)
            return
        screen = screen_of(Options())
        for name, path in found.items():
            tell(screen.out, f"{name}: {path}")


def create(path: Path, text: str) -> None:
    """Write a new file that only its owner reads. Raises UsageError where that is refused."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        from triforce_chat.settings.paths import CONFIG_VARIABLE

        told = error.strerror or str(error)
        raise UsageError(
            f"{path}: cannot be written ({told}); {CONFIG_VARIABLE} names another file"
        ) from None


def open_editor(path: Path) -> None:
    """Wait until the user has closed the file. Raises UsageError where there is no editor, or it fails."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    try:
        words = shlex.split(named) or [next(filter(shutil.which, EDITORS), "")]
        code = subprocess.run([*words, str(path)], check=False).returncode
    except (ValueError, OSError):
        raise UsageError(f"no editor {named!r}; set EDITOR, or edit {path} yourself") from None
    if code:
        raise UsageError(f"the editor failed with code {code}; EDITOR names another one")


def tell(console: Console, line: str) -> None:
    """A line as it is; the terminal may break it, and a pipe gets it whole."""
    from triforce_chat.ui.clean import clean

    console.print(clean(line), markup=False, highlight=False, soft_wrap=True)
