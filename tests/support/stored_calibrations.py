"""A store of calibrations in memory, and tables that make one drafter pay."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from triforce_chat.engine.speculation.calibration import Calibration, LevelTimes, Measured
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_shapes import Rates


class Shelf:
    """Keeps each stack's calibration as JSON, as other processes would find it."""

    def __init__(self) -> None:
        self.texts: dict[StackOptions, str] = {}
        self.rates: Rates | None = None

    def key(self, options: StackOptions) -> str:
        return options.name

    def read(self, options: StackOptions) -> Calibration:
        assert not options.repeatable  # one entry serves both
        text = self.texts.get(options)
        return Calibration.of(json.loads(text)) if text else Calibration()

    def write(self, options: StackOptions, news: Calibration) -> Calibration:
        known = self.read(options)
        known.absorb(news)
        self.texts[options] = json.dumps(known.plain())
        return known

    def ranks(self) -> Rates | None:
        return self.rates

    def keep_ranks(self, rates: Rates) -> None:
        self.rates = rates

    def put(self, options: StackOptions, bucket: int, times: dict[str, LevelTimes]) -> None:
        """Lay down what a calibration has measured."""
        kept = replace(options, repeatable=False)
        self.write(kept, Calibration({bucket: Measured(times, {})}))


def times(first: float, more: float, *costs: float, gap: float = 0.0) -> LevelTimes:
    """Seconds of a forward's first row and of each further one, and of each token that an arm drafts."""
    plain: dict[str, Any] = {
        "steps": {"level": [first, 4.0], "shape": [0.04, 0.0, 0.0, 1e6, 0.0, 1e6 * more / first]},
        "gap": [gap, 4.0],
        "undrafted": [0.0, 0.0],
        "costs": [[cost, 4.0] for cost in costs],
        "excess": [[0.0, 4.0] for _ in costs],
    }
    return LevelTimes.of(plain)
