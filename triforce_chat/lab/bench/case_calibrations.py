"""What planners learn in a benchmark: from prompt to prompt, as from answer to answer, and for each case apart."""

from __future__ import annotations

from collections.abc import Hashable

from triforce_chat.engine.speculation.calibration import Calibration
from triforce_chat.engine.speculation.calibrator import (
    CalibrationStore,
    MemoryCalibrations,
    NoCalibrations,
)
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_shapes import Rates


class CaseCalibrations:
    """A ``CalibrationStore`` for each case of a benchmark, of which one is in use; none outlives the process.

    So no case draws on what another one has measured, which may have had other settings, or the same text before.
    """

    def __init__(self) -> None:
        self.stores: dict[Hashable, MemoryCalibrations] = {}
        self.used: CalibrationStore = NoCalibrations()

    def use(self, case: Hashable | None) -> None:
        """Take the stack that is built next for one of this case; None: for one that keeps nothing."""
        self.used = NoCalibrations() if case is None else self.stores.setdefault(case, MemoryCalibrations())

    def key(self, options: StackOptions) -> str:
        return self.used.key(options)

    def read(self, options: StackOptions) -> Calibration:
        return self.used.read(options)

    def write(self, options: StackOptions, news: Calibration) -> Calibration:
        return self.used.write(options, news)

    def ranks(self) -> Rates | None:
        return self.used.ranks()

    def keep_ranks(self, rates: Rates) -> None:
        self.used.keep_ranks(rates)
