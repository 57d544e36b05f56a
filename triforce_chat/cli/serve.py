"""``triforce-chat serve``: an HTTP server with OpenAI's chat completions interface."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from triforce_chat.cli.engines import compile_ahead, open_session, with_shown_model
from triforce_chat.cli.output import screen_of, show_notes, show_warning
from triforce_chat.cli.reading import read_all
from triforce_chat.errors import Interrupted, UsageError
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.serve.engines import Lender
    from triforce_chat.ui.terminal import Screen


def serve(
    options: Options,
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOC...]", help="Documents to answer from.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 picks a free one.")
    ] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="TRIFORCE_CHAT_TOKEN", help="API key that clients must send.")
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN", help="Let web pages of this origin call the server; may be repeated, * for all."
        ),
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Number of requests to answer at once.")] = 1,
) -> None:
    """Serve an OpenAI-compatible API and a chat page over HTTP."""
    from triforce_chat.loading.spec import EngineSpec
    from triforce_chat.serve.listen_address import ListenAddress, require_extra, url

    if options.json or options.jsonl:
        raise UsageError("--json and --jsonl are for ask and summarize")
    require_extra()
    address, screen = ListenAddress(host, port, token), screen_of(options)
    with address.bind() as listener:
        compile_ahead(EngineSpec(options.settings, sequences=parallel), screen)
        texts = read_all(local(documents or []), options, screen)
        session, _ = open_session(texts, with_shown_model(options, screen), screen)
        from triforce_chat.serve.server import lender
        from triforce_chat.serve.server import serve as run

        engines = lender(session, parallel)
        read(session, engines, screen, options.stack)
        if parallel > 1 and session.engine.forkable is None:
            show_warning(
                options, screen, "requests are answered one at a time, as this engine runs one sequence"
            )
        listener.listen()
        print(f"listening on {url(listener)}", flush=True)
        if not options.quiet:
            print(
                f"chat with it in a browser: {url(listener).removesuffix('v1')}", file=sys.stderr, flush=True
            )
        run(session, engines, listener, token, None if options.quiet else screen.err, cors or [])


def local(documents: list[str]) -> list[str]:
    """The documents. Raises UsageError for an address in the web: a server fetches nothing."""
    from triforce_chat.documents.addresses import is_url

    if found := next(filter(is_url, documents), None):
        raise UsageError(f"serve reads files and fetches nothing; download {found} first")
    return documents


def read(session: ChatSession, engines: Lender, screen: Screen, title: str) -> None:
    """Read the documents and capture graphs before the first request, and say how many. Raises Interrupted."""
    from triforce_chat.engine.cuda_graph import captures_on
    from triforce_chat.serve.server import reading
    from triforce_chat.ui.answer import show_answer

    captures, events = captures_on(session.engine.target.device), reading(session, engines)
    before = captures.count
    if session.documents:
        tally = show_answer(events, screen, title=title, limit=session.context_limit)
        if tally.finished:  # a prefill finishes only when Ctrl-C stops it
            raise Interrupted("interrupted")
    else:
        deque(events, maxlen=0)
    if engines.width > 1 and captures.count > before:
        graphs = f"{captures.count - before:,} CUDA graphs"
        show_notes([f"prepared for {engines.width:,} answers at once: {graphs} captured"], screen)
