"""Draws up what is to be planned: from models, settings and this machine to bare numbers."""

from __future__ import annotations

import dataclasses

import torch

from triforce_chat.engine.cache.full import QUERY_WINDOW
from triforce_chat.engine.cache.offload import BUFFERS
from triforce_chat.engine.cache.storage import GRAIN
from triforce_chat.engine.cache.streaming import HOP, SINKS, WINDOW
from triforce_chat.engine.engine import SLACK
from triforce_chat.engine.forward import onednn
from triforce_chat.engine.group import RankGroup
from triforce_chat.engine.prefix_cache import GPU_PREFILL_CHUNK, PREFILL_CHUNK
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.engine.speculation.stacks import MOST_DRAFT_GAMMA, MOST_GAMMA, StackOptions
from triforce_chat.errors import ModelError, UsageError
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.plan import Memory
from triforce_chat.memory_plan.work import Layout, Stack, Work
from triforce_chat.models.describe import Description, describe
from triforce_chat.models.memory import free_bytes

CPU, GPU = torch.device("cpu"), torch.device("cuda")
Machine = tuple[torch.device, torch.dtype, Memory]  # the numbers are in that dtype
LONGEST = MOST_GAMMA + MOST_DRAFT_GAMMA  # tokens of a draft, made by whole rounds of a middle level
UNBOUNDED = 1 << 62  # bytes; what nobody knows the end of
SCORES = 2  # tensors of scores that oneDNN's attention writes: as they are, and after softmax


def work_of(
    target: Description,
    draft: Description | None,
    context: int,
    stack: StackOptions,
    device: torch.device,
    dtype: torch.dtype,
    gpus: int = 1,
) -> Work:
    """What a run holds in memory. Raises UsageError if the target cannot be divided among the GPUs."""
    own = Dimensions.of(target.fields)
    if not own.divides_among(gpus):
        raise UsageError(
            f"{target.name} has {own.query_heads} query heads, {own.kv_heads} KV heads, {own.mlp:,} neurons and "
            f"{own.vocabulary:,} tokens of vocabulary, which {gpus} GPUs cannot share; "
            f"--tp takes {', '.join(str(n) for n in range(1, own.kv_heads + 1) if own.divides_among(n))}"
        )
    return Work(
        target=own,
        draft=Dimensions.of(draft.fields) if draft else None,
        context=context,
        itemsize=dtype.itemsize,
        layout=layout_of(own, device, dtype, gpus),
        stack=caches_of(stack),
        gpus=gpus,
    )


def layout_of(target: Dimensions, device: torch.device, dtype: torch.dtype, gpus: int = 1) -> Layout:
    """How the engine lays a model out there."""
    packed, on_cpu = onednn.available(device, dtype), device.type == "cpu"
    masked = (
        PREFILL_CHUNK * target.query_heads // target.kv_heads
    )  # torch's kernel wants a mask for every row
    return Layout(
        grain=GRAIN,
        slack=SLACK,
        queries=QUERY_WINDOW,
        buffers=BUFFERS,
        prefill=PREFILL_CHUNK if on_cpu else GPU_PREFILL_CHUNK,
        score_rows=SCORES * onednn.BLOCK_ROWS if packed else masked if on_cpu else 0,
        # For each length of a draft as many, and one more.
        kept_rows=0 if on_cpu else sum(range(LONGEST + 2)),
        # torch's kernel does where the processor multiplies 16-bit tiles.
        copied_kv=on_cpu and dtype.itemsize == 2 and torch.cpu._is_amx_tile_supported(),
        packed=packed and gpus == 1,  # as the runner does
    )


def caches_of(stack: StackOptions) -> Stack:
    spec, budget = STACKS[stack.name], stack.budget
    return Stack(
        budget=budget.tokens,
        retrieval=spec.retrieval_caches * budget.capacity,
        chunk=budget.chunk,
        queries=budget.queries,
        streaming=spec.draft_caches * (SINKS + WINDOW + HOP),
    )


def memory_of(device: torch.device, gpus: int = 1, own: int | None = None, host: int | None = None) -> Memory:
    """The device's ``own`` memory and that of the host, in bytes; what is not given is what is free here."""
    main = host or free_bytes(CPU)
    if device.type == "cpu":
        share = None if main is None else main // gpus
        return Memory(share, share, is_host=True)
    return Memory(own or free_bytes(device), main)


def agreed(own: Memory, group: RankGroup) -> Memory:
    """What every rank has: they read their caches in step, so they have to lay them out alike."""

    def least(size: int | None) -> int | None:
        known = group.all_reduce_min(UNBOUNDED if size is None else size)
        return None if known == UNBOUNDED else known

    return dataclasses.replace(own, device=least(own.device), host=least(own.host))


def draft_described(name: str | None) -> Description | None:
    """The draft as far as it can be known without fetching it."""
    try:
        return describe(name) if name else None
    except ModelError:  # loading it says why, and whether that matters
        return None
