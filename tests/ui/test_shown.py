"""Whatever a document, a model or a file is called or says: a terminal that shows it obeys none of it."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from support.consoles import written
from support.fakes import ScriptedConversation, answer_events

from triforce_chat.chat.events import ChatEvent
from triforce_chat.cli import cache, failures, models, reading
from triforce_chat.documents import Document, Page
from triforce_chat.engine.events import Text
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options
from triforce_chat.storage.kv.cache_directory import CachedText
from triforce_chat.ui.answer import show_answer
from triforce_chat.ui.clean import clean, escaped, one_line
from triforce_chat.ui.compare import show_comparison
from triforce_chat.ui.export import as_markdown
from triforce_chat.ui.loading import loading
from triforce_chat.ui.repl import Labels, Repl
from triforce_chat.ui.terminal import Detail, Screen

# What Rich and the live region write on a terminal without colours; HOSTILE holds none of these.
OWN = re.compile(r"\x1b\[(?:1A|2K|\?(?:7|25)[lh])|\r")
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
SEQUENCES = (
    *("\x1b]52;c;cm0gLXJm\x07", "\x1b]0;title\x1b\\", "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "\x1b[2J"),
    *(
        "\x1b[31m",
        "\x1b[7;7H",
        "\x1b[?1049h",
        "\x1bPq#0\x1b\\",
        "\x1b_G;\x1b\\",
        "\x1b^x\x1b\\",
        "\x1bc",
        "\x9b5A",
    ),
    *(
        "\x9d52;c;eA==\x9c",
        "\x90q\x9c",
        "\x1b",
        "\x9b",
        "\x07",
        "\x08",
        "\x0b",
        "\x0c",
        "\x7f",
        "\x85",
        "\x00",
    ),
    *(
        "\u202e",
        "\u202d",
        "\u2066",
        "\u2069",
        "\u200f",
        "\u2028",
        "\ufeff",
        "\ud800",
        "&#27;[2J",
        "&#x9b;2J",
        "%1b[2J",
    ),
    *(
        "[/b]",
        "[red]",
        "[/]",
        "**a**",
        "`b`",
        "```\nc\n```",
        "[l](http://x/\x1b[2J)",
        "![i](&#27;)",
        "<b>",
        "\n\n",
        "| a |\n|-|\n",
    ),
)
HOSTILE = st.lists(st.one_of(st.sampled_from(SEQUENCES), st.text(max_size=5)), max_size=12).map("".join)
WORST = "".join(SEQUENCES)
few = settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))


def screen(detail: Detail) -> Screen:
    def console() -> Console:
        return Console(file=io.StringIO(), force_terminal=True, color_system=None, width=60, height=24)

    return Screen(console(), console(), detail)


def both_written(on: Screen) -> str:
    return written(on.out) + written(on.err)


def harmless(text: str) -> None:
    found = FORBIDDEN.search(OWN.sub("", text))
    assert found is None, f"{found[0]!r} at {text[max(0, found.start() - 20) : found.end() + 20]!r}"


def said(text: str, size: int) -> list[ChatEvent]:
    """An answer of this text in pieces, so that sequences begin in one event and end in another."""
    first, *_, last = answer_events("x")
    return [first, *(Text((1,), text[at : at + size]) for at in range(0, len(text), size)), last]


@pytest.mark.parametrize("detail", ["live", "plain", "bare"])
@few
@example(WORST, 1)
@example(WORST, 3)
@given(HOSTILE, st.integers(1, 7))
def test_answers(detail: Detail, text: str, size: int) -> None:
    on = screen(detail)
    show_answer(iter(said(text, size)), on, title=text)
    harmless(both_written(on))


@pytest.mark.parametrize("detail", ["live", "plain"])
@few
@example(WORST)
@given(HOSTILE)
def test_comparisons(detail: Detail, text: str) -> None:
    on = screen(detail)
    show_comparison(ScriptedConversation(text).compare("?"), on)
    harmless(both_written(on))


def chat(text: str, on: Screen) -> Repl:
    conversation = ScriptedConversation(text)
    conversation.settings |= {text.split()[0] if text.split() else "x": text}
    conversation.set_system(text)

    def read(path: str, _pages: str | None) -> Document:
        if path.startswith("missing"):
            raise UsageError(f"{text}: no such file")
        return Document(text, path, (Page(1, text), Page(2, "")), notices=(text,))

    return Repl(conversation, read, on, lambda: Labels(text, text))


@pytest.mark.parametrize("detail", ["live", "bare"])
@few
@example(WORST)
@given(HOSTILE)
def test_the_chat(detail: Detail, text: str) -> None:
    on = screen(detail)
    repl = chat(text, on)
    lines = [
        "/doc book.pdf",
        "/doc missing",
        "/pages",
        "/pages 1",
        "/pages 7",
        "/system",
        "/set",
        "what?",
        "/stats",
    ]
    repl.run_lines(
        [*lines, f"/nothing{text}", f"/set {text}", f"/pages {text}", f"/save {text}/no/such/folder"]
    )
    repl._welcome()
    harmless(both_written(on))
    harmless(clean(repl._toolbar()))


@few
@example(WORST)
@given(HOSTILE)
def test_saved_conversations(text: str) -> None:
    conversation = ScriptedConversation(text)
    conversation.set_system(text)
    conversation.add(Document(text, text, (Page(1, text),)))
    list(conversation.ask(text))
    harmless(as_markdown(conversation))


@few
@example(WORST)
@given(HOSTILE)
def test_errors_are_one_line(text: str) -> None:
    before, sys.stderr = sys.stderr, io.StringIO()
    try:
        failures.print_error(text)
        line = sys.stderr.getvalue()
    finally:
        sys.stderr = before
    harmless(line)
    assert line.startswith("error:")
    assert line.count("\n") == 1


@few
@example(WORST)
@given(HOSTILE)
def test_warnings_of_documents(text: str) -> None:
    on, path = screen("live"), Document(text, "x", (Page(1, "a"),), notices=(text,))
    before, reading.read_one = reading.read_one, lambda *_a, **_b: path
    try:
        reading.read_all(["x"], Options(), on)
    finally:
        reading.read_one = before
    harmless(both_written(on))


@few
@example(WORST)
@given(HOSTILE)
def test_progress_and_tables(text: str) -> None:
    on = screen("live")
    with loading(on, text):
        pass
    stored = CachedText("a" * 12, (text, text), text, 9, 9, 0.0, (Path("x"),), complete=False)
    on.out.print(cache.table_of([stored]))
    record = {
        "aliases": [text],
        "context": 9,
        "draft": text,
        "rope": {},
        "sampling": {},
        "downloaded": True,
        "bytes": 9,
    }
    on.out.print(models.details_of({"name": text, "folder": text, **record}))
    harmless(both_written(on))


@few
@example(WORST)
@given(HOSTILE)
def test_json_is_the_same_value(text: str) -> None:
    line = escaped(json.dumps({"text": text}, ensure_ascii=False))
    harmless(line)
    assert "\n" not in line
    assert json.loads(line) == {"text": text}


@given(HOSTILE)
def test_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1


def test_letters_of_all_scripts_stay() -> None:
    text = "naïve שלום\u200f مرحبا 漢字 🙂\u200d↔️ a\u0301"
    assert clean(text) == text
