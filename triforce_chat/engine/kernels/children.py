"""Drawing the children of trees' rows in three kernels, whatever the number of rows and children.

The first one applies the penalty, and finds, tile by tile of the vocabulary, the highest score and how much weight lies
there. A program of the second one draws all children of a row: it looks for each in the tile that a random number
points to, and takes what was drawn away from that tile. The third one writes the distributions that they were drawn
from.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.drawing import Drawing
from triforce_chat.engine.kernels.overlap import overlap, wait_for_previous

WIDTH = 512  # tokens of a tile
WARPS = 4
PATH = 16  # nodes of a path, at least
# Weights are relative to a row's highest. What is left counts as nothing where it may not be a normal number in fp32.
LEAST = tl.constexpr(1e-30)
FAINT = tl.constexpr(1e-36)  # of a tile's highest weight, too little for one of its tokens to be drawn


def draw_children(
    scores: Tensor,
    how: Drawing,
    links: Tensor,
    lines: Tensor,
    rows: Tensor,
    step: int,
    tokens: Tensor,
    probs: Tensor,
    independent: bool = False,
    dists: Tensor | None = None,
) -> None:
    """Draw the children of B trees' ``rows`` [B, m], all at depth ``step``; -1 stands for no row.

    ``links`` [B, 2, n+1] and ``lines`` [B, n+1, d] as of ``Family``; scores [B, m, V] are those after each of ``rows``,
    before the penalty. Children are drawn one after the other without replacement, unless ``independent``; where a
    distribution has nothing left, the token with the next best score follows for certain. Node i of a tree is drawn by
    its number i of ``how`` into tokens [B, n], or is what is forced at its depth, and row i of probs [B, n, V], fp32,
    becomes the distribution that it was drawn from. The penalty applies to the tokens on the path to a row, too.
    ``dists`` [B, m, V], fp32: the distributions after ``rows``, if they do not follow from scores and temperature
    alone.
    """
    (trees, m, vocabulary), n = scores.shape, tokens.shape[1]
    scores, filtered = scores.flatten(0, 1), dists is not None
    count, tiles, device, overlaps = trees * m, triton.cdiv(vocabulary, WIDTH), scores.device, overlap()
    tops, rest = (
        torch.empty((count, size), dtype=torch.float32, device=device) for size in (tiles, vocabulary)
    )
    masses = torch.empty((count, tiles), dtype=torch.float64, device=device)
    # What was drawn even where another token is forced, and the weight that was left before.
    drawn, lefts = torch.empty_like(tokens), torch.empty_like(tokens, dtype=torch.float64)
    since, forced = (tokens if each is None else each for each in (how.since, how.forced))
    dists = scores if dists is None else dists
    given = scores, dists, since, lines, links, rows, tokens, tops
    sizes = vocabulary, n, m, rows.stride(0), tiles
    temperature, penalty = float(how.temperature), float(how.penalty)
    numbers = *sizes, lines.shape[2], scores.stride(0), temperature, penalty
    kind = {
        "greedy": how.temperature == 0 and not filtered,
        "filtered": filtered,
        "width": WIDTH,
        "overlaps": overlaps,
        "launch_pdl": overlaps,
        "num_warps": WARPS,
    }
    path = {
        "penalizes": how.since is not None,
        "reach": triton.next_power_of_2(max(PATH, lines.shape[2])),
    }
    several = {"places": triton.next_power_of_2(tiles), "independent": independent}
    _weigh_tiles[(tiles, count)](*given, masses, rest, *numbers, **kind, **path)
    _draw_one_by_one[(count,)](
        rest,
        dists,
        links,
        rows,
        tokens,
        tops,
        masses,
        drawn,
        lefts,
        how.uniforms,
        forced,
        *sizes,
        forced.stride(0),
        temperature,
        step,
        **kind,
        **several,
        forces=how.forced is not None,
    )
    _write_dists[(tiles, count)](*given, drawn, lefts, probs, *numbers, **kind, **path, **several)


@triton.jit
def _eldest(rows, links, at, n, m, rows_tree):
    """The tree and the row of the ``at``-th of all rows, -1 if there is none, and its first child."""
    tree = at // m
    row = tl.load(rows + tree * rows_tree + at % m)
    return tree, row, tl.load(links + tree * 2 * (n + 1) + row, mask=row >= 0, other=-1)


@triton.jit
def _path(lines, tokens, row, n, deepest, penalizes: tl.constexpr, reach: tl.constexpr):
    """The tokens on the path to a row, then -1; of no interest without a penalty."""
    path = row
    if penalizes:
        column = tl.arange(0, reach)
        node = tl.load(lines + tl.maximum(row, 0) * deepest + column, mask=column < deepest, other=n)
        path = tl.load(tokens + node, mask=node < n, other=-1)
    return path


@triton.jit
def _penalized(scores, since, path, token, vocabulary, penalty, penalizes: tl.constexpr):
    """The scores of tokens after the penalty, in fp32."""
    there = token < vocabulary
    score = tl.load(scores + token, mask=there, other=float("-inf")).to(tl.float32)
    if penalizes:
        written = tl.load(since + token, mask=there, other=0).to(tl.int32) <= 0
        written = written | (tl.max((token[:, None] == path[None, :]).to(tl.int32), 1) > 0)
        score = tl.where(written, tl.where(score > 0, score / penalty, score * penalty), score)
    return score


@triton.jit
def _weights(dists, score, token, vocabulary, top, temperature, greedy: tl.constexpr, filtered: tl.constexpr):
    """The weights of tokens: their probabilities, or relative to the row's highest; none without a temperature."""
    if filtered:
        weight = tl.load(dists + token, mask=token < vocabulary, other=0.0).to(tl.float32)
    elif greedy:
        weight = tl.zeros_like(score)
    else:
        weight = tl.exp((score - top) / temperature)
    return weight


@triton.jit(
    do_not_specialize=["n", "m", "rows_tree", "deepest", "tiles"], do_not_specialize_on_alignment=["rows"]
)
def _weigh_tiles(
    scores,
    dists,
    since,
    lines,
    links,
    rows,
    tokens,
    tops,
    masses,
    rest,
    vocabulary,
    n,
    m,
    rows_tree,
    tiles,
    deepest,
    scores_row,
    temperature,
    penalty,
    greedy: tl.constexpr,
    filtered: tl.constexpr,
    width: tl.constexpr,
    overlaps: tl.constexpr,
    penalizes: tl.constexpr,
    reach: tl.constexpr,
):
    tile, at = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tree, row, _ = _eldest(rows, links, at, n, m, rows_tree)
    wait_for_previous(overlaps)
    since += tree * vocabulary
    path = _path(lines + tree * (n + 1) * deepest, tokens + tree * n, row, n, deepest, penalizes, reach)
    token = tile * width + tl.arange(0, width)
    score = _penalized(scores + at * scores_row, since, path, token, vocabulary, penalty, penalizes)
    tl.store(rest + at * vocabulary + token, score, mask=token < vocabulary)
    top = tl.max(score, 0)
    tl.store(tops + at * tiles + tile, top)
    if not greedy:
        base = tl.where(top > float("-inf"), top, 0.0)
        weight = _weights(
            dists + at * vocabulary, score, token, vocabulary, base, temperature, greedy, filtered
        )
        tl.store(masses + at * tiles + tile, tl.sum(weight.to(tl.float64), 0))


@triton.jit(
    do_not_specialize=["n", "m", "rows_tree", "tiles", "forced_tree", "step"],
    do_not_specialize_on_alignment=["rows"],
)
def _draw_one_by_one(
    rest,  # scores, from which what is drawn is taken
    dists,
    links,
    rows,
    tokens,
    tops,
    masses,
    drawn,
    lefts,
    uniforms,
    forced,
    vocabulary,
    n,
    m,
    rows_tree,
    tiles,
    forced_tree,
    temperature,
    step,
    greedy: tl.constexpr,
    filtered: tl.constexpr,
    width: tl.constexpr,
    overlaps: tl.constexpr,
    places: tl.constexpr,
    independent: tl.constexpr,
    forces: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    tree, _, node = _eldest(rows, links, at, n, m, rows_tree)
    wait_for_previous(overlaps)
    links += tree * 2 * (n + 1)
    tokens += tree * n
    drawn += tree * n
    lefts += tree * n
    uniforms += tree * n
    forced += tree * forced_tree
    rest += at * vocabulary
    dists += at * vocabulary
    place, lane = tl.arange(0, places), tl.arange(0, width)
    best = tl.load(tops + at * tiles + place, mask=place < tiles, other=float("-inf"))
    top = tl.max(best, 0)
    mass = tl.zeros((places,), tl.float64)
    if not greedy:
        mass = tl.load(masses + at * tiles + place, mask=place < tiles, other=0.0)
        if not filtered:
            scale = tl.exp((best - top) / temperature)
            mass *= tl.where(scale < FAINT, 0.0, scale).to(tl.float64)
    while node >= 0:
        number, younger = tl.load(uniforms + node), tl.load(links + n + 1 + node + 1)
        until = tl.cumsum(mass, 0)
        total = tl.sum(mass, 0)
        nothing = total < LEAST
        wanted = number * total
        tile = tl.min(tl.where((until > wanted) & (mass > 0), place, places), 0)
        # Rounding may have left none, here and in the tile.
        tile = tl.where(tile < places, tile, tl.argmax(mass, 0))
        tile = tl.where(nothing, tl.argmax(best, 0), tile)
        before = tl.sum(tl.where(place == tile - 1, until, 0.0), 0)
        token = tile * width + lane
        score = tl.load(rest + token, mask=token < vocabulary, other=float("-inf"))
        weight = _weights(dists, score, token, vocabulary, top, temperature, greedy, filtered)
        weight = tl.where(score > float("-inf"), weight, 0.0)
        passed = (before + tl.cumsum(weight.to(tl.float64), 0) > wanted) & (weight > 0)
        found = tl.min(tl.where(passed, lane, width), 0)
        found = tl.where(found < width, found, tl.argmax(weight, 0))
        found = tl.where(nothing, tl.argmax(score, 0), found)
        own = tl.minimum(tile * width + found, vocabulary - 1).to(tl.int64)
        tl.store(drawn + node, own)
        tl.store(lefts + node, tl.where(nothing, 0.0, total))
        written = own
        if forces:
            imposed = tl.load(forced + step)
            written = tl.where(imposed < 0, own, imposed)
        tl.store(tokens + node, written)
        if not independent:
            others = tl.where(lane == found, 0.0, weight).to(tl.float64)
            mass = tl.where(place == tile, tl.sum(others, 0), mass)
            best = tl.where(place == tile, tl.max(tl.where(lane == found, float("-inf"), score), 0), best)
            tl.store(rest + own, float("-inf"))
            tl.debug_barrier()  # another thread may read what one wrote
        node = younger


@triton.jit(
    do_not_specialize=["n", "m", "rows_tree", "deepest", "tiles"], do_not_specialize_on_alignment=["rows"]
)
def _write_dists(
    scores,
    dists,
    since,
    lines,
    links,
    rows,
    tokens,
    tops,
    drawn,
    lefts,
    probs,
    vocabulary,
    n,
    m,
    rows_tree,
    tiles,
    deepest,
    scores_row,
    temperature,
    penalty,
    greedy: tl.constexpr,
    filtered: tl.constexpr,
    width: tl.constexpr,
    overlaps: tl.constexpr,
    penalizes: tl.constexpr,
    reach: tl.constexpr,
    places: tl.constexpr,
    independent: tl.constexpr,
):
    tile, at = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tree, row, node = _eldest(rows, links, at, n, m, rows_tree)
    wait_for_previous(overlaps)
    links += tree * 2 * (n + 1)
    since += tree * vocabulary
    drawn += tree * n
    lefts += tree * n
    probs += tree * n * vocabulary
    path = _path(lines + tree * (n + 1) * deepest, tokens + tree * n, row, n, deepest, penalizes, reach)
    place, token = tl.arange(0, places), tile * width + tl.arange(0, width)
    top = tl.max(tl.load(tops + at * tiles + place, mask=place < tiles, other=float("-inf")), 0)
    score = _penalized(scores + at * scores_row, since, path, token, vocabulary, penalty, penalizes)
    weight = _weights(dists + at * vocabulary, score, token, vocabulary, top, temperature, greedy, filtered)
    while node >= 0:
        own, left, younger = tl.load(drawn + node), tl.load(lefts + node), tl.load(links + n + 1 + node + 1)
        some = left > 0
        share = (weight.to(tl.float64) / tl.where(some, left, 1.0)).to(tl.float32)
        dist = tl.where(some, share, tl.where(token == own, 1.0, 0.0))
        tl.store(probs + node * vocabulary + token, dist, mask=token < vocabulary)
        if not independent:
            weight = tl.where(token == own, 0.0, weight)
        node = younger
