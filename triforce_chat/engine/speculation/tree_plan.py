"""Plans the shape of the trees that a draft model drafts, by what was measured while decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from triforce_chat.engine.cuda_graph import TREE_DEPTHS, TREE_SIZES, Preparation
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.calibration import TreeTimes
from triforce_chat.engine.speculation.cost_model import FIRST, ROW_PRIOR
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.stack_specs import MAX_DEPTH, MAX_TREE
from triforce_chat.engine.speculation.tree_draft import grow, widths_of
from triforce_chat.engine.speculation.tree_graph import TreeGraphs, widest
from triforce_chat.engine.speculation.tree_rates import PRIOR, RankAcceptance
from triforce_chat.engine.speculation.tree_shapes import (
    Rates,
    Tables,
    best_shape,
    expected_accepted,
    narrow_shape,
    sequences,
    tables,
)
from triforce_chat.engine.tree import Parents, depth_of

REFRESH = 64  # verifications after which a shape is planned again, at the latest: planning takes a while
CHANGE = 1.02  # another shape must promise this many times more tokens than the latest one
PAYS = 1.03  # a tree must promise this many times more tokens a second than a chain before it takes the chain's place
# Rounds after which the one of the two that promises less is measured again, doubled each time that gains nothing.
PATIENCE = 64
LOST = 0.01  # the most that these measurements may cost, as a share of the time since the last one
DOUBTED = 2.0  # what was never measured is taken to be this many times slower than it promises, until it was
WARMUPS = 2  # rounds until times count
OUTLIER = 3.0  # drafting one depth counts as at most this many times slower than usual
USUAL_SIZE, USUAL_DEPTH = 16, 6
# The largest size that is planned: on a device, and of a level below a target whose keys and values are in host memory.
LARGEST_PLANNED, LARGEST_BELOW = 32, 64
DEEPEST, DEPTH_SHARE = 16, 8  # of planned trees: the depth, or a share of the tokens of larger ones


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """What trees a stack drafts; sizes in tokens."""

    kind: str  # "sequoia", "specinfer" or "auto"
    size: int | None = None  # of a tree; None: the usual one, or planned where the kind is "auto"
    depth: int | None = (
        None  # tokens on its longest path; None: planned, or the usual one where a seed forbids that
    )

    planned: int = LARGEST_PLANNED  # the largest size that is planned
    room: int = MAX_TREE  # the largest size that there is room for beside other sequences' trees

    @property
    def most(self) -> int:
        """The largest tree."""
        return min(self.size or (self.planned if self.kind == "auto" else USUAL_SIZE), self.room)

    @property
    def deepest(self) -> int:
        """The greatest depth that any of the trees may have."""
        return min(self.depth, self.most) if self.depth else greatest_depth(self.most)


def greatest_depth(most: int) -> int:
    """Of planned trees of up to so many tokens."""
    return min(MAX_DEPTH, most, max(DEEPEST, most // DEPTH_SHARE))


class RoundCosts(NamedTuple):
    """Seconds of a round: without a draft, of verifying each drafted token, and of drafting each depth."""

    first: float
    row: float
    depth: float

    @property
    def known(self) -> bool:
        return self.first > 0 and self.depth > 0

    def __call__(self, size: Any, depth: Any) -> Any:
        """Seconds of a round with a tree of that size and depth; both may be arrays."""
        return self.first + self.row * size + self.depth * depth


UNKNOWN = RoundCosts(0.0, 0.0, 0.0)


def usual(choices: Sequence[int], wanted: int) -> int:
    """The largest of the ascending choices up to what is wanted; the smallest if all are larger."""
    return max((each for each in choices if each <= wanted), default=choices[0])


class TreeOrChain:
    """Whether rounds draft trees or chains: what promises more tokens a second, and now and then the other one.

    A tree takes a chain's place only where it promises clearly more, and not for longer than it promises more. The
    worse the other one is, and the more rounds draft it at once, the longer it waits: what it loses has to be little.
    """

    def __init__(self) -> None:
        self.tree = self.chain = 0.0  # tokens a second, as last compared
        self.prefers_tree = False  # the tree promised more
        self.measured_at = [0, 0]  # rounds, of the latest chain and of the latest tree
        self.patience = [PATIENCE, PATIENCE]

    def drafts_tree(self, tree: float, chain: float, now: int, rounds: int = 1, known: bool = True) -> bool:
        """Whether the next ``rounds``, after ``now`` of them, draft trees; changes no choice.

        ``known``: what a tree promises goes by its own measured times.
        """
        self.tree, self.chain = tree, chain
        better = self._better
        least, most = sorted((tree, chain))
        loss = rounds * ((1.0 if known else DOUBTED) * most / least - 1) if least else 0.0
        patience = max(self.patience[not better], loss / LOST)
        return better if now - self.measured_at[not better] <= patience else not better

    def drafted(self, tree: bool, now: int) -> None:
        """A round has drafted a tree, or a chain."""
        if self._better != self.prefers_tree:
            self.prefers_tree = not self.prefers_tree
            self.patience = [PATIENCE, PATIENCE]
        if (
            tree != self.prefers_tree and now > self.measured_at[tree] + 1
        ):  # not the next one of the same proposal
            self.patience[tree] *= 2
        self.measured_at[tree] = now

    @property
    def _better(self) -> bool:
        return self.tree > self.chain * (1.0 if self.prefers_tree else PAYS)


class TreePlan:
    """The trees of one level. ``fixed``: nothing may depend on what was measured, so that a seed repeats.

    ``row``: see ``StepTimes``.
    """

    def __init__(
        self, options: TreeOptions, drafter: DraftModel, fixed: bool = False, row: float = ROW_PRIOR
    ) -> None:
        self.options, self.drafter, self.fixed, self.row = options, drafter, fixed, row
        self.independent = options.kind == "specinfer"
        self.prior: Rates = PRIOR
        self.graphs = TreeGraphs(drafter, options.most, self.independent)
        self.restart()

    def restart(self) -> None:
        """Forget everything that was learnt."""
        self.ranks = RankAcceptance(self.prior)
        self.costs = TreeTimes.unknown(self.row)
        self.choice = TreeOrChain()
        self.verifications = 0
        self.timed = 0  # rounds
        self.rates = self.ranks.rates  # that shapes are planned by
        self.chosen = 1, 1  # the latest size and depth
        self.latest: Parents = ()  # the latest shape
        self.within = 0, 0  # the most tokens that it was planned for, and how many of them for others
        self.due = 0  # the number of verifications after which rates are read again

    def begin_with(self, prior: Rates) -> None:
        """Start from rates that were measured before, from now on."""
        self.prior = prior
        self.ranks = RankAcceptance(prior)
        self.rates = self.ranks.rates

    def use_ranks(self, ranks: RankAcceptance) -> None:
        """Go on from what was learnt before."""
        self.ranks, self.rates = ranks, ranks.rates

    def use_costs(self, costs: TreeTimes) -> None:
        """Go on from times that were measured before, if they were."""
        if costs.depth.weight:
            self.costs, self.timed = costs, WARMUPS

    @property
    def measured(self) -> bool:
        """Whether its times are known; the first ones may include preparations."""
        return self.timed >= WARMUPS

    @property
    def optional(self) -> bool:
        """Whether a chain is drafted where that promises more."""
        return self.options.kind == "auto"

    def draft(self, seq: TokenBuffer, parents: Parents, sampler: Sampler) -> Draft:
        """A tree of that shape after ``seq``."""
        if self.drafter.device_side:
            return self.graphs.draft(seq, parents, sampler)
        return grow(self.drafter, seq, parents, sampler, self.independent)

    def most(self, rest: int) -> int:
        """The largest tree where an answer may grow by ``rest`` tokens; of a captured one what is left over is cut."""
        own = self.options.most
        return own if self.drafter.device_side and rest > 0 else min(own, rest)

    def shape(self, most: int, costs: RoundCosts, others: int = 0) -> Parents:
        """The next tree, of at most ``most`` tokens, ``others`` of which join it from elsewhere."""
        if self.options.kind == "specinfer":
            length = min(self.options.depth or USUAL_DEPTH, most - others)
            return sequences((most - others) // length, length)
        if self.verifications >= self.due:
            self.due = self.verifications + min(REFRESH, self.verifications)
            self.rates, self.within = self.ranks.rates, (0, 0)
        if (most, others) != self.within:
            self.within, self.latest = (most, others), self._planned(most, costs, others)
        return self.latest

    def usual_shapes(self) -> Iterator[Parents]:
        """A tree of each size that may be planned, the largest first."""
        most = self.options.most
        if self.options.kind == "specinfer":
            yield self.shape(most, UNKNOWN)
            return
        depth = usual(self._depths(most), USUAL_DEPTH)
        yield from (self._best(size, depth, None) for size in reversed(self._sizes(most)))

    def usual_depths(self) -> Iterator[Parents]:
        """A tree of each depth that may be planned; its graph serves all of them."""
        if self.options.kind != "specinfer":
            yield from (
                sequences(1, depth) for depth in self._captured_depths if depth <= self.options.deepest
            )

    def _planned(self, most: int, costs: RoundCosts, others: int) -> Parents:
        sizes, depths = self._sizes(most), self._depths(most)
        largest = max(most, self.options.most)  # whose tables serve all that are smaller
        found = tables(self.rates, largest, self._depths(largest)[-1])
        if self.fixed or not costs.known:
            size, depth = usual(sizes, USUAL_SIZE), usual(depths, USUAL_DEPTH)
        else:
            size, depth = self._fastest(found.accepted[: depths[-1] + 1, : most + 1], costs)
        shape = self._best(min(size, most - others), depth, found)
        # Where the latest one is as large and promises nearly as much, it stays.
        alike = len(self.latest) == len(shape) and depth_of(self.latest) == depth_of(shape)
        nearly = CHANGE * self.expected(self.latest) >= self.expected(shape)
        return self.latest if alike and nearly else shape

    def _best(self, size: int, depth: int, within: Tables | None) -> Parents:
        """The best shape of that size and depth that one of the usual graphs drafts."""
        shape = best_shape(self.rates, size, depth, within)
        if not self.drafter.device_side:
            return shape
        if depth_of(shape) not in self._captured_depths:  # it has no use for the depth that was wanted
            shape = best_shape(self.rates, size, usual(TREE_DEPTHS, depth_of(shape)), within)
        deep, width = depth_of(shape), widest(depth_of(shape), self.options.most)
        return narrow_shape(self.rates, size, deep, width) if max(widths_of(shape)) > width else shape

    def expected(self, parents: Parents) -> float:
        """The tokens of a tree that are expected to pass, by the rates alone."""
        return expected_accepted(parents, self.rates)

    def forecast(self, parents: Parents) -> float:
        """The tokens that a round with that tree is expected to make, by what trees have made of their promises."""
        return 1 + self.ranks.record.mean * self.expected(parents)

    def rate(self, parents: Parents, costs: RoundCosts) -> float:
        """Expected tokens a second of rounds with that tree; 0 if a cost is unknown."""
        return self.forecast(parents) / costs(len(parents), depth_of(parents)) if costs.known else 0.0

    def unprepared(self, length: int, parents: Parents, sampler: Sampler) -> list[Preparation]:
        """What is to be captured before a tree of that shape can be drafted after ``length`` tokens."""
        return self.graphs.unprepared(parents, sampler.op, sampler.room(length + 1))

    @property
    def planned(self) -> bool:
        """Whether the size is chosen by times."""
        return self.options.kind == "auto" and self.options.size is None

    def _fastest(self, accepted: Any, costs: RoundCosts) -> tuple[int, int]:
        """Size and depth with the most expected tokens per second (Sequoia, section 3.3), or the latest if as good."""
        depth, size = accepted.shape[0] - 1, accepted.shape[1] - 1
        ns, ds = np.arange(1, size + 1)[None], np.arange(1, depth + 1)[:, None]
        rates = (1 + self.ranks.record.mean * accepted[1:, 1:]) / costs(ns, ds)
        sizes, depths = self._sizes(size), self._depths(size)
        rates[:, [n not in sizes for n in ns[0]]] = 0
        rates[[d not in depths for d in ds[:, 0]]] = 0
        d, n = np.unravel_index(int(rates.argmax()), rates.shape)
        latest_size, latest_depth = self.chosen
        if latest_size <= size and latest_depth <= depth:
            rate = rates[latest_depth - 1, latest_size - 1]
            if CHANGE * rate >= rates[d, n]:
                return self.chosen
        self.chosen = int(n) + 1, int(d) + 1
        return self.chosen

    def _sizes(self, most: int) -> Sequence[int]:
        """The sizes to choose from: where forwards are captured, few, each of which fills one."""
        if not self.planned:
            return (most,)
        if not self.drafter.device_side:
            return range(1, most + 1)
        return [rows - 1 for rows in TREE_SIZES if rows <= most + 1 and rows.bit_count() == 1] or (most,)

    def _depths(self, most: int) -> Sequence[int]:
        """The depths to choose from: where drafts are captured, few."""
        if self.options.depth is not None:
            return (min(self.options.depth, most),)
        if not self.drafter.device_side:
            return range(1, greatest_depth(most) + 1)
        return [depth for depth in TREE_DEPTHS if 1 < depth <= greatest_depth(most)] or (1,)

    @property
    def _captured_depths(self) -> Sequence[int]:
        """The depths of trees, where each is a captured draft."""
        return sorted({*TREE_DEPTHS, self.options.depth or 1})

    def learn(
        self, parents: Parents, path: Sequence[int], rows: int, seconds: tuple[float, float] | None
    ) -> None:
        """Learn from a verification of so many rows that accepted ``path``.

        ``seconds``: of the draft and of the verification; None if something was captured in it.
        """
        if self.fixed:
            return
        self.ranks.learn(parents, path, self.expected(parents))
        if seconds is not None:
            drafting, verifying = seconds
            each, before = drafting / depth_of(parents), self.costs.depth.mean
            self.costs.depth.add(min(each, OUTLIER * before or each), 1.0 if self.timed else FIRST)
            self.costs.steps.add(rows, verifying)
            self.timed += 1
        self.verifications += 1
