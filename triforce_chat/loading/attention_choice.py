"""Chooses the attention kernels of a model on a GPU: those that were asked for, or the fastest ones.

Which are the fastest is measured once for each GPU, shape of heads and versions, and kept in the cache folder: other
kernels round differently, and a later start must not decode other tokens with the same seed. Without flash-attn there
is nothing to choose from, and nothing is measured: for few tokens torch's own attention would do without CUDA graphs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.forward.attention import causal_attention
from triforce_chat.engine.forward.attention_backend import (
    FLASH_ATTN,
    NAMED,
    SDPA,
    TRITON,
    USUAL,
    AttentionBackend,
    flash_decode,
    flash_lacks,
    flash_prefill,
)
from triforce_chat.engine.forward.prefill_attention import CHUNK
from triforce_chat.engine.forward.runner import fusible
from triforce_chat.engine.group import RankGroup
from triforce_chat.errors import UsageError
from triforce_chat.loading.json_file import read_object, write_object
from triforce_chat.settings.paths import attention_file
from triforce_chat.settings.settings import AUTO, Settings

SLOTS = 16384 + CHUNK  # of the cache that kernels are timed on
FEW = (1, 8)  # tokens of a step and of a verification
WARMUPS, REPEATS, LAUNCHES = 2, 5, 16
CANDIDATES = [
    AttentionBackend(prefill, decoding) for prefill in (SDPA, FLASH_ATTN) for decoding in (TRITON, FLASH_ATTN)
]


def require_gpu_for_attention(settings: Settings, device: str) -> None:
    """Raises UsageError if the settings name kernels of a GPU and the model will run on a CPU."""
    if device == "cpu" and settings.attention in (TRITON, FLASH_ATTN):
        raise UsageError(f"--attention {settings.attention} is for a GPU; a CPU has its own: leave it out")


def choose_attention(settings: Settings, model: Any, group: RankGroup) -> AttentionBackend:
    """The kernels for a loaded model, on all ranks those of rank 0. Raises UsageError for named ones that can't run."""
    if model.device.type != "cuda":
        return USUAL
    shape = Shape.of(model.config, model.dtype, model.device, group.size)
    lacking = flash_lacks(shape.device, shape.dtype, shape.head_dim)
    if settings.attention == FLASH_ATTN and lacking:
        raise UsageError(f"--attention {FLASH_ATTN}: {lacking}")
    fuses = fusible(model)
    if settings.attention == TRITON and not fuses:
        raise UsageError(
            f"--attention {TRITON} needs Triton, a C compiler, a GPU of compute capability 8.0 or more and a model "
            f"with fused blocks: choose {SDPA}"
        )
    if settings.attention != AUTO:
        return NAMED[settings.attention]
    found = USUAL if lacking else fastest(shape, fuses)
    return CANDIDATES[group.broadcast_ints((CANDIDATES.index(found),))[0]]


def fastest(shape: Shape, fuses: bool) -> AttentionBackend:
    """The fastest kernels for heads of that shape, measured the first time; ``fuses``: few tokens may take Triton's."""
    path, key = attention_file(), key_of(shape)
    known = read_object(path).get(key)
    if not isinstance(known, dict) or known.get("backend") not in [list(each) for each in CANDIDATES]:
        known = measure(shape, fuses)
        write_object(path, {**read_object(path), key: known})
    return AttentionBackend(*known["backend"])


def key_of(shape: Shape) -> str:
    """What a measurement is valid for."""
    heads = f"{shape.query_heads}x{shape.kv_heads}x{shape.head_dim}"
    name, versions = torch.cuda.get_device_name(shape.device), f"torch {torch.__version__}, flash-attn"
    return f"{name}, {versions} {version('flash-attn')}, {heads} {str(shape.dtype).removeprefix('torch.')}"


@torch.inference_mode()
def measure(shape: Shape, fuses: bool) -> dict[str, Any]:
    """Time the kernels on one layer: which are faster, and all milliseconds."""
    keys, values = noise(shape, 2, shape.kv_heads, SLOTS)
    ms = {"prefill": prefill_ms(shape, keys, values)}
    if fuses:
        ms["decoding"] = decoding_ms(shape, keys, values)
    best = [min(ms[kind], key=ms[kind].__getitem__) for kind in ms]
    return {"backend": best if fuses else [*best, TRITON], "ms": ms}


def prefill_ms(shape: Shape, keys: Tensor, values: Tensor) -> dict[str, float]:
    """Milliseconds of a full chunk at the end of a cache [Hkv, S, D], by the name of the kernel."""
    query, view = noise(shape, 1, shape.query_heads, CHUNK), KVView(keys[None], values[None], SLOTS)
    scale = shape.head_dim**-0.5
    kernels = {SDPA: causal_attention, FLASH_ATTN: flash_prefill}
    return {name: milliseconds(partial(run, query, view, scale)) for name, run in kernels.items()}


def decoding_ms(shape: Shape, keys: Tensor, values: Tensor) -> dict[str, float]:
    """Milliseconds of few tokens at the end of a cache [Hkv, S, D], by the name of the kernel."""
    found = {TRITON: 0.0, FLASH_ATTN: 0.0}
    for n in FEW:
        q = noise(shape, n, shape.query_heads)
        at = torch.tensor([SLOTS - n], device=shape.device)
        given = q, keys, values, at, shape.head_dim**-0.5, SLOTS
        for name, run in ((TRITON, USUAL.decode), (FLASH_ATTN, flash_decode)):
            found[name] += milliseconds(captured(partial(run, *given)), LAUNCHES)
    return found


def captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """``LAUNCHES`` calls as one CUDA graph, as decoding has them: else the launches of small kernels would be timed."""
    run()  # compiles and loads
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            run()
    return graph.replay


def noise(shape: Shape, *size: int) -> Tensor:
    return torch.randn(*size, shape.head_dim, dtype=shape.dtype, device=shape.device)


def milliseconds(run: Callable[[], Any], calls: int = 1) -> float:
    """The median time on the current GPU of each of so many calls that ``run`` makes."""
    times = []
    for repeat in range(WARMUPS + REPEATS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        last.synchronize()
        if repeat >= WARMUPS:
            times.append(first.elapsed_time(last))
    median: float = statistics.median(times)
    return median / calls
