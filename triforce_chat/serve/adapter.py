"""Answers chat completion requests with a chat session: the prompt, cache and answer are those of a chat."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from triforce_chat.chat.events import ChatEvent, Tally
from triforce_chat.chat.session import ChatSession
from triforce_chat.chat.transcript import Exchange
from triforce_chat.serve.api_error import ApiError
from triforce_chat.serve.chat_request import ChatCompletionRequest
from triforce_chat.serve.engines import Lender, SingleEngine
from triforce_chat.settings.engine_options import stack_for
from triforce_chat.settings.settings import Settings

MAX_ANSWERS = 256  # whose token ids are kept


class SessionAdapter:
    """Answers requests about the documents of ``base``, as many at a time as ``engines`` lends engines.

    A client sends back earlier answers as text. Their token ids are kept here, so that the prompt of a continued
    conversation begins with the cached ids even where the tokenizer would encode the text differently.
    """

    def __init__(self, base: ChatSession, engines: Lender | None = None) -> None:
        self.base, self.engines = base, engines or SingleEngine(base.engine)
        self.answer_ids: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def answer(self, request: ChatCompletionRequest) -> Generator[ChatEvent, None, None]:
        """The events of one answer; may be closed at any of them. Raises ApiError and UsageError at the first."""
        session = self._session(request)
        stack = stack_for(session.settings, session.loaded)
        prompt = session.transcript.prompt(session.question_ids(request.question)).ids
        try:
            with self.engines.lent(prompt, len(prompt) + session.settings.max_tokens, stack) as engine:
                session.engine = engine
                with closing(session.ask(request.question, request.sources)) as events:
                    yield from events
        finally:
            self._remember(request, session.transcript.exchanges[len(request.turns) :])

    def _session(self, request: ChatCompletionRequest) -> ChatSession:
        """A session with the turns of the request, and the documents before its first question."""
        base = self.base
        transcript = base.transcript.without_turns(request.system)
        for (question, answer), key in zip(request.turns, turn_keys(request), strict=False):
            ids = self.answer_ids.get(key) or base.encode(answer)
            transcript.append(question, base.encode(question), Tally(token_ids=list(ids), text=answer))
        # Clients know no such end of an answer, and may have asked for a repetition.
        changes: dict[str, Any] = {"loop_guard": 0, **dict(request.settings)}
        if request.speculation is not None:
            changes["stack"] = request.speculation
        if request.think is not None:
            changes["think"] = request.think
        settings = replace(base.settings, **changes)
        session = ChatSession(base.engine, base.loaded, settings, transcript=transcript, stop=request.stop)
        session.settings = self._limited(session, request)
        session.schema = None if request.schema is None else json.loads(request.schema)
        return session

    def _limited(self, session: ChatSession, request: ChatCompletionRequest) -> Settings:
        """The settings with the requested ``max_tokens``, by default at most what the context has left.

        Raises ApiError if prompt and requested answer exceed the context.
        """
        prompt = session.context_used + len(session.encode(request.question))
        limit = session.context_limit
        most = request.max_tokens or min(session.settings.max_tokens, max(1, limit - prompt))
        if prompt + most > limit:
            raise ApiError(
                400,
                f"the context has room for {limit:,} tokens; documents and messages have {prompt:,} and the answer "
                f"may take {most:,}, which is {prompt + most - limit:,} too many",
                "context_length_exceeded",
                "messages",
            )
        return replace(session.settings, max_tokens=most)

    def _remember(self, request: ChatCompletionRequest, exchanges: Sequence[Exchange]) -> None:
        """Keep an answer's token ids, unless a stop string may have cut its text."""
        if request.stop:
            return
        for exchange in exchanges:
            *_, key = turn_keys(request, exchange.turn.answer)
            self.answer_ids[key] = tuple(exchange.turn.tally.token_ids)
            self.answer_ids.move_to_end(key)
        while len(self.answer_ids) > MAX_ANSWERS:
            self.answer_ids.popitem(last=False)


def turn_keys(request: ChatCompletionRequest, answer: str | None = None) -> Iterator[bytes]:
    """A hash of each answer and of the whole conversation before it; ``answer``: to the request's question."""
    running = hashlib.sha256(json.dumps(request.system).encode())
    last = [] if answer is None else [(request.question, answer)]
    for turn in [*request.turns, *last]:
        running.update(json.dumps(turn).encode())
        yield running.digest()
