"""Forwards of the next tokens of several sequences, as CUDA graphs.

What changes from one replay to the next is on the device: whose each row is, where it goes, and how far each sequence
has come. So sequences may join, leave and have different numbers of tokens. Every graph has room for as many of them as
their pool; unused rows cost their arithmetic only, as reading the weights takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.storage import KVBuffer, KVPool, WriteSlot
from triforce_chat.engine.cuda_graph import TREE_SIZES, Graph, LogitsAndStates, fill, fitting, pool_of
from triforce_chat.engine.forward.attention import RotaryEmbedding
from triforce_chat.engine.forward.fused import Decoder
from triforce_chat.engine.tree import Branches, chain, words_of

NOWHERE = -1  # slot of a row that no sequence has
LoopOfSequences = Callable[..., Tensor]  # see ``SequencesGraphs.loop``


class SequenceTokens(NamedTuple):
    """The next tokens of one sequence."""

    ids: Tensor  # [n]
    slot: WriteSlot  # of the first one
    position: int  # of the first one, for RoPE
    offset: Tensor | None = None  # [1], added to slot and position on the device
    tree: Branches | None = None  # what they follow, the first of them being its root; None: one another

    @property
    def steps(self) -> Sequence[int]:
        """Their positions, counted from the first one's."""
        return range(len(self.ids)) if self.tree is None else self.tree.steps.tolist()


class Outcome(NamedTuple):
    """The result for one sequence's tokens, valid until the next forward of several sequences."""

    computed: LogitsAndStates
    queries: Tensor | None  # [layers, Hq, n, D], where a cache wants them


class SequencesGraph:
    """One forward of up to ``most`` tokens of each sequence of a pool; they and their places are inputs of a replay.

    ``branching``: those of some sequences are trees, whose shapes are inputs, too; others are chains.
    """

    def __init__(
        self,
        decoder: Decoder,
        pool: KVPool,
        prefix: KVBuffer | None,
        most: int,
        keeps_queries: bool,
        branching: bool,
        memory: Callable[[], Any],
    ) -> None:
        shape, self.count = pool.shape, pool.count
        rows, device = self.count * most, shape.device
        with torch.inference_mode(False):  # otherwise they could only be written to in inference mode
            self.ids = torch.zeros(rows, dtype=torch.long, device=device)
            self.numbers = torch.zeros(4 * rows + 3 * self.count + 4, dtype=torch.long, device=device)
            self.offsets = torch.zeros(self.count, dtype=torch.long, device=device)
            self.zero = torch.zeros(1, dtype=torch.long, device=device)
            size = shape.layers, shape.query_heads, rows, shape.head_dim
            self.queries = torch.zeros(size, dtype=shape.dtype, device=device) if keeps_queries else None
            self.masks = self.ids.new_zeros(rows, words_of(most - 1)) if branching else None
        self.trees: list[Branches] = []  # the latest
        of_rows, of_sequences = self.numbers.split([4 * rows, 3 * self.count + 4])
        self.positions, self.slots, self.places, self.owners = of_rows.view(4, rows)
        parts = of_sequences.split([self.count + 1, self.count, self.count, 1, 2])
        starts, self.at, places, self.shared, self.all = parts  # all: 0 and the number of rows that are used
        self.sequences = kernels.Sequences(starts, self.at, places, most)
        # Holds the tensors, not the pool, which must stay collectable: it is a weak key.
        self.decoder, self.keys, self.values = decoder, pool.keys, pool.values
        self.prefix = None if prefix is None else (prefix.keys, prefix.values)
        self.scale, self.capacity = shape.head_dim**-0.5, pool.capacity
        self.graph: Graph[LogitsAndStates] = Graph(device, memory)

    def capture(self, shared: int) -> None:
        """Capture ahead of the first use, with ``shared`` tokens before the pool; nothing is written to it."""
        self._send([], shared)
        self.graph.prepare(self.work)

    def __call__(self, fed: Sequence[SequenceTokens]) -> list[Outcome]:
        ids = torch.cat([each.ids for each in fed])
        self.ids[: len(ids)] = ids
        self._send(fed, fed[0].slot.shared)
        self._grow([each.tree or chain(len(each.ids)) for each in fed])
        self._move([each.offset for each in fed])
        logits, states = self.graph(self.work)
        return [
            Outcome(
                (logits[first:last], states[first:last]),
                None if self.queries is None else self.queries[:, :, first:last],
            )
            for first, last in self._ranges(fed)
        ]

    def _send(self, fed: Sequence[SequenceTokens], shared: int) -> None:
        numbers = torch.tensor(self._numbers(fed, shared))
        if self.numbers.is_cuda:
            numbers = numbers.pin_memory()  # so that the host does not wait
        self.numbers.copy_(numbers, non_blocking=True)

    def _grow(self, trees: list[Branches]) -> None:
        """Take the trees' shapes; most forwards have the last one's."""
        if self.masks is not None and trees != self.trees:
            words = self.masks.shape[1]
            masks = torch.cat([pad(each.masks, (0, words - each.masks.shape[1])) for each in trees])
            fill(self.masks[: len(masks)], masks)
            self.trees = trees

    def _move(self, offsets: Sequence[Tensor | None]) -> None:
        """Add the offsets of the sequences to their slots and positions."""
        if all(each is None for each in offsets):
            return
        self.offsets[: len(offsets)] = torch.cat([self.zero if each is None else each for each in offsets])
        moved = self.offsets[self.owners]
        self.positions += moved
        self.slots += torch.where(self.slots == NOWHERE, 0, moved)
        self.at += self.offsets

    def _ranges(self, fed: Sequence[SequenceTokens]) -> list[tuple[int, int]]:
        ends = [*accumulate(len(each.ids) for each in fed)]
        return [*zip([0, *ends], ends, strict=False)]

    def _numbers(self, fed: Sequence[SequenceTokens], shared: int) -> list[int]:
        """Everything that changes between replays, in the order of ``numbers``."""
        rows = [(each, step) for each in fed for step in range(len(each.ids))]
        unused, empty = len(self.ids) - len(rows), self.count - len(fed)
        positions = [each.position + step for each in fed for step in each.steps] + unused * [0]
        slots = [each.slot.start + step for each, step in rows] + unused * [NOWHERE]
        row_places = [each.slot.storage.place for each, _ in rows] + unused * [0]
        owners = [i for i, each in enumerate(fed) for _ in range(len(each.ids))] + unused * [0]
        starts = [0, *(last for _, last in self._ranges(fed))] + empty * [len(rows)]
        at = [each.slot.start for each in fed] + empty * [0]
        places = [each.slot.storage.place for each in fed] + empty * [0]
        return [*positions, *slots, *row_places, *owners, *starts, *at, *places, shared, 0, len(rows)]

    def work(self) -> LogitsAndStates:
        """What is captured."""
        tree = None if self.masks is None else kernels.Ancestors(self.masks, self.at + 1)
        states = self.decoder(self.ids, self.positions, partial(self._attend, tree))
        return self.decoder.logits(states), states

    def _attend(
        self,
        tree: kernels.Ancestors | None,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotary: RotaryEmbedding,
    ) -> Tensor:
        turn, keys, values = (
            (rotary.positions, rotary.frequencies, rotary.factor),
            self.keys[layer],
            self.values[layer],
        )
        kernels.rotate_and_store(q, k, v, *turn, keys, values, self.slots, self.places)
        if self.queries is not None:
            self.queries[layer] = q.transpose(0, 1)
        before = None
        if self.prefix is not None:
            before = kernels.Prefix(self.prefix[0][layer], self.prefix[1][layer], self.shared, self.all)
        given = q, keys, values, self.sequences, self.scale, self.capacity
        return kernels.attend_together(*given, before, tree)


class SequencesGraphs:
    """All captured forwards of several sequences of one model, by their pool."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.made: WeakKeyDictionary[KVPool, dict[Hashable, SequencesGraph]] = WeakKeyDictionary()

    def __call__(
        self, given: Sequence[tuple[Tensor, WriteSlot, int, Tensor | None, Branches | None]]
    ) -> list[Outcome]:
        """Logits and states after the tokens of each sequence, see ``SequenceTokens``; stores their keys and values.

        All sequences lie in one pool, after the same prefix, and have few enough tokens for ``fitting``.
        """
        fed = [SequenceTokens(*each) for each in given]
        branching = any(each.tree for each in fed)
        most = fitting(max(len(each.ids) for each in fed), TREE_SIZES if branching else fed[0].slot.sizes)
        assert most is not None
        return self._graph(fed[0].slot, most, branching)(fed)

    def lacks(self, slot: WriteSlot, most: int, branching: bool = False) -> bool:
        """Whether a graph of that many tokens of each sequence is still to be captured; never outside of a pool."""
        pool = slot.storage.pool
        return pool is not None and key_of(slot, most, branching) not in self.made.get(pool, {})

    def capture(self, slot: WriteSlot, most: int, branching: bool = False) -> None:
        """Capture ahead of the first use."""
        self._graph(slot, most, branching).capture(slot.shared)

    def _graph(self, slot: WriteSlot, most: int, branching: bool) -> SequencesGraph:
        pool, key = slot.storage.pool, key_of(slot, most, branching)
        assert pool is not None
        of_pool = self.made.setdefault(pool, {})
        if key not in of_pool:
            kind = slot.queries is not None, branching
            of_pool[key] = SequencesGraph(self.decoder, pool, slot.prefix, most, *kind, self.memory)
        return of_pool[key]

    def loop(self, pool: KVPool) -> LoopOfSequences:
        """A forward of the same number of tokens of each of a pool's sequences, for a caller that captures it.

        It takes ids [B * n], the slots, positions and places [B] of the first tokens, and the number [1] of sequences
        that there are; those after them are computed and not stored. Returns the logits [B, V] of the last tokens; with
        a tree, whose tokens have the same position, the logits [B * n, V] of all.
        """
        # Holds the tensors, not the pool: see ``SequencesGraph``.
        keys, values, count = pool.keys, pool.values, pool.count
        scale, most = pool.shape.head_dim**-0.5, pool.capacity

        def forward(
            ids: Tensor,
            at: Tensor,
            positions: Tensor,
            places: Tensor,
            used: Tensor,
            tree: kernels.Ancestors | None = None,
        ) -> Tensor:
            n = len(ids) // count
            steps, numbers = (torch.arange(each, device=ids.device) for each in (n, count + 1))
            there = (numbers[:-1] < used)[:, None]
            slots = torch.where(there, at[:, None] + steps, NOWHERE).flatten()
            sequences = kernels.Sequences(n * torch.minimum(numbers, used), at, places, n)
            of_rows = places[:, None].expand(count, n).flatten()

            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: RotaryEmbedding) -> Tensor:
                turn = rotary.positions, rotary.frequencies, rotary.factor
                kernels.rotate_and_store(q, k, v, *turn, keys[layer], values[layer], slots, of_rows)
                given = q, keys[layer], values[layer], sequences, scale, most
                return kernels.attend_together(*given, tree=tree)

            if tree is not None:
                states = self.decoder(ids, positions[:, None].expand(count, n).flatten(), attend)
                return self.decoder.logits(states)
            states = self.decoder(ids, (positions[:, None] + steps).flatten(), attend)
            return self.decoder.logits(states.view(count, n, -1)[:, -1])

        return forward

    def memory(self) -> Any:
        """The memory pool of the next graph."""
        return pool_of(each.graph for of_pool in self.made.values() for each in of_pool.values())


def key_of(slot: WriteSlot, most: int, branching: bool) -> Hashable:
    """The key of a graph among those of its pool; all sequences of a pool keep their queries, or none does."""
    return most, branching, slot.queries is not None, id(slot.prefix)
