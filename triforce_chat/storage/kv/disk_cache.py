"""The engine's prefix store on the disk: entries are loaded in a prefill and written in the background."""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.quantization import BITS, FP8, format_name
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import Held
from triforce_chat.engine.prefix_store import ROOT, Chunk
from triforce_chat.models.load import LoadedModel
from triforce_chat.settings.paths import kv_folder
from triforce_chat.storage.kv import entry
from triforce_chat.storage.kv.cache_directory import CacheDirectory
from triforce_chat.storage.kv.entry import CorruptEntry, EntryHeader
from triforce_chat.storage.kv.fingerprint import fingerprint

PATIENCE = 10.0  # seconds that an exiting program waits for unwritten entries
SILENT = 1.0  # seconds that it waits before it says so
WAITING = "saving to the document cache; Ctrl-C exits without it"
DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    FP8: "F8_E4M3",
}
FORMATS = (*DTYPES, *BITS)  # of keys and values
MOST_PINNED = 16 << 20  # bytes of a part that is read into pinned memory, which the process keeps
BYTES = "U8"  # of quantized ones, in a file


class KVDiskCache:
    """Implements ``engine.prefix_store.PrefixStore``.

    ``model`` is the model's fingerprint and ``name`` its displayed name; ``clock`` returns nanoseconds. ``notify``
    receives a line if the program must wait at its exit until everything is written, and if something is read again
    that is stored under one of ``others``: fingerprints of the same model by the format of its keys and values.
    """

    def __init__(
        self,
        directory: CacheDirectory,
        model: bytes,
        name: str = "",
        clock: Callable[[], int] = time.time_ns,
        notify: Callable[[str], None] | None = None,
        others: Mapping[torch.dtype, bytes] = MappingProxyType({}),
    ) -> None:
        self.directory, self.model, self.name, self.clock = directory, model, name, clock
        self.notify, self.others = notify, others
        self.writer = Writer(directory)
        self.prompt_ns = clock()  # when the present prompt began
        weakref.finalize(self, self.writer.finish, PATIENCE, notify)

    @staticmethod
    def of(
        loaded: LoadedModel, limit: float | None = None, notify: Callable[[str], None] | None = None
    ) -> KVDiskCache:
        """The user's cache for a model that was just loaded; ``limit`` is in bytes."""
        model, usual = fingerprint(loaded.model, loaded.tokenizer), loaded.model.dtype
        prints = {kv: of_format(model, kv, usual) for kv in FORMATS}
        own = prints.pop(loaded.kv or usual)
        return KVDiskCache(CacheDirectory(kv_folder(), limit), own, loaded.name, notify=notify, others=prints)

    def known(self, plan: Sequence[Chunk]) -> int:
        keys = [self._key(chunk.prefix_hash) for chunk in plan]
        missing = (n for n, key in enumerate(keys) if not self.directory.path(key).is_file())
        count = next(missing, len(plan))
        self.prompt_ns, self.writer.protected = self.clock(), frozenset(keys)
        for key, chunk in zip(keys[:count], plan, strict=False):
            self.directory.touch(key, self._used_ns(chunk.start))
        if count < len(plan):
            self._tell_of_others(plan[count].prefix_hash)
        return count

    def _tell_of_others(self, prefix_hash: bytes) -> None:
        """If a missing chunk is stored in another format, say once why it is computed again."""
        for kv, model in self.others.items():
            if self.notify and self.directory.path(key_of(model, prefix_hash)).is_file():
                self.notify(
                    f"read again, because the stored keys and values are in {format_name(kv)}, other than now"
                )
                self.others = {}
                return

    def recall(self, chunks: Sequence[Chunk], cache: FullCache) -> Generator[Chunk, None, None]:
        intake = Intake(cache.shape.device)
        for chunk in chunks:
            held = held_by(cache, chunk)
            header, slots = self._header(chunk, cache.shape, held), [*by_kind(held)]
            buffers = intake.buffers(header.part_bytes, any(part.is_cuda for part in slots[0]))
            try:
                entry.load(self.directory.path(header.key), header, partial(intake.take, slots), buffers)
            except (OSError, CorruptEntry):
                self.directory.discard(header.key)
                return
            cache.storage.restored(chunk.end, held)
            yield chunk

    def keep(self, chunk: Chunk, cache: FullCache) -> None:
        if cache.rewound(chunk.end) < chunk.end:
            return  # after loading it, tokens of its last group would be missing
        held = held_by(cache, chunk)
        header = self._header(chunk, cache.shape, held)
        self.writer.add(PendingEntry(header, chunk, held, self._used_ns(chunk.start)))

    def cut(self, length: int) -> None:
        self.writer.cut(length)

    def _used_ns(self, start: int) -> int:
        """The time of use of the entry at ``start``. Earlier entries count as later used: the others need them."""
        return self.prompt_ns - 1000 * start

    def _key(self, prefix_hash: bytes) -> str:
        return key_of(self.model, prefix_hash)

    def _header(self, chunk: Chunk, shape: Shape, held: Held) -> EntryHeader:
        part_bytes = sum(part.nbytes for part in held[0][0])
        quantized = shape.kv_format in BITS
        size = (shape.kv_heads, len(chunk.ids), shape.head_dim)
        return EntryHeader(
            key=self._key(chunk.prefix_hash),
            parent=self._key(chunk.parent),
            model=self.name,
            title=chunk.title,
            start=chunk.start,
            end=chunk.end,
            dtype=BYTES if quantized else DTYPES[shape.kv_dtype],
            shape=(shape.layers, *((1, 1, part_bytes) if quantized else size)),
            part_bytes=part_bytes,
        )


def of_format(model: bytes, kv: torch.dtype, usual: torch.dtype) -> bytes:
    """A model's fingerprint with the format of its keys and values, where that is not the usual one."""
    return model if kv == usual else hashlib.sha256(model + str(kv).encode()).digest()


def key_of(model: bytes, prefix_hash: bytes) -> str:
    """The key of the entry that ends a prefix; empty for the empty prefix."""
    return "" if prefix_hash == ROOT else hashlib.sha256(model + prefix_hash).hexdigest()


@dataclass(slots=True)
class PendingEntry:
    """A chunk in a cache that is to be written to the disk."""

    header: EntryHeader
    chunk: Chunk
    held: Held
    used_ns: int
    valid: bool = True  # its slots have not been overwritten

    def parts(self) -> Iterator[memoryview]:
        """The bytes of each part. Raises CorruptEntry at the end if the slots were overwritten meanwhile."""
        for slots in by_kind(self.held):
            each = [
                np.ascontiguousarray(part.view(torch.uint8).cpu().numpy()) for part in slots if part.numel()
            ]
            yield (each[0] if len(each) == 1 else np.concatenate([*map(np.ravel, each)])).data.cast("B")
        if not self.valid:
            raise CorruptEntry("overwritten")


class Writer:
    """Writes pending entries one after the other, in a thread that lives while there are any."""

    def __init__(self, directory: CacheDirectory) -> None:
        self.directory = directory
        self.protected: frozenset[str] = frozenset()  # keys of the present prompt, which are not evicted
        self.queue: deque[PendingEntry] = deque()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.closed = False

    def add(self, pending: PendingEntry) -> None:
        with self.lock:
            self.queue.append(pending)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="kv-writer", daemon=True)
                self.thread.start()

    def cut(self, length: int) -> None:
        """Invalidate pending entries beyond the first ``length`` tokens, whose slots will be overwritten."""
        with self.lock:
            for pending in self.queue:
                pending.valid = pending.valid and pending.header.end <= length

    def finish(self, patience: float | None = None, notify: Callable[[str], None] | None = None) -> None:
        """Wait up to ``patience`` seconds for pending entries, without limit if None; then discard the rest."""
        thread = self.thread
        try:
            if thread is not None and thread is not threading.current_thread():
                if notify:
                    thread.join(SILENT)
                if notify and thread.is_alive():
                    notify(WAITING)
                thread.join(patience)
        except KeyboardInterrupt:
            pass  # a second Ctrl-C: the user does not want to wait
        finally:
            self.closed = True

    def _run(self) -> None:
        self.directory.sweep()
        while True:
            with self.lock:
                if not self.queue or self.closed:
                    self.queue.clear()
                    self.thread = None
                    return
                pending = self.queue[0]
            # With a full disk or overwritten slots the entry is skipped, and computed again next time.
            with suppress(OSError, CorruptEntry, RuntimeError, MemoryError):
                self._write(pending)
            with self.lock:
                self.queue.popleft()

    def _write(self, pending: PendingEntry) -> None:
        header = pending.header
        path = self.directory.path(header.key)
        if not pending.valid or not self._reachable(header):
            return
        if not path.is_file():
            if not self.directory.make_room(header.part_bytes * header.parts, self.protected):
                return
            entry.save(path, header, pending.parts())
        self.directory.touch(header.key, pending.used_ns)

    def _reachable(self, header: EntryHeader) -> bool:
        return not header.parent or self.directory.path(header.parent).is_file()


class Intake:
    """What parts are read into on their way to a device: room for one in each reading thread, as long as it lives.

    A GPU fetches them by a queue of its own, beside what it computes meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, copies_of(device)
        self.room: list[Tensor] = []

    def buffers(self, size: int, pinned: bool) -> list[memoryview]:
        """Room for parts of so many bytes, after what the device was told to do with their slots before.

        ``pinned``: where the GPU's copies need not wait for a copy by the CPU.
        """
        if not self.room or len(self.room[0]) < size:
            with torch.cuda.device(self.device) if self.stream else nullcontext():
                pinned = pinned and size <= MOST_PINNED
                kind: Any = {"dtype": torch.uint8, "pin_memory": pinned}
                self.room = [torch.empty(size, **kind) for _ in range(entry.count_readers())]
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        return [each.numpy().data for each in self.room]

    def take(self, slots: Sequence[Sequence[Tensor]], number: int, part: memoryview) -> None:
        """Copy a part to where it belongs; it is there when this returns."""
        if self.stream is None:
            fill(slots[number], part)
            return
        with torch.cuda.stream(self.stream):
            fill(slots[number], part)
            copied = self.stream.record_event()
        copied.synchronize()


@cache  # new streams are those of other work again
def copies_of(device: torch.device) -> torch.cuda.Stream | None:
    """The queue of a GPU's copies from files; None where there is none."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def fill(slots: Sequence[Tensor], part: memoryview) -> None:
    """Copy the bytes of a part into the tensors that hold it, one after the other; a GPU's copies are only queued."""
    for held in slots:
        own, part = part[: held.nbytes], part[held.nbytes :]
        if not held.numel():
            continue
        target = held.view(torch.uint8)
        if held.is_cpu:  # NumPy copies in this thread; torch's threads cost more than they gain at this size
            np.copyto(target.numpy(), np.frombuffer(own, np.uint8).reshape(target.shape))
        else:
            given = torch.frombuffer(own, dtype=torch.uint8).view(target.shape)
            # Row by row, each of which lies in one piece: others would take room for a further copy on the device.
            for to, row in zip(target, given, strict=True):
                to.copy_(row, non_blocking=True)


def held_by(cache: FullCache, chunk: Chunk) -> Held:
    """What a chunk is restored from, for each layer: its keys, and its values."""
    return [cache.storage.parts(layer, chunk.start, chunk.end) for layer in range(cache.shape.layers)]


def by_kind(held: Held) -> Iterator[Sequence[Tensor]]:
    """Every layer's keys, then every layer's values."""
    for kind in zip(*held, strict=True):
        yield from kind
