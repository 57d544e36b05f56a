"""Drafts of a small model, token after token: one graph, as launching each of its steps takes longer than they do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import Graph, pool_of
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.forward.runner import Feeder, Sends
from triforce_chat.engine.sampling.executor import Chances, Drawn, Given, Said, rounded_up
from triforce_chat.engine.sampling.sampler import Sampler

KEPT = 4  # laws and lengths of answers that chains are kept for


class Made(NamedTuple):
    """n drafted tokens; overwritten by the next."""

    tokens: Tensor  # [n]
    probs: Tensor  # [n, V]


class Chain:
    """n tokens behind others, n+1 of which are fed again: whatever the cache held there may have been rejected."""

    def __init__(
        self,
        feeder: Feeder,
        n: int,
        draw: Callable[[Given], Drawn],
        room: int,
        nothing: Draft,
        pool: Callable[[], Any],
    ) -> None:
        self.feeder, self.n, self.draw, self.nothing = feeder, n, draw, nothing
        device = nothing.tokens.device
        with torch.inference_mode(False):
            self.ids = torch.zeros(n + 1, dtype=torch.long, device=device)
            self.beyond = torch.zeros((), dtype=torch.long, device=device)  # where the first of them goes
            self.answer = torch.zeros(room, dtype=torch.long, device=device) if room else None
            self.length = torch.zeros((), dtype=torch.long, device=device)
            self.chances = Chances.blank(0, device)._replace(
                last=torch.empty(n, dtype=torch.float64, device=device)
            )
        self.graph: Graph[Made] = Graph(device, pool)

    def __call__(self, ids: Tensor, beyond: Tensor, said: Tensor | None, spare: Tensor) -> Made:
        """ids [n+1]; of the answer ``said`` [m] the last ``spare`` [] tokens do not count."""
        self.feeder.aim()
        self.ids.copy_(ids)
        self.beyond.copy_(beyond)
        if self.answer is not None and said is not None:
            self.answer[: len(said)] = said
            torch.sub(len(said), spare, out=self.length)
        return self.graph(self._done)

    def prepare(self) -> None:
        """Have it captured before it is to be timed."""
        self.feeder.aim()
        self.graph.prepare(self._done)

    @torch.inference_mode()
    def _done(self) -> Made:
        tokens, rows, fed = [], [], self.ids
        for i in range(self.n):
            logits = self.feeder(fed, self.beyond + (self.n + i if i else 0))
            said = None if self.answer is None else Said(self.answer, self.length + i)
            chances = self.chances._replace(last=self.chances.last[i : i + 1])
            drawn = self.draw(Given(logits, self.nothing, said, chances))
            fed = drawn.word[:1]
            if self.answer is not None:
                self.answer.index_copy_(0, (self.length + i)[None], fed)
            tokens.append(fed)
            rows.append(drawn.probs)
        return Made(torch.cat(tokens), torch.cat(rows))


class Chains:
    """Of one draft model, by the law and the length of the answer and by their own; ``usual`` ones ahead of use."""

    def __init__(self, model: Sends, cache: StreamingCache, usual: Sequence[int]) -> None:
        self.model, self.cache, self.usual = model, cache, usual
        self.nothing = Draft.empty(model.vocabulary, model.device)
        self.made: dict[Hashable, dict[int, Chain]] = {}  # by their last use; then by their length

    def draft(
        self, n: int, ids: Tensor, beyond: Tensor, known: Tensor, spare: Tensor, sampler: Sampler
    ) -> Made:
        """n tokens behind ``known`` [m] without its last ``spare`` [], of which ``ids`` [n+1] are the last ones."""
        said = sampler.answer(known)
        law, draw = sampler.drawing()
        # Room for what is drafted as well.
        room = 0 if said is None else rounded_up(len(said) + n)
        key = law, room
        chains = self.made[key] = self.made.pop(key, {})  # the last one again
        if len(self.made) > KEPT:
            del self.made[next(iter(self.made))]
        for size in sorted({n, *self.usual} - chains.keys(), reverse=True):
            feeder = self.model.feeder(self.cache)
            chains[size] = Chain(feeder, size, draw, room, self.nothing, self.pool)
            chains[size].prepare()
        chain = chains[n]
        sampler.roll(chain.chances)
        return chain(ids, beyond, said, spare)

    def pool(self) -> Any:
        """Where the next graph takes its memory from."""
        return pool_of(chain.graph for chains in self.made.values() for chain in chains.values())
