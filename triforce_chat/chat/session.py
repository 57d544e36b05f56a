"""A conversation over documents: turns become token ids that extend what is cached."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property

from triforce_chat.chat.citations import check
from triforce_chat.chat.conversation import StoredTurn, Turn
from triforce_chat.chat.sources import Placed, sources
from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.documents import Document, runs
from triforce_chat.engine.detokenizer import AnswerText
from triforce_chat.engine.engine import Request
from triforce_chat.engine.events import Comparison, Event, Finished, Side, Sourced, Tally
from triforce_chat.engine.exactness import judge
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.errors import DoesNotFit, UsageError
from triforce_chat.loading.stack_options import sampling_of, stack_for
from triforce_chat.models.failures import memory_watched
from triforce_chat.models.load import LoadedModel, meaning
from triforce_chat.prompts import prompt
from triforce_chat.settings.settings import CHANGEABLE, Settings

QUESTION_ROOM = 64  # tokens kept free for a question when a document is added
END = -2  # stands behind a document while a prompt is put together


@dataclass(frozen=True, slots=True)
class Reading:
    """A document as the model sees it; every token knows its page."""

    document: Document
    before: list[int]  # the heading
    pages: list[list[int]]
    after: list[int]

    @property
    def ids(self) -> list[int]:
        return self.before + [token for page in self.pages for token in page] + self.after

    def placed(self, weights: Sequence[float], start: int) -> Iterator[Placed]:
        """The pages with their tokens' share of ``weights``; the heading's first token is at ``start``."""
        at = start + len(self.before)
        for page, ids in zip(self.document.pages, self.pages, strict=True):
            yield Placed(self.document, page, weights[at : at + len(ids)])
            at += len(ids)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn in tokens: documents put before the question, the question, and what was answered."""

    readings: tuple[Reading, ...]
    question: list[int]
    turn: Turn


def laid_out(readings: Sequence[Reading], question: list[int]) -> list[int]:
    """What a turn asks: documents, each with END behind it, and the question."""
    return [token for reading in readings for token in (*reading.ids, END)] + question


class Session:
    """Implements ``ui.conversation.Conversation`` on an engine."""

    def __init__(
        self, engine: EngineProtocol, loaded: LoadedModel, settings: Settings, system: str | None = None
    ) -> None:
        self.engine, self.loaded, self.settings = engine, loaded, settings
        self.format = ChatFormat(loaded.tokenizer)
        self.exchanges: list[Exchange] = []
        self.waiting: list[Reading] = []  # documents that belong to the next question
        self.stop: tuple[str, ...] = ()  # strings that end an answer, beside those of the format
        self._system = system  # None: the usual one

    @property
    def documents(self) -> Sequence[Document]:
        return [reading.document for reading in self.readings]

    @property
    def readings(self) -> list[Reading]:
        return [reading for exchange in self.exchanges for reading in exchange.readings] + self.waiting

    @property
    def turns(self) -> Sequence[Turn]:
        return [exchange.turn for exchange in self.exchanges]

    @property
    def system(self) -> str:
        """What was set; else a text about documents, which without any would make a model deny what it knows."""
        if self._system is not None:
            return self._system
        return prompt("system" if self.readings else "plain")

    def set_system(self, text: str) -> None:
        self._system = text

    @property
    def context_used(self) -> int:
        return len(self._prompt([]))

    @property
    def context_limit(self) -> int:
        return self.engine.context

    @cached_property
    def vocabulary(self) -> str:
        """A hash of what token ids mean."""
        return meaning(self.loaded.tokenizer)

    def options(self) -> dict[str, str]:
        shown = sampling_of(self.settings, self.loaded)
        values = {name: getattr(shown, name, getattr(self.settings, name, None)) for name in CHANGEABLE}
        return {
            name.replace("_", "-"): "auto" if value is None else str(value) for name, value in values.items()
        }

    def set_option(self, name: str, value: str) -> None:
        changed = self.settings.with_text(name, value)
        sampling_of(changed, self.loaded)  # complains about what makes no sense
        options = stack_for(changed, self.loaded)
        if options != self.engine.options:
            with memory_watched():
                self.engine.restack(options)
        self.settings = changed

    def add(self, document: Document) -> int:
        reading = self._read(document)
        self.waiting.append(reading)
        try:
            self._check_document(reading)
        except DoesNotFit:
            self.waiting.pop()
            raise
        return len(reading.ids)

    def clear(self) -> None:
        self.waiting, self.exchanges = self.readings, []

    def restore(self, past: Sequence[StoredTurn], waiting: Sequence[Document]) -> int:
        """Take up turns of an earlier run; returns how many had to be tokenized anew. Raises DoesNotFit."""
        foreign = [each.vocabulary != self.vocabulary for each in past]
        self.exchanges = [self._recalled(*each) for each in zip(past, foreign, strict=True)]
        self.waiting = [self._read(document) for document in waiting]
        if self.context_used > self.context_limit:
            raise DoesNotFit(
                f"the session has {self.context_used:,} tokens, but the context holds {self.context_limit:,}; "
                "choose a longer --context or a model that has one"
            )
        return sum(foreign)

    def _recalled(self, past: StoredTurn, foreign: bool) -> Exchange:
        readings, turn = tuple(map(self._read, past.documents)), past.turn
        if not foreign:
            return Exchange(readings, list(past.question_ids), turn)
        tally = replace(turn.tally, token_ids=self.format.text(turn.answer))
        return Exchange(readings, self.format.text(turn.question), replace(turn, tally=tally))

    def prefill(self) -> Generator[Event, None, None]:
        """Read the waiting documents into the cache; the question will follow them."""
        mark = [-1]  # stands where the question will be
        prompt_ids, spans = self._marked(mark)
        with memory_watched():
            yield from self.engine.prefill(prompt_ids[: prompt_ids.index(-1)], spans)

    def ask(self, question: str, sources: bool = True) -> Generator[Event, None, None]:
        """As the protocol says; ``sources`` looks for the pages behind the answer, which takes a while."""
        tally = Tally()
        request = self._request(question)
        try:
            with memory_watched():
                yield from self._answer(request, tally, sources)
        finally:
            self._keep(question, tally)

    def retry(self) -> Generator[Event, None, None]:
        with self._reopened("there is no question to answer again") as last:
            yield from self.ask(last.turn.question)

    def resume(self) -> Generator[Event, None, None]:
        with self._reopened("there is no answer to continue") as last:
            said = self._beginning(last.turn)
            request = self._request(last.turn.question, said)
            more = Tally()
            whole = replace(
                deepcopy(last.turn.tally), token_ids=[*said], text=self._shown(said), sourced=None
            )
            try:
                with memory_watched():
                    for event in self._answer(request, whole):
                        more.add(event)
                        yield event
            finally:
                whole.finished = _joined(last.turn.tally, more, len(whole.token_ids))
                self._keep(last.turn.question, whole if more.token_ids else Tally())

    @contextmanager
    def _reopened(self, lacking: str) -> Iterator[Exchange]:
        """The last exchange taken back; it stands as it was unless another takes its place."""
        if not self.exchanges:
            raise UsageError(lacking)
        last = self.exchanges.pop()
        waiting, self.waiting = self.waiting, list(last.readings)
        count = len(self.exchanges)
        try:
            yield last
        finally:
            if len(self.exchanges) == count:
                self.exchanges.append(last)
            self.waiting = waiting

    def compare(self, question: str) -> Generator[tuple[Side, Event] | Comparison, None, None]:
        fast, plain = Tally(), Tally()
        request = self._request(question)
        try:
            with memory_watched():
                for event in self.engine.answer(request):
                    fast.add(event)
                    yield "speculative", event
                for event in self.engine.answer(request, plain=True):
                    plain.add(event)
                    yield "autoregressive", event
                verdict = judge(self.engine, request, fast.token_ids, plain.token_ids)
            yield Comparison(fast, plain, verdict.identical, verdict.ties, verdict.mismatches)
        finally:
            self._keep(question, fast)

    def _answer(self, request: Request, tally: Tally, sources: bool = True) -> Generator[Event, None, None]:
        """An answer and where it came from; ``tally`` folds the events."""
        for event in self.engine.answer(request):
            tally.add(event)
            yield event
        if sources and self.readings and tally.token_ids:
            for event in self._sourced(request, tally):
                tally.add(event)
                yield event

    def _sourced(self, request: Request, tally: Tally) -> Generator[Event, None, None]:
        """Where the answer that was just made came from, and whether the pages that it names hold."""
        started = time.perf_counter()
        readings = self.readings
        weights = yield from self.engine.attribute(request, tally.token_ids)
        placed = [
            each
            for span, reading in zip(request.spans, readings, strict=True)
            for each in reading.placed(weights, span.end - len(reading.ids))
        ]
        found = sources(placed, self.format)
        cited = check(tally.text, self.documents)
        yield Sourced(found, cited, time.perf_counter() - started)

    def _keep(self, question: str, tally: Tally) -> None:
        """Record what was said, also when it was interrupted; nothing said, nothing recorded."""
        if not tally.token_ids:
            return
        if tally.finished is None:
            tally.add(_interrupted(tally))
        turn = Turn(question, tally.text, tally)
        self.exchanges.append(Exchange(tuple(self.waiting), self.format.text(question), turn))
        self.waiting = []

    def _request(self, question: str, said: Sequence[int] = ()) -> Request:
        ids, spans = self._marked(self.format.text(question))
        self._check_question(len(ids) + len(said))
        sampling = sampling_of(self.settings, self.loaded)
        stops = (*self.format.stop, *self.stop)
        return Request(ids, self.settings.max_tokens, sampling, stops, spans, said)

    def _prompt(self, question: list[int]) -> list[int]:
        return self._marked(question)[0]

    def _marked(self, question: list[int]) -> tuple[list[int], list[DocumentSpan]]:
        """The prompt, and where its documents end in it."""
        system = self.system
        messages = [Message("system", self.format.text(system))] if system else []
        for exchange in self.exchanges:
            messages.append(Message("user", laid_out(exchange.readings, exchange.question)))
            messages.append(Message("assistant", self._said(exchange.turn)))
        rendered = self.format.render([*messages, Message("user", laid_out(self.waiting, question))])
        marks = [at for at, token in enumerate(rendered) if token == END]
        spans = [
            DocumentSpan(at - before, reading.document.title)
            for before, (at, reading) in enumerate(zip(marks, self.readings, strict=True))
        ]
        return [token for token in rendered if token != END], spans

    def _said(self, turn: Turn) -> list[int]:
        """An answer without its end token or stop string: the template writes one of its own."""
        ids = list(turn.tally.token_ids)
        if ids and ids[-1] in self.loaded.eos_ids:
            return self.format.said(ids[:-1])
        while self.format.stop and ids and len(self.engine.decode(ids[:-1])) >= len(turn.answer):
            ids.pop()
        return self.format.said(ids)

    def _beginning(self, turn: Turn) -> list[int]:
        """The tokens of an answer that did not come to its end."""
        ids, done = turn.tally.token_ids, turn.tally.finished
        if (done and done.reason == "stop") or ids[-1] in self.loaded.eos_ids:
            raise UsageError("the answer came to its end; there is nothing to continue")
        return self._said(turn)

    def _shown(self, said: Sequence[int]) -> str:
        return AnswerText(self.engine.decode, self.format.stop).resume(said)

    def _read(self, document: Document) -> Reading:
        heading, ending = prompt("document").format(title=document.title, text="\0").split("\0")
        pages = [self.format.text(page.text) for page in document.pages]
        return Reading(document, self.format.text(heading), pages, self.format.text(ending + "\n\n"))

    def _check_document(self, reading: Reading) -> None:
        reserve = QUESTION_ROOM + self.settings.max_tokens
        needed, limit = self.context_used + reserve, self.context_limit
        if needed <= limit:
            return
        document, total = reading.document, len(reading.ids)
        room = max(0, limit - (needed - total))
        raise DoesNotFit(
            f"{document.title}: {total:,} tokens do not fit: of the context's {limit:,}, {room:,} are "
            f"free for it ({reserve:,} are kept for a question and its answer); {_advice(reading, room)}"
        )

    def _check_question(self, prompt_tokens: int) -> None:
        limit, most = self.context_limit, self.settings.max_tokens
        if prompt_tokens + most > limit:
            free = limit - prompt_tokens
            choices = f"--max-tokens {free} (in the chat: /set max-tokens {free}), " if free >= 16 else ""
            raise DoesNotFit(
                f"the conversation has {prompt_tokens:,} tokens and the answer may take {most:,}, but the "
                f"context holds {limit:,}; choose {choices}a shorter question, /clear, or fewer pages"
            )


def _advice(reading: Reading, room: int) -> str:
    """What would fit, as an option to type."""
    used, fitting = len(reading.before) + len(reading.after), 0
    for page in reading.pages:
        used += len(page)
        if used > room:
            break
        fitting += 1
    if not fitting:
        return "not even its first page fits: choose a model with a longer context"
    numbers = runs(page.number for page in reading.document.pages[:fitting])
    return f"--pages {numbers} would fit, or choose a model with a longer context"


def _joined(first: Tally, more: Tally, tokens: int) -> Finished:
    """The end of an answer made in two parts; its decoding time is 0 where that of a part is unknown."""
    began, ended = first.finished or _interrupted(first), more.finished or _interrupted(more)
    timed = began.decode_s and ended.decode_s
    return replace(
        began,
        reason=ended.reason,
        completion_tokens=tokens,
        prefill_s=began.prefill_s + ended.prefill_s,
        decode_s=began.decode_s + ended.decode_s if timed else 0.0,
    )


def _interrupted(tally: Tally) -> Finished:
    done = tally.prefill
    return replace(
        Finished("interrupted", 0, 0, len(tally.token_ids), 0.0, 0.0, 0.0),
        prompt_tokens=done.total + 1 if done else 0,
        cached_tokens=done.cached if done else 0,
        prefill_s=done.seconds if done else 0.0,
    )
