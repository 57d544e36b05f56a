"""``triforce-chat models``: list, describe, download and delete models."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.complete import models
from triforce_chat.cli.failures import failures
from triforce_chat.cli.options import App, Debug, Json, Yes
from triforce_chat.cli.output import confirm_deletion, print_line, print_record, screen_of, show_notes
from triforce_chat.errors import ModelError, TriforceError
from triforce_chat.settings.options import Options
from triforce_chat.settings.sizes import readable

if TYPE_CHECKING:
    from pathlib import Path
    from threading import Thread

    from rich.table import Table

    from triforce_chat.loading.choose_model import Choice
    from triforce_chat.models.gguf_cache import Conversion
    from triforce_chat.models.presets import Preset
    from triforce_chat.settings.settings import Settings
    from triforce_chat.ui.terminal import Screen

app = App(help="List, download and delete named models.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A name that 'models ls' shows, or its hub id.", autocompletion=models
    ),
]


@app.command("ls")
def list_models(json: Json = False, debug: Debug = False) -> None:
    """List the named models, and the GGUF files that have been converted."""
    with failures(debug):
        from triforce_chat.models.gguf_cache import conversions
        from triforce_chat.models.presets import PRESETS

        choice = automatic_choice()
        records = [
            {**record_of(preset), "automatic": bool(choice and preset.name == choice.model)}
            for preset in PRESETS
        ]
        converted = [record_of_conversion(each) for each in conversions()]
        if json:
            print_record({"models": records, "converted": converted})
            return
        screen = screen_of(Options())
        from triforce_chat.ui.tables import WholeWords

        screen.out.print(WholeWords(table_of(records)))
        if converted:
            screen.out.print()
            screen.out.print(WholeWords(table_of_conversions(converted)))
        if choice:
            print_line(screen.err, choice.summary)


def automatic_choice() -> Choice | None:
    """What --model auto would choose here; None if the settings have mistakes, which other commands report."""
    from triforce_chat.loading.choose_model import users_choice

    try:
        return users_choice()
    except TriforceError:
        return None


@app.command("show")
def show(name: Name, json: Json = False, debug: Debug = False) -> None:
    """Show everything known about one model."""
    with failures(debug):
        preset = named(name)
        record = {**record_of(preset), "weights": format_of(preset)}
        if json:
            print_record(record)
        else:
            screen_of(Options()).out.print(details_of(record))


@app.command("pull")
def pull(
    name: Name,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    debug: Debug = False,
) -> None:
    """Download a model and its draft, and prepare them for this machine: compile kernels or expand weights."""
    with failures(debug):
        from triforce_chat.models.presets import find_preset

        preset = named(name)
        screen = screen_of(Options(quiet=quiet))
        settings = users_settings(preset.name)
        compiling = compiled_meanwhile(settings)
        for each in filter(None, (preset.name, preset.draft)):
            fetch(each, screen, settings)
            if not quiet and find_preset(each):  # a draft that is a part of this program is not downloaded
                screen.err.print(f"{each} is downloaded", markup=False)
        if compiling:
            busy = (
                screen.err.status("compiling its GPU kernels") if screen.detail == "live" else nullcontext()
            )
            with busy:
                compiling.join()


def users_settings(name: str) -> Settings | None:
    """The user's own settings with that model; None if they have mistakes, which other commands report."""
    from triforce_chat.settings.layers import user_values

    try:
        return Options(**{**user_values(), "model": name}).settings
    except TriforceError:
        return None


def compiled_meanwhile(settings: Settings | None) -> Thread | None:
    """Begin to compile a model's GPU kernels: what waits for that process; None if there is nothing to compile."""
    from triforce_chat.loading import compile_job
    from triforce_chat.loading.gpu import find_gpu
    from triforce_chat.loading.spec import EngineSpec

    if settings is None:
        return None
    return compile_job.start(EngineSpec(settings), find_gpu(settings.device))


@app.command("rm")
def remove(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A name that 'models ls' shows, a hub id, or the path of a .gguf file.",
            autocompletion=models,
        ),
    ],
    yes: Yes = False,
    debug: Debug = False,
) -> None:
    """Delete a model from this machine, but neither its draft nor a GGUF file that was converted."""
    with failures(debug):
        from triforce_chat.models import inventory, metadata_cache

        folders, others = to_remove(name)
        size = readable(sum(inventory.size_of(folder) for folder in folders))
        used_by = f", used by {', '.join(others)}" if others else ""
        if not yes:
            confirm_deletion(f"Delete {', '.join(map(str, folders))} ({size}{used_by})?")
        inventory.remove(folders)
        metadata_cache.discard_stale()


def to_remove(name: str) -> tuple[list[Path], list[str]]:
    """(the folders of a preset or of a converted GGUF file, other presets that use them). Raises ModelError."""
    from triforce_chat.models import inventory
    from triforce_chat.models.presets import find_preset

    if find_preset(name) is None and (found := inventory.conversions_of(name)):
        return [each.folder for each in found], []
    preset = named(name)
    folders = inventory.folders_to_remove(preset)
    if not folders:
        raise ModelError(f"{preset.name} is not on this machine")
    return folders, inventory.presets_sharing(preset, folders)


def named(name: str) -> Preset:
    """The preset of that name. Raises ModelError, which lists the names."""
    from triforce_chat.models.presets import PRESETS, find_preset, near_presets

    preset = find_preset(name)
    if preset is None:
        known = ", ".join(preset.name for preset in PRESETS)
        raise ModelError(f"no model named {name!r}{near_presets(name) or f'; there are {known}'}")
    return preset


def fetch(name: str, screen: Screen, settings: Settings | None) -> None:
    """Download a model unless it is here, with progress on the screen; pickled weights are converted.

    What the first start with the ``settings`` would have to make of its files is made now.
    """
    from triforce_chat.models import pickles
    from triforce_chat.models.presets import find_preset, short_name
    from triforce_chat.models.registry import resolve
    from triforce_chat.ui.loading import loading

    preset = find_preset(name)
    with loading(screen, short_name(name)) as report:
        if preset and preset.repository:
            pickles.pull(preset.repository, report)
        resolve(name, report=report)
        if settings:
            from triforce_chat.loading.prepare import prepare  # imports torch, which takes seconds

            own = dataclasses.replace(settings, model=name)
            prepare(own, report, lambda line: show_notes([line], screen))


def format_of(preset: Preset) -> str | None:
    """The format in which a model in wheels is used; None for other models and if the settings have mistakes."""
    settings = users_settings(preset.name)
    if preset.packed is None or settings is None:
        return None
    from triforce_chat.loading.prepare import format_in_use

    try:
        return format_in_use(preset.packed, settings)
    except TriforceError:
        return None


def record_of(preset: Preset) -> dict[str, Any]:
    """A model as plain values; ``bytes`` and ``folder`` are None if it is not downloaded."""
    from triforce_chat.models import inventory
    from triforce_chat.models.presets import short_name

    folder = inventory.folder_of(preset)
    return {
        "name": preset.name,
        "aliases": list(preset.aliases),
        "about": preset.about,
        "repository": preset.repository,
        "origin": preset.packed and preset.packed.origin,
        "parameters": preset.parameters,
        "context": preset.context,
        "draft": preset.draft and short_name(preset.draft),
        "adapter": preset.adapter and short_name(preset.adapter),
        "rope": dict(preset.rope),
        "sampling": dict(preset.sampling),
        "licence": preset.licence,
        "downloaded": folder is not None,
        "folder": str(folder) if folder else None,
        "bytes": inventory.size_of(folder) if folder else None,
    }


def record_of_conversion(conversion: Conversion) -> dict[str, Any]:
    """A converted GGUF file as plain values; ``current`` is false if the file is gone or has changed."""
    from triforce_chat.models import inventory

    return {
        "name": conversion.file.name,
        "file": conversion.origin.file,
        "dtype": conversion.origin.dtype,
        "current": conversion.is_current,
        "folder": str(conversion.folder),
        "bytes": inventory.size_of(conversion.folder),
    }


def table_of_conversions(records: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from triforce_chat.ui.clean import one_line

    table = Table(box=None, pad_edge=False)
    table.add_column("converted", overflow="fold")
    table.add_column("dtype", no_wrap=True)
    table.add_column("here", justify="right", no_wrap=True)
    table.add_column("from", overflow="fold")
    for record in records:
        origin = record["file"] if record["current"] else f"{record['file']} (gone or changed)"
        name, origin = Text(one_line(record["name"])), Text(one_line(origin))  # not as markup
        table.add_row(name, record["dtype"], readable(record["bytes"]), origin)
    return table


def table_of(records: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("weights", justify="right")
    table.add_column("context", justify="right")
    table.add_column("draft", no_wrap=True)
    table.add_column("here", justify="right", no_wrap=True)
    for record in records:
        here = readable(record["bytes"]) if record["downloaded"] else "no"
        table.add_row(
            f"{record['name']} (auto)" if record["automatic"] else record["name"],
            record["parameters"],
            f"{record['context']:,}",
            record["draft"] or "lookup",
            here,
        )
    return table


def details_of(record: dict[str, Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from triforce_chat.ui.clean import one_line

    shown = {
        **record,
        "aliases": ", ".join(record["aliases"]),
        "context": f"{record['context']:,} tokens",
        "draft": record["draft"] or "none: lookup drafts",
        "rope": joined(record["rope"]) or "as published",
        "sampling": joined(record["sampling"]),
        "downloaded": "yes" if record["downloaded"] else "no",
        "bytes": readable(record["bytes"]) if record["downloaded"] else None,
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in shown.items():
        if value:
            table.add_row("size" if key == "bytes" else key, Text(one_line(str(value))))
    return table


def joined(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
