"""Attention: over contiguous keys, by lists, weighed by chunk, and over quantized keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.allocation import GRAIN
from triforce_chat.engine.cache.chunk_mass import chunk_mass
from triforce_chat.engine.cache.in_place import HALF_LIFE
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.quantization import BITS, FP8, GROUP, QuantizedTokens, bytes_of, format_name
from triforce_chat.engine.cache.quantized import NEWEST
from triforce_chat.engine.cache.quantized_copy import COPY_BITS, LATEST
from triforce_chat.engine.cache.selection import best
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import QuantizedGroups
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.forward.attention import causal_attention
from triforce_chat.engine.forward.attention_backend import flash_decode, flash_lacks
from triforce_chat.engine.forward.graphs import own_groups
from triforce_chat.engine.kernels.decoding import Tiling, splits, tiling
from triforce_chat.lab.bench.kernel_cases.case import DEVICE, DTYPE, Case, Model, noise, rounds

TILINGS = ((64, 3, 4), (64, 4, 4), (128, 2, 4), (128, 3, 4), (32, 4, 4), (128, 2, 8), (64, 3, 8))


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


def kv_format_cases(model: Model, length: int, n: int) -> Iterator[Case]:
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
