"""Draws the panel, a comparison, /help and /chapters from a real run of the small model.

The pictures of this folder are for the README, those in three widths for the guide. The run takes half a minute on an
idle machine of two cores.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from triforce_chat.chat.events import Comparison
from triforce_chat.chat.session import ChatSession
from triforce_chat.cli.engines import open_session
from triforce_chat.cli.output import screen_of
from triforce_chat.cli.reading import read_all, read_one
from triforce_chat.documents import Document
from triforce_chat.settings.options import Options
from triforce_chat.ui.command_table import Surroundings
from triforce_chat.ui.commands import Commands
from triforce_chat.ui.compare import Columns, summary
from triforce_chat.ui.document_views import show_chapters
from triforce_chat.ui.markdown import RenderedMarkdown
from triforce_chat.ui.panel import EnginePanel
from triforce_chat.ui.terminal import Screen
from triforce_chat.ui.theme import THEME

HERE = Path(__file__).parent
GUIDE = HERE.parent / "docs" / "guide" / "pictures"
WIDTHS = (50, 80, 160)  # columns
WIDTH = 80  # of the pictures here, columns
BOOK, TEXT = (HERE / f"the-lighthouse-at-varra.{suffix}" for suffix in ("pdf", "md"))
QUESTION = "Summarize this document in some sentences."
SHOWN = 48  # tokens of the answer in the picture of the panel
SHOWN_LIMIT = 72  # tokens that it may have
THEMES = {"": SVG_EXPORT_THEME, "-light": DEFAULT_TERMINAL_THEME}


def main() -> None:
    options = Options(model="small", max_tokens=SHOWN_LIMIT, pages="1-4", no_cache=True, quiet=True)
    screen = screen_of(options)
    draw_chapters(read_one(str(TEXT), Options(), None))
    session, _ = open_session(read_all([str(BOOK)], options, screen), options, screen)
    compare(session)
    session.clear()
    session.set_option("stack", "triforce")
    ask(session)
    show_help(session)


def compare(session: ChatSession) -> None:
    columns = Columns(session.context_limit)
    for item in session.compare(QUESTION):
        if isinstance(item, Comparison):
            columns.end()
            draw("compare", [Text(f"> /compare {QUESTION}", "bold"), columns, summary(item)])
        else:
            columns.add(*item)


def ask(session: ChatSession) -> None:
    panel, answer = EnginePanel("triforce", session.context_limit, most=SHOWN_LIMIT), session.ask(QUESTION)
    for event in answer:
        panel.add(event)
        if len(panel.tally.token_ids) >= SHOWN:
            break
    draw("panel", [Text(f"> {QUESTION}", "bold"), RenderedMarkdown(panel.tally.text), panel])
    answer.close()


def show_help(session: ChatSession) -> None:
    def run(screen: Screen) -> None:
        Commands(session, read_nothing, screen, print, Surroundings()).run("/help")

    draw_command("help", run)


def draw_chapters(document: Document) -> None:
    draw_command("chapters", lambda screen: show_chapters([document], screen))


def draw_command(name: str, run: Callable[[Screen], None]) -> None:
    for width in WIDTHS:
        console = recording(width)
        console.print(Text(f"> /{name}", "bold"))
        run(Screen(console, console, "live"))
        save(console, GUIDE / f"{name}-{width}.svg")


def read_nothing(path: str, _pages: str | None) -> Document:
    raise FileNotFoundError(path)


def draw(name: str, shown: Iterable[RenderableType]) -> None:
    shown = list(shown)
    for suffix, theme in THEMES.items():
        save(printed(shown, WIDTH), HERE / f"{name}{suffix}.svg", theme)
    for width in WIDTHS:
        save(printed(shown, width), GUIDE / f"{name}-{width}.svg")


def printed(shown: Iterable[RenderableType], width: int) -> Console:
    console = recording(width)
    for each in shown:
        console.print(each)
    return console


def recording(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, record=True, force_terminal=True, theme=THEME)


def save(console: Console, path: Path, theme: TerminalTheme = SVG_EXPORT_THEME) -> None:
    path.parent.mkdir(exist_ok=True)
    console.save_svg(str(path), title="triforce-chat", theme=theme)


if __name__ == "__main__":
    main()
