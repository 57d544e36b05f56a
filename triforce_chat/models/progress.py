"""Progress reports of downloads and conversions, and notes about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a stage: ``done`` of ``total``, in bytes when downloading or saving, else in steps.

    Stages: "waiting" (for another process that builds the same model), "downloading", "converting",
    "saving". The last report of a stage has ``done == total``.
    """

    stage: str
    done: int
    total: int


Report = Callable[[Progress], None]  # may be called from a download thread
Note = Callable[[str], None]  # receives one line of text for the user


def ignore_progress(progress: Progress) -> None:
    """Drop the report."""


def ignore_note(line: str) -> None:
    """Drop the line."""
