"""What a run holds in memory, in bytes: every line is a formula over the model's dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from triforce_chat.memory_plan.dimensions import Dimensions

FP32, INT64 = 4, 8  # bytes
STREAMS = 3  # tensors of the residual stream's size that live throughout a layer
ROTATED = 5  # tensors of the queries' size that live while RoPE turns them
LOGIT_ROWS = 64  # most tokens of one forward whose logits are looked at


@dataclass(frozen=True, slots=True)
class Layout:
    """How the engine lays its memory out; sizes in tokens."""

    grain: int  # slots come in multiples of this
    slack: int  # slots of the full cache behind the context
    queries: int  # latest ones that the full cache keeps
    prefill: int  # of one chunk of the prefill
    buffers: int  # layers of KV on the device while KV lies in host memory
    score_rows: int  # as long as the context that attention writes out at a time; 0 with a flash kernel
    kept_rows: int  # of logits and distributions that graphs keep
    copied_kv: bool  # attention copies a layer's keys and values into another layout first
    packed: bool  # linear layers are copied into another layout, the output matrix too where it is tied

    def slots(self, tokens: int) -> int:
        return -(-tokens // self.grain) * self.grain


@dataclass(frozen=True, slots=True)
class Stack:
    """The caches beside the full one; sizes in tokens."""

    budget: int = 0  # tokens that the retrieval cache keeps
    retrieval: int = 0  # slots of it
    chunk: int = 8  # tokens that are selected together
    queries: int = 16  # latest ones that choose
    streaming: int = 0  # slots of all the draft's caches


@dataclass(frozen=True, slots=True)
class Work:
    """A model, its draft and a context, as each of ``gpus`` holds them (a CPU counts as one)."""

    target: Dimensions
    draft: Dimensions | None
    context: int  # tokens
    itemsize: int  # bytes of a number, in weights and caches alike
    layout: Layout
    stack: Stack
    gpus: int = 1

    @property
    def weights(self) -> int:
        return self._weights(self.target, self.gpus)

    @property
    def layer_kv(self) -> int:
        """Keys and values of one layer at full length."""
        return self._kv(self.target, self.layout.slots(self.context + self.layout.slack)) // self.gpus

    @property
    def latest_queries(self) -> int:
        """The queries that the full cache keeps, of all layers."""
        share = self.target.queries // self.gpus
        return self.target.layers * share * self.layout.queries * self.itemsize

    @property
    def retrieval(self) -> int:
        """The retrieval cache, and what its making takes.

        It is made layer by layer: a mean of every chunk's keys (two bounds with another policy), and for each
        query that chooses a logit of every chunk, which softmax turns into a weight in fp32.
        """
        if not self.stack.retrieval:
            return 0
        target, chunks = self.target, self.context // self.stack.chunk
        slots = target.layers * self._kv(target, self.layout.slots(self.stack.retrieval))
        summary = 2 * target.keys * chunks * self.itemsize
        scores = target.query_heads * self.stack.queries * chunks * (self.itemsize + 2 * FP32)
        return (slots + summary + scores) // self.gpus

    @property
    def draft_bytes(self) -> int:
        """The draft's weights and its streaming caches; every GPU has all of it."""
        if self.draft is None:
            return 0
        caches = self.draft.layers * self._kv(self.draft, self.stack.streaming)
        return self._weights(self.draft, 1) + caches

    @property
    def prefill(self) -> int:
        """Tokens of one chunk of the prefill."""
        return min(self.layout.prefill, self.context)

    @property
    def activations(self) -> int:
        """The largest tensors that live at once in a forward: of a prefill chunk, or of the logits.

        A chunk of n tokens keeps its residual stream, and what goes into and comes out of a block. On top come,
        one after the other and never together: the copies in fp32 that a norm computes with; the queries, keys
        and values while RoPE turns them; the attention's own; the gate, the branch beside it and their product
        in the MLP. Logits stay for few tokens, with two fp32 tensors of probabilities and an index for each. What a
        GPU's graphs draw tokens from and judge drafts by stays, too.
        """
        d, n, size = self.target, self.prefill, self.itemsize
        queries, keys, mlp = (part // self.gpus for part in (d.queries, d.keys, d.mlp))
        norm = 3 * FP32 * d.hidden
        rotary = size * (ROTATED * queries + 2 * keys)
        attention = size * (3 * queries + 2 * keys)
        layer = max(n * norm, n * rotary, n * attention + self._attending, n * 3 * mlp * size)
        chunk = STREAMS * n * d.hidden * size + layer + self._mask
        kept = self.layout.kept_rows * d.vocabulary * (size + 2 * FP32)
        return max(chunk, LOGIT_ROWS * d.vocabulary * (size + 2 * FP32 + INT64)) + kept

    @property
    def _attending(self) -> int:
        """What attention over the whole context writes out.

        A GPU's kernels write no scores, but some know no groups of heads: each KV head is repeated for its queries.
        Others read the keys in blocks, whose results are put together in fp32.
        """
        slots, d = self.layout.slots(self.context + self.layout.slack), self.target
        if self.layout.score_rows:
            copied = self.layout.copied_kv * self._kv(d, slots)
            return self.layout.score_rows * slots * self.itemsize + copied
        repeats = d.query_heads > d.kv_heads
        blocks = self.prefill * (FP32 + self.itemsize) * d.queries
        return (repeats * 2 * d.queries * slots * self.itemsize + blocks) // self.gpus

    @property
    def _mask(self) -> int:
        """Which tokens of a chunk see which, a row for every query of a group; a GPU's kernels need none."""
        group = self.target.query_heads // self.target.kv_heads
        return group * self.prefill**2 * self.itemsize if self.layout.score_rows else 0

    def _weights(self, model: Dimensions, gpus: int) -> int:
        copied = model.embedding if self.layout.packed and model.tied else 0
        return (model.parameters(gpus) + copied) * self.itemsize

    def _kv(self, model: Dimensions, slots: int) -> int:
        """Keys and values of one layer, undivided."""
        return 2 * model.keys * slots * self.itemsize
