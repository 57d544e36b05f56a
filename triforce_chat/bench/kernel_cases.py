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

from triforce_chat.engine import kernels
from triforce_chat.engine.attention import causal_attention
from triforce_chat.engine.cache.slab import View
from triforce_chat.engine.kernels.decoding import Tiling, splits, tiling
from triforce_chat.engine.kernels.linear import Blocking

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
TINY = ((Model("tiny", 32, 4, 2, 16, 48),), (70,), (1, 3))
SECTIONS = ("attention", "sweep-attention", "linear", "sweep-linear", "token", "score")
TILINGS = ((64, 3, 4), (64, 4, 4), (128, 2, 4), (128, 3, 4), (32, 4, 4), (128, 2, 8), (64, 3, 8))
BLOCKINGS = (
    Blocking(32, 512, 4, 4),
    Blocking(64, 256, 5, 4),
    Blocking(16, 512, 5, 2),
    Blocking(32, 256, 5, 4),
    Blocking(64, 256, 4, 8),
    Blocking(128, 128, 5, 4),
)


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
    """As many copies of a case's buffers as no cache holds."""
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
        view = View(each.keys[None], each.values[None], length)
        return causal_attention(each.q.transpose(0, 1)[None], view, scale)[0].transpose(0, 1)

    def run(each: Attended, tiles: Tiling | None = None, parts: int | None = None) -> Tensor:
        return kernels.decode_attention(*each, scale, length, tiles, parts)

    if not sweep:
        yield Case("attention", shape, moved, copies, run, plain)
        yield Case("attention: sdpa", shape, moved, copies, plain)
        yield Case("attention: flash-attn", shape, moved, copies, partial(flash_attn, scale=scale))
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


def flash_attn(each: Attended, scale: float) -> Any:
    from flash_attn import flash_attn_with_kvcache

    q, (keys, values) = each.q[None], (part.transpose(0, 1)[None] for part in each[1:3])
    lengths = (each.at + len(each.q)).int()
    return flash_attn_with_kvcache(q, keys, values, cache_seqlens=lengths, softmax_scale=scale, causal=True)


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


class Layer(NamedTuple):
    x: Tensor
    weight: kernels.Int8Weight
    dense: Tensor


def linear_cases(model: Model, n: int, sweep: bool) -> Iterator[Case]:
    """The layers of a model by kernel and by cuBLAS, whose weights are twice as large."""
    fused = (model.heads + 2 * model.kv_heads) * model.dim
    layers = {
        "qkv": (fused, model.hidden),
        "o": (model.hidden, model.heads * model.dim),
        "gate+up": (2 * model.inner, model.hidden),
        "down": (model.hidden, model.inner),
    }
    for name, (outputs, inputs) in layers.items():
        size = outputs * inputs

        def made(outputs: int = outputs, inputs: int = inputs) -> Layer:
            data = torch.randint(-127, 128, (outputs, inputs), device=DEVICE, dtype=torch.int8)
            scale = torch.full((outputs,), 0.01, device=DEVICE)
            return Layer(noise(n, inputs), kernels.Int8Weight(data, scale), (data * 0.01).to(DTYPE))

        copies = rounds(size, made)
        shape = f"{model.name} {name} {outputs}x{inputs} n={n}"
        if sweep:
            for tiles in BLOCKINGS:
                if n <= 16 or tiles.inputs <= 256:
                    call = partial(_int8, tiles=tiles)
                    yield Case(f"int8_linear {'x'.join(map(str, tiles))}", shape, size, copies, call)
        else:
            yield Case("int8_linear", shape, size, copies, _int8, _dense)
            yield Case("int8_linear: cuBLAS 16 bit", shape, 2 * size, copies, _dense)


def _int8(each: Layer, tiles: Blocking | None = None) -> Tensor:
    return kernels.int8_linear(each.x, each.weight, shape=tiles)


def _dense(each: Layer) -> Tensor:
    return linear(each.x, each.dense)


class Token(NamedTuple):
    x: Tensor
    weight: Tensor
    both: Tensor
    buffer: Tensor
    angles: Tensor
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
            noise(n, model.dim),
            noise(2, model.kv_heads, 64, model.dim),
            torch.tensor([3], device=DEVICE),
        )

    def rotated(each: Token) -> None:
        q, k, v = each.buffer.split(heads, 1)
        kernels.rotate_and_store(q, k, v, each.angles, each.angles, each.slab[0], each.slab[1], each.at)

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


def cases(tiny: bool, sections: Sequence[str]) -> Iterator[Callable[[], Iterator[Case]]]:
    """Makers of the sections' cases; each makes its buffers only when it is called."""
    makers = [*_plain_cases(*TINY)] if tiny else [*_plain_cases(MODELS, LENGTHS, TOKENS), *_sweeps()]
    order = {section: at for at, section in enumerate(sections)}
    for _, maker in sorted((each for each in makers if each[0] in order), key=lambda each: order[each[0]]):
        yield maker


def _plain_cases(
    models: Sequence[Model], lengths: Sequence[int], tokens: Sequence[int]
) -> Iterator[tuple[str, Callable[[], Iterator[Case]]]]:
    for model, length, n in product(models, lengths, tokens):
        yield "attention", partial(attention_cases, model, length, n, False)
    for model, n in product(models, tokens):
        yield "linear", partial(linear_cases, model, n, False)
        yield "token", partial(token_cases, model, n)
    for model in models:
        yield "score", partial(score_cases, model, lengths[-1], min(16, tokens[-1]))


def _sweeps() -> Iterator[tuple[str, Callable[[], Iterator[Case]]]]:
    short, *_, long = LENGTHS
    for n, length in product((1, 17), (short, long)):
        yield "sweep-attention", partial(attention_cases, MODELS[0], length, n, True)
    for n in (1, 17):
        yield "sweep-linear", partial(linear_cases, MODELS[0], n, True)
    for model, n in ((MODELS[1], 1), (MODELS[1], 17), (MODELS[2], 8)):
        yield "sweep-attention", partial(attention_cases, model, long, n, True)
