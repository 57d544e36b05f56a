"""Forwards that follow each other inside one CUDA graph, such as all steps of a draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.storage import KVPool
from triforce_chat.engine.cuda_graph import ForwardInputs

if TYPE_CHECKING:
    from triforce_chat.engine.forward.runner import Runner


class LoopForward(Protocol):
    """A forward inside a captured loop; the slots at which the loop begins are inputs of its replays."""

    @property
    def sequences(self) -> int:
        """How many there is room for: B."""
        ...

    def aim(self, caches: Sequence[KVCache], offset: Tensor) -> None:
        """Begin ``offset`` [b] slots after the ends of b caches, which may be fewer than B (negative: before it)."""
        ...

    def aim_at_nothing(self, cache: KVCache) -> None:
        """Begin where a capture overwrites nothing that is kept; ``cache`` is that of one sequence."""
        ...

    def __call__(self, ids: Tensor, step: int) -> Tensor:
        """Logits [B, 1, V] after ids [B, n]; each first id goes ``step`` slots after its sequence's first slot.

        Begins with step 0.
        """
        ...

    def branch(self, ids: Tensor, step: int, root: int, depth: int, masks: Tensor) -> Tensor:
        """Logits [B, n, V] after ids [B, n], nodes of each sequence's tree at that ``depth``.

        The root went ``root`` slots after the first slot, the first id goes ``step`` slots after it. ``masks`` [B, n,
        words] says what each id sees of the slots after its root, as bits.
        """
        ...


class FusedLoop:
    """A ``LoopForward`` of a single sequence."""

    sequences = 1

    def __init__(self, runner: Runner, cache: KVCache, tokens: int) -> None:
        from triforce_chat.engine.forward.small_decoder import small_decoder

        slot = cache.write_slot()
        assert slot
        self.runner, self.tokens = runner, tokens
        self.forward = runner.graphs.forward(slot)
        self.small = small_decoder(runner.graphs.decoder, slot.storage)
        with torch.inference_mode(False):
            self.at = torch.zeros(2, dtype=torch.long, device=runner.device)
            self.index = torch.zeros(1, dtype=torch.long, device=runner.device)  # of the first token
        self.added: Tensor | None = None  # [tokens, C], to their embeddings

    def aim(self, caches: Sequence[KVCache], offset: Tensor) -> None:
        (cache,) = caches
        slot = cache.write_slot()
        assert slot
        torch.linspace(slot.start, cache.position, 2, out=self.at)  # two numbers in one launch
        self.at += offset
        if self.runner.reader is not None:
            torch.add(offset, cache.length, out=self.index)

    def aim_at_nothing(self, cache: KVCache) -> None:
        self.aim([cache], torch.zeros_like(self.index))

    @torch.inference_mode()
    def __call__(self, ids: Tensor, step: int) -> Tensor:
        n = ids.shape[1]
        if self.runner.reader is not None and step == 0:  # for all steps at once
            indices = self.index + torch.arange(self.tokens, device=ids.device)
            self.added = self.runner.reader.rows(indices)
        added = None if self.added is None else self.added[step : step + n]
        with self.runner.on_device():
            own = self.runner.embedded(ids[0])
            if self.small is not None and n <= self.small.most:
                logits = self.small(own, self.at, step, added)
            else:
                at, steps = self.at + step, torch.arange(n, device=ids.device)
                logits = self.forward(ForwardInputs(own, at[:1], at[1:], steps, added))[0][-1:]
        return self.runner.widened(logits)[None]

    @torch.inference_mode()
    def branch(self, ids: Tensor, step: int, root: int, depth: int, masks: Tensor) -> Tensor:
        from triforce_chat.engine.kernels import TreeRows

        (ids,), (masks,) = ids, masks
        added = None
        if self.runner.reader is not None:
            added = self.runner.reader.rows(self.index + root + depth + torch.zeros_like(ids))
        with self.runner.on_device():
            own = self.runner.embedded(ids)
            if self.small is not None and self.small.takes(masks):
                logits = self.small(own, self.at, step, added, TreeRows(masks, root, depth))
            else:
                slot, position = self.at[:1], self.at[1:] + root + depth
                inputs = ForwardInputs(own, slot + step, position, torch.zeros_like(ids), added, masks=masks)
                logits = self.forward(inputs._replace(origin=slot + root + 1))[0]
        return self.runner.widened(logits)[None]


class SequencesLoop:
    """A ``LoopForward`` of sequences whose keys and values lie in one pool, after no prefix."""

    def __init__(self, runner: Runner, pool: KVPool) -> None:
        self.runner, self.sequences = runner, pool.count
        self.forward = runner.of_sequences.loop(pool)
        device = runner.device
        with torch.inference_mode(False):  # otherwise they could only be written to in inference mode
            # Of each sequence: slot and position of its first token, and its place in the pool; how many there are.
            self.numbers = torch.zeros(3 * self.sequences + 1, dtype=torch.long, device=device)
        *of_sequences, self.used = self.numbers.split([*3 * [self.sequences], 1])
        self.at, self.positions, self.places = of_sequences

    def aim(self, caches: Sequence[KVCache], offset: Tensor) -> None:
        starts, places = [], []
        for cache in caches:
            slot = cache.write_slot()
            assert slot
            starts.append(slot.start)
            places.append(slot.storage.place)
        unused = (self.sequences - len(caches)) * [0]
        positions = [cache.position for cache in caches]
        numbers = torch.tensor(
            [*starts, *unused, *positions, *unused, *places, *unused, len(caches)], dtype=torch.long
        )
        if self.numbers.is_cuda:
            numbers = numbers.pin_memory()  # so that the host does not wait
        self.numbers.copy_(numbers, non_blocking=True)
        self.at[: len(caches)] += offset
        self.positions[: len(caches)] += offset

    def aim_at_nothing(self, cache: KVCache) -> None:  # noqa: ARG002
        self.numbers.zero_()  # no sequence is there

    @torch.inference_mode()
    def branch(self, ids: Tensor, step: int, root: int, depth: int, masks: Tensor) -> Tensor:
        from triforce_chat.engine.kernels import Ancestors

        tree = Ancestors(masks.flatten(0, 1), self.at + root + 1)
        with self.runner.on_device():
            given = self.at + step, self.positions + root + depth, self.places, self.used
            logits = self.forward(self.runner.embedded(ids.flatten()), *given, tree)
        return self.runner.widened(logits).view(*ids.shape, -1)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, step: int) -> Tensor:
        with self.runner.on_device():
            given = self.runner.embedded(ids.flatten()), self.at + step, self.positions + step, self.places
            logits = self.forward(*given, self.used)
        return self.runner.widened(logits)[:, None]
