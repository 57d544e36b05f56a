"""What the bench of kernels measures: calls on buffers of real models' shapes, and the bytes that each must move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu
from transformers import LlamaConfig, LlamaForCausalLM

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.chunk_mass import chunk_mass
from triforce_chat.engine.cache.eviction import SINKS, WINDOW
from triforce_chat.engine.cache.in_place import HALF_LIFE
from triforce_chat.engine.cache.layout import Budget, Layout
from triforce_chat.engine.cache.quantization import BITS, FP8, GROUP, QuantizedTokens, bytes_of, format_name
from triforce_chat.engine.cache.quantized import NEWEST
from triforce_chat.engine.cache.quantized_copy import COPY_BITS, LATEST
from triforce_chat.engine.cache.selection import best
from triforce_chat.engine.cache.storage import GRAIN, KVBuffer, KVView, QuantizedGroups, Shape
from triforce_chat.engine.cache.streaming import HOP, LONG_HOP
from triforce_chat.engine.cuda_graph import ForwardInputs
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.forward.attention import causal_attention
from triforce_chat.engine.forward.attention_backend import flash_decode, flash_lacks
from triforce_chat.engine.forward.fused import Decoder
from triforce_chat.engine.forward.graphs import ForwardGraphs, own_groups
from triforce_chat.engine.forward.small_decoder import small_decoder
from triforce_chat.engine.kernels.blocking import Blocking, GroupedBlocking
from triforce_chat.engine.kernels.decoding import Tiling, splits, tiling
from triforce_chat.engine.kernels.quantized_weight import Codes, WeightFormat
from triforce_chat.engine.sampling.executor import SamplerInputs, Verification
from triforce_chat.engine.sampling.ops import CANDIDATES, Uniforms
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.tree_draft import Draws, Growth, by_kernels, by_operations, growth
from triforce_chat.engine.tree import ROOT

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16
COLD = 256 << 20  # bytes that a round of buffers has at least: four times the L2 cache


class Model(NamedTuple):
    """The dimensions of one layer."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    inner: int


MODELS = (
    Model("7b", 4096, 32, 32, 128, 11_008),
    Model("8b-gqa", 4096, 32, 8, 128, 14_336),
    Model("default", 576, 9, 3, 64, 1_536),
)
LENGTHS = (4_100, 8_300, 124_900)
TOKENS = (1, 8, 17)
VOCABULARY = 49_152
BUDGET = Budget(tokens=4096)
DRAFTED_AT = 300  # tokens in a draft model's cache
DRAFTS: dict[str, dict[str, int]] = {
    "small": {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    },
    "llama-68m": {
        "vocab_size": 32_000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 2,
        "num_attention_heads": 12,
    },
    "tiny": {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    },
}
WIDTHS = (1, 2, 4, 8, 16)  # of a tree's level
CHILDREN = 2  # of each of its tokens
LAYERS = 32  # of the big models
GATHERED = 4  # layers that are gathered at once: all of a big model's would fill the device
TINY = ((Model("tiny", 32, 4, 2, 16, 48),), (70,), (1, 3), Budget(tokens=32, sinks=8, tail=8))
FEW = (1, 2, 4, 8, 16, 32, 64)  # rows of decoding and of verifying, also of trees
QUANTIZED_VOCABULARY = 128_256
SECTIONS = (
    "attention",
    "listed",
    "weighed",
    "copied",
    "kept",
    "sweep-attention",
    "sweep-copied",
    "linear",
    "sweep-linear",
    "quantized",
    "sweep-quantized",
    "token",
    "draft",
    "level",
    "score",
    "gather",
)
TILINGS = ((64, 3, 4), (64, 4, 4), (128, 2, 4), (128, 3, 4), (32, 4, 4), (128, 2, 8), (64, 3, 8))
# The most promising first. Of a gated layer each tile is two of half the height.
BLOCKINGS = tuple(
    Blocking(*each)
    for each in (
        (32, 64, 6, 4),
        (16, 128, 7, 4),
        (32, 128, 4, 4),
        (32, 128, 4, 8),
        (16, 128, 5, 4),
        (64, 64, 6, 4),
        (32, 64, 8, 4),
        (16, 128, 4, 8),
        (64, 64, 4, 4),
        (32, 128, 6, 2),
        (16, 64, 8, 4),
        (64, 128, 6, 4),
        (32, 128, 3, 8),
        (32, 128, 5, 4),
        (16, 128, 10, 2),
        (64, 64, 4, 8),
        (16, 128, 4, 4),
        (32, 64, 6, 8),
        (64, 128, 3, 4),
        (16, 128, 7, 2),
        (32, 128, 5, 8),
    )
)


# Of grouped weights on tensor cores.
GROUPED_BLOCKINGS = tuple(
    GroupedBlocking(rows, stages, warps, shares)
    for rows, warps in ((128, 8), (64, 4), (64, 8))
    for stages in (3, 4, 5)
    for shares in (1, 2, 4, 8)
)


FORMATS = {
    "4 bit, minimum": WeightFormat(Codes.BITS_4, 32, True),  # Q4_K, Q4_1
    "4 bit": WeightFormat(Codes.BITS_4, 32, False),  # Q4_0
    "4 bit, groups of 128": WeightFormat(Codes.BITS_4, 128, True),
    "8 bit, groups of 16": WeightFormat(Codes.BITS_8, 16, False),  # Q6_K
    "8 bit": WeightFormat(Codes.BITS_8, 32, False),  # Q8_0
}
LARGEST = {Codes.BITS_4: 255, Codes.BITS_8: 127}  # byte
MIDDLE = {Codes.BITS_4: 8, Codes.BITS_8: 64}  # integer


def random_weight(format: WeightFormat, outputs: int, inputs: int) -> kernels.QuantizedWeight:
    """Random integers with scales of a size at which products are about as large as their inputs."""
    made, most = format.empty(outputs, inputs, DEVICE), LARGEST[format.codes]
    words = torch.randint(0, most + 1, made.data.shape, device=DEVICE, dtype=torch.int32)
    made.data.copy_(words & most)
    scale = torch.rand(made.scale.shape, device=DEVICE) / (MIDDLE[format.codes] * inputs**0.5)
    if format.sided:
        scale = torch.stack((scale, -8 * scale), 2).half().view(torch.int32)[..., 0]
    made.scale.copy_(scale)
    return made


@dataclass(frozen=True, slots=True)
class Case:
    """One call on the buffers of one round, the bytes that it must move, and the right answer if one is at hand."""

    kernel: str
    shape: str
    bytes: int
    copies: Sequence[Any]
    call: Callable[[Any], Any]
    right: Callable[[Any], Tensor] | None = None


def noise(*size: int) -> Tensor:
    return torch.randn(size, device=DEVICE, dtype=DTYPE)


def rounds(bytes_: int, make: Callable[[], Any]) -> list[Any]:
    """Enough copies of a case's buffers to exceed the GPU's cache."""
    count = min(64, max(2, -(-COLD // bytes_))) if DEVICE.type == "cuda" else 1
    return [make() for _ in range(count)]


class Attended(NamedTuple):
    q: Tensor
    keys: Tensor
    values: Tensor
    at: Tensor


def attention_cases(model: Model, length: int, n: int, sweep: bool) -> Iterator[Case]:
    """The kernel, torch's flash attention and, where it is installed, flash-attn's for a cache."""
    slots = -(-length // 64) * 64

    def made() -> Attended:
        keys, values = noise(2, model.kv_heads, slots, model.dim)
        return Attended(
            noise(n, model.heads, model.dim), keys, values, torch.tensor([length - n], device=DEVICE)
        )

    moved = 2 * model.kv_heads * length * model.dim * DTYPE.itemsize
    copies = rounds(moved, made)
    scale = model.dim**-0.5
    shape = f"{model.name} {length} n={n}"

    def plain(each: Attended) -> Tensor:
        view = KVView(each.keys[None], each.values[None], length)
        return causal_attention(each.q.transpose(0, 1)[None], view, scale)[0].transpose(0, 1)

    def run(each: Attended, tiles: Tiling | None = None, parts: int | None = None) -> Tensor:
        return kernels.decode_attention(*each, scale, length, tiles, parts)

    def flash(each: Attended) -> Tensor:
        return flash_decode(*each, scale, length)

    if not sweep:
        yield Case("attention", shape, moved, copies, run, plain)
        yield Case("attention: sdpa", shape, moved, copies, plain)
        if DEVICE.type == "cuda" and not flash_lacks(DEVICE, DTYPE, model.dim):
            yield Case("attention: flash-attn", shape, moved, copies, flash)
        return
    rows = n * model.heads // model.kv_heads
    base = tiling(rows, model.dim, DTYPE)
    heights = [base.rows, 64] if base.rows == 32 else [base.rows, 128] if rows > 64 else [base.rows]
    for height, (width, stages, warps) in product(heights, TILINGS):
        tiles = Tiling(height, width, stages, 2 * warps if height == 128 and warps == 4 else warps)
        usual = splits(model.kv_heads, -(-rows // height), length)
        for parts in sorted({max(1, usual // 2), usual, min(128, usual * 3 // 2), min(128, usual * 2)}):
            name = f"attention {'x'.join(map(str, tiles))} splits {parts}"
            yield Case(name, shape, moved, copies, partial(run, tiles=tiles, parts=parts))


class Listed(NamedTuple):
    q: Tensor
    keys: Tensor
    values: Tensor
    at: Tensor
    slots: Tensor  # [Hkv, budget.tokens]
    first: int  # of as many contiguous slots


def listed_cases(model: Model, length: int, n: int, budget: Budget) -> Iterator[Case]:
    """Attention over some tokens of a long cache: by lists of chunks of several sizes, and over contiguous ones."""
    keys, values = noise(2, model.kv_heads, length, model.dim)
    size, scale = budget.tokens, model.dim**-0.5
    at = torch.tensor([size - n], device=DEVICE)

    def made(chunk: int) -> Listed:
        worth = torch.rand(model.kv_heads, length // chunk, device=DEVICE)
        places = best(worth, size // chunk)[..., None] * chunk + torch.arange(chunk, device=DEVICE)
        first = int(places[0, 0, 0]) // GRAIN * GRAIN % (length - size)
        return Listed(noise(n, model.heads, model.dim), keys, values, at, places.flatten(1).int(), first)

    def run(each: Listed) -> Tensor:
        return kernels.decode_attention(*each[:4], scale, size, listed=each.slots)

    def contiguous(each: Listed) -> Tensor:
        own = slice(each.first, each.first + size)
        return kernels.decode_attention(each.q, each.keys[:, own], each.values[:, own], each.at, scale, size)

    def plain(each: Listed) -> Tensor:
        heads = torch.arange(model.kv_heads, device=DEVICE)[:, None]
        view = KVView(each.keys[heads, each.slots][None], each.values[heads, each.slots][None], size)
        return causal_attention(each.q.transpose(0, 1)[None], view, scale)[0].transpose(0, 1)

    moved = 2 * model.kv_heads * size * model.dim * DTYPE.itemsize
    shape = f"{model.name} {size} of {length} n={n}"
    for chunk in (1, 4, 8, 16):
        copies = rounds(moved, partial(made, chunk))
        yield Case(f"attention by list, chunk {chunk}", shape, moved, copies, run, plain)
    yield Case("attention, contiguous", shape, moved, copies, contiguous)


class Weighed(NamedTuple):
    attended: Attended
    weighing: kernels.Weighing


def weighed_cases(model: Model, length: int, n: int) -> Iterator[Case]:
    """Attention that also adds up what it pays to every chunk, and without that."""
    scale, moved = model.dim**-0.5, 2 * model.kv_heads * length * model.dim * DTYPE.itemsize
    shape = f"{model.name} {length} n={n}"

    def made(chunk: int) -> Weighed:
        keys, values = noise(2, model.kv_heads, length, model.dim)
        total = torch.zeros(model.kv_heads, -(-length // chunk), device=DEVICE)
        counted, at = torch.tensor([n], device=DEVICE), torch.tensor([length - n], device=DEVICE)
        attended = Attended(noise(n, model.heads, model.dim), keys, values, at)
        return Weighed(attended, kernels.Weighing(total, chunk, HALF_LIFE, counted))

    def run(each: Weighed) -> Tensor:
        return kernels.decode_attention(*each.attended, scale, length, weighing=each.weighing)

    def without(each: Weighed) -> Tensor:
        return kernels.decode_attention(*each.attended, scale, length)

    def paid(each: Weighed) -> Tensor:
        each.weighing.total.zero_()
        run(each)
        return each.weighing.total

    def right(each: Weighed) -> Tensor:
        q, keys = each.attended.q.transpose(0, 1), each.attended.keys
        return chunk_mass(q, keys, each.weighing.chunk, scale).sum((1, 2))

    for chunk in (1, 8):
        copies = rounds(moved, partial(made, chunk))
        yield Case(f"attention, weighed by chunks of {chunk}", shape, moved, copies, run, without)
    yield Case("attention, not weighed", shape, moved, copies, without)
    yield Case("weights by chunk", shape, moved, copies, paid, right)


class Copied(NamedTuple):
    q: Tensor
    before: QuantizedTokens
    quantized: Tensor
    keys: Tensor
    values: Tensor
    at: Tensor


COPY_TILINGS = tuple((GROUP, stages, warps) for warps in (2, 4, 8) for stages in (1, 2, 3, 4))
COPY_SHARES = (1, 2, 4, 8)  # programs of a head, in those that would fill the GPU once


def copied_cases(model: Model, length: int, n: int, sweep: bool = False) -> Iterator[Case]:
    """Attention over a copy in 4 bits whose last group is full, and then over the newest tokens as they are."""
    groups = length // GROUP - 1
    own, scale, shape = length - groups * GROUP, model.dim**-0.5, f"{model.name} {length} n={n}"

    def made() -> Copied:
        before = quantized_noise(model, groups * GROUP)
        keys, values = noise(2, model.kv_heads, LATEST, model.dim)
        q, at = noise(n, model.heads, model.dim), torch.tensor([own - n], device=DEVICE)
        return Copied(q, before, torch.tensor([groups * GROUP], device=DEVICE), keys, values, at)

    def run(each: Copied, tiles: Tiling | None = None, parts: int | None = None) -> Tensor:
        return kernels.decode_quantized(each.q, each.before[:4], *each[2:], scale, tiles, parts)

    def plain(each: Copied) -> Tensor:
        view = KVView(each.keys[None], each.values[None], own, before=each.before)
        return causal_attention(each.q.transpose(0, 1)[None], view, scale)[0].transpose(0, 1)

    moved = model.kv_heads * bytes_of(groups * GROUP, model.dim, COPY_BITS)
    copies = rounds(moved, made)
    if not sweep:
        yield Case("attention, 4-bit copy", shape, moved, copies, run, plain)
        return
    usual = splits(model.kv_heads, 1, length)
    for (width, stages, warps), share in product(COPY_TILINGS, COPY_SHARES):
        parts = min(128, share * usual)
        tiles = Tiling(tiling(n * model.heads // model.kv_heads, model.dim, DTYPE).rows, width, stages, warps)
        name = f"copied {'x'.join(map(str, tiles))} splits {parts}"
        yield Case(name, shape, moved, copies, partial(run, tiles=tiles, parts=parts))


def quantized_noise(model: Model, tokens: int, bits: int = COPY_BITS) -> QuantizedTokens:
    """Random codes, with scales of numbers of the usual size."""
    shape = Shape(1, model.heads, model.kv_heads, model.dim, DTYPE, DEVICE)
    made = QuantizedGroups(shape, tokens, bits, turned=True).first(0, tokens)
    size = 1 / 64 if bits == 8 else 1.0
    for codes in (made.keys, made.values):
        codes.view(torch.uint8).random_(0, 256)
    for scales in (made.key_scales, made.value_scales):
        scales.uniform_(-size / 2, size / 2)
    return made


class Grouped(NamedTuple):
    q: Tensor
    before: QuantizedTokens
    at: Tensor
    newest: Tensor  # keys and values [2, P, Hkv, GROUP, D]


def kept_cases(model: Model, length: int, n: int) -> Iterator[Case]:
    """Attention over keys and values that are kept in 8 or 4 bits, the newest group of quantized ones in 16."""
    scale, shape = model.dim**-0.5, f"{model.name} {length} n={n}"
    moved = 2 * model.kv_heads * length * model.dim

    def slots() -> Attended:
        keys, values = noise(2, model.kv_heads, length, model.dim).to(FP8)
        at = torch.tensor([length - n], device=DEVICE)
        return Attended(noise(n, model.heads, model.dim), keys, values, at)

    def run_slots(each: Attended) -> Tensor:
        return kernels.decode_attention(*each, scale, length)

    def slots_plainly(each: Attended) -> Tensor:
        view = KVView(each.keys[None], each.values[None], length)
        return causal_attention(each.q.transpose(0, 1)[None], view, scale)[0].transpose(0, 1)

    yield Case("attention, fp8", shape, moved, rounds(moved, slots), run_slots, slots_plainly)
    groups = (length - n) // GROUP
    own = length - groups * GROUP

    def made(bits: int) -> Grouped:
        before = quantized_noise(model, groups * GROUP, bits)
        newest = noise(2, NEWEST // GROUP, model.kv_heads, GROUP, model.dim)
        return Grouped(
            noise(n, model.heads, model.dim), before, torch.tensor([length - n], device=DEVICE), newest
        )

    def run(each: Grouped) -> Tensor:
        where = own_groups(each.at, torch.arange(n, device=DEVICE), NEWEST).sequences
        keys, values = each.newest
        return kernels.decode_grouped(each.q, each.before[:4], each.at, keys, values, where, scale)

    def plain(each: Grouped) -> Tensor:
        keys, values = each.newest[:, None, groups % len(each.newest[0])]
        view = KVView(keys, values, own, before=each.before)
        return causal_attention(each.q.transpose(0, 1)[None], view, scale)[0].transpose(0, 1)

    for kv, bits in BITS.items():
        moved = model.kv_heads * bytes_of(groups * GROUP, model.dim, bits)
        copies = rounds(moved, partial(made, bits))
        yield Case(f"attention, {format_name(kv)}", shape, moved, copies, run, plain)


def selected_cases(model: Model, length: int, budget: Budget) -> Iterator[Case]:
    """The choice of chunks for the lists of as many layers as a model has."""
    count = (length - budget.tail) // budget.chunk

    def made() -> Tensor:
        return torch.rand(LAYERS, model.kv_heads, count, device=DEVICE)

    shape, size = f"{model.name} {budget.tokens} of {length}", 4 * LAYERS * model.kv_heads * count
    chosen = (budget.tokens - budget.sinks - budget.tail) // budget.chunk
    yield Case("selection", shape, size, rounds(size, made), partial(best, count=chosen))


def score_cases(model: Model, length: int, n: int) -> Iterator[Case]:
    slots, size = length // 64 * 64, model.kv_heads * length * model.dim * DTYPE.itemsize
    copies = rounds(size, lambda: (noise(model.heads, n, model.dim), noise(model.kv_heads, slots, model.dim)))

    def plain(each: tuple[Tensor, Tensor]) -> Tensor:
        q, keys = each
        means = keys.unflatten(1, (-1, 8)).mean(2)
        scores: Tensor = q.unflatten(0, (len(keys), -1)).flatten(1, 2) @ means.mT * model.dim**-0.5
        return scores

    def run(each: tuple[Tensor, Tensor]) -> Tensor:
        return kernels.chunk_scores(*each, 8)

    shape = f"{model.name} {slots} m={n} chunk 8"
    yield Case("chunk_scores", shape, size, copies, run, plain)
    yield Case("chunk_scores: torch", shape, size, copies, plain)


class Gathered(NamedTuple):
    source: Tensor  # [layers, Hkv, S, D]
    chosen: Tensor  # [layers, Hkv, chunks]
    out: Tensor  # [layers, Hkv, slots, D]


def gather_cases(model: Model, length: int, budget: Budget) -> Iterator[Case]:
    """Keys of some layers, as a retrieval cache takes them: read and written."""
    layout = Layout.of(length, budget)
    bounds = layout.sinks, layout.tail, layout.total, layout.chunk

    def made() -> Gathered:
        source = noise(GATHERED, model.kv_heads, length, model.dim)
        worth = torch.rand(layout.candidates(source).shape[:3], device=DEVICE)
        out = source.new_zeros(GATHERED, model.kv_heads, layout.filled, model.dim)
        return Gathered(source, best(worth, layout.chunks), out)

    def plain(each: Gathered) -> Tensor:
        source, chosen, out = each
        layers, heads = (torch.arange(size, device=DEVICE) for size in source.shape[:2])
        end = layout.sinks + layout.kept
        out[:, :, : layout.sinks] = source[:, :, : layout.sinks]
        picked = layout.candidates(source)[layers[:, None, None], heads[:, None], chosen]
        out[:, :, layout.sinks : end] = picked.flatten(2, 3)
        out[:, :, end:] = source[:, :, layout.tail :]
        return out

    def run(each: Gathered) -> Tensor:
        kernels.gather_chunks(*each, *bounds)
        return each.out

    size = 2 * GATHERED * model.kv_heads * layout.filled * model.dim * DTYPE.itemsize
    copies, shape = rounds(size, made), f"{model.name} {layout.filled} of {length} chunk {layout.chunk}"
    yield Case("gather_chunks", shape, size, copies, run, plain)
    yield Case("gather_chunks: torch", shape, size, copies, plain)


class Layer(NamedTuple):
    x: Tensor
    weight: kernels.QuantizedWeight
    dense: Tensor
    norm: kernels.Norm | None
    residual: Tensor | None


class Form(NamedTuple):
    """A linear layer's size, and what belongs to it: a norm before it, a residual or a gate after it."""

    name: str
    outputs: int  # rows of the weight
    inputs: int
    norm: bool = False
    residual: bool = False
    gated: bool = False

    def shape(self, model: Model, n: int) -> str:
        return f"{model.name} {self.name} {self.outputs}x{self.inputs} n={n}"

    def layers(self, n: int, dense: bool) -> list[Layer]:
        """Enough layers to exceed the GPU's cache."""

        def made() -> Layer:
            data = torch.randint(-127, 128, (self.outputs, self.inputs), device=DEVICE, dtype=torch.int8)
            scale = torch.full((self.outputs,), 0.01 / self.inputs**0.5, device=DEVICE)
            return Layer(
                noise(n, self.inputs),
                kernels.QuantizedWeight(data, scale[:, None], self.inputs, self.inputs),
                (data * scale[:, None]).to(DTYPE) if dense else noise(0),
                kernels.Norm(noise(self.inputs), 1e-5) if self.norm else None,
                noise(n, self.outputs) if self.residual else None,
            )

        return rounds(self.outputs * self.inputs, made)

    def quantized(self, n: int, format: WeightFormat) -> list[Layer]:
        """Enough quantized weights to exceed the GPU's cache, without dense ones."""

        def made() -> Layer:
            return Layer(
                noise(n, self.inputs),
                random_weight(format, self.outputs, self.inputs),
                noise(0),
                kernels.Norm(noise(self.inputs), 1e-5) if self.norm else None,
                noise(n, self.outputs) if self.residual else None,
            )

        return rounds(self.outputs * self.inputs // 2, made)

    def expanded(self, each: Layer) -> Tensor:
        """The product with the numbers that the weights stand for."""
        dense = torch.empty(self.outputs, self.inputs, device=DEVICE, dtype=DTYPE)
        kernels.expand(each.weight, dense)
        return self.dense(each._replace(dense=dense))

    def fused(self, each: Layer, tiles: Blocking | GroupedBlocking | None = None) -> Tensor:
        return kernels.quantized_linear(each.x, each.weight, each.residual, each.norm, self.gated, tiles)

    def dense(self, each: Layer) -> Tensor:
        x = each.x if each.norm is None else rms_norm(each.x, (self.inputs,), *each.norm)
        out = linear(x, each.dense)
        if self.gated:
            gate, up = out.chunk(2, -1)
            return silu(gate) * up
        return out if each.residual is None else out + each.residual


def forms(model: Model, vocabulary: int = VOCABULARY) -> tuple[Form, ...]:
    heads = (model.heads + 2 * model.kv_heads) * model.dim
    return (
        Form("norm+qkv", heads, model.hidden, norm=True),
        Form("o+residual", model.hidden, model.heads * model.dim, residual=True),
        Form("norm+gate+up", 2 * model.inner, model.hidden, norm=True, gated=True),
        Form("down+residual", model.hidden, model.inner, residual=True),
        Form("head", vocabulary, model.hidden),
    )


def linear_cases(model: Model, n: int) -> Iterator[Case]:
    """The layers of a model by kernel and by torch, whose weights are twice as large."""
    for form in forms(model)[:4]:
        size, copies, shape = form.outputs * form.inputs, form.layers(n, dense=True), form.shape(model, n)
        yield Case("quantized_linear", shape, size, copies, form.fused, form.dense)
        yield Case("quantized_linear: torch 16 bit", shape, 2 * size, copies, form.dense)


def linear_sweep(model: Model, tokens: Sequence[int]) -> Iterator[Case]:
    """Tiles for every layer, the most promising for all of them before the next."""
    known = [(form, n, form.layers(n, dense=False)) for form in forms(model) for n in tokens]
    for tiles in BLOCKINGS:
        for form, n, copies in known:
            chosen = tiles._replace(outputs=tiles.outputs // 2) if form.gated else tiles
            if chosen.outputs < 16 or (form.outputs > 16_384 and tiles.outputs == 16):
                continue
            name = f"quantized_linear {'x'.join(map(str, chosen))}"
            size = form.outputs * form.inputs
            yield Case(name, form.shape(model, n), size, copies, partial(form.fused, tiles=chosen))


def quantized_cases(model: Model, n: int, vocabulary: int) -> Iterator[Case]:
    """The layers of a model in the formats of files, beside 8 bits with a scale for each row and 16 bits."""
    for form in forms(model, vocabulary):
        shape, size = form.shape(model, n), form.outputs * form.inputs
        copies = form.layers(n, dense=True)
        yield Case("quantized_linear: torch 16 bit", shape, 2 * size, copies, form.dense)
        yield Case("quantized_linear: 8 bit rows", shape, size, copies, form.fused, form.dense)
        for label, format in FORMATS.items():
            if form.inputs % format.group == 0:
                copies = form.quantized(n, format)
                name, size_of = f"quantized_linear: {label}", copies[0].weight.nbytes
                yield Case(name, shape, size_of, copies, form.fused, form.expanded)


def quantized_sweep(model: Model, n: int) -> Iterator[Case]:
    """Tiles for 4-bit weights of every layer."""
    known = [
        (form, form.quantized(n, FORMATS["4 bit, minimum"])) for form in forms(model, QUANTIZED_VOCABULARY)
    ]
    for tiles in GROUPED_BLOCKINGS:
        for form, copies in known:
            name, size = f"quantized_linear {'x'.join(map(str, tiles))}", copies[0].weight.nbytes
            yield Case(name, form.shape(model, n), size, copies, partial(form.fused, tiles=tiles))


class Token(NamedTuple):
    x: Tensor
    weight: Tensor
    both: Tensor
    buffer: Tensor
    positions: Tensor
    frequencies: Tensor
    slab: Tensor
    at: Tensor


def token_cases(model: Model, n: int) -> Iterator[Case]:
    """What a layer does to every token; so few bytes that the launch is what counts."""
    width, heads = model.heads + 2 * model.kv_heads, (model.heads, model.kv_heads, model.kv_heads)

    def made() -> Token:
        return Token(
            noise(n, model.hidden),
            noise(model.hidden),
            noise(n, 2 * model.inner),
            noise(n, width, model.dim),
            torch.arange(n, device=DEVICE),
            torch.rand(model.dim // 2, device=DEVICE),
            noise(2, model.kv_heads, 64, model.dim),
            torch.tensor([3], device=DEVICE),
        )

    def rotated(each: Token) -> None:
        q, k, v = each.buffer.split(heads, 1)
        kernels.rotate_and_store(
            q, k, v, each.positions, each.frequencies, 1.0, each.slab[0], each.slab[1], each.at
        )

    copies = [made() for _ in range(2)]
    shape, size = f"{model.name} n={n}", DTYPE.itemsize * n
    hidden, inner = size * model.hidden, size * model.inner

    def normed(each: Token) -> Tensor:
        return kernels.rms_norm(each.x, each.weight, 1e-5)

    def plainly_normed(each: Token) -> Tensor:
        return rms_norm(each.x, (model.hidden,), each.weight, 1e-5)

    def gated(each: Token) -> Tensor:
        gate, up = each.both.chunk(2, -1)
        return silu(gate) * up

    yield Case("rms_norm", shape, 2 * hidden, copies, normed, plainly_normed)
    yield Case("rms_norm: torch", shape, 2 * hidden, copies, plainly_normed)
    yield Case("silu_mul", shape, 3 * inner, copies, lambda each: kernels.silu_mul(each.both), gated)
    yield Case("silu_mul: torch", shape, 3 * inner, copies, gated)
    yield Case("rotate_and_store", shape, 2 * size * width * model.dim, copies, rotated)


class Drafted(NamedTuple):
    ids: Tensor
    place: Tensor
    numbers: Tensor
    tokens: Tensor
    probs: Tensor


def draft_cases(name: str, n: int, temperature: float) -> Iterator[Case]:
    """A token of a draft: a forward of the last n tokens and the draw, by kernels of its own and by the usual ones."""
    model = LlamaForCausalLM(LlamaConfig(**DRAFTS[name])).to(DEVICE, DTYPE)
    shape, vocabulary = Shape.of(model.config, DTYPE, DEVICE), model.config.vocab_size
    decoder, storage = Decoder(model, shape), KVBuffer(shape, SINKS + WINDOW + HOP)
    quick, usual = small_decoder(decoder, storage), ForwardGraphs(decoder, DEVICE).forward(storage.slot(0))
    op, nothing = Verification(Sampling(temperature), CANDIDATES), Draft.empty(vocabulary, DEVICE)
    steps = torch.arange(n, device=DEVICE)

    def made() -> Drafted:
        ids, place = (
            torch.randint(vocabulary, (n,), device=DEVICE),
            torch.full((2,), DRAFTED_AT, device=DEVICE),
        )
        numbers = torch.rand(1, 1, dtype=torch.float64, device=DEVICE)
        probs = torch.empty(1, 1, vocabulary, device=DEVICE)
        return Drafted(ids, place, numbers, ids[:1, None].clone(), probs)

    def run(each: Drafted) -> Tensor:
        assert quick
        logits = quick(each.ids, each.place, 0)
        kernels.draw_token(logits, kernels.Drawing(temperature, each.numbers), 0, each.tokens, each.probs)
        return each.probs

    def plain(each: Drafted) -> Tensor:
        logits = usual(ForwardInputs(each.ids, each.place[:1], each.place[1:], steps))[0][-1:]
        random = op.randomness(Uniforms(each.numbers[:, :0].float(), each.numbers))
        return op(SamplerInputs(logits[None], nothing, None), random).probs

    size = decoder.matrix_numbers * DTYPE.itemsize + DRAFTED_AT * shape.bytes_per_token
    label, copies = f"{name} n={n} T={temperature:g}", [made() for _ in range(2)]
    if quick:
        yield Case("drafted token", label, size, copies, run, plain if temperature else None)
    yield Case("drafted token: usual", label, size, copies, plain)


def level_cases(name: str, width: int, temperature: float) -> Iterator[Case]:
    """A level of a drafted tree: a forward of its tokens and the draw of their children, as of ``draft_cases``."""
    model = LlamaForCausalLM(LlamaConfig(**DRAFTS[name])).to(DEVICE, DTYPE)
    shape, vocabulary = Shape.of(model.config, DTYPE, DEVICE), model.config.vocab_size
    decoder, storage = Decoder(model, shape), KVBuffer(shape, SINKS + WINDOW + LONG_HOP)
    quick, usual = small_decoder(decoder, storage), ForwardGraphs(decoder, DEVICE).forward(storage.slot(0))
    parents = (*width * (ROOT,), *(node for node in range(width) for _ in range(CHILDREN)))
    n, rows = len(parents), slice(1, 1 + width)
    how = Growth(*(each.to(DEVICE) for each in growth(parents, (1, width), n)))
    numbers = Uniforms(torch.empty(1, 0, device=DEVICE), torch.rand(1, n, dtype=torch.float64, device=DEVICE))
    by = Draws(Verification(Sampling(temperature), CANDIDATES), None, numbers, False, None, vocabulary)
    few, many, level = (
        by_kernels(how, by),
        by_operations(how, by),
        kernels.TreeLevel(how.masks[0, rows], 0, 1),
    )
    steps = torch.zeros(width, dtype=torch.long, device=DEVICE)

    def made() -> Drafted:
        ids, tokens = torch.randint(vocabulary, (2, n), device=DEVICE)
        place = torch.full((2,), DRAFTED_AT, device=DEVICE)
        probs = torch.empty(1, n, vocabulary, device=DEVICE)
        return Drafted(ids[:width], place, numbers.last, tokens[None], probs)

    def run(each: Drafted) -> Tensor:
        assert quick
        few(1, rows, quick(each.ids, each.place, 1, None, level)[None], each.tokens, each.probs)
        return each.probs

    def plain(each: Drafted) -> Tensor:
        place = each.place + 1
        inputs = ForwardInputs(each.ids, place[:1], place[1:], steps, masks=level.masks, origin=place[:1])
        many(1, rows, usual(inputs)[0][None], each.tokens, each.probs)
        return each.probs

    size = decoder.matrix_numbers * DTYPE.itemsize + DRAFTED_AT * shape.bytes_per_token
    label, copies = f"{name} width={width} T={temperature:g}", [made() for _ in range(2)]
    if quick:
        yield Case("level of a tree", label, size, copies, run)
    yield Case("level of a tree: usual", label, size, copies, plain)


def cases(tiny: bool, sections: Sequence[str]) -> Iterator[Callable[[], Iterator[Case]]]:
    """Makers of the sections' cases; each makes its buffers only when it is called."""
    makers = [*_plain_cases(*TINY)] if tiny else [*_plain_cases(MODELS, LENGTHS, TOKENS, BUDGET), *_sweeps()]
    few, of, words = ((1,), TINY[0][0], 64) if tiny else (FEW, MODELS[1], QUANTIZED_VOCABULARY)
    drafts = product(("tiny",) if tiny else ("small", "llama-68m"), (1, 5), (0.0, 0.6))
    makers += [("draft", partial(draft_cases, *each)) for each in drafts]
    leveled = product(("tiny",), (2,), (0.6,)) if tiny else product(("small",), WIDTHS, (0.0, 0.6))
    makers += [("level", partial(level_cases, *each)) for each in leveled]
    makers += [("quantized", partial(quantized_cases, of, n, words)) for n in few]
    order = {section: at for at, section in enumerate(sections)}
    for _, maker in sorted((each for each in makers if each[0] in order), key=lambda each: order[each[0]]):
        yield maker


def _plain_cases(
    models: Sequence[Model], lengths: Sequence[int], tokens: Sequence[int], budget: Budget
) -> Iterator[tuple[str, Callable[[], Iterator[Case]]]]:
    for model, length, n in product(models, lengths, tokens):
        yield "attention", partial(attention_cases, model, length, n, False)
    for model, n in product(models, tokens):
        yield "copied", partial(copied_cases, model, max(lengths[-1], 3 * GROUP), n)
        yield "linear", partial(linear_cases, model, n)
        yield "token", partial(token_cases, model, n)
    for model in models:
        yield "listed", partial(listed_cases, model, lengths[-1], min(8, tokens[-1]), budget)
        yield "weighed", partial(weighed_cases, model, lengths[-1], min(8, tokens[-1]))
        for n in sorted({tokens[0], min(8, tokens[-1])}):
            yield "kept", partial(kept_cases, model, max(lengths[-1], 3 * GROUP), n)
        yield "weighed", partial(selected_cases, model, lengths[-1], budget)
        yield "score", partial(score_cases, model, lengths[-1], min(16, tokens[-1]))
        yield "gather", partial(gather_cases, model, lengths[-1], budget)


def _sweeps() -> Iterator[tuple[str, Callable[[], Iterator[Case]]]]:
    short, *_, long = LENGTHS
    for n, length in product((1, 17), (short, long)):
        yield "sweep-attention", partial(attention_cases, MODELS[0], length, n, True)
    for n in (8, 17):
        yield "sweep-copied", partial(copied_cases, MODELS[0], long, n, True)
    yield "sweep-linear", partial(linear_sweep, MODELS[0], (8, 4))
    for n in (8, 17):
        yield "sweep-quantized", partial(quantized_sweep, MODELS[1], n)
    for model, n in ((MODELS[1], 1), (MODELS[1], 17), (MODELS[2], 8)):
        yield "sweep-attention", partial(attention_cases, model, long, n, True)
