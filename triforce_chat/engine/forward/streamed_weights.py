"""Weights of decoder layers that the device has no room for: they pass through it, ahead of their use.

The first layers stay on the device. The matrices of the others wait in pinned host memory, byte for byte as the device
multiplies them, in the model's dtype or quantized, and two buffers on the device hold one layer each: while one layer
is computed, the next is copied into the other buffer. A layer's weights are views of its buffer, and whatever computes
with them is none the wiser. Copies and arithmetic wait for each other by events; in a captured forward they are part of
the graph. The first two layers are copied between forwards, while other models draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn

from triforce_chat.engine.cache.allocation import zero_pages
from triforce_chat.engine.cache.offload import BUFFERS, CopyStream, Event, computed, pin, unpin
from triforce_chat.engine.cuda_graph import rehearses
from triforce_chat.engine.forward.quantized import QuantizedLinear
from triforce_chat.engine.forward.shards import set_weight
from triforce_chat.errors import OutOfMemory

ALIGNED = 16  # bytes: what a kernel loads at once


class StreamedWeights:
    """The weights of a model's decoder layers, of which the first ``resident`` stay on the device.

    While the model is loaded, each layer is put in its place by ``take``, in order. ``attach`` makes the others pass
    through the device; from then on a forward runs within ``passing``, and calls ``bring`` before a layer computes.
    """

    def __init__(self, device: torch.device, resident: int) -> None:
        self.device = torch.empty(0, device=device).device  # with its number, as graphs know it
        self.resident = resident
        self.homes: list[Tensor] = []  # of each other layer all matrices [bytes], in host memory
        self.buffers: list[Tensor] = []  # [bytes] each
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
            move(layer, self.device)
            return
        matrices = matrices_of(layer)
        home = zero_pages((size_of(matrices),), torch.uint8)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                if not pin(home):
                    raise OutOfMemory(
                        f"the system declined to pin {home.nbytes:,} bytes for the weights of a layer"
                    )
            finalize(self, unpin, [home])
        lay(matrices, home)
        self.homes.append(home)

    def attach(self, layers: Sequence[nn.Module]) -> None:
        """Make the layers that were put in host memory compute with what lies in the buffers."""
        largest = max(home.nbytes for home in self.homes) if self.homes else 0  # of mixed formats they differ
        self.buffers = [
            torch.zeros(largest, dtype=torch.uint8, device=self.device) for _ in self.homes[:BUFFERS]
        ]
        for at, layer in enumerate(layers[self.resident :]):
            matrices = matrices_of(layer)
            put(matrices, views(tensors_of(matrices), self.buffers[at % BUFFERS]))
            layer.to(self.device)  # its norms and biases

    def hook(self, layers: Sequence[nn.Module]) -> None:
        """Call ``bring`` whenever a layer is called as a module."""
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(partial(self._before, number))

    def _before(self, number: int, *_given: Any) -> None:
        self.bring(number)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Surrounds a forward or replay: its first layers are present; afterwards those of the next one are fetched."""
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
        home = self.homes[at]
        self.inward.run([(home, self.buffers[buffer][: home.nbytes])], computed(self.device))
        self.ready[buffer] = self.inward.last


def matrices_of(layer: nn.Module) -> list[Any]:
    """The linear layers of a decoder layer; those that read the same input are neighbours."""
    return [each for each in layer.modules() if isinstance(each, nn.Linear | QuantizedLinear)]


@torch.no_grad()
def move(layer: nn.Module, device: torch.device) -> None:
    """Move a layer to a device, with matrices that are no parameters because they are quantized.

    There they lie in one piece, so that those that are multiplied as one need no copy.
    """
    matrices = matrices_of(layer)
    lay(matrices, torch.empty(size_of(matrices), dtype=torch.uint8, device=device))
    layer.to(device)


def lay(matrices: Sequence[Any], whole: Tensor) -> None:
    """Copy matrices into memory [bytes] of ``size_of``, and make them views of it."""
    own = tensors_of(matrices)
    parts = views(own, whole)
    for part, each in zip(parts, own, strict=True):
        part.copy_(each)
    put(matrices, parts)


def size_of(matrices: Sequence[Any]) -> int:
    """Bytes of the memory that holds matrices."""
    return starts(tensors_of(matrices))[-1]


def tensors_of(matrices: Sequence[Any]) -> list[Tensor]:
    """What matrices consist of: first the numbers of each, then the scales of quantized ones.

    So what is multiplied as one matrix can lie in one piece.
    """
    stored = [quantized_in(each) for each in matrices]
    numbers = [
        layer.weight if own is None else own.weight.data for layer, own in zip(matrices, stored, strict=True)
    ]
    return [*numbers, *(own.weight.scale for own in stored if own is not None)]


def put(matrices: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """Make matrices consist of other tensors, in the order of ``tensors_of``, with equal values."""
    scales = iter(tensors[len(matrices) :])
    for layer, numbers in zip(matrices, tensors, strict=False):
        own = quantized_in(layer)
        if own is None:
            set_weight(layer, numbers)
        else:
            own.weight = own.weight._replace(data=numbers, scale=next(scales))


def quantized_in(layer: Any) -> Any:
    """The quantized matrix of a linear layer, as a GPU has it; None if its numbers are in the model's dtype."""
    return layer.matrix if isinstance(layer, QuantizedLinear) else None


def starts(tensors: Sequence[Tensor]) -> list[int]:
    """Where each of the tensors begins in memory that holds them all, in bytes, and where it ends.

    Tensors of one dtype follow one another without a gap.
    """
    found, end = list[int](), 0
    for at, each in enumerate(tensors):
        alike = at > 0 and each.dtype == tensors[at - 1].dtype
        found.append(end if alike else -(-end // ALIGNED) * ALIGNED)
        end = found[-1] + each.nbytes
    return [*found, end]


def views(tensors: Sequence[Tensor], whole: Tensor) -> list[Tensor]:
    """Views of memory [bytes] in the shapes and dtypes of the tensors, which they need not hold yet."""
    return [
        whole[start : start + each.nbytes].view(each.dtype).view(each.shape)
        for start, each in zip(starts(tensors), tensors, strict=False)
    ]
