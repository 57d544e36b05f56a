"""From a client's wish to the session's events: the same prompt, the same cache, the same answer as in a chat."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from triforce_chat.chat.conversation import Turn
from triforce_chat.chat.session import Exchange, Session
from triforce_chat.engine.events import Event, Tally
from triforce_chat.loading.stack_options import stack_for
from triforce_chat.serve.refusal import Refusal
from triforce_chat.serve.wish import Wish
from triforce_chat.settings.settings import Settings

MOST_SAID = 256  # answers whose tokens are remembered


class Talk:
    """Answers wishes about the documents of ``base``, one at a time.

    A client sends back the texts of earlier answers. Their tokens are remembered, so that a conversation's
    prompt begins with the ids that are cached, whatever the tokenizer would make of the text.
    """

    def __init__(self, base: Session) -> None:
        self.base = base
        self.said: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def answer(self, wish: Wish) -> Generator[Event, None, None]:
        """The events of one answer; may be closed at any of them. Raises Refusal and UsageError at the first."""
        session = self._session(wish)
        stack = stack_for(session.settings, session.loaded)
        if stack != session.engine.options:
            session.engine.restack(stack)
        try:
            with closing(session.ask(wish.question, sources=False)) as events:
                yield from events
        finally:
            self._remember(wish, session.exchanges[len(wish.turns) :])

    def _session(self, wish: Wish) -> Session:
        """A conversation as the messages tell it, with the documents in front of its first question."""
        base = self.base
        system = base.system if wish.system is None else wish.system
        changes: dict[str, Any] = dict(wish.settings)
        session = Session(base.engine, base.loaded, replace(base.settings, **changes), system)
        session.format, session.stop = base.format, wish.stop
        session.waiting = list(base.waiting)
        for n, (question, answer) in enumerate(wish.turns):
            ids = self.said.get(mark(wish, n, answer)) or tuple(session.format.text(answer))
            turn = Turn(question, answer, Tally(token_ids=list(ids), text=answer))
            session.exchanges.append(Exchange(tuple(session.waiting), session.format.text(question), turn))
            session.waiting = []
        session.settings = self._limited(session, wish)
        return session

    def _limited(self, session: Session, wish: Wish) -> Settings:
        """The settings with the longest answer that was asked for, else what the context leaves of the default."""
        prompt, limit = session.context_used + len(session.format.text(wish.question)), session.context_limit
        most = wish.max_tokens or min(session.settings.max_tokens, max(1, limit - prompt))
        if prompt + most > limit:
            raise Refusal(
                400,
                f"the context holds {limit:,} tokens; documents and messages have {prompt:,} and the answer "
                f"may take {most:,}, which is {prompt + most - limit:,} too many",
                "context_length_exceeded",
                "messages",
            )
        return replace(session.settings, max_tokens=most)

    def _remember(self, wish: Wish, exchanges: Sequence[Exchange]) -> None:
        """Keep an answer's tokens, unless a stop string of the client cut its text."""
        if wish.stop:
            return
        for exchange in exchanges:
            key = mark(wish, len(wish.turns), exchange.turn.answer)
            self.said[key] = tuple(exchange.turn.tally.token_ids)
            self.said.move_to_end(key)
        while len(self.said) > MOST_SAID:
            self.said.popitem(last=False)


def mark(wish: Wish, n: int, answer: str) -> bytes:
    """Stands for an answer to turn ``n`` of a conversation, and for everything that was said before."""
    questions = [*(question for question, _ in wish.turns), wish.question]
    said = [wish.system, wish.turns[:n], questions[n], answer]
    return hashlib.sha256(json.dumps(said).encode()).digest()
