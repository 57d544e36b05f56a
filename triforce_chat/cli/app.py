"""The program ``triforce-chat``: all commands in one Typer app; a command imports torch only when it needs it."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Annotated

import typer

from triforce_chat import __version__
from triforce_chat.cli import (
    ask,
    batch,
    bench,
    cache,
    chat,
    config,
    doctor,
    evaluate,
    models,
    plan,
    schema,
    serve,
    sessions,
    train,
    tune,
    verify,
)
from triforce_chat.cli.closed_streams import replace_closed_streams
from triforce_chat.cli.options import App, command
from triforce_chat.settings.umask import keep_private

EXIT_CODES = """Exit codes: 0 success, 1 unexpected error, 2 usage, 3 unreadable document, 4 does not fit the \
context, 5 model unavailable, 6 out of memory, 7 exactness failure, 8 a GPU process of --tp ended, 9 \
answers of a batch missing, 10 an answer with --schema cut short, 130 interrupted."""
SPIN_COUNT = "5000"

app = App(
    help="Chat with whole books: exact hierarchical speculative decoding on your own machine.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS = (
    *(ask.summarize, ask.ask, chat.chat, batch.batch, serve.serve),
    *(verify.verify, bench.bench, plan.plan, tune.tune),
)
for run in COMMANDS:
    command(app)(run)
app.command()(config.paths)
app.command()(doctor.doctor)
app.command()(schema.schema)
app.add_typer(cache.app, name="cache")
app.add_typer(config.app, name="config")
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(models.app, name="models")
app.add_typer(sessions.app, name="sessions")
app.add_typer(train.app, name="train")


def print_version(wanted: bool) -> None:
    """Print the version and exit, if that is wanted."""
    if wanted:
        print(f"triforce-chat {__version__}", flush=True)
        raise typer.Exit


@app.callback()
def main_options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the program on the process's arguments."""
    # libgomp's threads spin for milliseconds at every barrier, which makes decoding tens of times slower as
    # soon as another process wants a core. This count bridges the gaps between two operators and no more.
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    keep_private()
    replace_closed_streams()
    leave = FastExit()
    # Registered before torch and others are imported, so that it is called after all of their handlers.
    atexit.register(leave)
    try:
        app()
    except SystemExit as done:
        leave.code = 0 if done.code is None or has_lost_reader() else done.code
        raise SystemExit(leave.code) from None


def has_lost_reader() -> bool:
    """True if the parser of the command line found that its output is no longer read; it then exits with 1."""
    return type(sys.stdout).__name__.endswith("PacifyFlushWrapper")


class FastExit:
    """Ends the process without freeing its objects one by one, which takes more than a second with a model's."""

    def __init__(self) -> None:
        self.code: object = None  # the exit code; None after an exception, which Python reports

    def __call__(self) -> None:
        has_models = "torch" in sys.modules  # otherwise there is little to free
        if not has_models or not isinstance(self.code, int):
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):  # the reader has gone; Python says so
            return
        os._exit(self.code)
