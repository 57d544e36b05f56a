"""The engine's memory on a disk: blocks are read when a prompt begins with them and written in the background."""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.storage import Shape
from triforce_chat.engine.prefix_store import ROOT, Chunk
from triforce_chat.models.load import LoadedModel
from triforce_chat.settings.paths import kv_folder
from triforce_chat.storage.kv import block
from triforce_chat.storage.kv.block import Damaged, Label
from triforce_chat.storage.kv.fingerprint import fingerprint
from triforce_chat.storage.kv.shelf import Shelf

PATIENCE = 10.0  # seconds that a program which ends waits for what is not written yet
SILENT = 1.0  # seconds of them without a word
WAITING = "keeping what was read, so that it opens warm next time; Ctrl-C ends without it"
DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}


class Library:
    """Implements ``engine.prefix_store.PrefixStore``; ``model`` is its fingerprint, ``clock`` counts nanoseconds.

    ``tell`` hears why the program does not end at once.
    """

    def __init__(
        self,
        shelf: Shelf,
        model: bytes,
        name: str = "",
        clock: Callable[[], int] = time.time_ns,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.shelf, self.model, self.name, self.clock = shelf, model, name, clock
        self.writer = Writer(shelf)
        self.served = clock()
        weakref.finalize(self, self.writer.finish, PATIENCE, tell)

    @staticmethod
    def of(
        loaded: LoadedModel, limit: float | None = None, tell: Callable[[str], None] | None = None
    ) -> Library:
        """The user's own library for a model that was just loaded; ``limit`` is in bytes."""
        model = fingerprint(loaded.model, loaded.tokenizer)
        return Library(Shelf(kv_folder(), limit), model, loaded.name, tell=tell)

    def known(self, plan: Sequence[Chunk]) -> int:
        keys = [self._key(chunk.prefix_hash) for chunk in plan]
        missing = (n for n, key in enumerate(keys) if not self.shelf.path(key).is_file())
        count = next(missing, len(plan))
        self.served, self.writer.spared = self.clock(), frozenset(keys)
        for key, chunk in zip(keys[:count], plan, strict=False):
            self.shelf.touch(key, self._used_ns(chunk.start))
        return count

    def recall(self, chunk: Chunk, cache: FullCache) -> bool:
        label = self._label(chunk, cache.shape)
        slots = [*parts_of(cache, chunk)]
        try:
            block.load(self.shelf.path(label.key), label, lambda n, part: fill(slots[n], part))
        except (OSError, Damaged):
            self.shelf.discard(label.key)
            return False
        return True

    def keep(self, chunk: Chunk, cache: FullCache) -> None:
        label = self._label(chunk, cache.shape)
        self.writer.add(Pending(label, chunk, cache, self._used_ns(chunk.start)))

    def cut(self, length: int) -> None:
        self.writer.cut(length)

    def _used_ns(self, start: int) -> int:
        """Among the blocks of a prompt the first count as the latest: without them the others are lost."""
        return self.served - 1000 * start

    def _key(self, prefix_hash: bytes) -> str:
        return "" if prefix_hash == ROOT else hashlib.sha256(self.model + prefix_hash).hexdigest()

    def _label(self, chunk: Chunk, shape: Shape) -> Label:
        size = (shape.layers, shape.kv_heads, len(chunk.ids), shape.head_dim)
        return Label(
            key=self._key(chunk.prefix_hash),
            parent=self._key(chunk.parent),
            model=self.name,
            title=chunk.title,
            start=chunk.start,
            end=chunk.end,
            dtype=DTYPES[shape.dtype],
            shape=size,
            part_bytes=shape.kv_heads * len(chunk.ids) * shape.head_dim * shape.dtype.itemsize,
        )


@dataclass(slots=True)
class Pending:
    """A chunk that lies in a cache and shall lie on the shelf."""

    label: Label
    chunk: Chunk
    cache: FullCache
    used_ns: int
    stands: bool = True  # its slots have not been given to other tokens

    def parts(self) -> Iterator[memoryview]:
        """The bytes of each part; raises Damaged at the end if the slots changed meanwhile."""
        for slots in parts_of(self.cache, self.chunk):
            whole = np.ascontiguousarray(slots.view(torch.uint8).cpu().numpy())
            yield whole.data.cast("B")
        if not self.stands:
            raise Damaged("overwritten")


class Writer:
    """Writes what it is given, one block after the other, in a thread that lives while there are any."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.spared: frozenset[str] = frozenset()  # keys of the present prompt: they stay
        self.queue: deque[Pending] = deque()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.closed = False

    def add(self, pending: Pending) -> None:
        with self.lock:
            self.queue.append(pending)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="library", daemon=True)
                self.thread.start()

    def cut(self, length: int) -> None:
        with self.lock:
            for pending in self.queue:
                pending.stands = pending.stands and pending.label.end <= length

    def finish(self, patience: float | None = None, tell: Callable[[str], None] | None = None) -> None:
        """Wait for what is not written yet, but not longer than that; then the rest stays unwritten."""
        thread = self.thread
        try:
            if thread is not None and thread is not threading.current_thread():
                if tell:
                    thread.join(SILENT)
                if tell and thread.is_alive():
                    tell(WAITING)
                thread.join(patience)
        except KeyboardInterrupt:
            pass  # whoever presses Ctrl-C again does not want to wait
        finally:
            self.closed = True

    def _run(self) -> None:
        self.shelf.sweep()
        while True:
            with self.lock:
                if not self.queue or self.closed:
                    self.queue.clear()
                    self.thread = None
                    return
                pending = self.queue[0]
            # A full disk, slots that were given away: what is not kept is read again.
            with suppress(OSError, Damaged, RuntimeError, MemoryError):
                self._write(pending)
            with self.lock:
                self.queue.popleft()

    def _write(self, pending: Pending) -> None:
        label = pending.label
        path = self.shelf.path(label.key)
        if not pending.stands or not self._reachable(label):
            return
        if not path.is_file():
            if not self.shelf.make_room(label.part_bytes * label.parts, self.spared):
                return
            block.save(path, label, pending.parts())
        self.shelf.touch(label.key, pending.used_ns)

    def _reachable(self, label: Label) -> bool:
        return not label.parent or self.shelf.path(label.parent).is_file()


def fill(slots: Tensor, part: memoryview) -> None:
    """Copy the bytes of a part into its slots [Hkv, n, D]."""
    if slots.is_cpu:  # in this thread alone: torch's others cost more than they help at this size
        there = slots.view(torch.uint8).numpy()
        np.copyto(there, np.frombuffer(part, np.uint8).reshape(there.shape))
    else:
        slots.copy_(torch.frombuffer(part, dtype=slots.dtype).view(slots.shape))


def parts_of(cache: FullCache, chunk: Chunk) -> Iterator[Tensor]:
    """Where a chunk lies in a cache: [Hkv, n, D] for every layer's keys, then for every layer's values."""
    layers = [cache.storage.layer(layer) for layer in range(cache.shape.layers)]
    for kind in zip(*layers, strict=True):
        for part in kind:
            yield part[:, chunk.start : chunk.end]
