"""The least time that a step can take: its bytes over what the machine moves in a second."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from triforce_chat.engine.cache.eviction import SINKS, WINDOW
from triforce_chat.engine.cache.quantization import bytes_of
from triforce_chat.engine.cache.quantized_copy import COPY_BITS
from triforce_chat.engine.forward.quantized import QuantizedLinear
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.lab.bench.marks import levels_of
from triforce_chat.lab.machine import finish
from triforce_chat.memory_plan.dimensions import Dimensions

SIZE = {"cuda": 1 << 28, "cpu": 1 << 27}  # bytes that are copied to measure
COPIES, TIMES = 8, 3  # at once, so that starting them counts little; and how often
MATRIX = {"cuda": 8192, "cpu": 1024}  # rows and columns of what is multiplied to measure


@dataclass(frozen=True, slots=True)
class Step:
    """Bytes that one forward of a level reads; ``streamed`` of them come from host memory."""

    weights: int
    kv: int
    streamed: int = 0

    def ms(self, bandwidth: float, host_bandwidth: float | None) -> float:
        """Copies from the host run beside everything else."""
        here = (self.weights + self.kv) / bandwidth
        there = self.streamed / host_bandwidth if host_bandwidth else 0.0
        return 1000 * max(here, there)


def steps(engine: Any) -> dict[str, Step]:
    """What a forward of each level reads in an engine whose full cache is as long as now."""
    ranks, length = engine.group.size, engine.full.length
    shape = engine.target.shape
    weights, token = weights_of(engine.target, ranks), shape.bytes_per_token
    carried = engine.target.streamed.nbytes if engine.target.streamed else 0
    far = len(getattr(engine.full.storage, "far", ())) / shape.layers
    kept = min(length, engine.options.budget.tokens)
    middle = next(
        (level.model for name, level in levels_of(engine.top) if name == "retrieval"), engine.target
    )
    found = {
        "target": Step(weights, length * token, int(far * length * token) + carried),
        "retrieval": Step(weights_of(middle, ranks), kept * token),
        "int4": Step(weights, shape.layers * shape.kv_heads * bytes_of(length, shape.head_dim, COPY_BITS)),
    }
    if engine.draft:
        window = min(length, SINKS + WINDOW)
        draft = engine.draft
        found["draft"] = Step(weights_of(draft, 1), window * draft.shape.bytes_per_token)
    return found


def weights_of(runner: Runner, ranks: int) -> int:
    """Bytes of the matrices that a forward reads on one of the ranks; of an embedding it reads a few rows."""
    own = Dimensions.of(runner.model.config.to_dict())
    looked_up = 0 if own.tied else own.embedding // ranks
    int8 = runner.int8_numbers  # a byte each
    blocks = [layer.matrix for layer in runner.model.modules() if isinstance(layer, QuantizedLinear)]
    quantized = sum(math.prod(matrix.shape) for matrix in blocks)
    others = own.parameters(ranks) - looked_up - int8 - quantized
    return others * runner.shape.dtype.itemsize + int8 + sum(matrix.nbytes for matrix in blocks)


def bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of a copy on the device."""
    source = torch.ones(SIZE[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)


def host_bandwidth(device: torch.device) -> float | None:
    """Bytes per second from pinned host memory; None on a device that has none of its own."""
    if device.type != "cuda":
        return None
    source = torch.ones(SIZE["cuda"], dtype=torch.uint8).pin_memory()
    target = torch.empty_like(source, device=device)
    return source.nbytes / _seconds(lambda: target.copy_(source, non_blocking=True), device)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a product of large matrices."""
    side = MATRIX[device.type]
    left, right = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
    return 2 * side**3 / _seconds(lambda: left @ right, device)


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one run: the median of several, after a warm-up."""
    took = []
    for _ in range(TIMES + 1):
        finish(device)
        started = time.perf_counter()
        for _ in range(COPIES):
            work()
        finish(device)
        took.append((time.perf_counter() - started) / COPIES)
    return statistics.median(took[1:])
