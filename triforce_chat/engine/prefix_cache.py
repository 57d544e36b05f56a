"""Reuse of prompt prefixes: only tokens that neither the full cache nor the prefix store holds are computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import torch
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.events import Prefilled
from triforce_chat.engine.forward import prefill_attention
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.prefill_queue import PrefillQueue
from triforce_chat.engine.prefix_store import Chunk, DocumentSpan, PrefixStore, split_prompt

PREFILL_CHUNK = 512  # tokens; bounds the activations and the wait after Ctrl-C
GPU_PREFILL_CHUNK = prefill_attention.CHUNK  # tokens; each forward costs a GPU thousands of kernel launches
# Operations that take about a quarter of a second: on an H100, and on one core.
GPU_PIECE, CPU_PIECE = 6e13, 1e10
SMALLEST_PIECE = 16  # tokens; fewer would take hardly less time

BLOCK = 512  # tokens that are compared at once


class PrefixCache:
    """Knows which tokens a full cache holds, and brings it to a given prompt with as few forwards as possible.

    A prompt is read in three steps: keep the longest common prefix of prompt and cache, recall further chunks from
    ``store``, prefill the rest. ``rollback(length)`` must truncate every cache of the stack to ``length`` tokens.
    """

    def __init__(
        self, target: Runner, full: FullCache, store: PrefixStore, rollback: Callable[[int], None]
    ) -> None:
        self.target, self.full, self.store = target, full, store
        self._rollback_stack = rollback
        self.ids: list[int] = []  # the tokens whose keys and values the full cache holds
        self.chunks: list[Chunk] = []  # the complete chunks at their start
        self.prefilled = 0  # tokens up to the first one that was decoded instead of prefilled
        self.spans: Sequence[DocumentSpan] = ()  # of the prompt that was read last
        self.piece: int | None = None  # most tokens that one forward computes while other sequences wait

    @property
    def chunk_size(self) -> int:
        """Tokens that one forward of a prefill takes at most."""
        return GPU_PREFILL_CHUNK if self.target.device.type == "cuda" else PREFILL_CHUNK

    def adopt(self, other: PrefixCache, length: int) -> None:
        """Hold the first ``length`` tokens of another cache, which this one's storage shares with it.

        They must end with a complete chunk. Raises ValueError if they do not.
        """
        self.chunks = [chunk for chunk in other.chunks if chunk.end <= length]
        if self.complete != length or self.ids:
            raise ValueError(
                f"{length} tokens are no complete chunks of the other cache, or this one is in use"
            )
        self.ids, self.prefilled = other.ids[:length], length
        self.full.restored(length)

    def take_over(self, other: PrefixCache, length: int) -> None:
        """Hold the first ``length`` tokens that another cache holds: what this one lacks is copied, not computed.

        Both share what their storages share, and have their other tokens in slots.
        """
        start = common(self.ids, other.ids[:length])
        self.rollback(start)
        self.full.copy(other.full, start, length)
        self.ids += other.ids[start:length]
        if self.prefilled == start:
            self.prefilled = max(start, min(length, other.prefilled))
        self.chunks = [chunk for chunk in other.chunks if chunk.end <= length]

    def prefill(
        self,
        prompt: Sequence[int],
        spans: Sequence[DocumentSpan] = (),
        preparations: Iterable[Preparation] = (),
    ) -> Generator[Prefilled, None, None]:
        """Bring the full cache to exactly ``prompt``; may be closed after any event and resumed later.

        As many ``preparations`` are run as a device with a queue leaves time for.
        """
        started = time.perf_counter()
        queue = PrefillQueue(self.target.device, self.target.group, preparations)
        self.spans = spans
        recalled, plan = 0, self._reuse(prompt, spans)
        self._align(plan)
        with closing(self._recall(plan, queue)) as recalls:
            for recalled in recalls:
                done = len(self.ids)
                yield Prefilled(done, len(prompt), done, time.perf_counter() - started, recalled)
        cached = len(self.ids)
        while True:
            done = len(self.ids)
            yield Prefilled(done, len(prompt), cached, time.perf_counter() - started, recalled)
            if done == len(prompt):
                queue.drain()
                return
            self._compute_next(prompt, plan, queue)

    def settle(self, tokens: Sequence[int]) -> None:
        """Keep what the full cache holds of the committed ``tokens``, without the last one, and drop the rest."""
        self.ids = list(tokens[: min(self.full.length, len(tokens) - 1)])
        self.rollback(len(self.ids))
        if len(self.ids) - self.complete >= self.chunk_size:
            self._store_complete(split_prompt(self.ids, self.spans, self.chunk_size, self.chunks))

    def rollback(self, length: int) -> None:
        """Drop everything after the first ``length`` tokens, in the other caches of the stack as well.

        Some tokens before may have to go, too, and are read again.
        """
        length = self.full.rewound(length)
        self.store.cut(length)
        self._rollback_stack(length)
        length = min(length, self.full.length)  # a cache that forgets may be empty now
        del self.ids[length:]
        self.prefilled = min(self.prefilled, length)
        while self.chunks and self.chunks[-1].end > length:
            self.chunks.pop()

    @property
    def complete(self) -> int:
        """Tokens in complete chunks."""
        return self.chunks[-1].end if self.chunks else 0

    def _reuse(self, prompt: Sequence[int], spans: Sequence[DocumentSpan]) -> list[Chunk]:
        """Keep the longest common prefix of the cache and ``prompt``; returns the chunks of the latter."""
        self.rollback(common(self.ids, prompt))
        plan = split_prompt(prompt, spans, self.chunk_size, self.chunks)
        pairs_of_chunks = zip(self.chunks, plan, strict=False)
        same = sum(mine.prefix_hash == theirs.prefix_hash for mine, theirs in pairs_of_chunks)
        del self.chunks[same:]
        return plan

    def _align(self, plan: Sequence[Chunk]) -> None:
        """Drop a partial chunk that was prefilled in other pieces, so that one forward computes it in every process.

        A partial chunk with decoded tokens is completed instead: a turn computes only what is new.
        """
        if len(plan) > len(self.chunks) and not self.full.evicts:
            end = plan[len(self.chunks)].end
            if min(end, len(self.ids)) <= self.prefilled:
                self._drop_partial()

    def _drop_partial(self) -> None:
        """Keep complete chunks alone."""
        while len(self.ids) > self.complete:  # a rollback may have to drop some of another one
            self.rollback(self.complete)

    def _recall(self, plan: Sequence[Chunk], queue: PrefillQueue) -> Generator[int, None, None]:
        """Load chunks from the store if it has more than the cache; yields the tokens recalled so far.

        Another thread loads them, while this one prepares what the queue has.
        """
        known = self.store.known(plan)
        if not known or plan[known - 1].end <= len(self.ids):
            return
        self._drop_partial()
        first, chunks = self.complete, plan[len(self.chunks) : known]
        end = chunks[-1].end
        # All of them count from here on, so that what is captured meanwhile writes to slots behind theirs.
        self.full.restored(end - first)
        loaded = self.store.recall(chunks, self.full)
        loader = ThreadPoolExecutor(1, "recall")
        try:
            for waiting in [loader.submit(next, loaded, None) for _ in chunks]:
                queue.wait_for(waiting)
                chunk = waiting.result()
                if chunk is None:
                    return
                self._extend(chunk.ids)
                self.chunks.append(chunk)
                yield chunk.end - first
        finally:
            loader.shutdown(cancel_futures=True)
            if self.complete < end:
                self.rollback(len(self.ids))

    def _compute_next(self, prompt: Sequence[int], plan: Sequence[Chunk], queue: PrefillQueue) -> None:
        """Prefill a piece, at most up to the next chunk boundary."""
        done = len(self.ids)
        chunk = next((each for each in plan if each.end > done), None)
        self.full.make_room()
        end = min(chunk.end if chunk else len(prompt), self.full.limit)
        if self.piece and self.target.sequences > 1:
            end = min(end, done + self.piece)
        if end == len(prompt):
            self.full.completes_prompt()
        ids = list(prompt[done:end])
        self.target.prefill(sent(torch.tensor(ids, dtype=torch.long), self.target.device), self.full)
        self._extend(ids)
        if chunk:  # recalled chunks bring no queries, and drafts must not depend on how a chunk came here
            self.full.queries.forget()
        self._store_complete(plan)
        queue.launched()

    def _extend(self, ids: Sequence[int]) -> None:
        """Record that ``ids`` were prefilled or recalled."""
        if self.prefilled == len(self.ids):
            self.prefilled += len(ids)
        self.ids += ids

    def _store_complete(self, plan: Sequence[Chunk]) -> None:
        """Hand the chunks of ``plan`` that have become complete to the store."""
        for chunk in plan[len(self.chunks) :]:
            if chunk.end > len(self.ids):
                return
            self.chunks.append(chunk)
            self.store.keep(chunk, self.full)


def piece_of(target: Runner, context: int) -> int:
    """Tokens that a prefill computes at once while other sequences wait, at the end of a context of that length.

    A power of two that depends on the model and the kind of the device alone: with measured times, the rounding of an
    answer would depend on the clock.
    """
    config, shape = target.model.config, target.shape
    matrices = shape.layers * config.hidden_size * (4 * config.hidden_size + 3 * config.intermediate_size)
    attended = 2 * shape.layers * shape.query_heads * shape.head_dim * context
    on_gpu = target.device.type == "cuda"
    work = GPU_PIECE if on_gpu else CPU_PIECE * torch.get_num_threads()
    fits = int(work / (2 * (matrices + attended)))
    largest = GPU_PREFILL_CHUNK if on_gpu else PREFILL_CHUNK
    return min(largest, max(SMALLEST_PIECE, 1 << max(0, fits.bit_length() - 1)))


def sent(ids: Tensor, device: torch.device) -> Tensor:
    """A copy of ids on the device, for which the host does not wait."""
    return ids.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else ids.to(device)


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    shorter, at = min(len(first), len(second)), 0
    while at + BLOCK <= shorter and first[at : at + BLOCK] == second[at : at + BLOCK]:
        at += BLOCK
    return next((i for i in range(at, shorter) if first[i] != second[i]), shorter)
