"""``triforce-chat sessions``: recorded conversations, kept until they are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.failures import failures
from triforce_chat.cli.options import App, Debug, Json, Yes
from triforce_chat.cli.output import confirm_deletion, print_line, print_record, screen_of
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from rich.table import Table

    from triforce_chat.chat.conversation import StoredTurn
    from triforce_chat.storage.sessions.catalog import Catalog
    from triforce_chat.storage.sessions.values import SessionRecord, SessionSummary

app = App(help="Past chats: list, read, search, copy, export, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="As 'sessions ls' shows it.")]
OrLast = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="As 'sessions ls' shows it (default: the last).")
]


class Format(StrEnum):
    """File formats of an export."""

    MD = "md"
    JSON = "json"


@app.command("ls")
def list_sessions(json: Json = False, debug: Debug = False) -> None:
    """List the sessions, most recently used first."""
    with failures(debug), opened() as catalog:
        summaries = catalog.summaries()
        if json:
            print_record({"sessions": [record_of(summary) for summary in summaries]})
        elif summaries:
            from triforce_chat.ui.tables import WholeWords

            screen_of(Options()).out.print(WholeWords(table_of(summaries)))
        else:
            print_line(screen_of(Options()).err, catalog.which())


@app.command("show")
def show(name: OrLast = None, json: Json = False, debug: Debug = False) -> None:
    """Show a session's questions and answers."""
    with failures(debug), opened() as catalog:
        record = catalog.load(chosen(catalog, name))
        if json:
            print_record(export_of(record))
            return
        from triforce_chat.ui.export import as_markdown

        screen = screen_of(Options())
        screen.out.print(details_of(record.summary))
        text, whole_lines = as_markdown(record, record.summary.name), not screen.is_terminal
        screen.out.print(text, markup=False, highlight=False, end="", soft_wrap=whole_lines)


@app.command("rename")
def rename(name: Name, new: Annotated[str, typer.Argument(metavar="NEW")], debug: Debug = False) -> None:
    """Rename a session."""
    with failures(debug), opened() as catalog:
        catalog.rename(name, new)


@app.command("fork")
def fork(
    name: Name,
    new: Annotated[
        str | None, typer.Argument(metavar="[NEW]", help="Default: the same name with a number.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Copy a session, to continue in the copy; prints the copy's name."""
    from triforce_chat.ui.clean import clean

    with failures(debug), opened() as catalog:
        typer.echo(clean(catalog.fork(name, new)))


@app.command("rm")
def remove(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="As 'sessions ls' shows them.")
    ] = None,
    yes: Yes = False,
    debug: Debug = False,
) -> None:
    """Delete sessions, and the documents that no other session has."""
    with failures(debug), opened() as catalog:
        if not names:
            raise UsageError(f"name the sessions to delete; {catalog.which()}")
        summaries = [catalog.find(name) for name in dict.fromkeys(names)]
        turns = sum(summary.turns for summary in summaries)
        if not yes:
            confirm_deletion(f"Delete {', '.join(names)} ({turns} turn{'s' * (turns != 1)})?")
        catalog.remove(summaries)


@app.command("export")
def export(
    name: OrLast = None,
    form: Annotated[Format, typer.Option("--format", help="Markdown or JSON.")] = Format.MD,
    debug: Debug = False,
) -> None:
    """Write a session to standard output."""
    with failures(debug), opened() as catalog:
        record = catalog.load(chosen(catalog, name))
        if form is Format.JSON:
            print_record(export_of(record))
            return
        from triforce_chat.ui.export import as_markdown

        screen_of(Options())  # characters that the output's encoding lacks become question marks
        typer.echo(as_markdown(record, record.summary.name), nl=False)


@app.command("search")
def search(
    words: Annotated[
        list[str], typer.Argument(metavar="WORD...", help='All must occur; word* and "a phrase" work.')
    ],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Find past questions and answers."""
    import dataclasses

    with failures(debug), opened() as catalog:
        hits = catalog.search(" ".join(f'"{word}"' if " " in word else word for word in words))
        if json:
            print_record({"hits": [dataclasses.asdict(hit) for hit in hits]})
            return
        from rich.text import Text

        from triforce_chat.ui.clean import clean, one_line
        from triforce_chat.ui.formatting import local_time
        from triforce_chat.ui.terminal import print_line as print_text

        screen = screen_of(Options())
        if not hits:
            print_line(screen.err, "no question and no answer contains all of these words")
        out = screen.out
        for hit in hits:
            place = f"{clean(hit.session)}, turn {hit.turn}, {local_time(hit.asked)}"
            print_text(out, Text.assemble((place, "bold"), f": {one_line(hit.question)}"))
            print_text(out, Text(f"  {one_line(hit.excerpt)}"))


@contextmanager
def opened() -> Iterator[Catalog]:
    """The user's sessions, closed afterwards. Raises StateError."""
    from triforce_chat.settings.paths import sessions_file
    from triforce_chat.storage.sessions.catalog import Catalog
    from triforce_chat.storage.sessions.store import SessionStore

    store = SessionStore(sessions_file())
    try:
        yield Catalog(store)
    finally:
        store.close()


def chosen(catalog: Catalog, name: str | None) -> SessionSummary:
    return catalog.last() if name is None else catalog.find(name)


def record_of(summary: SessionSummary) -> dict[str, Any]:
    return {
        "name": summary.name,
        "model": summary.model,
        "created": summary.created,
        "used": summary.used,
        "turns": summary.turns,
        "documents": list(summary.titles),
    }


def export_of(record: SessionRecord) -> dict[str, Any]:
    """The whole session; its documents by their hashes, without their texts."""
    return {
        **record_of(record.summary),
        "system": record.system,
        "settings": record.settings,
        "documents": [document_of(document) for document in record.documents],
        "turns": [turn_of(stored) for stored in record.stored_turns],
    }


def document_of(document: Any) -> dict[str, Any]:
    from triforce_chat.storage.sessions.serialization import pages_digest

    return {
        "title": document.title,
        "source": document.source,
        "unit": document.unit,
        "pages": len(document.pages),
        "warning": document.warning,
        "sha256": pages_digest(document),
    }


def turn_of(stored: StoredTurn) -> dict[str, Any]:
    from triforce_chat.chat.records import turn_object
    from triforce_chat.storage.sessions.serialization import pages_digest

    return {
        "question": stored.turn.question,
        "asked": stored.asked,
        "model": stored.model,
        "documents": [pages_digest(document) for document in stored.documents],
        **turn_object(stored.turn.tally),
    }


def table_of(summaries: list[SessionSummary]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from triforce_chat.ui.clean import clean
    from triforce_chat.ui.formatting import local_time

    table = Table(box=None, pad_edge=False)
    table.add_column("session", overflow="fold")
    table.add_column("turns", justify="right", no_wrap=True)
    table.add_column("documents", overflow="fold")
    table.add_column("model", overflow="fold")
    table.add_column("used", no_wrap=True)
    for each in summaries:
        cells = (each.name, f"{each.turns:,}", ", ".join(each.titles), each.model, local_time(each.used))
        table.add_row(*(Text(clean(cell)) for cell in cells))
    return table


def details_of(summary: SessionSummary) -> Table:
    from rich.table import Table
    from rich.text import Text

    from triforce_chat.ui.clean import clean
    from triforce_chat.ui.formatting import local_time

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("model", Text(clean(summary.model)))
    table.add_row("started", local_time(summary.created))
    table.add_row("used", local_time(summary.used))
    return table
