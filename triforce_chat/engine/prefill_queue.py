"""The forwards of a prefill on a device with a queue, and what the host does while they run, or while others are read.

While the device computes a chunk, the host captures graphs that the answer will need. A device takes about a thousand
launches ahead and then lets the host wait, so a chunk of many kernels is partly computed by the time that the last of
them is launched; captures get half of the time of a chunk. At most two chunks are in flight, so that the progress
shown is accurate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from concurrent.futures import Future, wait
from itertools import islice
from typing import Any

import torch

from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.group import RankGroup

# Preparations per chunk where ranks share a model: captures that communicate must come in the same order on all of
# them, whatever their clocks say.
PER_CHUNK = 8
SHARE = 0.5  # of the time from one chunk to the next


class PrefillQueue:
    """Captures graphs while the chunks of a prefill run.

    ``preparations``: what is worth capturing, the most useful first; what is not reached is captured at its first use.
    """

    def __init__(self, device: torch.device, group: RankGroup, preparations: Iterable[Preparation]) -> None:
        self.device, self.preparations = device, iter(preparations)
        self.alone = group.size == 1
        self.in_step = not self.alone or device.type != "cuda"
        self.running: torch.cuda.Event | None = None  # completed with the latest chunk
        self.launched_at: float | None = None  # when the latest chunk was

    def launched(self) -> None:
        """A chunk was launched: prepare while it is computed, then wait for the chunk before it."""
        before, self.running = self.running, self._mark()
        now, last = time.perf_counter(), self.launched_at
        self.launched_at = now
        if self.in_step:
            self._prepare(PER_CHUNK)
        elif last is not None:
            self._prepare_until(now + SHARE * (now - last))
        if before is not None:
            before.synchronize()

    def drain(self) -> None:
        """The last chunk was launched: prepare until all is computed."""
        if not self.in_step and self.running is not None:
            self._prepare_until(math.inf)
            self.running.synchronize()

    def wait_for(self, other: Future[Any]) -> None:
        """Prepare until another thread is done with something that the prefill needs, and wait for it.

        Not where ranks share a model: what one of them is waiting for, another one may have.
        """
        while self.alone and not other.done() and self._prepare(1):
            pass
        wait((other,))

    def _prepare_until(self, end: float) -> None:
        """Prepare while the latest chunk is being computed, but begin nothing after ``end``."""
        while time.perf_counter() < end and self.running and not self.running.query() and self._prepare(1):
            pass

    def _prepare(self, most: int) -> int:
        """Run up to ``most`` preparations; returns how many there were."""
        chosen = list(islice(self.preparations, most))
        for prepare in chosen:
            prepare()
        return len(chosen)

    def _mark(self) -> torch.cuda.Event | None:
        if self.device.type != "cuda":
            return None
        event: torch.cuda.Event = torch.cuda.current_stream(self.device).record_event()
        return event
