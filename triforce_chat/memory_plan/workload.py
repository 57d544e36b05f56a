"""The memory that a run takes, in bytes: each quantity is a formula over the model's dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from triforce_chat.memory_plan.dimensions import Dimensions

if TYPE_CHECKING:
    from triforce_chat.models.stored_format import StoredWeights

FP32, INT64 = 4, 8  # bytes
STREAMS = 3  # tensors of the residual stream's size that live throughout a layer
ROTATED = 5  # tensors of the queries' size that live while RoPE is applied
LOGIT_ROWS = 64  # the most tokens of one forward whose logits are used, but for trees
TREE_COPIES = (
    4  # rows of logits and distributions for each token of a tree: in its draft and its verification
)


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """The engine's memory layout; sizes in tokens."""

    grain: int  # the number of slots is a multiple of this
    slack: int  # slots of the full cache beyond the context, but for large trees
    queries: int  # latest queries that the full cache keeps
    newest: int  # tokens that it keeps unquantized beside quantized ones
    prefill: int  # tokens of one prefill chunk
    buffers: int  # layers of KV, or of weights, on the device while others of them are in host memory
    score_rows: (
        int  # rows of attention scores, each as long as the context, held at once; 0 with a flash kernel
    )
    graph_rows: int  # rows of logits and distributions that CUDA graphs keep
    repeats: bool  # a GPU's attention repeats keys and values for the heads that share them
    copied_kv: bool  # attention first copies a layer's keys and values into another layout
    packed: bool  # linear layers are copied into another layout, and so is the output matrix if it is tied

    def slots(self, tokens: int) -> int:
        return -(-tokens // self.grain) * self.grain


@dataclass(frozen=True, slots=True)
class SmallCaches:
    """The caches besides the full one; sizes in tokens."""

    budget: int = 0  # tokens that the retrieval cache selects
    retrieval: int = 0  # slots of the retrieval caches
    in_place: bool = False  # they list slots of a full cache that is on the device
    chunk: int = 8  # tokens that are selected together
    queries: int = 16  # latest queries, which select the chunks
    streaming: int = 0  # slots of all the draft's streaming caches
    latest: int = 0  # slots of a quantized copy of the full cache for tokens as they are


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, its draft and a context length, as each of ``gpus`` GPUs holds them (a CPU counts as one)."""

    target: Dimensions
    draft: Dimensions | None
    context: int  # tokens
    itemsize: int  # bytes of a number, in weights, activations and the draft's caches
    layout: EngineLayout
    caches: SmallCaches
    gpus: int = 1
    head: bool = False  # the draft reads the target's state
    stored: StoredWeights | None = None  # of the target, if they stay as they are in its GGUF file
    stored_draft: StoredWeights | None = None  # the same of the draft
    kv_itemsize: int | None = None  # bytes of a number of the target's keys and values, if another one
    # Bytes of one KV head for ``grain`` tokens of the full cache, if quantized.
    quantized_kv: int | None = None
    quantized_copy: int = 0  # the same of a quantized copy beside the full cache
    gpu_layers: int | None = None  # of the target, whose weights stay on the GPU; None: all
    streamable: bool = False  # where they do not fit, weights may be in host memory
    middle: str = (
        "full"  # weights of a level of the target's below it: "int8", or "auto" for that where there is room
    )
    trees: tuple[int, int] = (
        0,
        0,
    )  # tokens of the largest one that is drafted, and of that where weights are streamed
    beyond: tuple[int, int] = (0, 0)  # slots of the full cache that these need, beside its slack

    @property
    def weights(self) -> int:
        """The target's weights on the device: of streamed layers as many as there are buffers."""
        whole = self.stored.bytes if self.stored else self._weights(self.target, self.gpus)
        streamed = self._streamed
        # Of mixed formats layers differ, and each buffer has room for the largest.
        return whole - sum(streamed) + sum(max(streamed) for _ in streamed[: self.layout.buffers])

    @property
    def int8_copies(self) -> int:
        """8-bit copies of the weights that every step reads, for a level below the target: a byte for each number.

        There are none beside quantized weights, which the level uses itself, or where weights are streamed.
        """
        if self.middle == "full" or self.stored or self.streamed_layers:
            return 0
        return (self.target.layers * self.target.matrices + self.target.embedding) // self.gpus

    @property
    def streamed_layers(self) -> int:
        """Layers of the target whose weights are in host memory."""
        return 0 if self.gpu_layers is None else max(0, self.target.layers - self.gpu_layers)

    @property
    def layer_weights(self) -> tuple[int, ...]:
        """What of the weights of each layer may be in host memory: its matrices, as they are stored."""
        if self.stored:
            return self.stored.blocks
        return (self.target.matrices * self.itemsize,) * self.target.layers

    @property
    def streamed_weights(self) -> int:
        """Weights in pinned host memory, which cross the bus in every forward."""
        return sum(self._streamed)

    @property
    def slack(self) -> int:
        """Slots of the full cache beyond the context."""
        return self.layout.slack + self.beyond[self.streamed_layers > 0]

    @property
    def _streamed(self) -> tuple[int, ...]:
        """Those of each layer that has its weights there."""
        return self.layer_weights[self.target.layers - self.streamed_layers :]

    @property
    def weight_format(self) -> str:
        """The format in which the weights are kept, in words."""
        return self.stored.format if self.stored else f"{8 * self.itemsize} bits"

    @property
    def layer_kv(self) -> int:
        """Keys and values of one layer for the whole context."""
        slots = self.layout.slots(self.context + self.slack)
        if self.quantized_kv:
            quantized = slots // self.layout.grain * self.target.kv_heads * self.quantized_kv
            return quantized + self._kv(self.layout.newest)
        return self._kv(slots) // self.gpus

    @property
    def token_kv(self) -> int:
        """Keys and values of one token in one layer."""
        return self._kv(1) // self.gpus

    @property
    def copy(self) -> int:
        """A quantized copy of the full cache, in all layers."""
        slots = self.layout.slots(self.context + self.slack)
        quantized = slots // self.layout.grain * self.target.kv_heads * self.quantized_copy
        return self.target.layers * (quantized + self._kv(self.caches.latest)) // self.gpus

    @property
    def latest_queries(self) -> int:
        """The queries that the full cache keeps, over all layers."""
        share = self.target.queries // self.gpus
        return self.target.layers * share * self.layout.queries * self.itemsize

    @property
    def retrieval(self) -> int:
        """The retrieval cache, and the tensors that build it.

        It is built layer by layer from a mean of every chunk's keys (two bounds with another policy), and for each
        selecting query from a logit per chunk, which softmax turns into a weight in fp32. There is none where weights
        are streamed: a level below the target would have to wait for them as well.
        """
        if not self.caches.retrieval or self.streamed_layers:
            return 0
        target, chunks = self.target, self.context // self.caches.chunk
        slots = target.layers * self._kv(self.layout.slots(self.caches.retrieval))
        summary = 2 * target.keys * chunks * self.itemsize
        scores = target.query_heads * self.caches.queries * chunks * (self.itemsize + 2 * FP32)
        return (slots + summary + scores) // self.gpus

    @property
    def lists(self) -> int:
        """A retrieval cache of lists, and the tensors that weigh the chunks and choose among them.

        Each layer and KV head has a list, what was paid to every chunk, and for a while a copy of that, of which the
        highest are sorted. A forward keeps what each of its rows pays to a chunk of one layer in 16 bits.
        """
        if not self.caches.retrieval or self.streamed_layers:
            return 0
        target, chunks = self.target, self.context // self.caches.chunk
        heads = target.layers * target.kv_heads
        lists = heads * self.layout.slots(self.caches.retrieval) * (FP32 + INT64)
        paid = heads * chunks * 2 * FP32
        rows = LOGIT_ROWS * target.query_heads * chunks * FP32
        return (lists + paid + rows) // self.gpus

    @property
    def draft_caches(self) -> int:
        """The draft's streaming caches."""
        if self.draft is None:
            return 0
        return self.draft.layers * 2 * self.draft.keys * self.caches.streaming * self.itemsize

    @property
    def draft_bytes(self) -> int:
        """The draft's weights and streaming caches, which every GPU holds whole."""
        if self.draft is None:
            return 0
        reader = self.head * self.draft.hidden * self.target.hidden * self.itemsize
        weights = self.stored_draft.bytes if self.stored_draft else self._weights(self.draft, 1)
        return weights + reader + self.draft_caches

    @property
    def prefill(self) -> int:
        """Tokens of one prefill chunk."""
        return min(self.layout.prefill, self.context)

    @property
    def activations(self) -> int:
        """The largest tensors that live at once in a forward: of a prefill chunk, or of the logits.

        A chunk of n tokens keeps its residual stream and the input and output of a block. In addition, one after the
        other and never together, there are: the fp32 copies of a norm; queries, keys and values while RoPE is
        applied; the tensors of attention; gate, up projection and their product in the MLP. Logits are kept for few
        tokens, each with two fp32 tensors of probabilities and an index. The buffers from which a GPU's graphs sample
        and verify stay, too; those of a tree are as many rows as it has tokens.
        """
        d, n, size = self.target, self.prefill, self.itemsize
        queries, keys, mlp = (part // self.gpus for part in (d.queries, d.keys, d.mlp))
        norm = 3 * FP32 * d.hidden
        rotary = size * (ROTATED * queries + 2 * keys)
        attention = size * (3 * queries + 2 * keys)
        layer = max(n * norm, n * rotary, n * attention + self._attention, n * 3 * mlp * size)
        chunk = STREAMS * n * d.hidden * size + layer + self._mask
        rows = self.layout.graph_rows + TREE_COPIES * self.trees[self.streamed_layers > 0]
        kept = rows * d.vocabulary * (size + 2 * FP32)
        return max(chunk, LOGIT_ROWS * d.vocabulary * (size + 2 * FP32 + INT64)) + kept

    @property
    def _attention(self) -> int:
        """The tensors that attention over the whole context writes.

        A GPU's kernels write no scores. Where they do not support grouped heads, each KV head is repeated for its
        queries. Others read the keys in blocks, whose results are merged in fp32. Keys and values that are kept in
        another dtype are converted for a chunk.
        """
        slots, d = self.layout.slots(self.context + self.slack), self.target
        if self.layout.score_rows:
            copied = self.layout.copied_kv * self._kv(slots)
            # Of one head at a time, keys and values that are kept in another dtype are converted.
            copied += self.converts * 2 * slots * (d.keys // d.kv_heads) * self.itemsize
            return self.layout.score_rows * slots * self.itemsize + copied
        repeats = self.layout.repeats and d.query_heads > d.kv_heads
        blocks = self.prefill * (FP32 + self.itemsize) * d.queries
        copies = 2 * slots * self.itemsize * (repeats * d.queries + self.converts * d.keys)
        return (copies + blocks) // self.gpus

    @property
    def _mask(self) -> int:
        """The causal mask of a chunk, a row for every query of a group; a GPU's kernels need none."""
        group = self.target.query_heads // self.target.kv_heads
        return group * self.prefill**2 * self.itemsize if self.layout.score_rows else 0

    def _weights(self, model: Dimensions, gpus: int) -> int:
        copied = model.embedding if self.layout.packed and model.tied else 0
        return (model.parameters(gpus) + copied) * self.itemsize

    @property
    def converts(self) -> bool:
        """Keys and values are kept in another dtype than they are computed in."""
        return self.quantized_kv is not None or self.kv_itemsize not in (None, self.itemsize)

    def _kv(self, slots: int) -> int:
        """Keys and values of one layer of the target where they are not quantized, not divided among GPUs."""
        return 2 * self.target.keys * slots * (self.kv_itemsize or self.itemsize)
