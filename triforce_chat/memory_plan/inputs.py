"""Collects the numbers for a memory plan from models, settings and this machine."""

from __future__ import annotations

import dataclasses

import torch

from triforce_chat.engine.cache.allocation import GRAIN
from triforce_chat.engine.cache.chunk_mass import weighable
from triforce_chat.engine.cache.full import QUERY_WINDOW
from triforce_chat.engine.cache.offload import BUFFERS
from triforce_chat.engine.cache.quantization import BITS, bytes_of
from triforce_chat.engine.cache.quantized import NEWEST
from triforce_chat.engine.cache.quantized_copy import COPY_BITS, LATEST
from triforce_chat.engine.cuda_graph import SIZES, fitting
from triforce_chat.engine.engine import PLAIN, SLACK
from triforce_chat.engine.forward import onednn, prefill_attention
from triforce_chat.engine.gathered import rows_each
from triforce_chat.engine.group import RankGroup
from triforce_chat.engine.prefix_cache import GPU_PREFILL_CHUNK, PREFILL_CHUNK
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.engine.speculation.stacks import (
    IN_PLACE,
    MOST_DRAFT_GAMMA,
    MOST_GAMMA,
    StackOptions,
    retrieval_budget,
)
from triforce_chat.errors import ModelError, UsageError
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.plan import Memory
from triforce_chat.memory_plan.workload import EngineLayout, SmallCaches, Workload
from triforce_chat.models.describe import Description, describe
from triforce_chat.models.draft_head import is_built_on_target
from triforce_chat.models.memory import free_bytes

CPU, GPU = torch.device("cpu"), torch.device("cuda")
Machine = tuple[torch.device, torch.dtype, Memory]  # dtype of weights and KV
MAX_DRAFT = MOST_GAMMA + MOST_DRAFT_GAMMA  # tokens; a middle level adds whole rounds
UNKNOWN = 1 << 62  # stands for an unknown number of bytes in a reduction over ranks
SCORES = 2  # tensors of scores that oneDNN's attention writes: before and after softmax


def workload_of(
    target: Description,
    draft: Description | None,
    context: int,
    stack: StackOptions,
    device: torch.device,
    dtype: torch.dtype,
    gpus: int = 1,
    kv: torch.dtype | None = None,
) -> Workload:
    """The workload of a run; ``kv``: the format of keys and values, if another one.

    Raises UsageError if the target cannot be divided among the GPUs.
    """
    own, copies = Dimensions.of(target.fields), STACKS[stack.name].quantized_copies
    if not own.divides_among(gpus):
        raise UsageError(
            f"{target.name} has {own.query_heads} query heads, {own.kv_heads} KV heads, {own.mlp:,} neurons and "
            f"{own.vocabulary:,} tokens of vocabulary, which {gpus} GPUs cannot share; "
            f"--tp takes {', '.join(str(n) for n in range(1, own.kv_heads + 1) if own.divides_among(n))}"
        )
    return Workload(
        target=own,
        draft=Dimensions.of(draft.fields) if draft else None,
        context=context,
        itemsize=dtype.itemsize,
        layout=engine_layout(own, device, dtype, gpus),
        caches=small_caches(stack, selects_in_place(stack, device, kv)),
        gpus=gpus,
        head=draft is not None and draft.source is not None and is_built_on_target(draft.source.folder),
        stored=target.stored,
        stored_draft=draft.stored if draft else None,
        kv_itemsize=(2 if kv in BITS else kv.itemsize) if kv and kv != dtype else None,
        quantized_kv=bytes_of(GRAIN, own.keys // own.kv_heads, BITS[kv]) if kv in BITS else None,
        middle=stack.middle if copies_weights(stack, device, dtype) else "full",
        trees=largest_trees(stack),
        beyond=beyond(stack),
        quantized_copy=copies * bytes_of(GRAIN, own.keys // own.kv_heads, COPY_BITS),
    )


def largest_trees(stack: StackOptions) -> tuple[int, int]:
    """Tokens of the largest tree that a stack drafts, and of the largest one where weights are streamed."""
    drafts = STACKS[stack.name].draft_caches > 0
    either = (stack, stack.streaming(weights=True, keys=False))
    usual, streamed = (each.tree.most if drafts and each.tree else 0 for each in either)
    return usual, streamed


def beyond(stack: StackOptions) -> tuple[int, int]:
    """Slots of the full cache that a stack's trees need beside its slack, and where weights are streamed."""
    return stack.beyond, stack.streaming(weights=True, keys=False).beyond


def engine_layout(
    target: Dimensions, device: torch.device, dtype: torch.dtype, gpus: int = 1
) -> EngineLayout:
    """The engine's memory layout for this model on a device."""
    packed, on_cpu = onednn.available(device, dtype), device.type == "cpu"
    # torch's CPU kernel takes a mask with a row for every query of a group.
    masked = PREFILL_CHUNK * target.query_heads // target.kv_heads
    return EngineLayout(
        grain=GRAIN,
        slack=SLACK,
        queries=QUERY_WINDOW,
        newest=NEWEST,
        buffers=BUFFERS,
        prefill=PREFILL_CHUNK if on_cpu else GPU_PREFILL_CHUNK,
        score_rows=SCORES * onednn.BLOCK_ROWS if packed else masked if on_cpu else 0,
        # As if there were one graph per draft length n, with n + 1 rows: there are fewer, but a draft model's take the
        # rest, as measured peaks say.
        graph_rows=0 if on_cpu else sum(range(MAX_DRAFT + 2)),
        repeats=not on_cpu and repeats_heads(target.head_dim, dtype),
        # torch's kernel copies them if the processor has AMX.
        copied_kv=on_cpu and dtype.itemsize == 2 and torch.cpu._is_amx_tile_supported(),
        packed=packed and gpus == 1,  # the runner packs only whole models
    )


def repeats_heads(dim: int, dtype: torch.dtype) -> bool:
    """Whether the attention of many tokens on a GPU copies keys for every head that shares them."""
    old = torch.cuda.is_available() and torch.cuda.get_device_capability() < prefill_attention.AMPERE
    return old or not prefill_attention.flash_takes(dtype, dim)


def copies_weights(stack: StackOptions, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a stack has a level below the target that can run on 8-bit copies of its weights."""
    return STACKS[stack.name].retrieval_caches > 0 and device.type != "cpu" and dtype == torch.bfloat16


def selects_in_place(stack: StackOptions, device: torch.device, kv: torch.dtype | None) -> bool:
    """Whether a stack's retrieval cache copies nothing of a full cache that is on the device."""
    weighs = device.type == "cpu" or weighable(stack.budget.chunk)
    return stack.policy in IN_PLACE and kv not in BITS and weighs and not stack.streams


def small_caches(stack: StackOptions, in_place: bool) -> SmallCaches:
    """The sizes of a stack's retrieval and streaming caches."""
    spec, budget = STACKS[stack.name], retrieval_budget(stack)
    window = stack.streaming(
        weights=True, keys=False
    ).window  # with room for the largest tree, whatever streams
    return SmallCaches(
        budget=budget.tokens,
        retrieval=spec.retrieval_caches * budget.capacity,
        in_place=in_place,
        chunk=budget.chunk,
        queries=budget.queries,
        streaming=spec.draft_caches * window,
        latest=spec.quantized_copies * LATEST,
    )


def of_several(workload: Workload, stack: StackOptions, sequences: int, apart: bool) -> Workload:
    """A workload as so many sequences at once have it; ``apart``: they share no documents.

    ``auto`` drafts as ``naive`` does there, without a middle level, and the rows of a verification are divided among
    their trees, which are verified together.
    """
    alike = dataclasses.replace(stack, name="naive") if stack.name == StackOptions().name else stack
    own, rows = alike.beside(sequences), rows_each(sequences, apart)
    usual, streamed = (sequences * min(rows - 1, each) for each in largest_trees(own))
    caches, layout = small_caches(own, in_place=False), workload.layout
    if layout.graph_rows:
        chains = sequences * chain_rows(own, rows, drafts=workload.draft is not None)
        layout = dataclasses.replace(layout, graph_rows=max(layout.graph_rows, chains))
    trees = usual, streamed
    return dataclasses.replace(workload, layout=layout, caches=caches, trees=trees, beyond=beyond(own))


def chain_rows(stack: StackOptions, most: int, drafts: bool) -> int:
    """Rows of the graphs that verify chains of one sequence beside others, which has up to ``most`` in each.

    There is a graph for each size. ``drafts``: there is a draft model.
    """
    spec = STACKS[stack.name]
    plain = stack.name == PLAIN.name or (spec.needs_draft and not drafts)
    drafted = 0 if plain else min(stack.gamma or MOST_GAMMA, most - 1)
    # A middle level drafts whole rounds.
    surplus = MOST_DRAFT_GAMMA // 2 if spec.retrieval_caches else 0
    longest = 1 + drafted + surplus
    return sum(size for size in SIZES if size <= (fitting(longest) or longest))


def available_memory(
    device: torch.device, gpus: int = 1, own: int | None = None, host: int | None = None
) -> Memory:
    """The device's ``own`` memory and the host's, in bytes; by default what is free on this machine."""
    main = host or free_bytes(CPU)
    if device.type == "cpu":
        share = None if main is None else main // gpus
        return Memory(share, share, is_host=True)
    return Memory(own or free_bytes(device), main)


def smallest_memory(own: Memory, group: RankGroup) -> Memory:
    """The least memory of any rank. All ranks must place their caches alike, because they run in step."""

    def least(size: int | None) -> int | None:
        known = group.all_reduce_min(UNKNOWN if size is None else size)
        return None if known == UNKNOWN else known

    return dataclasses.replace(own, device=least(own.device), host=least(own.host))


def describe_draft(name: str | None) -> Description | None:
    """The draft's description; None if there is no draft or it cannot be described before it is fetched."""
    try:
        return describe(name) if name else None
    except ModelError:  # loading it will report the error
        return None
