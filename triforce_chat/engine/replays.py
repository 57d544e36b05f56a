"""Where tokens are drawn and drafts judged: dozens of small launches, which a GPU replays as one graph.

What a graph reads stands on a desk of its own, and so does what it makes. Random numbers are put there from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.graph import Graph, pool_of

MOST = 1 << 30  # bytes of what is kept for the next time: the sizes of a few laws
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

    @staticmethod
    def of(tokens: Tensor) -> Said:
        return Said(tokens, torch.full((), len(tokens), device=tokens.device))

    @staticmethod
    def room(m: int, device: torch.device) -> Said:
        return Said(*(torch.zeros(shape, dtype=torch.long, device=device) for shape in ((m,), ())))


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
    """Has everything in its place for one piece of work."""

    @property
    def given(self) -> Given: ...

    def __call__(self, work: Work) -> Drawn:
        """Do ``work``, which may read ``given`` and nothing else that changes."""
        ...


class Desks(Protocol):
    """Finds the desk for a ``kind`` of work, and lays on it what is given but for the chances."""

    def lay(self, kind: Hashable, logits: Tensor, draft: Draft, said: Tensor | None) -> Desk:
        """``said`` [m] is the answer so far, if the work asks for it."""
        ...


@dataclass(frozen=True, slots=True)
class Once:
    """Serves one piece of work."""

    given: Given

    def __call__(self, work: Work) -> Drawn:
        return work(self.given)


class Direct:
    """A new desk every time, around the very tensors."""

    def lay(self, kind: Hashable, logits: Tensor, draft: Draft, said: Tensor | None) -> Desk:  # noqa: ARG002
        answer = None if said is None else Said.of(said)
        return Once(Given(logits, draft, answer, Chances.blank(len(draft), logits.device)))


DIRECT = Direct()


class Replay:
    """A desk whose work is the same every time."""

    def __init__(self, logits: Tensor, draft: Draft, room: int, pool: Callable[[], Any]) -> None:
        device = logits.device
        with torch.inference_mode(False):  # else nobody could write to them outside of that mode
            self.given = Given(
                torch.empty_like(logits, memory_format=torch.contiguous_format),
                Draft(torch.zeros_like(draft.tokens), torch.empty_like(draft.probs)),
                Said.room(room, device) if room else None,
                Chances.blank(len(draft), device),
            )
        self.graph: Graph[Drawn] = Graph(device, pool)
        self.bytes = size_of(logits, draft)

    def fill(self, logits: Tensor, draft: Draft, said: Tensor | None) -> None:
        self.given.logits.copy_(logits)
        if len(draft):
            self.given.draft.tokens.copy_(draft.tokens)
            self.given.draft.probs.copy_(draft.probs)
        if self.given.said is not None and said is not None:
            self.given.said.tokens[: len(said)] = said
            self.given.said.length.fill_(len(said))

    def __call__(self, work: Work) -> Drawn:
        return self.graph(lambda: work(self.given))


class Replays:
    """A desk for each kind of work and each shape, kept from answer to answer; those unused longest go."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.made: dict[Hashable, Replay] = {}  # by their last use

    def lay(self, kind: Hashable, logits: Tensor, draft: Draft, said: Tensor | None) -> Desk:
        room = 0 if said is None else rounded_up(len(said))
        key = kind, logits.shape, logits.dtype, draft.probs.dtype, room
        desk = self.made.pop(key, None) or self._new(logits, draft, room)
        self.made[key] = desk  # the last one again
        desk.fill(logits, draft, said)
        return desk

    def _new(self, logits: Tensor, draft: Draft, room: int) -> Replay:
        more = size_of(logits, draft)
        while self.made and more + sum(each.bytes for each in self.made.values()) > self.most:
            del self.made[next(iter(self.made))]
        return Replay(logits, draft, room, self.pool)

    def pool(self) -> Any:
        """Where the next graph takes its memory from."""
        return pool_of(each.graph for each in self.made.values())


def size_of(logits: Tensor, draft: Draft) -> int:
    """Bytes of what is laid there, and of the distributions that are made of it."""
    return logits.nbytes + draft.probs.nbytes + logits.numel() * torch.float32.itemsize


def rounded_up(tokens: int) -> int:
    """Room for an answer: a power of two."""
    return max(LEAST_ROOM, 1 << tokens.bit_length())
