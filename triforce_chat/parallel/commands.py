"""Commands that rank 0 sends to the other ranks, and the failure that they may report. All values are pickled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triforce_chat.loading.spec import EngineSpec


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model and build an engine for it."""

    spec: EngineSpec


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method of the engine. If it returns a generator, advance it to its first event."""

    method: str
    arguments: tuple[Any, ...]


class Step(Enum):
    """The next step of the running generator."""

    NEXT = "advance it to the next event"
    CLOSE = "close it"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Leave the process group and exit."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ended a rank."""

    message: str
    exit_code: int
    traceback: str


Command = Load | Call | Step | Shutdown
