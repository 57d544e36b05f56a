"""Where tokens are drawn and drafts judged: dozens of small launches, which a GPU replays as one graph.

What a graph reads stands on a desk of its own, and so does what it makes. Random numbers are put there from outside.
Drafts have every length; desks have a few sizes, all captured with the first draft of an answer's law and room.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from triforce_chat.engine.cuda_graph import SIZES, USUAL, Graph, fitting, pool_of
from triforce_chat.engine.draft import Draft

MOST = 1 << 30  # bytes of what is kept for the next time: a few laws
LEAST_ROOM = 2048  # tokens of an answer; each doubling is captured anew


class Chances(NamedTuple):
    """Uniforms in [0, 1), untouched where nothing is left to chance."""

    tests: Tensor  # [n], fp32, one for each drafted token
    last: Tensor  # [1], fp64, for the token behind the accepted ones

    @staticmethod
    def blank(n: int, device: torch.device) -> Chances:
        last = torch.empty(1, dtype=torch.float64, device=device)
        return Chances(torch.empty(n, dtype=torch.float32, device=device), last)


class Said(NamedTuple):
    """The answer so far, its pending proposals included."""

    tokens: Tensor  # [m], of which the first ``length`` are the answer's
    length: Tensor  # []


class Words(NamedTuple):
    """The same as the host knows it."""

    tokens: Tensor  # [m]
    spare: Tensor | None = None  # [], of the last ones: how many are none of it; None: none

    @property
    def counted(self) -> Said:
        length = torch.full((), len(self.tokens), device=self.tokens.device)
        return Said(self.tokens, length if self.spare is None else length - self.spare)


@dataclass(frozen=True, slots=True)
class Given:
    """All that the next tokens depend on."""

    logits: Tensor  # [n+1, V]
    draft: Draft  # n tokens
    said: Said | None  # for the repetition penalty, where there is one
    chances: Chances


class Drawn(NamedTuple):
    """What was made of it: overwritten by the next, as graphs share their memory."""

    probs: Tensor  # [n+1, V]
    word: Tensor  # [.], whole numbers for the host, of which the last says whether all nuclei were whole


Work = Callable[[Given], Drawn]


class Desk(Protocol):
    """Has everything in its place for one piece of work but for the chances, which are still to be drawn."""

    @property
    def chances(self) -> Chances: ...

    def __call__(self) -> Drawn:
        """Do it."""
        ...


class Desks(Protocol):
    """Finds the desk for a piece of work."""

    def lay(self, kind: Hashable, work: Work, logits: Tensor, draft: Draft, said: Words | None) -> Desk:
        """``work`` reads what is given and nothing else that changes from one of its ``kind`` to another.

        ``said`` is the answer so far, if the work asks for it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Once:
    """Serves one piece of work."""

    work: Work
    given: Given

    @property
    def chances(self) -> Chances:
        return self.given.chances

    def __call__(self) -> Drawn:
        return self.work(self.given)


class Direct:
    """A new desk every time, around the very tensors."""

    def lay(self, kind: Hashable, work: Work, logits: Tensor, draft: Draft, said: Words | None) -> Desk:  # noqa: ARG002
        answer = None if said is None else said.counted
        laid = Draft(draft.tokens, draft.probs, draft.count)  # asked for once
        return Once(work, Given(logits, laid, answer, Chances.blank(len(draft), logits.device)))


DIRECT = Direct()


class Replay:
    """A desk of a fixed size whose work is the same every time; shorter drafts leave some of it unused."""

    def __init__(
        self, work: Work, rows: int, logits: Tensor, draft: Draft, room: int, pool: Callable[[], Any]
    ) -> None:
        device, (n, vocabulary) = logits.device, (rows - 1, logits.shape[-1])
        with torch.inference_mode(False):  # else nobody could write to them outside of that mode
            # How many tokens are drafted, and how many were said.
            self.counts = torch.zeros(2, dtype=torch.long, device=device)
            # Nowhere garbage: what is left unused is worked on, too.
            said = torch.zeros(room, dtype=torch.long, device=device)
            drafted = draft.tokens.new_zeros(n), draft.probs.new_zeros(n, vocabulary)
            self.given = Given(
                logits.new_zeros(rows, vocabulary),
                Draft(*drafted, self.counts[0]),
                Said(said, self.counts[1]) if room else None,
                Chances.blank(n, device),
            )
        self.chances = self.given.chances
        self.work = work
        self.graph: Graph[Drawn] = Graph(device, pool)

    def prepare(self) -> None:
        """Have it captured before there is anything to do."""
        self.graph.prepare(self._done)

    def fill(self, logits: Tensor, draft: Draft, said: Words | None) -> None:
        given, n = self.given, len(draft)
        given.logits[: n + 1] = logits
        if n < len(given.draft):
            given.logits[n + 1 :] = logits[-1]  # their nuclei are no wider than those that count
        if n:
            given.draft.tokens[:n] = draft.tokens
            given.draft.probs[:n] = draft.probs
        if given.said is not None and said is not None:
            given.said.tokens[: len(said.tokens)] = said.tokens
        # Two numbers of the host's in one launch.
        torch.linspace(n, 0 if said is None else len(said.tokens), 2, out=self.counts)
        if draft.count is not None:
            self.counts[0] = draft.count
        if said is not None and said.spare is not None:
            self.counts[1] -= said.spare
        self.chances = Chances(given.chances.tests[:n], given.chances.last)

    def __call__(self) -> Drawn:
        return self.graph(self._done)

    def _done(self) -> Drawn:
        return self.work(self.given)


class Replays:
    """Desks for each kind of work, kept from answer to answer; the kinds unused longest go."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.made: dict[Hashable, dict[int, Replay]] = {}  # by their last use; then by their rows

    def lay(self, kind: Hashable, work: Work, logits: Tensor, draft: Draft, said: Words | None) -> Desk:
        draft = Draft(draft.tokens, draft.probs, draft.count)  # asked for once
        room = 0 if said is None else rounded_up(len(said.tokens))
        key = kind, logits.shape[-1], logits.dtype, draft.probs.dtype, room
        desks = self.made[key] = self.made.pop(key, {})  # the last one again
        rows = fitting(len(logits)) or len(logits)
        usual = [size for size in SIZES if size <= USUAL and len(draft)]
        if fresh := {rows, *usual} - desks.keys():
            # The largest first: what the others need on the way fits into what it has left.
            for size in sorted(fresh, reverse=True):
                desks[size] = Replay(work, size, logits, draft, room, self.pool)
                desks[size].prepare()
            self._forget(key)
        desks[rows].fill(logits, draft, said)
        return desks[rows]

    def _forget(self, but: Hashable) -> None:
        """What is more than it may be."""
        for key in list(self.made):
            if key == but or sum(map(size_of, self._all())) <= self.most:
                break
            del self.made[key]

    def _all(self) -> Iterator[Replay]:
        return chain.from_iterable(desks.values() for desks in self.made.values())

    def pool(self) -> Any:
        """Where the next graph takes its memory from."""
        return pool_of(each.graph for each in self._all())


def size_of(desk: Replay) -> int:
    """Bytes of what is laid there, and of the distributions that are made of it."""
    logits = desk.given.logits
    return logits.nbytes + desk.given.draft.probs.nbytes + logits.numel() * torch.float32.itemsize


def rounded_up(tokens: int) -> int:
    """Room for an answer: a power of two."""
    return max(LEAST_ROOM, 1 << tokens.bit_length())
