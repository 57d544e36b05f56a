"""Forwards of a fixed number of tokens over one KV buffer, as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.chunk_mass import FadingMass
from triforce_chat.engine.cache.quantization import GROUP
from triforce_chat.engine.cache.storage import WriteSlot
from triforce_chat.engine.cuda_graph import (
    TREE_SIZES,
    ForwardInputs,
    Graph,
    LogitsAndStates,
    fill,
    fitting,
    pool_of,
)
from triforce_chat.engine.forward.attention import RotaryEmbedding
from triforce_chat.engine.forward.attention_backend import USUAL, AttentionBackend
from triforce_chat.engine.forward.fused import Decoder
from triforce_chat.engine.forward.target_state import StateReader
from triforce_chat.engine.tree import Branches, words_of


class ForwardGraph:
    """One forward of ``size`` tokens; their ids, slots, positions and indices are inputs of each replay.

    ``branching``: they are nodes of a tree, whose shape is an input, too.
    """

    def __init__(
        self,
        forward: Callable[[ForwardInputs], LogitsAndStates],
        size: int,
        device: torch.device,
        pool: Callable[[], Any],
        retry: bool,
        reader: StateReader | None,
        branching: bool,
    ) -> None:
        self.ids = torch.zeros(size, dtype=torch.long, device=device)
        self.at = torch.zeros(3, dtype=torch.long, device=device)
        slot, position, read = self.at.split(1)
        self.count = torch.zeros(1, dtype=torch.long, device=device)
        steps = torch.arange(size, device=device)
        self.inputs = ForwardInputs(self.ids, slot, position, steps, read=read, counted=self.count)
        self.tree: Branches | None = None  # the latest one
        if branching:
            self.inputs = self.inputs._replace(masks=self.ids.new_zeros(size, words_of(size - 1)))
        self.index = torch.zeros(1, dtype=torch.long, device=device)
        self.forward, self.reader = forward, reader
        self.graph: Graph[LogitsAndStates] = Graph(device, pool, retry)

    def __call__(
        self,
        ids: Tensor,
        slot: WriteSlot,
        position: int,
        index: int,
        offset: Tensor | None,
        tree: Branches | None,
    ) -> LogitsAndStates:
        """Logits and states of ``size`` rows after ids [n], n up to ``size``; valid until the next forward."""
        self.ids[: len(ids)] = ids
        self._grow(tree)
        self._aim(slot, position)
        if offset is not None:
            # A list goes on with the tokens; what is quantized before them does not.
            self.at[: 2 if slot.before is not None else 3] += offset
        if self.reader is not None:
            self.index.fill_(index)
            if offset is not None:
                self.index += offset
        if slot.mass is not None:
            self.graph.prepare(self._work)  # with a count of 0: running it once more must weigh nothing
            self.count.copy_(slot.counted) if slot.counted is not None else self.count.fill_(len(ids))
        return self.graph(self._work)

    def capture(self, slot: WriteSlot, position: int) -> None:
        """Capture ahead of the first use; overwrites ``size`` slots from the given one on."""
        self._aim(slot, position)
        self.graph.prepare(self._work)

    def _aim(self, slot: WriteSlot, position: int) -> None:
        torch.linspace(slot.start, position, 2, out=self.at[:2])  # two of the host's numbers in one launch
        if slot.listed is not None or slot.before is not None:
            self.at[2:].fill_(slot.read)

    def _grow(self, tree: Branches | None) -> None:
        """Take that tree's shape; most forwards have the last one's."""
        if tree is None or tree is self.tree:
            return
        assert self.inputs.masks is not None
        missing = self.inputs.masks.shape[1] - tree.masks.shape[1]
        seen = pad(tree.masks, (0, missing))
        for mine, given in ((self.inputs.steps, tree.steps), (self.inputs.masks, seen)):
            fill(mine[: len(given)], given)
            mine[len(given) :] = 0  # rows of padding see what comes before the tree
        self.tree = tree

    def _work(self) -> LogitsAndStates:
        inputs = self.inputs
        if inputs.masks is not None:
            inputs = inputs._replace(origin=inputs.slot + 1)
        if self.reader is not None:
            inputs = inputs._replace(added=self.reader.rows(self.index + inputs.steps))
        return self.forward(inputs)


class ForwardGraphs:
    """All captured forwards of one model, by what they read or write and by number of tokens."""

    def __init__(
        self,
        decoder: Decoder,
        device: torch.device,
        reader: StateReader | None = None,
        backend: AttentionBackend = USUAL,
    ) -> None:
        self.decoder, self.device, self.reader = decoder, device, reader
        self.backend = backend
        # By what they read or write; then by size, of chains and of trees.
        self.made: WeakKeyDictionary[object, dict[int, ForwardGraph]] = WeakKeyDictionary()
        self.branching: WeakKeyDictionary[object, dict[int, ForwardGraph]] = WeakKeyDictionary()
        decoder.group.register_graphs(self)

    def size(self, n: int, slot: WriteSlot, branching: bool = False) -> int | None:
        """Size of the captured forward that takes n tokens; None if there is none or the buffer has no room for it."""
        size = fitting(n, TREE_SIZES if branching else slot.sizes)
        return size if size and size <= slot.room else None

    def lacks(self, slot: WriteSlot, size: int, branching: bool = False) -> bool:
        """Whether the forward of that size is still to be captured."""
        return size not in self._kind(branching).get(slot.owner, {})

    def capture(self, slot: WriteSlot, position: int, size: int, branching: bool = False) -> None:
        """Capture ahead of the first use; overwrites ``size`` slots from ``slot.start`` on.

        ``position``: of the next token; from there on queries are overwritten, too.
        """
        self._graph(slot, size, branching).capture(slot, position)

    def __call__(
        self,
        ids: Tensor,
        slot: WriteSlot,
        position: int,
        index: int,
        size: int,
        offset: Tensor | None = None,
        tree: Branches | None = None,
    ) -> LogitsAndStates:
        """Logits and states after ids [n], valid until the next forward; stores their keys and values in the buffer.

        ``index``: of the first id in the history. ``offset`` [1] is added to it, to the slot and to the position.
        """
        graph = self._graph(slot, size, tree is not None)
        logits, states = graph(ids, slot, position, index, offset, tree)
        return logits[: len(ids)], states[: len(ids)]

    def _kind(self, branching: bool) -> WeakKeyDictionary[object, dict[int, ForwardGraph]]:
        return self.branching if branching else self.made

    def _graph(self, slot: WriteSlot, size: int, branching: bool) -> ForwardGraph:
        of_owner = self._kind(branching).setdefault(slot.owner, {})
        if size not in of_owner:
            retry = self.decoder.group.size == 1
            forward = self.forward(slot)
            graph = ForwardGraph(forward, size, self.device, self.pool, retry, self.reader, branching)
            of_owner[size] = graph
        return of_owner[size]

    def pool(self) -> Any:
        """The memory pool of the next graph."""
        owners = chain(self.made.values(), self.branching.values())
        return pool_of(each.graph for of_owner in owners for each in of_owner.values())

    def forget(self) -> None:
        """Drop all graphs; the next calls capture again."""
        self.made.clear()
        self.branching.clear()

    def forward(self, slot: WriteSlot) -> Callable[[ForwardInputs], LogitsAndStates]:
        """The function that is captured: it writes the tokens' keys and values to the slot's buffer."""
        if slot.grouped:
            return self._forward_by_groups(slot)
        # Holds the tensors, not their owner, which must stay collectable: it is a weak key.
        ring, keys, values = slot.queries, slot.storage.keys, slot.storage.values
        scale, weighing = slot.storage.shape.head_dim**-0.5, weighings(slot.mass)
        listed = None if slot.listed is None else slot.listed.slots
        before = slot.before
        most = slot.storage.capacity if listed is None else listed.shape[2]
        # Others read no keys and values in another dtype than the queries'.
        alike = keys.dtype == slot.storage.shape.dtype
        decode = self.backend.decode if alike else kernels.decode_attention
        straight = before is None and listed is None and slot.mass is None

        def forward(inputs: ForwardInputs) -> LogitsAndStates:
            positions = inputs.position + inputs.steps
            tree = tree_of(inputs)
            assert tree is None or straight, "a tree needs its keys and values in one place"

            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: RotaryEmbedding) -> Tensor:
                turn = rotary.positions, rotary.frequencies, rotary.factor
                kernels.rotate_and_store(q, k, v, *turn, keys[layer], values[layer], inputs.slot)
                if ring is not None and tree is None:  # of a tree several queries have the same position
                    ring.data[layer].index_copy_(1, positions % ring.size, q.transpose(0, 1))
                given = q, keys[layer], values[layer]
                if before is not None:
                    assert inputs.read is not None
                    first, turned = before.first(layer, 0)[:4], (keys[layer], values[layer])
                    return kernels.decode_quantized(q, first, inputs.read, *turned, inputs.slot, scale)
                if listed is not None:
                    assert inputs.read is not None
                    return kernels.decode_attention(*given, inputs.read, scale, most, listed=listed[layer])
                paid = weighing(layer, inputs.counted)
                if paid is not None:  # only Triton's kernel says what is paid
                    return kernels.decode_attention(*given, inputs.slot, scale, most, weighing=paid)
                if tree is not None:  # and only it takes trees
                    return kernels.decode_attention(*given, inputs.slot, scale, most, tree=tree)
                return decode(*given, inputs.slot, scale, most)

            states = self.decoder(inputs.ids, positions, attend, inputs.added)
            return self.decoder.logits(states), states

        return forward

    def _forward_by_groups(self, slot: WriteSlot) -> Callable[[ForwardInputs], LogitsAndStates]:
        """``forward`` where each token reads its own group as it is, and all earlier ones quantized."""
        ring, before, scale = slot.queries, slot.before, slot.storage.shape.head_dim**-0.5
        slots = slot.storage.keys.shape[2]
        assert before is not None
        keys, values = (list(map(in_groups, part)) for part in (slot.storage.keys, slot.storage.values))

        def forward(inputs: ForwardInputs) -> LogitsAndStates:
            positions = inputs.position + inputs.steps
            own = own_groups(inputs.slot, inputs.steps, slots)

            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: RotaryEmbedding) -> Tensor:
                turn, newest = (
                    (rotary.positions, rotary.frequencies, rotary.factor),
                    (keys[layer], values[layer]),
                )
                kernels.rotate_and_store(q, k, v, *turn, *newest, own.slots, own.places)
                if ring is not None:
                    ring.data[layer].index_copy_(1, positions % ring.size, q.transpose(0, 1))
                quantized = before.first(layer, 0)[:4]
                kernels.quantize_full(*newest, quantized, inputs.slot, len(q))
                return kernels.decode_grouped(q, quantized, inputs.slot, *newest, own.sequences, scale)

            states = self.decoder(inputs.ids, positions, attend, inputs.added)
            return self.decoder.logits(states), states

        return forward


class OwnGroups(NamedTuple):
    """Where the tokens of a forward go in a ring of the newest groups, at most two of which are theirs."""

    slots: Tensor  # [n], in its group
    places: Tensor  # [n], of its group in the ring
    sequences: kernels.Sequences  # the tokens of each of the two groups


def own_groups(at: Tensor, steps: Tensor, slots: int) -> OwnGroups:
    """The groups of tokens ``at`` [1] + ``steps`` [n], fewer than a group has, in a ring of so many slots."""
    n, positions = len(steps), at + steps
    within, places = positions % GROUP, positions % slots // GROUP
    border = (GROUP - within[:1]).clamp_max(n)
    starts = torch.cat([torch.zeros_like(border), border, torch.full_like(border, n)])
    first = torch.cat([within[:1], torch.zeros_like(border)])
    both = torch.cat([places[:1], (places[:1] + 1) % (slots // GROUP)])
    return OwnGroups(within, places, kernels.Sequences(starts, first, both, n))


def in_groups(part: Tensor) -> Tensor:
    """Slots [Hkv, S, D] of a ring by group: [S / GROUP, Hkv, GROUP, D]."""
    groups: Tensor = part.unflatten(1, (-1, GROUP))
    return groups.transpose(0, 1)


def tree_of(inputs: ForwardInputs) -> kernels.Ancestors | None:
    """What the tokens of a tree see; None for a chain."""
    if inputs.masks is None:
        return None
    assert inputs.origin is not None
    return kernels.Ancestors(inputs.masks, inputs.origin)


def weighings(mass: FadingMass | None) -> Callable[[int, Tensor | None], kernels.Weighing | None]:
    """What a layer's attention adds to the mass, given how many of its tokens count."""
    if mass is None:
        return lambda _layer, _count: None
    total, chunk, half_life = mass.total, mass.chunk, mass.half_life  # not ``mass``: it must stay collectable

    def weighing(layer: int, count: Tensor | None) -> kernels.Weighing:
        assert count is not None
        return kernels.Weighing(total[layer], chunk, half_life, count)

    return weighing
