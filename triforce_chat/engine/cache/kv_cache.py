"""The interface of all caches: what a forward reads and extends."""

from __future__ import annotations

from torch import Tensor

from triforce_chat.engine.cache.storage import WriteSlot
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.cuda_graph import Preparation

UNLIMITED = 1 << 62  # tokens


class KVCache:
    """The keys and values that a forward reads and extends.

    ``length`` counts the tokens of the history that the cache covers, from the first one on and in order; subclasses
    override what they count differently. It is a number of the host: forwards that run ahead of the host take an
    offset on the device instead.
    """

    length = 0
    verifies = False  # its forwards are the last ones that a round of the top level waits for
    forgotten = 0  # of these tokens, those that were evicted

    @property
    def position(self) -> int:
        """The position (for RoPE) of the next token."""
        return self.length

    @property
    def limit(self) -> int:
        """The length that the next forward may not exceed."""
        return UNLIMITED

    def kept(self, length: int) -> int:
        """How many tokens of a history of so many it will hold at most."""
        return length

    def ready(self, more: int) -> bool:  # noqa: ARG002
        """Whether proposals can be drawn from it now that feed it ``more`` tokens after those that it covers."""
        return True

    def pending(self, tokens: Tensor) -> Tensor:
        """The ids to feed so that the cache covers all of ``tokens`` [m]; may make room first."""
        self.make_room()
        return tokens[self.length :]

    def make_room(self) -> None:
        """The next tokens are about to be fed: evict what has to go before them."""

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:
        """Append one layer's k, v [1, Hkv, n, D]; q [1, Hq, n, D] are the queries of the same tokens."""
        raise NotImplementedError

    def write_slot(self) -> WriteSlot | None:
        """Where a forward may write the next tokens itself; None if it has to call ``update`` for each layer."""
        return None

    def vacant(self) -> WriteSlot | None:
        """The slot from which on nothing is kept between rounds, so that a capture may write there; None as above."""
        return self.write_slot()

    def completes_prompt(self) -> None:
        """The next forward completes a prompt: an answer follows."""

    def preparations(self) -> list[Preparation]:
        """What is worth doing once before the cache is used; only where forwards are captured."""
        return []

    def overwrote(self, size: int) -> None:
        """A capture wrote to ``size`` slots from ``vacant`` on."""

    def wrote(self, n: int, size: int) -> None:
        """A forward wrote n tokens to ``write_slot`` instead of calling ``update``, and touched ``size`` slots."""

    def drafted(self, certain: int, count: Tensor) -> None:
        """The next forward's tokens after the first ``certain + count`` are padding; ``count`` [1] is on the device."""

    def reach(self, n: int) -> int:
        """The length after n more tokens, which are the last ones that it will cover then."""
        return self.length + n

    def advance(self, n: int) -> None:
        """Count n tokens as stored; called once per forward, after its last layer."""
        self.length = self.reach(n)

    def truncate(self, length: int) -> None:
        """Drop everything after the first ``length`` tokens of the history."""
        self.length = min(self.length, length)

    def keep(self, length: int, path: Tensor) -> None:
        """Of a tree that was fed after the first ``length`` tokens, keep only those of ``path`` [m], moved together.

        Only where all keys and values lie in one buffer.
        """
        self.truncate(length)
        slot = self.write_slot()
        assert slot, "a tree needs its keys and values in one buffer"
        slot.storage.keep(path.new_full((1,), slot.start), path)
        if slot.queries is not None and path.is_cuda:
            slot.queries.mark_written(
                self.position - 1, 0, len(path) + 1
            )  # its graphs write none, nor the root's
        elif slot.queries is not None:
            slot.queries.keep(self.position, path.tolist())
        self.length = length + len(path)

    def keep_beyond(self, offset: Tensor, path: Tensor) -> None:
        """``keep`` of a tree that was fed ``offset`` [1] slots further on and is not counted; the device knows how far.

        Entries of ``path`` after the last one that passed may be any slots of the tree.
        """
        slot = self.write_slot()
        assert slot, "a tree needs its keys and values in one buffer"
        slot.storage.keep(offset + slot.start, path)

    def confirmed(self, length: int) -> None:
        """The first ``length`` tokens were fed, the last of them as scratch data: they count from now on."""
        self.length = max(self.length, length)

    def restart(self) -> None:
        """Return to the initial state."""
        self.truncate(0)

    def judged(self, proposed: int, accepted: int) -> None:
        """The level above accepted the first ``accepted`` of ``proposed`` tokens drawn from this cache."""
