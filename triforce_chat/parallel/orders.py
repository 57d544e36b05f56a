"""What rank 0 tells the other ranks, and what they may have to tell it; every value is pickled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triforce_chat.loading.spec import EngineSpec


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model and put an engine around it."""

    spec: EngineSpec


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method of the engine; where it is a generator, run it up to its first event."""

    method: str
    arguments: tuple[Any, ...]


class Step(Enum):
    """What happens to a generator that stands at an event."""

    GO = "go on to the next event"
    CLOSE = "close it"


class End(Enum):
    """The end of all work."""

    END = "leave"


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank's last words."""

    text: str
    exit_code: int
    traceback: str


Order = Load | Call | Step | End
