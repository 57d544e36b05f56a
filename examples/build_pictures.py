"""Draws panel.svg and compare.svg, on black and on white, from a real run of the small model."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

from triforce_chat.chat.events import Comparison
from triforce_chat.chat.session import ChatSession
from triforce_chat.cli.engines import open_session
from triforce_chat.cli.output import screen_of
from triforce_chat.cli.reading import read_all
from triforce_chat.settings.options import Options
from triforce_chat.ui.compare import Columns, summary
from triforce_chat.ui.markdown import RenderedMarkdown
from triforce_chat.ui.panel import EnginePanel
from triforce_chat.ui.theme import THEME

HERE = Path(__file__).parent
BOOK = HERE / "the-lighthouse-at-varra.pdf"
QUESTION = "Summarize this document in some sentences."
SHOWN = 48  # tokens of the answer in the picture of the panel
THEMES = {"": SVG_EXPORT_THEME, "-light": DEFAULT_TERMINAL_THEME}


def main() -> None:
    options = Options(model="small", max_tokens=72, pages="1-4", no_cache=True, quiet=True)
    screen = screen_of(options)
    session, _ = open_session(read_all([str(BOOK)], options, screen), options, screen)
    compare(session)
    session.clear()
    session.set_option("stack", "triforce")
    ask(session)


def compare(session: ChatSession) -> None:
    columns = Columns(session.context_limit)
    columns.complete = True
    for item in session.compare(QUESTION):
        if isinstance(item, Comparison):
            draw("compare", [Text(f"> /compare {QUESTION}", "bold"), columns, summary(item)])
        else:
            columns.add(*item)


def ask(session: ChatSession) -> None:
    panel, answer = EnginePanel("triforce", session.context_limit), session.ask(QUESTION)
    for event in answer:
        panel.add(event)
        if len(panel.tally.token_ids) >= SHOWN:
            break
    draw("panel", [Text(f"> {QUESTION}", "bold"), RenderedMarkdown(panel.tally.text), panel])
    answer.close()


def draw(name: str, shown: Iterable[RenderableType]) -> None:
    for suffix, theme in THEMES.items():
        console = Console(file=io.StringIO(), width=80, record=True, force_terminal=True, theme=THEME)
        for each in shown:
            console.print(each)
        console.save_svg(str(HERE / f"{name}{suffix}.svg"), title="triforce-chat", theme=theme)


if __name__ == "__main__":
    main()
