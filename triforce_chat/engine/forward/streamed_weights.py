"""Weights of decoder layers that the device has no room for: they pass through it, ahead of their use.

The first layers stay on the device. The matrices of the others wait in pinned host memory, and two buffers on the
device hold one layer each: while one layer is computed, the next is copied into the other buffer. All layers have equal
shapes, so their parameters are views of a buffer, and whatever computes with them is none the wiser. Copies and
arithmetic wait for each other by events; in a captured forward they are part of the graph. The first two layers are
copied between forwards, while other models draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn

from triforce_chat.engine.cache.offload import BUFFERS, CopyStream, Event, computed, pin, unpin
from triforce_chat.engine.cache.storage import zero_pages
from triforce_chat.engine.cuda_graph import rehearses
from triforce_chat.engine.forward.shards import set_weight
from triforce_chat.errors import OutOfMemory


class StreamedWeights:
    """The weights of a model's decoder layers, of which the first ``resident`` stay on the device.

    While the model is loaded, each layer is put in its place by ``take``, in order. ``attach`` makes the others pass
    through the device; from then on a forward runs within ``passing``, and calls ``bring`` before a layer computes.
    """

    def __init__(self, device: torch.device, resident: int) -> None:
        self.device = torch.empty(0, device=device).device  # with its number, as graphs know it
        self.resident = resident
        self.homes: list[Tensor] = []  # of each other layer all matrices [numbers], in host memory
        self.buffers: list[Tensor] = []  # [numbers] each
        self.ready: dict[int, Event] = {}  # by buffer; completed when the latest copy is there
        self.inward = CopyStream(self.device)
        self.ahead = False  # the first layers are on their way to the buffers

    @property
    def nbytes(self) -> int:
        """Bytes that each forward copies to the device."""
        return sum(home.nbytes for home in self.homes)

    @torch.no_grad()
    def take(self, number: int, layer: nn.Module) -> None:
        """Put the next layer in its place; one layer at a time may be elsewhere. Raises OutOfMemory."""
        if number < self.resident:
            layer.to(self.device)
            return
        matrices = matrices_of(layer)
        size = sum(each.weight.numel() for each in matrices)
        home = zero_pages((size,), matrices[0].weight.dtype)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                if not pin(home):
                    raise OutOfMemory(
                        f"the system declined to pin {home.nbytes:,} bytes for the weights of a layer"
                    )
            finalize(self, unpin, [home])
        for matrix, part in pieces(matrices, home):
            part.copy_(matrix.weight)
            set_weight(matrix, part)
        self.homes.append(home)

    def attach(self, layers: Sequence[nn.Module]) -> None:
        """Make the layers that were put in host memory compute with what lies in the buffers."""
        self.buffers = [torch.zeros_like(home, device=self.device) for home in self.homes[:BUFFERS]]
        for at, layer in enumerate(layers[self.resident :]):
            for matrix, part in pieces(matrices_of(layer), self.buffers[at % BUFFERS]):
                set_weight(matrix, part)
            layer.to(self.device)  # its norms and biases

    def hook(self, layers: Sequence[nn.Module]) -> None:
        """Call ``bring`` whenever a layer is called as a module."""
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(partial(self._before, number))

    def _before(self, number: int, *_given: Any) -> None:
        self.bring(number)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """For one forward, or one replay: its first layers are there, and afterwards those of the next one come."""
        there, self.ahead = self.ahead, False  # not if this one breaks off
        if not there:
            self._fetch_first()
        if self.inward.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.inward.stream)
        yield
        self._fetch_first()
        self.ahead = True

    def bring(self, layer: int) -> None:
        """Arithmetic that is queued from now on, for that layer, finds its weights.

        The layers of a forward come one after the other, from the first one on.
        """
        at = layer - self.resident
        if at < 0 or rehearses(self.device):
            return
        if 0 < at < len(self.homes) - 1:
            self._fetch(at + 1)  # to where the layer before this one was
        if at >= BUFFERS and (ready := self.ready[at % BUFFERS]):
            torch.cuda.current_stream(self.device).wait_event(ready)

    def _fetch_first(self) -> None:
        for at in range(len(self.buffers)):
            self._fetch(at)

    def _fetch(self, at: int) -> None:
        """Start to copy a layer into its buffer once what is queued by now no longer reads that."""
        buffer = at % BUFFERS
        self.inward.run([(self.homes[at], self.buffers[buffer])], computed(self.device))
        self.ready[buffer] = self.inward.last


def matrices_of(layer: nn.Module) -> list[Any]:
    """The linear layers of a decoder layer; those that read the same input are neighbours."""
    return [each for each in layer.modules() if isinstance(each, nn.Linear)]


def pieces(matrices: Sequence[Any], whole: Tensor) -> Iterator[tuple[Any, Tensor]]:
    """Each matrix, and where its weight lies in a tensor [numbers] that holds those of all."""
    parts = whole.split([each.weight.numel() for each in matrices])
    for matrix, part in zip(matrices, parts, strict=True):
        yield matrix, part.view(matrix.weight.shape)
