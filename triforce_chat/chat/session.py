"""A conversation over documents with an engine: each turn extends the tokens that are already cached."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

from triforce_chat.chat.citations import check_citations, check_quotes
from triforce_chat.chat.context_check import check_document, check_question
from triforce_chat.chat.conversation import StoredTurn, Turn
from triforce_chat.chat.denial import is_denial, standing
from triforce_chat.chat.events import ChatEvent, Comparison, Side, Sourced, Tally
from triforce_chat.chat.repetition import stopped_in_circles
from triforce_chat.chat.sources import top_sources
from triforce_chat.chat.template import ChatFormat
from triforce_chat.chat.thinking import checked_think
from triforce_chat.chat.thought_constraint import AfterThought
from triforce_chat.chat.transcript import Transcript
from triforce_chat.documents import Document
from triforce_chat.engine.detokenizer import Thinking
from triforce_chat.engine.engine import Request
from triforce_chat.engine.events import Finished
from triforce_chat.engine.exactness import judge
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.engine.sampling.constraint import MakeConstraint
from triforce_chat.errors import DoesNotFit, UsageError
from triforce_chat.models.failures import convert_out_of_memory
from triforce_chat.models.load import LoadedModel
from triforce_chat.models.tokenizer import vocabulary_hash
from triforce_chat.settings.engine_options import sampling_of, stack_for
from triforce_chat.settings.settings import CHANGEABLE, Settings

if TYPE_CHECKING:
    from triforce_chat.chat.json_schema import Grammars


class ChatSession:
    """A ``Conversation`` with an engine: it asks the engine what its transcript says, and records the answers."""

    def __init__(
        self,
        engine: EngineProtocol,
        loaded: LoadedModel,
        settings: Settings,
        system: str | None = None,
        transcript: Transcript | None = None,
        stop: tuple[str, ...] = (),
    ) -> None:
        """``system``: None for the default text. ``transcript``: one to continue, with a system prompt of its own.

        ``stop``: strings that end an answer, in addition to those of the chat format.
        """
        self.engine, self.loaded, self.settings, self.stop = engine, loaded, settings, stop
        self.schema: dict[str, Any] | None = None  # of answers in JSON
        self.transcript = transcript or Transcript(
            ChatFormat(loaded.tokenizer), loaded.eos_ids, engine.decode, system
        )
        self.transcript.think = checked_think(settings.think, self.transcript.format)

    @property
    def documents(self) -> Sequence[Document]:
        return self.transcript.documents

    @property
    def turns(self) -> Sequence[Turn]:
        return self.transcript.turns

    @property
    def system(self) -> str:
        return self.transcript.system

    def set_system(self, text: str) -> None:
        self.transcript.system = text

    @property
    def context_used(self) -> int:
        return self.transcript.length

    @property
    def context_limit(self) -> int:
        return 0 if self.settings.eviction else self.engine.context

    @cached_property
    def vocabulary(self) -> str:
        """A hash of the tokenizer: equal hashes mean that token ids are interchangeable."""
        return vocabulary_hash(self.loaded.tokenizer)

    def encode(self, text: str) -> list[int]:
        """Tokenize a text in which nothing is special."""
        return self.transcript.format.encode(text)

    def options(self) -> dict[str, str]:
        shown = sampling_of(self.settings, self.loaded)
        values = {name: getattr(shown, name, getattr(self.settings, name, None)) for name in CHANGEABLE}
        return {
            name.replace("_", "-"): "auto" if value is None else str(value) for name, value in values.items()
        }

    def set_option(self, name: str, value: str) -> None:
        changed = self.settings.with_text(name, value)
        sampling_of(changed, self.loaded)  # raises UsageError for values that make no sense
        think = checked_think(changed.think, self.transcript.format)
        options = stack_for(changed, self.loaded)
        if options != self.engine.options:
            with convert_out_of_memory():
                self.engine.restack(options)
        self.settings, self.transcript.think = changed, think

    def add(self, document: Document) -> int:
        added = self.transcript.add(document)
        try:
            check_document(added, self.context_used, self.settings.max_tokens, self.engine.context)
        except DoesNotFit:
            self.transcript.pending.pop()
            raise
        return len(added.ids)

    def clear(self) -> None:
        self.transcript.clear()

    def undo(self) -> Turn:
        return self.transcript.undo()

    def drop(self, number: int) -> Document:
        return self.transcript.drop(number)

    def restore(self, turns: Sequence[StoredTurn], pending: Sequence[Document]) -> int:
        """Continue from stored turns; returns how many had to be tokenized again. Raises DoesNotFit.

        ``pending``: documents that belong to the next question.
        """
        known = [turn if self._knows(turn) else replace(turn, vocabulary="") for turn in turns]
        retokenized = self.transcript.restore(known, pending, self.vocabulary)
        if self.context_used > self.engine.context:
            raise DoesNotFit(
                f"the session has {self.context_used:,} tokens, but the context has room for {self.engine.context:,}; "
                "choose a longer --context or a model that has one"
            )
        return retokenized

    def _knows(self, turn: StoredTurn) -> bool:
        """Whether the model has all tokens of a stored turn, whatever its damaged record says."""
        ids = [*turn.question_ids, *turn.turn.tally.token_ids]
        return max(ids, default=0) < self.loaded.vocab_size

    def prefill(self) -> Generator[ChatEvent, None, None]:
        prefix = self.transcript.prefix()
        with convert_out_of_memory():
            sampling = sampling_of(self.settings, self.loaded)
            yield from self.engine.prefill(prefix.ids, prefix.spans, sampling)

    def ask(self, question: str, sources: bool = True) -> Generator[ChatEvent, None, None]:
        """Answer a question. Raises DoesNotFit before anything is computed.

        ``sources``: find the pages that the answer came from, which takes a forward pass over the answer.
        """
        tally = Tally()
        ids = self.question_ids(question)
        request = self.request(ids)
        try:
            with convert_out_of_memory():
                yield from self.answering(question, request, tally, sources)
        finally:
            self._record(question, ids, tally)

    def retry(self) -> Generator[ChatEvent, None, None]:
        with self.transcript.last_reopened("there is no question to answer again") as last:
            yield from self.ask(last.turn.question)

    def revise(self, question: str) -> Generator[ChatEvent, None, None]:
        with self.transcript.last_reopened("there is no question to change"):
            yield from self.ask(question)

    def resume(self) -> Generator[ChatEvent, None, None]:
        with self.transcript.last_reopened("there is no answer to continue") as last:
            before = self.transcript.unfinished_answer_ids(last.turn)
            request = self.request(last.question, before)
            continuation = Tally()
            text, thought = self.transcript.shown(before, request.thinking)
            whole = replace(
                deepcopy(last.turn.tally),
                token_ids=[*before],
                text=text,
                thought=thought.text,
                thought_tokens=thought.tokens,
                sourced=None,
            )
            try:
                with convert_out_of_memory():
                    for event in self.answering(last.turn.question, request, whole):
                        continuation.add(event)
                        yield event
            finally:
                whole.finished = _joined(last.turn.tally, continuation, len(whole.token_ids))
                self._record(last.turn.question, last.question, whole if continuation.token_ids else Tally())

    def compare(self, question: str) -> Generator[tuple[Side, ChatEvent] | Comparison, None, None]:
        fast, plain = Tally(), Tally()
        ids = self.question_ids(question)
        request = self.request(ids)
        try:
            with convert_out_of_memory():
                for event in self.engine.answer(request):
                    fast.add(event)
                    yield "speculative", event
                for event in self.engine.answer(request, plain=True):
                    plain.add(event)
                    yield "autoregressive", event
                verdict = judge(self.engine, request, fast.token_ids, plain.token_ids)
            yield Comparison(fast, plain, verdict.identical, verdict.ties, verdict.mismatches)
        finally:
            self._record(question, ids, fast)

    def question_ids(self, question: str) -> list[int]:
        """The tokens of a question, after passages of the documents if they are long and the context has room."""
        ids = self.transcript.question_ids(question, self.settings.passages)
        fits = self.context_used + len(ids) + self.settings.max_tokens <= self.engine.context
        return ids if fits else self.encode(question)

    def request(self, question: Sequence[int], answer_so_far: Sequence[int] = ()) -> Request:
        """The engine's request for a question in tokens, or for the rest of its answer. Raises DoesNotFit."""
        prompt = self.transcript.prompt(question)
        max_tokens = self.settings.max_tokens
        check_question(len(prompt.ids) + len(answer_so_far), max_tokens, self.engine.context)
        thinking = self.transcript.format.thinking_after(prompt.ids)
        return Request(
            prompt.ids,
            max_tokens,
            sampling_of(self.settings, self.loaded),
            (*self.transcript.format.stop, *self.stop),
            prompt.spans,
            answer_so_far,
            constraint=self._constraint(thinking),
            thinking=thinking,
        )

    def _constraint(self, thinking: Thinking | None) -> MakeConstraint | None:
        """Makes the constraint of an answer, which begins after its thought.

        Raises UsageError for a schema that cannot be followed.
        """
        if self.schema is None:
            return None
        if self.settings.tp > 1:
            raise UsageError("answers of a JSON schema are made in one process: leave out --tp")
        make = partial(grammars(self.loaded).of_schema, self.schema)
        make()
        if thinking is None or self.transcript.think is False:
            return make
        return lambda: AfterThought(make(), thinking, self.loaded.eos_ids)

    def answering(
        self,
        question: str,
        request: Request,
        tally: Tally,
        sources: bool = True,
        engine: EngineProtocol | None = None,
        plain: bool = False,
    ) -> Generator[ChatEvent, None, None]:
        """The events of an answer and, with ``sources``, of the search for its pages; ``tally`` folds them.

        Nothing is recorded. ``engine``: one of several that answer at once; None for the session's own. ``plain``:
        without speculation.
        """
        engine = engine or self.engine
        answer = engine.answer(request, plain)
        for event in stopped_in_circles(answer, len(request.history), self.settings.loop_guard):
            tally.add(event)
            yield event
        if sources and self.documents and tally.token_ids:
            for found in self._sources(question, engine, request, tally):
                tally.add(found)
                yield found

    def _sources(
        self, question: str, engine: EngineProtocol, request: Request, tally: Tally
    ) -> Generator[ChatEvent, None, None]:
        """Find the pages that an answer attended to, and check the pages that it names and what it quotes."""
        started = time.perf_counter()
        cited, quotes = check_citations(tally.text, self.documents), check_quotes(tally.text, self.documents)
        denies = is_denial(tally.text)
        if denies or self.settings.eviction:  # of what was forgotten no attention is left to look at
            stands = standing(question, self.documents) if denies else ()
            yield Sourced((), cited, time.perf_counter() - started, quotes, stands)
            return
        documents = self.transcript.tokenized_documents
        weights = yield from engine.attribute(request, tally.token_ids)
        pages = [
            page
            for span, document in zip(request.spans, documents, strict=True)
            for page in document.page_weights(weights, span.end - len(document.ids))
        ]
        found = top_sources(pages, self.transcript.format)
        yield Sourced(found, cited, time.perf_counter() - started, quotes)

    def _record(self, question: str, ids: Sequence[int], tally: Tally) -> None:
        """Record a turn, even an interrupted one, unless it has no token."""
        if not tally.token_ids:
            return
        if tally.finished is None:
            tally.add(_interrupted(tally))
        self.transcript.append(question, ids, tally)


@lru_cache(1)
def grammars(loaded: LoadedModel) -> Grammars:
    """The grammars of a model's vocabulary. Raises UsageError."""
    from triforce_chat.chat.json_schema import Grammars

    return Grammars(loaded.tokenizer, loaded.vocab_size, loaded.eos_ids)


def _joined(first: Tally, second: Tally, tokens: int) -> Finished:
    """The end of an answer made in two parts; decoding takes 0 s if the time of a part is unknown."""
    began, ended = first.finished or _interrupted(first), second.finished or _interrupted(second)
    timed = began.decode_s and ended.decode_s
    return replace(
        began,
        reason=ended.reason,
        completion_tokens=tokens,
        prefill_s=began.prefill_s + ended.prefill_s,
        decode_s=began.decode_s + ended.decode_s if timed else 0.0,
    )


def _interrupted(tally: Tally) -> Finished:
    """The end of an answer that was closed before the engine ended it; its decoding time is unknown."""
    done = tally.prefill
    return replace(
        Finished("interrupted", 0, 0, len(tally.token_ids), 0.0, 0.0, 0.0),
        prompt_tokens=done.total + 1 if done else 0,
        cached_tokens=done.cached if done else 0,
        prefill_s=done.seconds if done else 0.0,
    )
