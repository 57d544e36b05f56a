"""``triforce-chat cache``: the document cache: keys and values of documents already read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.failures import failures
from triforce_chat.cli.options import App, Debug, Json, Yes
from triforce_chat.cli.output import confirm_deletion, print_record, screen_of
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.sizes import GIGABYTE, readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from triforce_chat.storage.kv.cache_directory import CacheDirectory, CachedText

app = App(help="The cache of documents already read.", no_args_is_help=True)


@app.command("ls")
def list_texts(json: Json = False, debug: Debug = False) -> None:
    """List the cached texts, latest first."""
    with failures(debug):
        from triforce_chat.models import metadata_cache

        cache = open_cache()
        texts, used = cache.texts(), cache.used()
        limit = cache.limit(used)
        if json:
            records = [record_of(text) for text in texts]
            folder = str(cache.folder)
            print_record({"folder": folder, "bytes": used, "limit": limit, "texts": records})
            return
        screen = screen_of(Options())
        if texts:
            from triforce_chat.ui.tables import WholeWords

            screen.out.print(WholeWords(table_of(texts)))
        usage = f"{readable(used)} of at most {readable(limit)} in {cache.folder}"
        screen.err.print(usage, markup=False, style="dim", soft_wrap=True)
        if read := metadata_cache.metadata_size():
            beside = f"{readable(read)} of what was read of models' small files in {metadata_cache.metadata_folder()}"
            screen.err.print(beside, markup=False, style="dim", soft_wrap=True)


@app.command("rm")
def remove(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="As 'cache ls' shows them.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Delete all cached texts, and what was read of models' small files.")
    ] = False,
    yes: Yes = False,
    debug: Debug = False,
) -> None:
    """Delete cached texts (shared beginnings are kept)."""
    with failures(debug):
        cache = open_cache()
        if bool(ids) == everything:
            raise UsageError("name the texts to delete as 'triforce-chat cache ls' shows them, or use --all")
        texts = cache.texts() if everything else chosen(cache, ids or [])
        if texts and not yes:
            confirm_deletion(f"Delete {named(texts)}?")
        freed = cache.remove(texts)
        if everything:
            from triforce_chat.models.metadata_cache import discard_all

            freed += cache.collect() + discard_all()
        typer.echo(f"{readable(freed)} freed", err=True)


@app.command("gc")
def collect(
    size: Annotated[
        float | None,
        typer.Option(min=0, help="Keep at most this many GB (default: a quarter of the free disk space)."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Delete damaged and unfinished files, then the least recently used texts until the rest fits.

    What was read of the small files of models that are gone is deleted, too.
    """
    with failures(debug):
        from triforce_chat.models.metadata_cache import discard_stale

        cache = open_cache(None if size is None else size * GIGABYTE)
        typer.echo(f"{readable(cache.collect() + discard_stale())} freed", err=True)


def open_cache(limit: float | None = None) -> CacheDirectory:
    """The document cache, limited to ``limit`` bytes; None: to the ``cache-size`` of the user's settings."""
    from triforce_chat.settings.layers import cache_limit
    from triforce_chat.settings.paths import kv_folder
    from triforce_chat.storage.kv.cache_directory import CacheDirectory

    return CacheDirectory(kv_folder(), cache_limit() if limit is None else limit)


def chosen(cache: CacheDirectory, ids: Sequence[str]) -> list[CachedText]:
    """The texts with these ids, which may be abbreviated. Raises UsageError unless each matches exactly one."""
    texts, found = cache.texts(), []
    for wanted in ids:
        matching = [text for text in texts if wanted and text.id.startswith(wanted)]
        if len(matching) != 1:
            raise UsageError(f"{'no text' if not matching else 'more than one text'} {wanted!r} in the cache")
        found += matching
    return found


def named(texts: Sequence[CachedText]) -> str:
    size = readable(sum(text.bytes for text in texts))
    return f"{title_of(texts[0])} ({size})" if len(texts) == 1 else f"{len(texts)} texts ({size})"


def title_of(text: CachedText) -> str:
    """The titles of the documents; more follows where a conversation or a partly read document was cached, too."""
    from triforce_chat.ui.clean import one_line

    titles = " + ".join(map(one_line, text.titles))
    if text.complete:
        return titles
    return f"{titles}, and more" if titles else "the beginning of a text"


def record_of(text: CachedText) -> dict[str, Any]:
    return {
        "id": text.id,
        "titles": list(text.titles),
        "model": text.model,
        "tokens": text.tokens,
        "bytes": text.bytes,
        "used": text.used,
        "complete": text.complete,
    }


def table_of(texts: Sequence[CachedText]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from triforce_chat.ui.clean import one_line
    from triforce_chat.ui.formatting import local_time

    table = Table(box=None, pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("text", overflow="fold")
    table.add_column("model", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("used", no_wrap=True)
    for text in texts:
        used = local_time(text.used)
        title, model = Text(title_of(text)), Text(one_line(text.model))  # not as markup
        table.add_row(text.id, title, model, f"{text.tokens:,}", readable(text.bytes), used)
    return table
