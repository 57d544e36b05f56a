"""A persistent conversation with scripted answers; as a program it forks chats that may be killed at any moment."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path

from support.fakes import ScriptedConversation
from triforce_chat.chat.events import ChatEvent
from triforce_chat.documents import Document, Page
from triforce_chat.engine.events import Finished, Prefilled, Text
from triforce_chat.storage.sessions.catalog import Catalog
from triforce_chat.storage.sessions.persistent_conversation import PersistentConversation
from triforce_chat.storage.sessions.store import SessionStore
from triforce_chat.storage.sessions.values import ModelInfo

MODEL_INFO = ModelInfo("tiny", "abc", {"temperature": 0.5})
LONGEST = 30  # tokens of an answer


def encode(text: str) -> list[int]:
    return list(text.encode("utf-8", "replace"))


def book(title: str, *texts: str) -> Document:
    return Document(title, f"/books/{title}.pdf", tuple(Page(n, text) for n, text in enumerate(texts, 1)))


def chat(
    store: SessionStore, *answers: str | Exception, name: str | None = None
) -> tuple[PersistentConversation, ScriptedConversation]:
    """A conversation that continues the session of this name, or begins it."""
    inner = ScriptedConversation(*answers)
    opened = None
    if name and store.has_name(name):
        summary = Catalog(store).find(name)
        opened = (summary.id, store.lease(summary.id, name))
    return PersistentConversation(inner, store, lambda: MODEL_INFO, encode, name, opened), inner


class Endless(ScriptedConversation):
    """Answers every question with random tokens, one at a time, and says when each is shown."""

    def _say(self, question: str, events: Sequence[ChatEvent]) -> Generator[ChatEvent, None, None]:  # noqa: ARG002
        ids = [random.randrange(1000) for _ in range(random.randint(1, LONGEST))]
        made: list[ChatEvent] = [Prefilled(9, 9, 0, 0.1), *(Text((token,), f" {token}") for token in ids)]
        yield from super()._say(question, [*made, Finished("stop", 9, 0, len(ids), 0.1, 0.1, 0.1)])


def write(folder: Path, number: int) -> None:
    """Chat until killed; what a user would have seen goes to a file, unbuffered."""
    random.seed(number)
    shown = os.open(folder / f"shown-{number}", os.O_WRONLY | os.O_CREAT)
    conversation, _ = chat(SessionStore(folder / "sessions.db"), name="work")
    conversation._inner = Endless()
    conversation.add(book(f"book {number}", "page one", "page two"))
    for turn in range(10_000):
        question = f"question {number} {turn}"
        for event in conversation.ask(question):
            if isinstance(event, Text):
                os.write(shown, f"{question}:{event.token_ids[0]}\n".encode())
        os.write(shown, f"{question}:done\n".encode())


def main() -> None:
    """For every number on standard input start a chat and tell its process id."""
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        process = os.fork()
        if not process:
            with suppress(KeyboardInterrupt):
                write(folder, int(line))
            os._exit(1)
        print(process, flush=True)
        os.waitpid(process, 0)


if __name__ == "__main__":
    main()
