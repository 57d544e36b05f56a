"""Drawing a token from logits in two kernels, one without a temperature, where no filter has to sort the vocabulary.

Every program of the first one reads all logits, which are few bytes, for what all of them need: the highest and the sum
of the weights. Then it writes its own tile of the distribution, and how much of it lies there. The second kernel draws
from what was written, by the inverse of the cumulative distribution in fp64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.overlap import overlap, wait_for_previous

WIDTH = 1024  # tokens of a tile
BLOCK = 8192  # tokens that a program reads at a time
WARPS = 16
NEVER = 32_767  # the step from which on a token counts for the penalty that was not written


class Drawing(NamedTuple):
    """How the tokens of B drafts are drawn, one step after the other."""

    temperature: float  # 0: the likeliest token, with probability 1
    uniforms: Tensor  # [B, n], fp64 in [0, 1); of no interest without a temperature
    penalty: float = 1.0  # divides positive logits of tokens that were written, and multiplies others
    since: Tensor | None = (
        None  # [B, V], int16, the step from which on a token counts as written; None: no penalty
    )
    forced: Tensor | None = None  # [B, n], tokens in place of drawn ones, negative where any will do


def since_written(tokens: Tensor, length: Tensor, vocabulary: int) -> Tensor:
    """The record for ``Drawing`` before step 0, if only the first ``length`` [B] of tokens [B, m] were written."""
    since = torch.full((len(tokens), vocabulary), NEVER, dtype=torch.int16, device=tokens.device)
    places = torch.arange(tokens.shape[1], device=tokens.device)
    steps = torch.where(places < length[:, None], 0, NEVER).to(torch.int16)
    return since.scatter_reduce_(1, tokens, steps, "amin")


def draw_token(logits: Tensor, how: Drawing, step: int, tokens: Tensor, probs: Tensor) -> None:
    """Write the token of a step to tokens [B, n], its distribution to probs [B, n, V], fp32; both are contiguous.

    logits [B, V], with a contiguous last dimension. A token that was drawn counts as written in the next step.
    """
    rows, vocabulary = logits.shape
    tiles = triton.cdiv(vocabulary, WIDTH)
    masses = torch.empty((rows, tiles), dtype=torch.float64, device=logits.device)
    since = tokens if how.since is None else how.since
    written = tokens, since, tokens if how.forced is None else how.forced
    overlaps = overlap()
    kind = {"penalizes": how.since is not None, "forces": how.forced is not None, "width": WIDTH}
    kind |= {"overlaps": overlaps, "launch_pdl": overlaps}
    _weigh_all[(tiles, rows)](
        logits,
        probs,
        masses,
        *written,
        vocabulary,
        tokens.shape[1],
        step,
        float(how.temperature),
        float(how.penalty),
        logits.stride(0),
        greedy=how.temperature == 0,
        blocks=triton.cdiv(vocabulary, BLOCK),
        block=BLOCK,
        **kind,
        num_warps=WARPS,
    )
    if how.temperature:
        places = triton.next_power_of_2(tiles)
        _draw_one[(rows,)](
            probs,
            masses,
            how.uniforms,
            *written,
            vocabulary,
            tokens.shape[1],
            step,
            tiles,
            places=places,
            **kind,
            num_warps=4,
        )


@triton.jit
def _scores(logits, since, token, vocabulary, step, penalty, penalizes: tl.constexpr):
    """The logits of tokens after the penalty, in fp32."""
    there = token < vocabulary
    score = tl.load(logits + token, mask=there, other=float("-inf")).to(tl.float32)
    if penalizes:
        written = tl.load(since + token, mask=there, other=0).to(tl.int32) <= step
        score = tl.where(written, tl.where(score > 0, score / penalty, score * penalty), score)
    return score


@triton.jit
def _write(tokens, since, forced, token, step, penalizes: tl.constexpr, forces: tl.constexpr):
    """Write a drawn token, or the one that is forced."""
    if forces:
        wanted = tl.load(forced + step)
        token = tl.where(wanted < 0, token, wanted)
    tl.store(tokens + step, token)
    if penalizes:
        # Whatever else reads this in the same step: the token counts from the next one on.
        earlier = tl.load(since + token).to(tl.int32)
        tl.store(since + token, tl.minimum(earlier, step + 1).to(tl.int16))


@triton.jit(do_not_specialize=["n", "step"])
def _weigh_all(
    logits,
    probs,
    masses,
    tokens,
    since,
    forced,
    vocabulary,
    n,
    step,
    temperature,
    penalty,
    logits_row,
    greedy: tl.constexpr,
    penalizes: tl.constexpr,
    forces: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    blocks: tl.constexpr,
    overlaps: tl.constexpr,
):
    wait_for_previous(overlaps)
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    logits += row * logits_row
    since += row * vocabulary
    lane = tl.arange(0, block)
    best, best_at = tl.full((block,), float("-inf"), tl.float32), lane * 0
    for i in tl.static_range(blocks):
        token = i * block + lane
        score = _scores(logits, since, token, vocabulary, step, penalty, penalizes)
        best_at = tl.where(score > best, token, best_at)
        best = tl.maximum(best, score)
    top = tl.max(best, 0)
    own = tile * width + tl.arange(0, width)
    to = probs + (row * n + step) * vocabulary + own
    if greedy:
        drawn = tl.min(tl.where(best == top, best_at, vocabulary), 0)
        drawn = tl.minimum(drawn, vocabulary - 1).to(tl.int64)
        tl.store(to, tl.where(own == drawn, 1.0, 0.0), mask=own < vocabulary)
        if tile == 0:
            _write(tokens + row * n, since, forced + row * n, drawn, step, penalizes, forces)
    else:
        total = tl.zeros((block,), tl.float32)
        for i in tl.static_range(blocks):
            score = _scores(logits, since, i * block + lane, vocabulary, step, penalty, penalizes)
            total += tl.exp((score - top) / temperature)
        score = _scores(logits, since, own, vocabulary, step, penalty, penalizes)
        dist = tl.exp((score - top) / temperature) / tl.sum(total, 0)
        tl.store(to, dist, mask=own < vocabulary)
        tl.store(masses + row * tl.num_programs(0) + tile, tl.sum(dist.to(tl.float64), 0))


@triton.jit(do_not_specialize=["n", "step", "tiles"])
def _draw_one(
    probs,
    masses,
    uniforms,
    tokens,
    since,
    forced,
    vocabulary,
    n,
    step,
    tiles,
    penalizes: tl.constexpr,
    forces: tl.constexpr,
    width: tl.constexpr,
    places: tl.constexpr,
    overlaps: tl.constexpr,
):
    wait_for_previous(overlaps)
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, places)
    mass = tl.load(masses + row * tiles + place, mask=place < tiles, other=0.0)
    until = tl.cumsum(mass, 0)
    wanted = tl.load(uniforms + row * n + step) * tl.max(until, 0)
    tile = tl.min(tl.where((until > wanted) & (mass > 0), place, places), 0)
    # Rounding may have left none, here and in the tile.
    tile = tl.where(tile < places, tile, tl.argmax(mass, 0))
    before = tl.sum(tl.where(place == tile - 1, until, 0.0), 0)
    token = tile * width + tl.arange(0, width)
    dist = tl.load(probs + (row * n + step) * vocabulary + token, mask=token < vocabulary, other=0.0)
    passed = (before + tl.cumsum(dist.to(tl.float64), 0) > wanted) & (dist > 0)
    drawn = tl.min(tl.where(passed, token, vocabulary), 0)
    drawn = tl.where(drawn < vocabulary, drawn, tile * width + tl.argmax(dist, 0))
    drawn = tl.minimum(drawn, vocabulary - 1).to(tl.int64)
    _write(tokens + row * n, since + row * vocabulary, forced + row * n, drawn, step, penalizes, forces)
