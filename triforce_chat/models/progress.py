"""How long work on a model tells its caller where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a stage is: ``done`` of ``total``, in bytes when downloading or saving, else in steps.

    Stages: "waiting" (for another process that makes the same model), "downloading", "converting",
    "saving". The last report of a stage has ``done == total``.
    """

    stage: str
    done: int
    total: int


Report = Callable[[Progress], None]  # may be called from a thread of the download


def unheard(progress: Progress) -> None:
    """A report that nobody reads."""
