"""What can be planted: statements, and questions about them."""

from collections.abc import Mapping
from types import MappingProxyType

from triforce_chat.lab.tasks.frames.composed import COMPOSED
from triforce_chat.lab.tasks.frames.dates import DATES
from triforce_chat.lab.tasks.frames.frame import Frame
from triforce_chat.lab.tasks.frames.names import NAMES
from triforce_chat.lab.tasks.frames.numbers import NUMBERS
from triforce_chat.lab.tasks.frames.objects import OBJECTS
from triforce_chat.lab.tasks.frames.places import PLACES
from triforce_chat.lab.tasks.frames.two_steps import TWO_STEPS
from triforce_chat.lab.tasks.frames.varied import VARIED

__all__ = ["COMPOSED", "FRAMES", "VARIED", "Frame"]

FRAMES: Mapping[str, tuple[Frame, ...]] = MappingProxyType(
    {
        "number": NUMBERS,
        "name": NAMES,
        "place": PLACES,
        "date": DATES,
        "object": OBJECTS,
        "two-step": TWO_STEPS,
    }
)
