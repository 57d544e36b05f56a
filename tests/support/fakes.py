"""A scripted conversation: it answers with enqueued texts, and keeps a partial answer when it is closed."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence

from triforce_chat.chat.conversation import Turn
from triforce_chat.chat.events import ChatEvent, Comparison, Side, Sourced, Tally
from triforce_chat.documents import Document
from triforce_chat.engine.events import Finished, Prefilled, Rebuilt, Text, Verified
from triforce_chat.errors import DoesNotFit, UsageError

LIMIT = 131_072
ROUND = 4  # tokens


def pieces(text: str, size: int = ROUND * 3) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def answer_events(
    text: str, *, prompt: int = 41_000, cached: int = 1_000, level: bool = True
) -> list[ChatEvent]:
    """A prefill in four steps, then rounds of four tokens, then the end."""
    steps = [cached + (prompt - cached) * step // 4 for step in range(1, 5)]
    events: list[ChatEvent] = [Prefilled(done, prompt, cached, (done - cached) / 8_000) for done in steps]
    events.append(Rebuilt(prompt, "first", 0.01))
    said = 0
    for piece in pieces(text):
        if level:
            events += [Verified("retrieval", 6, 4), Verified("target", ROUND, ROUND - 1)]
        said += ROUND
        events.append(Text(tuple(range(said - ROUND, said)), piece))
    pace = 0.02 if level else 0.05
    return [*events, Finished("stop", prompt, cached, said, 5.0, 5.02, pace * said)]


def tally_of(events: Iterable[ChatEvent]) -> Tally:
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally


class ScriptedConversation:
    """A ``Conversation`` with enqueued answers; ``pause`` seconds pass before each event."""

    def __init__(self, *answers: str | Exception, pause: float = 0.0) -> None:
        self.answers = list(answers)
        self.pause = pause
        self.questions: list[str] = []
        self.prefills = 0
        self.sourced: Sourced | None = None  # follows the end of every answer
        self.settings = {"temperature": "0.6", "top_p": "0.9", "max-tokens": "512"}
        self._documents: list[Document] = []
        self._turns: list[Turn] = []
        self._system = "You answer from the document."

    @property
    def documents(self) -> Sequence[Document]:
        return self._documents

    @property
    def turns(self) -> Sequence[Turn]:
        return self._turns

    @property
    def system(self) -> str:
        return self._system

    @property
    def context_used(self) -> int:
        return sum(len(page.text) for document in self._documents for page in document.pages)

    @property
    def context_limit(self) -> int:
        return LIMIT

    def ask(self, question: str) -> Generator[ChatEvent, None, None]:
        self.questions.append(question)
        answer = self.answers.pop(0) if self.answers else f"You said: {question}"
        if isinstance(answer, Exception):
            raise answer
        return self._say(question, [*answer_events(answer), *([self.sourced] if self.sourced else [])])

    def retry(self) -> Generator[ChatEvent, None, None]:
        if not self._turns:
            raise UsageError("nothing to retry: ask something first")
        last = self._turns.pop()
        count = len(self._turns)
        try:
            yield from self.ask(last.question)
        finally:
            if len(self._turns) == count:  # stopped before the first token: the old answer stands
                self._turns.append(last)

    def revise(self, question: str) -> Generator[ChatEvent, None, None]:
        self.undo()
        yield from self.ask(question)

    def undo(self) -> Turn:
        if not self._turns:
            raise UsageError("there is no question to remove")
        return self._turns.pop()

    def drop(self, number: int) -> Document:
        return self._documents.pop(number)

    def resume(self) -> Generator[ChatEvent, None, None]:
        if not self._turns:
            raise UsageError("there is no answer to continue")
        turn = self._turns.pop()
        events = answer_events(str(self.answers.pop(0)))
        both = [*answer_events(turn.answer)[5:-1], *events[5:]]
        yield from self._slowly(events)
        self._turns.append(Turn(turn.question, tally_of(both).text, tally_of(both)))

    def compare(self, question: str) -> Generator[tuple[Side, ChatEvent] | Comparison, None, None]:
        self.questions.append(question)
        text = str(self.answers.pop(0))
        fast, plain = answer_events(text), answer_events(text, level=False)
        yield from (("speculative", event) for event in self._slowly(fast))
        yield from (("autoregressive", event) for event in self._slowly(plain))
        yield Comparison(tally_of(fast), tally_of(plain), identical=True, ties=2)

    def prefill(self) -> Generator[ChatEvent, None, None]:
        self.prefills += 1
        yield from self._slowly(answer_events("")[:4])

    def add(self, document: Document) -> int:
        tokens = sum(len(page.text) for page in document.pages)
        if self.context_used + tokens > LIMIT:
            raise DoesNotFit(f"{document.title} has {tokens:,} tokens, {LIMIT:,} fit; pass pages")
        self._documents.append(document)
        return tokens

    def set_system(self, text: str) -> None:
        self._system = text

    def set_option(self, name: str, value: str) -> None:
        if name not in self.settings:
            raise UsageError(f"no setting {name}; there are {', '.join(self.settings)}")
        self.settings[name] = value

    def options(self) -> dict[str, str]:
        return dict(self.settings)

    def clear(self) -> None:
        self._turns.clear()

    def _say(self, question: str, events: Sequence[ChatEvent]) -> Generator[ChatEvent, None, None]:
        tally = Tally()
        try:
            for event in self._slowly(events):
                tally.add(event)
                yield event
        finally:
            if tally.token_ids:
                self._turns.append(Turn(question, tally.text, tally))

    def _slowly(self, events: Sequence[ChatEvent]) -> Generator[ChatEvent, None, None]:
        for event in events:
            if self.pause:
                time.sleep(self.pause)
            yield event
