"""Compiles the kernels that an engine will launch before it launches them, in several processes.

In the first process on a machine, forty variants of the kernels would be compiled one after another, each at its first
launch. Here all of them are found by launching everything on meta tensors, from a model's sizes alone: neither its
weights nor transformers are needed. Child processes compile them into Triton's cache on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from triforce_chat.engine.cache.full import fading_mass
from triforce_chat.engine.cache.in_place import HALF_LIFE, slot_list
from triforce_chat.engine.cache.layout import Budget, Layout
from triforce_chat.engine.cache.quantization import BITS
from triforce_chat.engine.cache.quantized import QuantizedKV
from triforce_chat.engine.cache.quantized_copy import COPY_BITS, LATEST
from triforce_chat.engine.cache.query_ring import QueryRing
from triforce_chat.engine.cache.selection import MeanKey, select
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, KVPool, QuantizedGroups, WriteSlot
from triforce_chat.engine.cuda_graph import (
    SIZES,
    TREE_DEPTHS,
    TREE_SIZES,
    TREE_WIDTHS,
    USUAL,
    ForwardInputs,
    fitting,
)
from triforce_chat.engine.forward.fused import Decoder
from triforce_chat.engine.forward.graphs import ForwardGraphs
from triforce_chat.engine.forward.grouped_matrix import MOST_ROWS, GroupedMatrix
from triforce_chat.engine.forward.quantized import QuantizedEmbedding
from triforce_chat.engine.forward.sequences import SequencesGraph, SequencesGraphs
from triforce_chat.engine.forward.small_decoder import small_decoder
from triforce_chat.engine.group import SingleRank
from triforce_chat.engine.kernels import (
    Ancestors,
    Drawing,
    TreeRows,
    draw_children,
    draw_token,
    dry,
    keep_slots,
    search,
    walk,
)
from triforce_chat.engine.kernels.quantized_weight import WeightFormat
from triforce_chat.engine.tree import words_of

META = torch.device("meta")
MOST_WORKERS = 8  # processes that compile
TICKET = 2  # bytes of a launch's number
FED = 9  # most rows of a forward inside of a captured draft
LOOKUP_ORDERS = 8  # tokens of a match
LOOKED_UP = (
    8,
    16,
    63,
)  # tokens looked up by the middle level, by the top, and by that over streamed keys and values
ALIGNED = 16  # Triton compiles another variant for a number that this divides
EPSILON = 1e-6  # of norms; any other gives the same kernels


Formats = Mapping[
    str, WeightFormat
]  # of a block's matrices and of the ends that are quantized, by GGUF's names


class ModelSizes(Protocol):
    """What decides the shapes of a model's weights; one layer stands for all."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def mlp(self) -> int: ...
    @property
    def query_heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def qkv_bias(self) -> bool: ...
    @property
    def out_bias(self) -> bool: ...
    @property
    def mlp_bias(self) -> bool: ...
    @property
    def head_norms(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Kernels:
    """What decides which kernels a model will launch."""

    sizes: ModelSizes
    dtype: torch.dtype
    buffers: Sequence[int]  # capacities of its caches, in tokens; that of a target's full cache comes first
    # A target's budget of its retrieval cache. One that copies keys and values is the last buffer.
    retrieval: Budget | None = None
    lists: bool = False  # the retrieval cache of a single sequence lists slots of the first buffer
    int8: bool = False  # forwards over the retrieval cache may have 8-bit weights
    ranks: int = 1  # that share the model
    layers: Sequence[Formats] = ({},)  # of its blocks that differ in the formats of their matrices
    sequences: int = 1  # most of them whose forwards run together
    rows: int = USUAL  # of the largest forward that is captured, but for trees
    quantized_copy: bool = False  # forwards also read one of the full cache
    own: int = 0  # tokens of each after those in the first buffer that all share; 0: they share nothing
    trees: int = 0  # tokens of the largest token tree that it verifies; a draft model also draws them
    drawn: int = 0  # width of the logits that drafts are drawn from; 0: it is no draft model
    kv: torch.dtype | None = None  # the format of keys and values in a target's full cache, if another one


class DryRank(SingleRank):
    """One of several ranks, without the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def compile_all(models: Iterable[Kernels], capability: tuple[int, int], shared_memory: int) -> None:
    """Compile for GPUs of that compute capability, and wait; the models are taken one after another.

    ``shared_memory``: bytes of it that a program may have on them.
    """
    major, minor = capability
    known, children = set[Any](), list[int]()
    workers = max(1, min(MOST_WORKERS, (os.cpu_count() or 1) // 2))
    with dry.without_gpu(10 * major + minor, shared_memory):
        for model in models:
            found = dry.recorded(partial(launch, model))
            fresh = [found[key] for key in found if key not in known]  # in the order of their launches
            known |= found.keys()
            children += begun(fresh, workers)
    for child in children:
        os.waitpid(child, 0)


def begun(launches: Sequence[dry.Launch], workers: int) -> list[int]:
    """Begin to compile in child processes, each of which takes the next launch when it is done with one.

    Some take ten times as long as others. Returns the numbers of the processes.
    """
    taking, giving = os.pipe()
    os.write(giving, b"".join(at.to_bytes(TICKET) for at in range(len(launches))))
    os.close(giving)  # so that there is an end
    children = [forked(launches, taking) for _ in range(min(workers, len(launches)))]
    os.close(taking)
    return children


def forked(launches: Sequence[dry.Launch], tickets: int) -> int:
    """Compile in a child process what tickets say that are read from a pipe; returns its number.

    What cannot be compiled is left to its first launch, and the process goes on.
    """
    if child := os.fork():
        return child
    try:
        while ticket := os.read(tickets, TICKET):
            with suppress(Exception):
                launches[int.from_bytes(ticket)].compile()
    except BaseException:
        os._exit(1)
    os._exit(0)


def launch(kernels: Kernels) -> None:
    """Launch whatever the model's forwards, builds and lookups launch, on any rank; to be recorded."""
    for rank in range(min(kernels.ranks, 2)):  # all but the first are alike
        launch_on(kernels, DryRank(rank, kernels.ranks))


def launch_on(kernels: Kernels, group: DryRank) -> None:
    """Launch everything for one rank's share of a model."""
    shape = Shape(
        layers=1,
        query_heads=kernels.sizes.query_heads // group.size,
        kv_heads=kernels.sizes.kv_heads // group.size,
        head_dim=kernels.sizes.head_dim,
        dtype=kernels.dtype,
        device=META,
        kv=kernels.kv,
    )
    decoder = Decoder(meta_model(kernels.sizes, shape, group.size, kernels.layers), shape, group)
    for rows in (USUAL, USUAL + MOST_ROWS):  # of a prefill
        decoder(torch.zeros(rows, dtype=torch.long, device=META), torch.arange(rows, device=META), untouched)
    buffers = [KVBuffer(shape, capacity) for capacity in kernels.buffers]
    for at, buffer in enumerate(buffers):
        slot: WriteSlot | None = WriteSlot(buffer, 0)
        if at == 0 and shape.kv_format in BITS:
            slot = quantized(shape, buffer.capacity)
        assert slot
        forwards(decoder, slot._replace(queries=QueryRing(shape, USUAL)), kernels.rows)
        if kernels.trees:
            of_trees(decoder, buffer, kernels.sizes.vocabulary, kernels.trees)
    if kernels.quantized_copy:
        groups = QuantizedGroups(shape, buffers[0].capacity, COPY_BITS)
        forwards(decoder, WriteSlot(KVBuffer(shape, LATEST), 0, before=groups), kernels.rows)
    if kernels.sequences > 1 and group.size == 1:
        together(decoder, shape, buffers[0], kernels)
    if kernels.drawn:
        drafts(kernels, replace(shape, layers=2))
    if kernels.retrieval and kernels.lists:
        selected(decoder, shape, buffers[0], kernels)
    elif kernels.int8:
        forwards(decoder.quantized(), WriteSlot(buffers[-1], 0, QueryRing(shape, USUAL)))
        if kernels.trees:
            of_trees(decoder.quantized(), buffers[-1], kernels.sizes.vocabulary, kernels.trees)
    if kernels.retrieval:
        if len(buffers) > 1:
            builds(kernels.retrieval, shape, buffers[0], buffers[-1])
        ids = torch.zeros(1, buffers[0].capacity, dtype=torch.long, device=META)
        for n in LOOKED_UP:
            search(ids[0], torch.zeros((), dtype=torch.long, device=META), LOOKUP_ORDERS, n)


def quantized(shape: Shape, capacity: int) -> WriteSlot | None:
    """Where forwards write in a quantized full cache, whose codes prefills and builds turn into numbers."""
    storage = QuantizedKV(shape, capacity)
    for dtype in {shape.dtype, shape.kv_dtype}:
        storage.groups.first(0, capacity).all_heads(dtype)
    return storage.write_slot(0)


def meta_model(sizes: ModelSizes, shape: Shape, ranks: int, layers: Sequence[Formats] = ({},)) -> Any:
    """What ``Decoder`` reads of a model of transformers, or of one rank's share of it, without memory."""
    ends = layers[0]
    base = SimpleNamespace(
        embed_tokens=meta_embedding(sizes, shape, ranks, ends.get("token_embd")),
        rotary_emb=SimpleNamespace(
            inv_freq=torch.empty(shape.head_dim // 2, device=META), attention_scaling=1.0
        ),
        norm=meta_norm(sizes.hidden, shape),
        layers=[meta_layer(sizes, shape, ranks, formats) for formats in layers],
    )
    config = SimpleNamespace(vocab_size=sizes.vocabulary)
    size = sizes.vocabulary // ranks, sizes.hidden
    head = meta_linear(*size, shape, format=ends.get("output", ends.get("token_embd")))
    return SimpleNamespace(base_model=base, config=config, lm_head=head)


def meta_embedding(sizes: ModelSizes, shape: Shape, ranks: int, format: WeightFormat | None) -> Any:
    """A rank's token embedding as a meta tensor."""
    linear = meta_linear(sizes.vocabulary // ranks, sizes.hidden, shape, format=format)
    return linear if format is None else QuantizedEmbedding(linear.matrix)


def meta_linear(
    outputs: int, inputs: int, shape: Shape, bias: bool = False, format: WeightFormat | None = None
) -> Any:
    """A layer, quantized if there is a format."""
    added = torch.empty(outputs, dtype=shape.dtype, device=META) if bias else None
    if format is None:
        weight = torch.empty(outputs, inputs, dtype=shape.dtype, device=META)
        return SimpleNamespace(weight=weight, bias=added)
    return SimpleNamespace(matrix=GroupedMatrix(format.empty(outputs, inputs, META), shape.dtype), bias=added)


def meta_norm(width: int, shape: Shape) -> Any:
    """The parameters of an RMS norm."""
    weight = torch.empty(width, dtype=shape.dtype, device=META)
    return SimpleNamespace(weight=weight, variance_epsilon=EPSILON)


def meta_layer(sizes: ModelSizes, shape: Shape, ranks: int, formats: Formats) -> Any:
    """A decoder block."""
    queries, keys = shape.query_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    hidden, mlp = sizes.hidden, sizes.mlp // ranks

    def linear(role: str, outputs: int, inputs: int, bias: bool) -> Any:
        return meta_linear(outputs, inputs, shape, bias, formats.get(role))

    attention = SimpleNamespace(
        layer_idx=0,
        q_proj=linear("attn_q", queries, hidden, sizes.qkv_bias),
        k_proj=linear("attn_k", keys, hidden, sizes.qkv_bias),
        v_proj=linear("attn_v", keys, hidden, sizes.qkv_bias),
        o_proj=linear("attn_output", hidden, queries, sizes.out_bias),
    )
    if sizes.head_norms:
        attention.q_norm, attention.k_norm = (meta_norm(shape.head_dim, shape) for _ in range(2))
    neurons = SimpleNamespace(
        gate_proj=linear("ffn_gate", mlp, hidden, sizes.mlp_bias),
        up_proj=linear("ffn_up", mlp, hidden, sizes.mlp_bias),
        down_proj=linear("ffn_down", hidden, mlp, sizes.mlp_bias),
    )
    return SimpleNamespace(
        self_attn=attention,
        mlp=neurons,
        input_layernorm=meta_norm(hidden, shape),
        post_attention_layernorm=meta_norm(hidden, shape),
    )


def untouched(layer: int, q: Any, *_: Any) -> Any:  # noqa: ARG001
    """Attention of a prefill, which is torch's."""
    return q


def selected(decoder: Decoder, shape: Shape, buffer: KVBuffer, kernels: Kernels) -> None:
    """Forwards that select what a retrieval cache lists, and those that read by its lists."""
    budget = kernels.retrieval
    assert budget
    mass = fading_mass(shape, buffer.capacity, budget.chunk, HALF_LIFE)
    forwards(decoder, WriteSlot(buffer, 0, QueryRing(shape, USUAL), mass=mass), kernels.rows)
    listed = slot_list(shape, budget)
    for each in (decoder, decoder.quantized()) if kernels.int8 else (decoder,):
        forwards(each, WriteSlot(buffer, 0, QueryRing(shape, USUAL), listed=listed))


def forwards(decoder: Decoder, slot: WriteSlot, most: int = USUAL) -> None:
    """Captured forwards of all sizes up to ``most`` rows, and those inside of captured drafts."""
    forward = ForwardGraphs(decoder, META).forward(slot)
    # The captured sizes, and inside of captured drafts whatever feeds the tokens of the last one again.
    for rows in sorted({*range(1, FED + 1), *(size for size in SIZES if size <= most)}):
        ids, at, counted = (torch.zeros(size, dtype=torch.long, device=META) for size in (rows, 3, 1))
        first, position, read = at.split(1)
        steps = torch.arange(rows, device=META)
        forward(ForwardInputs(ids, first, position, steps, read=read, counted=counted))


def drafts(kernels: Kernels, shape: Shape) -> None:
    """What only captured drafts launch: a small model's forwards, whose first block reads embeddings, and draws."""
    decoder = Decoder(meta_model(kernels.sizes, shape, 1, [*kernels.layers[:1]] * 2), shape)
    if small := small_decoder(decoder, KVBuffer(shape, kernels.buffers[0])):
        place = torch.zeros(2, dtype=torch.long, device=META)
        for rows in range(1, FED + 1):
            small(torch.zeros(rows, dtype=torch.long, device=META), place, 0)
        for rows in (each for each in TREE_WIDTHS if kernels.trees and each <= small.most):
            ids = torch.zeros(rows, dtype=torch.long, device=META)
            small(ids, place, 0, None, TreeRows(ids[:, None], 0, 1))
    kinds = kernels.dtype, torch.int16, torch.float32
    logits, since, probs = (torch.empty(1, kernels.drawn, dtype=kind, device=META) for kind in kinds)
    tokens, numbers = (torch.empty(1, 1, dtype=kind, device=META) for kind in (torch.long, torch.float64))
    for temperature, written in product((0.0, 1.0), (None, since)):
        how = Drawing(temperature, numbers, since=written)
        draw_token(logits, how, 0, tokens, probs[:, None])
        for independent in (False, True) if kernels.trees else ():
            links = torch.zeros(1, 2, 2, dtype=torch.long, device=META)
            draw_children(logits[None], how, links, links, tokens, 0, tokens, probs[None], independent)


def largest_graph(most: int) -> int:
    """Rows of the largest graph that verifies trees of up to so many tokens."""
    return fitting(most + 1, TREE_SIZES) or TREE_SIZES[-1]


def compiled_words(bits: int) -> int:
    """Words of masks of so many bits as far as they tell kernels apart: more than two are no other kernels."""
    return min(2, words_of(bits))


def tree_levels(most: int) -> list[tuple[int, int]]:
    """Rows of a level that is drafted, and words of their masks, in trees of up to so many tokens."""
    widths = [rows for rows in TREE_WIDTHS if rows <= largest_graph(most)]
    return [(rows, words) for rows in widths for words in range(1, compiled_words(most) + 1)]


def of_trees(decoder: Decoder, buffer: KVBuffer, vocabulary: int, most: int) -> None:
    """Captured forwards of trees of up to so many tokens, and what draws, judges and keeps their tokens."""
    forward = ForwardGraphs(decoder, META).forward(WriteSlot(buffer, 0))
    at = torch.zeros(2, dtype=torch.long, device=META)
    largest = largest_graph(most)
    verified = {(rows, compiled_words(rows - 1)) for rows in TREE_SIZES if rows <= largest}
    for rows, words in sorted(verified | set(tree_levels(most))):
        ids, masks = (torch.zeros(size, dtype=torch.long, device=META) for size in ((rows,), (rows, words)))
        forward(ForwardInputs(ids, at[:1], at[1:], ids, masks=masks, origin=at[:1]))
    n = largest - 1
    ids, links = (torch.zeros(1, *size, dtype=torch.long, device=META) for size in ((n,), (2, n + 1)))
    dists, target = (torch.empty(1, rows, vocabulary, device=META) for rows in (n, n + 1))
    numbers = torch.empty(1, n, dtype=torch.float64, device=META)
    for independent in (False, True):
        # What filters leave.
        how = Drawing(1.0, numbers)
        draw_children(dists, how, links, links, ids, 0, ids, dists, independent, dists)
    for tests in (None, dists[..., 0]):
        walk(ids, dists, target, tests, links)
    keep_slots(buffer.keys, buffer.values, at, ids[0])


def together(decoder: Decoder, shape: Shape, buffer: KVBuffer, kernels: Kernels) -> None:
    """Captured forwards of several sequences, and where they share nothing those inside of captured drafts."""
    graphs = SequencesGraphs(decoder)
    pool = KVPool(shape, kernels.sequences, kernels.own or buffer.capacity)
    chains = [(size, False) for size in SIZES if size <= USUAL]
    largest = largest_graph(kernels.trees) if kernels.trees else 0
    trees = [(size, True) for size in TREE_SIZES if size <= largest]
    for most, branching in [*chains, *trees]:
        for prefix in [None, buffer] if kernels.own else [None]:
            SequencesGraph(decoder, pool, prefix, most, True, branching, graphs.memory).work()
    if not kernels.own:
        loops(graphs, pool, kernels.trees)


def loops(graphs: SequencesGraphs, pool: KVPool, most: int) -> None:
    """Forwards inside of captured drafts of several sequences, of trees of up to ``most`` tokens."""
    at, used = (torch.zeros(count, dtype=torch.long, device=META) for count in (pool.count, 1))
    for rows in sorted({*range(1, FED + 1), *(depth + 1 for depth in TREE_DEPTHS if depth <= most)}):
        ids = torch.zeros(rows * pool.count, dtype=torch.long, device=META)
        graphs.loop(pool)(ids, at, at, at, used)
    for rows, words in tree_levels(most) if most else ():
        size = rows * pool.count
        ids, masks = (torch.zeros(each, dtype=torch.long, device=META) for each in ((size,), (size, words)))
        graphs.loop(pool)(ids, at, at, at, used, Ancestors(masks, at))


def builds(budget: Budget, shape: Shape, full: KVBuffer, small: KVBuffer) -> None:
    """Builds of a retrieval cache, which select from numbers of tokens that ``ALIGNED`` divides, and from others."""
    queries = QueryRing(shape, budget.queries).data
    for total in range(2 * budget.tokens, 2 * budget.tokens + ALIGNED, budget.chunk):
        if total > full.capacity:
            return
        layout = Layout.of(total, budget)
        chosen = select(MeanKey(), queries, layout.candidates(full.keys), layout.chunks)
        layout.gather(full.keys, chosen, small.keys)
