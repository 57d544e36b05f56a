"""The transcript of a conversation in tokens, and the prompts made of it. It knows no engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

from triforce_chat.chat.conversation import StoredTurn, Turn
from triforce_chat.chat.events import Tally
from triforce_chat.chat.quoting import LONG, quoted_before
from triforce_chat.chat.sources import PageWeights
from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.chat.thinking import split_thought
from triforce_chat.documents import Document
from triforce_chat.engine.detokenizer import AnswerText, Thinking, ThoughtText, whole_characters
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.errors import UsageError
from triforce_chat.prompts import prompt

DOCUMENT_END = -2  # marks the end of a document while a prompt is assembled
QUESTION_START = -1  # marks where the question will begin


@dataclass(frozen=True, slots=True)
class TokenizedDocument:
    """A document as the model reads it; the tokens of each page are separate."""

    document: Document
    heading: list[int]
    pages: list[list[int]]
    ending: list[int]

    @property
    def ids(self) -> list[int]:
        """All tokens in reading order."""
        return [*self.heading, *chain.from_iterable(self.pages), *self.ending]

    @property
    def length(self) -> int:
        """How many tokens those are."""
        return len(self.heading) + sum(map(len, self.pages)) + len(self.ending)

    def page_weights(self, weights: Sequence[float], start: int) -> Iterator[PageWeights]:
        """The weights of each page's tokens.

        ``weights`` has one number for each token of the prompt, in which the document begins at ``start``.
        """
        at = start + len(self.heading)
        for page, ids in zip(self.document.pages, self.pages, strict=True):
            yield PageWeights(self.document, page, weights[at : at + len(ids)])
            at += len(ids)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn in tokens, with the documents that were placed before its question."""

    documents: tuple[TokenizedDocument, ...]
    question: list[int]  # with the passages that were quoted before it
    turn: Turn


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids up to the beginning of an answer, and where the documents end in them."""

    ids: list[int]
    spans: list[DocumentSpan]


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds a question in a prompt: tokens before and after it, and where the documents end."""

    made_of: tuple[object, ...]  # what it was rendered from
    before: list[int]
    after: list[int]
    spans: list[DocumentSpan]


class Transcript:
    """System text, documents and turns of a conversation.

    Documents are pending until a question follows them; then they belong to its exchange.
    """

    def __init__(
        self,
        template: ChatFormat,
        eos_ids: Collection[int],
        decode: Callable[[Sequence[int]], str],
        system: str | None = None,
    ) -> None:
        """``eos_ids``: tokens that end an answer. ``system``: None for the default text."""
        self.format, self.eos_ids, self.decode = template, eos_ids, decode
        self.exchanges: list[Exchange] = []
        self.pending: list[TokenizedDocument] = []
        self._system = system
        self.think: bool | None = None  # thoughts on or off; None: as the template has it
        self._frame: Frame | None = None

    # Contents

    @property
    def tokenized_documents(self) -> list[TokenizedDocument]:
        """All documents in reading order, the pending ones last."""
        read = [document for exchange in self.exchanges for document in exchange.documents]
        return read + self.pending

    @property
    def documents(self) -> list[Document]:
        """The texts of all documents."""
        return [each.document for each in self.tokenized_documents]

    @property
    def turns(self) -> list[Turn]:
        """The questions and answers so far."""
        return [exchange.turn for exchange in self.exchanges]

    @property
    def system(self) -> str:
        """The text that was set, else a default.

        The default mentions documents only if there are any; otherwise the model would refuse to answer from its
        own knowledge.
        """
        if self._system is not None:
            return self._system
        return prompt("system" if self.tokenized_documents else "plain")

    @system.setter
    def system(self, text: str) -> None:
        self._system = text

    def add(self, document: Document) -> TokenizedDocument:
        """Tokenize a document and make it pending."""
        tokenized = self.tokenize(document)
        self.pending.append(tokenized)
        return tokenized

    def question_ids(self, question: str, passages: int = 0) -> list[int]:
        """The tokens of a question, after at most ``passages`` quoted passages of documents that are long."""
        if not passages or sum(each.length for each in self.tokenized_documents) < LONG:
            return self.format.encode(question)
        return self.format.encode(quoted_before(question, self.documents, passages))

    def append(self, question: str, ids: Sequence[int], tally: Tally) -> None:
        """Record a turn, which takes the pending documents; ``ids`` are the question's as they were asked."""
        turn = Turn(question, tally.text, tally)
        self.exchanges.append(Exchange(tuple(self.pending), [*ids], turn))
        self.pending = []

    def clear(self) -> None:
        """Forget the turns; all documents become pending."""
        self.pending, self.exchanges = self.tokenized_documents, []

    def undo(self) -> Turn:
        """Take back the last turn, whose documents become pending. Raises UsageError if there is none."""
        if not self.exchanges:
            raise UsageError("there is no question to remove")
        last = self.exchanges.pop()
        self.pending = [*last.documents, *self.pending]
        return last.turn

    def drop(self, number: int) -> Document:
        """Remove a document by its number in reading order, from 0."""
        for at, exchange in enumerate(self.exchanges):
            if number < len(exchange.documents):
                kept = [*exchange.documents]
                dropped = kept.pop(number)
                self.exchanges[at] = replace(exchange, documents=tuple(kept))
                return dropped.document
            number -= len(exchange.documents)
        return self.pending.pop(number).document

    def without_turns(self, system: str | None = None) -> Transcript:
        """A new transcript over the same documents; ``system`` replaces the system prompt unless it is None."""
        made = Transcript(self.format, self.eos_ids, self.decode, self._system if system is None else system)
        made.pending, made.think, made._frame = self.tokenized_documents, self.think, self._frame
        return made

    def restore(self, turns: Sequence[StoredTurn], pending: Sequence[Document], vocabulary: str) -> int:
        """Replace the contents by stored turns and documents; returns how many turns were tokenized again.

        The stored ids are valid only if they were made with the same ``vocabulary``.
        """
        self.exchanges = [self._restored(stored, stored.vocabulary == vocabulary) for stored in turns]
        self.pending = [self.tokenize(document) for document in pending]
        return sum(stored.vocabulary != vocabulary for stored in turns)

    def _restored(self, stored: StoredTurn, valid: bool) -> Exchange:
        documents, turn = tuple(map(self.tokenize, stored.documents)), stored.turn
        if valid:
            return Exchange(documents, list(stored.question_ids), turn)
        tally = replace(turn.tally, token_ids=self.format.encode(turn.answer))
        return Exchange(documents, self.format.encode(turn.question), replace(turn, tally=tally))

    @contextmanager
    def last_reopened(self, refusal: str) -> Iterator[Exchange]:
        """Take back the last exchange inside the block; it returns at the end unless another replaced it.

        Raises UsageError with the text ``refusal`` if there is none.
        """
        if not self.exchanges:
            raise UsageError(refusal)
        last = self.exchanges.pop()
        pending, self.pending = self.pending, list(last.documents)
        count = len(self.exchanges)
        try:
            yield last
        finally:
            if len(self.exchanges) == count:
                self.exchanges.append(last)
            self.pending = pending

    # Tokens

    @property
    def length(self) -> int:
        """Tokens of the next prompt with an empty question."""
        frame = self._framed()
        return len(frame.before) + len(frame.after)

    def prompt(self, question: Sequence[int]) -> Prompt:
        """The whole conversation, with ``question`` in tokens as its last message."""
        frame = self._framed()
        return Prompt([*frame.before, *question, *frame.after], frame.spans)

    def prefix(self) -> Prompt:
        """The part of the next prompt that comes before its question."""
        frame = self._framed()
        return Prompt([*frame.before], frame.spans)

    def _framed(self) -> Frame:
        """The frame of the next question, rendered once for as long as nothing changes: that takes time with a book."""
        answers = [len(each.turn.tally.token_ids) for each in self.exchanges]
        made_of = self.system, self.think, *self.exchanges, *answers, *self.pending
        if self._frame is None or not same(self._frame.made_of, made_of):
            self._frame = self._rendered(made_of)
        return self._frame

    def _rendered(self, made_of: tuple[object, ...]) -> Frame:
        system = self.system
        messages = [Message("system", self.format.encode(system))] if system else []
        for exchange in self.exchanges:
            messages.append(Message("user", _user_message(exchange.documents, exchange.question)))
            thought, _ = split_thought(exchange.turn.tally, self.format.thought_marks)
            thought = self.format.without_structural(thought)
            messages.append(Message("assistant", self.answer_ids(exchange.turn), thought))
        asked = Message("user", _user_message(self.pending, [QUESTION_START]))
        rendered = self.format.render([*messages, asked], self.think)
        spans: list[DocumentSpan] = []
        for each in self.tokenized_documents:
            end = rendered.index(DOCUMENT_END, spans[-1].end if spans else 0)
            del rendered[end]
            spans.append(DocumentSpan(end, each.document.title))
        at = rendered.index(QUESTION_START, spans[-1].end if spans else 0)
        return Frame(made_of, rendered[:at], rendered[at + 1 :], spans)

    def answer_ids(self, turn: Turn) -> list[int]:
        """An answer's tokens without its thought, and without its end token or stop string.

        The template writes an end of its own.
        """
        thought, ids = split_thought(turn.tally, self.format.thought_marks)
        if thought:
            ids = self._without_leading_space(ids)
        return self._without_end(turn, ids)

    def _without_leading_space(self, ids: Sequence[int]) -> list[int]:
        """The tokens from the first one that is not white space alone."""
        first = next((at for at, token in enumerate(ids) if self.decode([token]).strip()), len(ids))
        return [*ids[first:]]

    def _without_end(self, turn: Turn, ids: list[int]) -> list[int]:
        if ids and ids[-1] in self.eos_ids:
            return self.format.without_structural(ids[:-1])
        while self.format.stop and ids and self._goes_past(turn.answer, ids):
            ids.pop()
        return self.format.without_structural(ids)

    def _goes_past(self, answer: str, ids: Sequence[int]) -> bool:
        """Whether the last token begins after the answer's text. The first bytes of a character are no text yet."""
        begins, ends = len(self.decode(ids[:-1])), len(whole_characters(self.decode(ids)))
        return begins >= len(answer) and ends > len(answer)

    def unfinished_answer_ids(self, turn: Turn) -> list[int]:
        """The tokens of an answer that was stopped or cut. Raises UsageError if it is complete."""
        ids, done = turn.tally.token_ids, turn.tally.finished
        if (done and done.reason == "stop") or ids[-1] in self.eos_ids:
            raise UsageError("the answer is complete; there is nothing to continue")
        thought, answer = split_thought(turn.tally, self.format.thought_marks)
        return [*thought, *self._without_end(turn, answer)]

    def shown(self, ids: Sequence[int], thinking: Thinking | None) -> tuple[str, ThoughtText]:
        """The characters that these tokens of an answer complete, and the thought before them."""
        answer = AnswerText(self.decode, self.format.stop, thinking)
        return answer.resume(ids), answer.thought

    def tokenize(self, document: Document) -> TokenizedDocument:
        """A document's tokens between those of its heading and its end."""
        heading, ending = prompt("document").format(title=document.title, text="\0").split("\0")
        pages = self.format.encode_each([page.text for page in document.pages])
        return TokenizedDocument(
            document, self.format.encode(heading), pages, self.format.encode(ending + "\n\n")
        )


def _user_message(documents: Sequence[TokenizedDocument], question: Sequence[int]) -> list[int]:
    """Documents, each with DOCUMENT_END after it, and the question."""
    ids: list[int] = []
    for each in documents:
        ids += each.ids
        ids.append(DOCUMENT_END)
    return [*ids, *question]


def same(first: Sequence[object], second: Sequence[object]) -> bool:
    """Whether these are the same texts, numbers and objects; the latter are not looked into."""
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(
        a is b or (isinstance(a, int | str) and a == b) for a, b in pairs
    )
