"""The forwards of a prefill on a device with a queue, and what the host does while they run.

The host launches a chunk in a fraction of the time that the device needs for it. In the meantime it captures graphs
that the answer will need. At most two chunks are in flight, so that the device always has work and the progress shown
is accurate.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import torch

from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.group import RankGroup

# Preparations per chunk where ranks share a model: captures that communicate must come in the same order on all of
# them, whatever their clocks say.
PER_CHUNK = 8


class PrefillQueue:
    """Captures graphs while the chunks of a prefill run.

    ``preparations``: what is worth capturing, the most useful first; what is not reached is captured at its first use.
    """

    def __init__(self, device: torch.device, group: RankGroup, preparations: Iterable[Preparation]) -> None:
        self.device, self.preparations = device, iter(preparations)
        self.in_step = group.size > 1 or device.type != "cuda"
        self.running: torch.cuda.Event | None = None  # completed with the latest chunk

    def launched(self) -> None:
        """A chunk was launched: prepare until the chunk before it is computed."""
        before, self.running = self.running, self._mark()
        if self.in_step:
            self._prepare(PER_CHUNK)
        self._wait(before)

    def drain(self) -> None:
        """The last chunk was launched: prepare until all is computed."""
        if not self.in_step:
            self._wait(self.running)

    def _wait(self, chunk: torch.cuda.Event | None) -> None:
        if chunk is None:
            return
        while not self.in_step and not chunk.query() and self._prepare(1):
            pass
        chunk.synchronize()

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
