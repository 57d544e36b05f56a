"""Plans several rounds at once that do not wait for one another, of one sequence or of some together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from triforce_chat.engine.speculation.cost_model import AcceptanceCurve
from triforce_chat.engine.speculation.plan import Plan, sizes
from triforce_chat.engine.speculation.tree_plan import TreePlan

if TYPE_CHECKING:
    from triforce_chat.engine.speculation.planner import Planner


def several(planner: Planner, n: int, length: int) -> Plan:
    """Plan several rounds that make about n tokens and do not wait for one another.

    All ranks take rank 0's plan, as their clocks differ.
    """
    plan = intended(planner, n, length)
    if plan.parents:  # of one rank
        return plan
    own = plan.rounds, plan.n, planner.threshold(plan.n)
    rounds, drafted, threshold = planner.group.broadcast_ints(own)
    return Plan(drafted, plan.arm, rounds=rounds, threshold=threshold)


def intended(planner: Planner, n: int, length: int) -> Plan:
    """This rank's plan of several rounds, without lookup."""
    arm, trees = planner.first, planner.trees
    if trees is not None and arm is not None and not trees.optional:
        return _several_trees(planner, trees, planner.tree(arm, trees, planner.most, 0), n, length)
    ((drafted, rounds),) = rounds_together([RoundsRequest(planner, n, length)])
    chain = Plan(drafted, arm, rounds=rounds)
    if trees is None:
        return chain
    tree = planner.or_tree(replace(chain, rate=_chain_rate(planner, drafted, length)), n, 0)
    return (
        _several_trees(planner, trees, tree, n, length) if length >= tree.longest and tree.parents else chain
    )


def agreed(planner: Planner, drafted: int, rounds: int) -> Plan:
    """The plan of as many rounds as ``rounds_together`` found."""
    return Plan(drafted, planner.first, rounds=rounds, threshold=planner.threshold(drafted))


class RoundsRequest(NamedTuple):
    """About ``n`` tokens after ``length`` are to be made by several rounds."""

    planner: Planner
    n: int
    length: int


def rounds_together(requests: Sequence[RoundsRequest]) -> list[tuple[int, int]]:
    """(drafted tokens, rounds) for each of the sequences that make their rounds together: the same for all.

    A forward of some of them takes hardly less time than one of all, and a sequence with fewer rounds would only wait.
    """
    planners, count = [request.planner for request in requests], len(requests)
    leading = planners[0]
    drafted = min(_longest(request.planner, request.length) for request in requests)
    if leading.gamma is None and drafted:
        curves = [[0.0, *accumulate(_blend(planner).chances(drafted))] for planner in planners]
        # Until one has measured something, all reckon in shares of a step.
        lines = [
            _line(request.planner, request.length)
            for request in requests
            if request.planner.times.steps.known
        ]
        lines = lines or [_line(leading, requests[0].length)]
        first, each = (sum(parts) / len(lines) for parts in zip(*lines, strict=True))
        rates = {
            g: (1 + sum(hopes[g] for hopes in curves) / count) / (first + each * g) for g in sizes(1, drafted)
        }
        drafted = leading.best(leading.first, rates) or leading.least_lacking(leading.first, rates)
    n = sum(request.n for request in requests) / count
    made = 1 + sum(sum(_blend(planner).chances(drafted)) for planner in planners) / count
    rounds = (round(n / made) or min(math.ceil(n), 1)) + leading.proposals.spare
    return count * [(drafted, min(rounds, leading.proposals.most // (drafted + 1)))]


def agreed_on_trees(planner: Planner, plan: Plan, rounds: int) -> Plan:
    """That plan with as many rounds as ``mean_rounds`` found, if it has any."""
    return replace(plan, rounds=min(plan.rounds and rounds, planner.proposals.most // plan.longest))


def mean_rounds(each: Sequence[int]) -> list[tuple[int]]:
    """The rounds of all sequences whose trees are drafted together: what each has planned, on average."""
    return len(each) * [(round(sum(each) / len(each)),)]


def _several_trees(planner: Planner, trees: TreePlan, tree: Plan, n: int, length: int) -> Plan:
    """Rounds that each draft that tree."""
    if length < tree.longest:  # the draft feeds as many tokens again
        tree = Plan(0, tree.arm)
    rounds = (round(n / (1 + trees.expected(tree.parents))) or min(n, 1)) + planner.proposals.spare
    return replace(tree, rounds=min(rounds, planner.proposals.most // tree.longest))


def _chain_rate(planner: Planner, drafted: int, length: int) -> float:
    """Tokens a second of one of several rounds that each draft a chain; 0 before both of its costs are measured."""
    if not (planner.times.steps.known and planner.arms and planner.arms[0].measured):
        return 0.0
    first, each = _line(planner, length)
    return (1 + sum(_blend(planner).chances(drafted))) / (first + each * drafted)


def _longest(planner: Planner, length: int) -> int:
    """Tokens that one of several rounds may draft."""
    return min(planner.most, max(0, length - 1)) if planner.arms or planner.lookup is not None else 0


def _blend(planner: Planner) -> AcceptanceCurve:
    """By which several rounds are planned.

    With a fixed gamma nothing may depend on what was learnt, so that a seed gives the same tokens every time.
    """
    return planner.blend if planner.gamma is None else AcceptanceCurve()


def _line(planner: Planner, length: int) -> tuple[float, float]:
    """Seconds of one of several rounds that draft, beside the drafted tokens, and of each of these."""
    steps, arm = planner.times.steps, planner.first
    first, more = steps.line if steps.known else (1.0, planner.times.row)
    if arm is None:
        return first, more
    whole, each = arm.line if arm.measured else (0.0, arm.forecast(length) * (steps(1) or 1.0))
    return first + whole, more + each
