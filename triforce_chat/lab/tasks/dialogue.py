"""Conversations about one document, rendered to tokens as a chat session renders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.lab.tasks.facts import Fact
from triforce_chat.prompts import prompt

_MARK = -1  # placeholder token for contents that are inserted later


@dataclass(frozen=True, slots=True)
class Example:
    """A tokenized text; ``answers`` are the ranges [start, end) of the assistant's tokens, including the end token."""

    ids: list[int]
    answers: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation about one document."""

    format: ChatFormat
    system: str | None  # None uses the default of the chat template
    title: str
    known: dict[str, list[int]] = field(default_factory=dict)  # texts tokenized so far

    def prefix(self, document: Sequence[int]) -> list[int]:
        """All ids before the first question."""
        ids = self.format.render(self._messages([_MARK], []))
        return [*ids[: ids.index(_MARK)], *document, *self._after()]

    def suffix(self, question: str) -> list[int]:
        """The ids of the first question and of the template up to the answer."""
        ids = self.format.render([*self._before(), Message("user", [_MARK, *self._text(question)])])
        return ids[ids.index(_MARK) + 1 :]

    def whole(self, document: Sequence[int], facts: Sequence[Fact]) -> Example:
        """The document and all questions with their answers, up to the line end after the last answer."""
        messages = self._messages(document, facts)
        replies = range(len(messages) - 2 * len(facts) + 1, len(messages), 2)
        marked = [
            Message(message.role, [_MARK]) if i in replies else message for i, message in enumerate(messages)
        ]
        ranges, shift = [], 0  # surplus length of the replies so far over their marks
        marks = [at for at, token in enumerate(self.format.render(marked)) if token == _MARK]
        for i, at in zip(replies, marks, strict=True):
            size = len(messages[i].content)
            ranges.append((at + shift, at + shift + size + 1))
            shift += size - 1
        ids = self.format.render(messages)
        return Example(ids[: self._end(ids, ranges[-1][1])], ranges)

    def _messages(self, document: Sequence[int], facts: Sequence[Fact]) -> list[Message]:
        heading = [*self._heading(), *document, *self._after()]
        if not facts:
            return [*self._before(), Message("user", heading)]
        messages = self._before()
        for fact in facts:
            messages.append(Message("user", heading + self._text(fact.question)))
            messages.append(Message("assistant", self._text(fact.reply)))
            heading = []
        return messages

    def _text(self, text: str) -> list[int]:
        """Tokenize ``text`` once: lengths are counted before the document is known, and rendered again with it."""
        if text not in self.known:
            self.known[text] = self.format.encode(text)
        return self.known[text]

    def _before(self) -> list[Message]:
        return [] if self.system is None else [Message("system", self._text(self.system))]

    def _heading(self) -> list[int]:
        return self._text(prompt("document").format(title=self.title, text="\0").split("\0")[0])

    def _after(self) -> list[int]:
        return self._text(prompt("document").format(title="", text="\0").split("\0")[1] + "\n\n")

    def _end(self, ids: Sequence[int], end: int) -> int:
        """``end``, moved past the line end that the template writes after an answer's end token."""
        tokenizer = self.format.tokenizer
        if ids[end - 1] != tokenizer.eos_token_id:
            raise ValueError("the chat template does not end answers with the tokenizer's end token")
        return end + 1 if end < len(ids) and tokenizer.decode([ids[end]]).isspace() else end
