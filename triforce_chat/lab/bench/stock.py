"""Stock ``transformers`` generate, as the reference that anyone can run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from triforce_chat.loading.device import device_and_dtype
from triforce_chat.models.load import load_model
from triforce_chat.models.resize import resize_loaded
from triforce_chat.models.shapes import BigShape
from triforce_chat.models.silence_logs import silence_logs
from triforce_chat.settings.settings import Settings


class Clock:
    """A streamer for ``generate`` that notes when each token arrives."""

    def __init__(self) -> None:
        self.ticks: list[float] = []

    def put(self, _value: Any) -> None:
        self.ticks.append(time.perf_counter())

    def end(self) -> None:
        pass


class Stock:
    """An untouched model with the attention and the cache that transformers chooses."""

    def __init__(self, settings: Settings, shape: BigShape | None = None) -> None:
        device, dtype = device_and_dtype(settings)
        loaded = load_model(settings.model, device=device, dtype=dtype, attention="sdpa")
        self.loaded = resize_loaded(loaded, shape) if shape else loaded

    def measure(self, prompt: Sequence[int], tokens: int) -> tuple[float, float]:
        """(seconds of prefill, ms per decoded token) of a greedy answer of exactly ``tokens`` tokens."""
        clock = Clock()
        ids = torch.tensor([list(prompt)], device=self.loaded.model.device)
        started = time.perf_counter()
        with silence_logs():  # it warns of the very lengths that are to be measured
            self.loaded.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                streamer=clock,
            )
        first, last = clock.ticks[1], clock.ticks[-1]  # the first tick is the prompt's echo
        return first - started, 1000 * (last - first) / (tokens - 1)
