"""What both trainings share: the schedule, the log, and a state to resume from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from triforce_chat.errors import UsageError

STATE, LOG = "state.pt", "log.jsonl"


@dataclass(slots=True)
class Course:
    """How far a training is; it ends by steps or by the clock, whichever comes first.

    ``minutes`` limits the whole training, resumed parts included.
    """

    steps: int
    minutes: float
    rate: float
    warmup: int = 10  # steps
    step: int = 0
    spent: float = 0.0  # seconds in earlier parts
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return self.spent + time.perf_counter() - self.started

    @property
    def progress(self) -> float:
        """Progress of the training, from 0 to 1."""
        return min(1.0, max(self.step / self.steps, self.seconds / (60 * self.minutes)))

    @property
    def done(self) -> bool:
        return self.progress >= 1.0

    @property
    def learning_rate(self) -> float:
        """Linear warm-up, then half a cosine down to a hundredth."""
        warm = min(1.0, (self.step + 1) / self.warmup)
        return self.rate * warm * (0.01 + 0.99 * (1 + math.cos(math.pi * self.progress)) / 2)


class Optimizer:
    """AdamW whose learning rate follows a course, with the gradient's norm cut at 1."""

    def __init__(self, parameters: Iterable[nn.Parameter], course: Course, decay: float = 0.0) -> None:
        self.parameters, self.course = list(parameters), course
        self.adam = torch.optim.AdamW(
            self.parameters, lr=course.rate, betas=(0.9, 0.95), weight_decay=decay, foreach=True
        )

    def step(self, rate: float | None = None) -> None:
        """One update, at ``rate`` instead of the course's own if given."""
        nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        for group in self.adam.param_groups:
            group["lr"] = self.course.learning_rate if rate is None else rate
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.course.step += 1

    def save(self, folder: Path) -> None:
        """Write all that a resumed training needs, in one step that cannot be torn."""
        fresh = folder / (STATE + ".new")
        torch.save(
            {
                "step": self.course.step,
                "seconds": self.course.seconds,
                "adam": self.adam.state_dict(),
                "parameters": [p.detach().cpu() for p in self.parameters],
            },
            fresh,
        )
        fresh.replace(folder / STATE)

    def resume(self, folder: Path) -> bool:
        """Go on where ``save`` stopped; False when nothing was saved there.

        Raises UsageError for what is no state, or the state of a training of other shapes.
        """
        if not (folder / STATE).is_file():
            return False
        state = _state(folder / STATE)
        if [p.shape for p in self.parameters] != [p.shape for p in state["parameters"]]:
            raise UsageError(f"{folder} contains another training; choose another --out")
        self.adam.load_state_dict(state["adam"])
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
                parameter.copy_(saved)
        self.course.step, self.course.spent = state["step"], state["seconds"]
        self.course.started = time.perf_counter()
        return True


def _state(file: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, UnpicklingError) as error:
        raise UsageError(f"{file} is damaged; delete it to start over") from error
    return state


class Log:
    """The loss curve: one JSON object a line. Of an earlier part, lines up to ``step`` are kept."""

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / LOG
        before = (
            self.path.read_text("utf-8").splitlines(keepends=True) if step and self.path.is_file() else []
        )
        kept = [line for line in before if line.endswith("\n") and json.loads(line)["step"] <= step]
        self.path.write_text("".join(kept), "utf-8")

    def add(self, course: Course, figures: Mapping[str, Tensor | float | int]) -> dict[str, float]:
        line = {"step": course.step, "seconds": round(course.seconds, 1)}
        line |= {name: float(f"{float(value):.5g}") for name, value in figures.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return line
