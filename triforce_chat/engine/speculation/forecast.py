"""What a step of one model is expected to cost beside one of another, before it is measured: by what it has to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triforce_chat.engine.forward.runner import Runner

Step = Callable[[int], float]  # what a step costs after so many tokens
LAYER = 180_000_000  # bytes that a GPU reads in the time that a layer takes even if it reads next to nothing, 45 us
FROM_HOST = 80  # how many times longer a byte takes to come from host memory than from the GPU's own


@dataclass(frozen=True, slots=True)
class StepCost:
    """Of a step of one row, in bytes that the device's own memory could give in its time."""

    model: float  # whatever the context is
    token: float  # for each token of the context

    @staticmethod
    def of(runner: Runner, streamed: bool = False) -> StepCost:
        """``streamed``: the keys and values come from host memory."""
        weights = runner.weight_bytes - runner.int8_numbers * (runner.shape.dtype.itemsize - 1)
        weights += runner.streamed.nbytes * FROM_HOST if runner.streamed else 0
        layers = runner.shape.layers * LAYER if runner.device.type == "cuda" else 0
        return StepCost(weights + layers, runner.shape.bytes_per_token * (FROM_HOST if streamed else 1))

    def __call__(self, tokens: int) -> float:
        """After a context of so many tokens."""
        return self.model + self.token * tokens
