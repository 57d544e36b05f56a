"""Plain decoding that runs one token ahead of the host.

A token goes from the sampler to the next forward without leaving the device. The host reads it while that forward
runs, so that a token takes what its forward takes. Where the answer ends before its limit there was one forward too
many, which the rollback at the end of every answer takes back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import torch
from torch import Tensor

from triforce_chat.engine.cache.storage import KVCache
from triforce_chat.engine.events import Event, Verified
from triforce_chat.engine.forward.runner import Forward
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.host_copy import Message
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.level import Level, Silent, Speculative
from triforce_chat.engine.speculation.planner import Planner


class Ahead:
    """Makes the tokens of ``Speculative`` over ``Silent`` out of the same random numbers."""

    def __init__(
        self,
        name: str,
        model: Forward,
        cache: KVCache,
        emit: Callable[[Event], None],
        group: RankGroup = SINGLE,
    ) -> None:
        self.name, self.model, self.cache, self.emit = name, model, cache, emit
        self.group = group
        self.drafter: Level = Silent(model)
        self.history: Tensor  # what was begun last: the tokens so far, and room for those to come

    def rounds(
        self, tokens: Tensor, sampler: Sampler, most: int, more: Callable[[], bool] = lambda: True
    ) -> Iterator[list[int]]:
        """The next ``most`` tokens (at least 1) behind ``tokens`` [m], one by one; may be closed at any of them.

        ``more`` is asked before another forward is begun: without one, the token on its way is the last.
        """
        history, end = torch.cat([tokens, tokens.new_zeros(most)]), len(tokens)
        self.history = history
        coming = self.step(history, end, sampler)
        while True:
            state = sampler.state
            going = end + 1 < len(history) and more()
            after = self.step(history, end + 1, sampler) if going else None
            token = sampler.hear(coming)
            if sampler.widened():  # both were drawn from a part of their law
                self.cache.truncate(end - 1)
                sampler.state = state
                coming = self.step(history, end, sampler)
                continue
            self.emit(Verified(self.name, 0, 0))
            yield token
            if after is None:
                return
            coming, end = after, end + 1

    def step(self, history: Tensor, end: int, sampler: Sampler) -> Message:
        """Draw ``history[end]`` from what follows the tokens before it, and send word of it."""
        known = history[:end]
        drawn = sampler.next(self.model(self.cache.pending(known), self.cache, 1), known)
        word = self.group.broadcast(drawn.word)
        history[end : end + 1] = word[:1]
        return sampler.tell(word)

    def rollback(self, length: int) -> None:
        self.cache.truncate(length)


class Adaptive:
    """Runs ahead of the host for as long as a planner would have nothing drafted, and goes by rounds else.

    Where a forward takes no longer than what the host does between two of them, a round without a draft takes twice
    the time of a token that is made ahead.
    """

    def __init__(self, plain: Ahead, fast: Speculative, planner: Planner) -> None:
        self.plain, self.fast, self.planner = plain, fast, planner
        self.drafter: Level = planner

    def rounds(self, tokens: Tensor, sampler: Sampler, most: int) -> Iterator[list[int]]:
        """What each round commits, as ``Speculative.rounds``."""
        end = len(tokens) + most
        while len(tokens) < end:
            if self._plainly(tokens, end):
                tokens = yield from self._ahead(tokens, sampler, end)
            else:
                made = self.fast.step(tokens, sampler, end - len(tokens) - 1)
                tokens = torch.cat([tokens, made.tokens])
                yield made.ids

    def _plainly(self, tokens: Tensor, end: int) -> bool:
        """Whether the next token is to be made without a draft, and ahead of the host."""
        most = min(self.fast.gamma, end - len(tokens) - 1)
        return self.planner.runs and self.planner.plan(tokens, most).plain

    def _ahead(self, tokens: Tensor, sampler: Sampler, end: int) -> Generator[list[int], None, Tensor]:
        """Tokens one by one, the last of them on its way already when something better is planned; all of them."""

        def more() -> bool:
            return self._plainly(tokens, end)

        before = self.planner.clock.now()  # what it takes to begin counts, too
        for ids in self.plain.rounds(tokens, sampler, end - len(tokens), more):
            now = self.planner.clock.now()
            self.planner.ran(now - before)
            before = now
            self.planner.hear(len(tokens), ids)
            tokens = self.plain.history[: len(tokens) + 1]
            yield ids
        return tokens

    def rollback(self, length: int) -> None:
        self.fast.rollback(length)
