"""The arguments of every function that loads an engine: what to load, and callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triforce_chat.models.progress import Note, Report, ignore_note, ignore_progress
from triforce_chat.models.shapes import BigShape
from triforce_chat.settings.settings import Settings

if TYPE_CHECKING:
    from triforce_chat.engine.prefix_store import PrefixStore
    from triforce_chat.engine.speculation.calibrator import CalibrationStore
    from triforce_chat.models.load import LoadedModel


def nothing_before_weights(context: int, tokenizer: Any) -> None:
    """Refuses nothing."""


def no_prefix_store(loaded: LoadedModel) -> PrefixStore | None:  # noqa: ARG001
    """Keep no prefixes: every prompt is prefilled from its first token."""
    return None


# Makes the store of what planners measure, for a target, its draft and the number of ranks.
Calibrations = Callable[["LoadedModel", "LoadedModel | None", int], "CalibrationStore | None"]


def no_calibrations(
    target: LoadedModel,  # noqa: ARG001
    draft: LoadedModel | None,  # noqa: ARG001
    ranks: int,  # noqa: ARG001
) -> CalibrationStore | None:
    """Keep nothing of what planners measure."""
    return None


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The models to load and their memory; plain values that can be pickled for other ranks."""

    settings: Settings
    capacity: int | None = None  # tokens of KV to allocate, even beyond what the model was trained for
    shape: BigShape | None = None  # resize the target to these dimensions; its output stays the same
    device_memory: int | None = None  # bytes of its GPU that the process may ever use
    sequences: int = 1  # most answers at once


@dataclass(frozen=True, slots=True)
class LoadHooks:
    """Callbacks of a load.

    ``prefix_store`` makes the store of prefilled prefixes that outlives the engine. It is called while the weights
    are still laid out as they were loaded.
    """

    progress: Report = ignore_progress
    note: Note = ignore_note  # receives choices that were made for the user
    warn: Note = ignore_note  # receives reasons to doubt the answers
    prefix_store: Callable[[LoadedModel], PrefixStore | None] = no_prefix_store
    calibrations: Calibrations = no_calibrations
    # Receives the tokens of the context and the tokenizer, before the weights are read; may raise DoesNotFit.
    before_weights: Callable[[int, Any], None] = nothing_before_weights
