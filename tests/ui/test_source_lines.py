"""Where an answer came from, as a reader sees it: the line, /sources, /find, and programs."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console
from support.chat_screen import Chat
from support.consoles import written
from support.fakes import ScriptedConversation, answer_events, tally_of

from triforce_chat.chat.events import Citation, LookedUp, Place, Source, Sourced
from triforce_chat.chat.records import RunInfo, answer_object, event_object
from triforce_chat.documents import Document, Page
from triforce_chat.ui.answer import show_answer
from triforce_chat.ui.export import as_markdown
from triforce_chat.ui.source_lines import below_answer, citation_warnings, details, join_places
from triforce_chat.ui.terminal import Detail, Screen

SOURCES = (
    Source("island\x1b[1m", "page", 12, 0.614, "The \x1b[2Jmap was\x07 here."),
    Source("island\x1b[1m", "page", 31, 0.2, "No."),
    Source("notes", "section", 4, 0.1, ""),
)
WRONG = Citation("page", 12, 12, "no such  words", False, (Place("island", "page", 14),))
FOUND = Sourced(SOURCES, (Citation("page", 3, 3, None, True), WRONG), 0.1)
LINES = "sources: island p. 12, p. 31, notes section 4\n"
LINES += "p. 12 does not contain “no such words”; it appears in island p. 14\n"


def shown(detail: Detail) -> tuple[str, str]:
    out, err = (Console(file=io.StringIO(), width=100) for _ in range(2))
    show_answer(iter([*answer_events("Yes."), FOUND]), Screen(out, err, detail))
    return written(out), written(err)


def test_below_an_answer_in_a_terminal() -> None:
    out, _ = shown("live")
    assert out.endswith(LINES)


def test_on_standard_error_beside_a_plain_answer() -> None:
    out, err = shown("plain")
    assert out == "Yes.\n"
    assert err.endswith(LINES)


def test_nothing_beside_a_bare_answer() -> None:
    assert shown("bare") == ("Yes.\n", "")


def test_no_line_without_sources() -> None:
    out, err = (Console(file=io.StringIO(), width=100) for _ in range(2))
    show_answer(iter([*answer_events("Yes."), Sourced((), (), 0.0)]), Screen(out, err, "plain"))
    assert "sources" not in written(err)


def test_pages_of_a_long_list_are_cut_to_the_first_three() -> None:
    many = tuple(Source("a", "page", number, 0.1, "") for number in range(1, 6))
    out, err = (Console(file=io.StringIO(), width=100) for _ in range(2))
    show_answer(iter([*answer_events("Yes."), Sourced(many, (), 0.0)]), Screen(out, err, "plain"))
    assert written(err).endswith("sources: a p. 1, p. 2, p. 3\n")


@pytest.mark.parametrize(
    ("citation", "line"),
    [
        (Citation("page", 9, 9, None, False, (), False), "p. 9 does not exist"),
        (Citation("page", 8, 9, None, False, (), False), "pp. 8-9 do not exist"),
        (
            Citation("page", 9, 9, "a", False, (), False),
            "p. 9 does not exist; “a” appears nowhere in the documents",
        ),
        (
            Citation("section", 1, 2, "a", False),
            "sections 1-2 do not contain “a”; it appears nowhere in the documents",
        ),
        (
            Citation("page", 1, 1, "x" * 70, False, tuple(Place("b", "page", n) for n in (2, 3, 4, 5))),
            f"p. 1 does not contain “{'x' * 59}…”; it appears in b p. 2, p. 3, p. 4, …",
        ),
    ],
)
def test_citations_that_do_not_hold(citation: Citation, line: str) -> None:
    assert citation_warnings([Citation("page", 1, 1, "a", True), citation]) == [line]


def test_a_title_stands_where_it_changes() -> None:
    order = [Place("a", "page", 1), Place("b", "page", 2), Place("b", "section", 3), Place("a", "page", 4)]
    assert join_places(order) == "a p. 1, b p. 2, section 3, a p. 4"


def test_sources_command() -> None:
    chat = Chat("Yes.", "No.")
    assert "no sources yet" in chat.ask("/sources")[1]
    chat.ask("Why?")
    assert "no sources yet" in chat.ask("/sources")[1]
    chat.conversation.sourced = FOUND
    chat.ask("Why?")
    assert chat.ask("/sources")[1] == (
        "island p. 12 · 61 %\n  The map was here.\nisland p. 31 · 20 %\n  No.\n"
        "notes section 4 · 10 %\np. 12 does not contain “no such words”; it appears in island p. 14\n"
    )


def test_find_command() -> None:
    chat = Chat()
    chat.ask("/doc book.pdf")
    assert (
        chat.ask("/find IT  was")[1] == "book.pdf p. 1: It was night.\nbook.pdf p. 3: It was day.\n2 hits\n"
    )
    assert chat.ask("/find nowhere")[1] == "0 hits\n"
    assert chat.ask("/find [bold")[1] == "0 hits\n"
    assert "/find needs words" in chat.ask("/find")[1]
    assert "no words to look for" in chat.ask("/find -")[1]
    assert "no document yet" in Chat().ask("/find night")[1]


def test_find_shows_twenty_sentences_and_counts_all() -> None:
    chat = Chat()
    texts = ["A lamp and a lamp. " * 3 for _ in range(8)]
    chat.conversation.add(
        Document("book", "", tuple(Page(number, text) for number, text in enumerate(texts, 1)))
    )
    lines = chat.ask("/find lamp")[1].splitlines()
    assert len(lines) == 21
    assert lines[-1] == "48 hits, the first 20 sentences shown"


def test_find_cuts_a_long_sentence_around_the_words() -> None:
    chat = Chat()
    chat.conversation.add(Document("book", "", (Page(1, f"{'before ' * 100}needle {'after ' * 100}"),)))
    line = " ".join(chat.ask("/find needle")[1].split("\n")[:-2])
    assert line.startswith("book p. 1: …")
    assert line.endswith("…")
    assert "needle" in line
    assert len(line) < 340


def test_find_emphasizes_the_words() -> None:
    conversation = ScriptedConversation()
    conversation.add(Document("book", "", (Page(1, "A well-\nknown lamp."),)))
    chat = Chat()
    chat.conversation._documents = conversation._documents
    chat.err._color_system = None
    chat.err = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="standard")
    chat.repl._commands._screen = Screen(chat.out, chat.err, "bare")
    assert "A \x1b[1;7mwellknown\x1b[0m lamp." in chat.ask("/find wellknown")[1]


def test_for_programs() -> None:
    run_info = RunInfo("model", None, "auto", 0.1)
    told: dict[str, Any] = json.loads(json.dumps(answer_object(tally_of([FOUND]), run_info)))
    assert told["sources"][1] == {
        "document": "island\x1b[1m",
        "unit": "page",
        "page": 31,
        "share": 0.2,
        "sentence": "No.",
        "where": "",
    }
    assert told["citations"][1] == {
        "unit": "page",
        "page": 12,
        "last_page": 12,
        "quote": "no such  words",
        "holds": False,
        "found_on": [{"document": "island", "unit": "page", "page": 14, "where": ""}],
        "exists": True,
    }
    assert "sources" not in answer_object(tally_of(answer_events("a")), run_info)
    event = event_object(FOUND)
    assert (event["event"], event["sources"][0]["page"]) == ("sourced", 12)


def test_a_saved_conversation_names_the_pages() -> None:
    chat = Chat("Yes.", "No.")
    chat.ask("Why?")
    assert "sources" not in as_markdown(chat.conversation)
    chat.conversation.sourced = FOUND
    chat.ask("And?")
    assert as_markdown(chat.conversation).endswith("*\n\n*sources: island p. 12, p. 31, notes section 4*\n")


def test_words_and_quotes_below_an_answer() -> None:
    stands = LookedUp("sea chest", (Place("isle", "page", 2), Place("isle", "page", 7)))
    found = LookedUp("the lamp was out", (Place("isle", "page", 2),))
    missing = LookedUp("not a\nword of it", ())
    sourced = Sourced((), (), 0.1, quotes=(found, missing), standing=(stands,))
    assert list(below_answer(sourced)) == [
        ("“sea chest” appears in isle p. 2, p. 7", "dim"),
        ("“the lamp was out” appears in isle p. 2", "dim"),
        ("“not a word of it” appears nowhere in the documents", "bold"),
    ]
    assert [line.plain for line in details(sourced)][-2:] == [line for line, _ in below_answer(sourced)][-2:]
