"""A conversation as a Markdown or JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator

from triforce_chat.chat.conversation import ChatHistory, Turn
from triforce_chat.chat.records import SCHEMA, turn_object
from triforce_chat.documents import Document
from triforce_chat.documents.ranges import fold
from triforce_chat.ui import formatting
from triforce_chat.ui.clean import clean
from triforce_chat.ui.source_lines import sources_line


def as_markdown(history: ChatHistory, heading: str = "Conversation") -> str:
    """Markdown of documents, system prompt and turns: questions as quotations, answers verbatim."""
    return "\n".join(_parts(history, heading)) + "\n"


def as_json(history: ChatHistory) -> str:
    """JSON of documents, system prompt and turns, with token ids and measurements."""
    value = {
        "schema": SCHEMA,
        "documents": [
            {
                "title": document.title,
                "unit": document.unit,
                "pages": [page.number for page in document.pages],
            }
            for document in history.documents
        ],
        "system": history.system,
        "turns": [{"question": turn.question, **turn_object(turn.tally)} for turn in history.turns],
    }
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _parts(history: ChatHistory, heading: str) -> Iterator[str]:
    yield f"# {clean(heading)}\n"
    yield from (f"- {describe_document(document)}" for document in history.documents)
    if history.system:
        yield f"\nSystem: {clean(history.system)}"
    for turn in history.turns:
        yield from _turn(turn)


def _turn(turn: Turn) -> Iterator[str]:
    question = clean(turn.question).splitlines() or [""]
    yield "\n" + "\n".join(f"> {line}" for line in question) + "\n"
    yield clean(turn.answer).strip()
    yield f"\n*{formatting.SEPARATOR.join(formatting.summary(turn.tally)) if turn.tally.finished else 'stopped'}*"
    if turn.tally.sourced and turn.tally.sourced.sources:
        yield f"\n*{sources_line(turn.tally.sourced)}*"


def describe_document(document: Document) -> str:
    """A document in one line, with its pages that have no text."""
    line = f"{clean(document.title)}: {formatting.count(len(document.pages), document.unit)}"
    empty = fold(page.number for page in document.pages if not page.text.strip())
    return f"{line} ({empty} without text)" if empty else line
