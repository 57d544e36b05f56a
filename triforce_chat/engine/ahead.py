"""Plain decoding that runs one token ahead of the host.

A token goes from the sampler to the next forward without leaving the device. The host reads it while that forward
runs, so that a token takes what its forward takes. Where the answer ends before its limit there was one forward too
many, which the rollback at the end of every answer takes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from triforce_chat.engine.accord import ALONE, Accord
from triforce_chat.engine.cache.slab import KVCache
from triforce_chat.engine.events import Event, Verified
from triforce_chat.engine.level import Level, Silent
from triforce_chat.engine.message import Message
from triforce_chat.engine.runner import Forward
from triforce_chat.engine.sampling import Sampler


class Ahead:
    """Makes the tokens of ``Speculative`` over ``Silent`` out of the same random numbers."""

    def __init__(
        self,
        name: str,
        model: Forward,
        cache: KVCache,
        emit: Callable[[Event], None],
        accord: Accord = ALONE,
    ) -> None:
        self.name, self.model, self.cache, self.emit = name, model, cache, emit
        self.accord = accord
        self.drafter: Level = Silent(model)

    def rounds(self, tokens: Tensor, sampler: Sampler, most: int) -> Iterator[list[int]]:
        """The next ``most`` tokens (at least 1) behind ``tokens`` [m], one by one; may be closed at any of them."""
        history, end = torch.cat([tokens, tokens.new_zeros(most)]), len(tokens)
        coming = self.step(history, end, sampler)
        while True:
            state = sampler.state
            after = self.step(history, end + 1, sampler) if end + 1 < len(history) else None
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
        word = self.accord.verdict(drawn.word)
        history[end : end + 1] = word[:1]
        return sampler.tell(word)

    def rollback(self, length: int) -> None:
        self.cache.truncate(length)
