"""What was said, as a Markdown or a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator

from triforce_chat.chat.conversation import ChatHistory, Turn
from triforce_chat.chat.records import SCHEMA, turn_object
from triforce_chat.documents import Document
from triforce_chat.documents.ranges import fold
from triforce_chat.ui import figures
from triforce_chat.ui.clean import clean
from triforce_chat.ui.sourcing import line_of


def transcript(conversation: ChatHistory, heading: str = "Conversation") -> str:
    """Documents, system text and every turn; questions as quotations, answers as they are."""
    return "\n".join(_parts(conversation, heading)) + "\n"


def as_json(conversation: ChatHistory) -> str:
    """The same with token ids and everything that was measured."""
    value = {
        "schema": SCHEMA,
        "documents": [
            {
                "title": document.title,
                "unit": document.unit,
                "pages": [page.number for page in document.pages],
            }
            for document in conversation.documents
        ],
        "system": conversation.system,
        "turns": [{"question": turn.question, **turn_object(turn.tally)} for turn in conversation.turns],
    }
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _parts(conversation: ChatHistory, heading: str) -> Iterator[str]:
    yield f"# {clean(heading)}\n"
    yield from (f"- {describe(document)}" for document in conversation.documents)
    if conversation.system:
        yield f"\nSystem: {clean(conversation.system)}"
    for turn in conversation.turns:
        yield from _turn(turn)


def _turn(turn: Turn) -> Iterator[str]:
    question = clean(turn.question).splitlines() or [""]
    yield "\n" + "\n".join(f"> {line}" for line in question) + "\n"
    yield clean(turn.answer).strip()
    yield f"\n*{figures.SEPARATOR.join(figures.summary(turn.tally)) if turn.tally.finished else 'stopped'}*"
    if turn.tally.sourced and turn.tally.sourced.sources:
        yield f"\n*{line_of(turn.tally.sourced)}*"


def describe(document: Document) -> str:
    """A document in one line; pages without text are named."""
    line = f"{clean(document.title)}: {figures.count(len(document.pages), document.unit)}"
    empty = fold(page.number for page in document.pages if not page.text.strip())
    return f"{line} ({empty} without text)" if empty else line
