"""How often the children of a drafted token are accepted, by their rank: what the shapes of trees are planned by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from triforce_chat.engine.speculation.cost_model import STORED_TESTS, Average
from triforce_chat.engine.speculation.tree_shapes import Rates
from triforce_chat.engine.tree import ROOT, Parents, children

# How often a small draft's first, second, ... child is the one accepted: a starting point where nothing was measured.
PRIOR = (0.55, 0.12, 0.06, 0.03, 0.02, 0.015, 0.01, 0.008)
PRIOR_WEIGHT = 10.0  # tests that it counts for
FORGET_RANK = 0.995  # weight of the past at each test of a child
DIGITS = 3  # of a rate
CANDID = 6.0  # tokens for which what trees promise is trusted as it is
FORGET_RECORD = 0.98  # weight of the past in the record of trees
FORGET_UNUSED = 0.997  # weight of the past in a round without one


def trusted() -> Average:
    """A record that says: as many tokens pass as are promised."""
    return Average(FORGET_RECORD, CANDID, CANDID)


@dataclass(slots=True)
class RankAcceptance:
    """How often a token's first, second, ... child is accepted once its earlier siblings were rejected.

    ``record`` is the share of the tokens that trees promised by these rates which passed: errors accumulate along a
    path, which the rates do not know.
    """

    prior: Rates = PRIOR
    tests: list[Average] = field(init=False)
    record: Average = field(default_factory=trusted)

    def __post_init__(self) -> None:
        self.tests, left = [], 1.0
        for rate in self.prior:
            chance = rate / left if left > 0 else 0.0
            self.tests.append(Average(FORGET_RANK, PRIOR_WEIGHT, PRIOR_WEIGHT * min(1.0, chance)))
            left -= rate

    def learn(self, parents: Parents, path: Sequence[int], expected: float) -> None:
        """Learn from a verification that accepted ``path`` where ``expected`` tokens of the tree were promised.

        Nodes beyond ``parents`` are not the draft's own.
        """
        following = children(parents)
        for node, accepted in zip((ROOT, *path), (*path, None), strict=True):
            for rank, child in enumerate(following.get(node, ())[: len(self.tests)]):
                self.tests[rank].add(float(child == accepted))
                if child == accepted:
                    break
        if expected > 0:
            self.record.add(sum(node < len(parents) for node in path) / expected, expected)

    def learn_chain(self, proposed: int, accepted: int) -> None:
        """Learn from a verification of a chain, whose tokens are first children; what trees promise fades meanwhile."""
        for at in range(min(accepted + 1, proposed)):
            self.tests[0].add(float(at < accepted))
        fresh = (1 - FORGET_UNUSED) * CANDID
        self.record.weight = FORGET_UNUSED * self.record.weight + fresh
        self.record.total = FORGET_UNUSED * self.record.total + fresh

    @property
    def rates(self) -> Rates:
        """The chance that the child of each rank is the accepted one."""
        found, left = [], 1.0
        for test in self.tests:
            found.append(round(left * test.mean, DIGITS))
            left *= 1 - test.mean
        return tuple(found)

    def plain(self) -> dict[str, Any]:
        """The mean and the weight of each test, and of the record."""
        return {"tests": [each.plain() for each in self.tests], "record": self.record.plain()}

    @staticmethod
    def of(plain: dict[str, Any]) -> RankAcceptance:
        """Rates from plain data. Raises ValueError."""
        made = RankAcceptance()
        made.tests = [Average.of(each, FORGET_RANK, STORED_TESTS) for each in plain["tests"]]
        made.record = Average.of(plain["record"], FORGET_RECORD, STORED_TESTS)
        if not made.tests or any(not each.weight or each.mean > 1 for each in made.tests):
            raise ValueError("no chances of acceptance by rank")
        return made


def rates_of(plain: Any) -> Rates:
    """Rates as they were stored. Raises ValueError or TypeError for anything else."""
    rates = tuple(float(each) for each in plain)
    if not rates or any(each < 0 for each in rates) or not sum(rates) <= 1 + len(rates) * 10**-DIGITS:
        raise ValueError(f"no rates of acceptance: {plain}")
    return rates


def eldest_line(parents: Parents, path: Sequence[int]) -> tuple[int, int]:
    """What a verification that accepted ``path`` says of chains: tokens that only first children make, and passed.

    First children are drawn as a chain's tokens are.
    """
    following, node, length, passed = children(parents), ROOT, 0, 0
    while node in following:
        node = following[node][0]
        if passed == length and length < len(path) and path[length] == node:
            passed += 1
        length += 1
    return length, passed
