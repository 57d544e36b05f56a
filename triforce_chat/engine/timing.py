"""Measured step times, the raw material of the planner's cost model."""

from __future__ import annotations

FORGET = 0.9  # weight of the past at each new measurement: contexts grow, machines slow down
ROW_PRIOR = 0.08  # what one more row costs, as a share of a step, before anything else is known


class StepTimes:
    """Seconds of a forward as a line over its number of rows, fitted online with forgetting."""

    def __init__(self) -> None:
        self.weight = self.rows = self.seconds = self.rows2 = self.product = 0.0

    def add(self, rows: int, seconds: float) -> None:
        seconds = max(seconds, 1e-6)  # a coarse clock must not promise infinite speed
        if self.known:  # a step that was interrupted by something else says nothing about the machine
            seconds = min(seconds, 3 * self(rows))
        for name, value in (
            ("weight", 1.0),
            ("rows", rows),
            ("seconds", seconds),
            ("rows2", rows * rows),
            ("product", rows * seconds),
        ):
            setattr(self, name, FORGET * getattr(self, name) + value)

    @property
    def known(self) -> bool:
        return self.weight > 0

    def __call__(self, rows: float) -> float:
        """Expected seconds of a step with that many rows; 0 before the first measurement."""
        if not self.known:
            return 0.0
        mean_rows, mean = self.rows / self.weight, self.seconds / self.weight
        return max(mean + self._slope(mean_rows, mean) * (rows - mean_rows), 0.2 * mean)

    def _slope(self, mean_rows: float, mean: float) -> float:
        spread = self.rows2 / self.weight - mean_rows**2
        covariance = self.product / self.weight - mean_rows * mean
        prior = ROW_PRIOR * mean / (1 + ROW_PRIOR * mean_rows)
        return max(0.0, (covariance + prior) / (spread + 1.0))
