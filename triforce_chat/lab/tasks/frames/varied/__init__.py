"""Frames for training only: many relations, each asked for in other words and another syntax than it is told in.

A model that was trained on the written and composed frames alone missed indirect questions (a situation before a
colon, passives, "whose", synonyms) and said that the answer was not there.
"""

from collections.abc import Mapping
from types import MappingProxyType

from triforce_chat.lab.tasks.frames.frame import Frame
from triforce_chat.lab.tasks.frames.varied.amounts import AMOUNTS
from triforce_chat.lab.tasks.frames.varied.codes import CODES
from triforce_chat.lab.tasks.frames.varied.dates import DATES
from triforce_chat.lab.tasks.frames.varied.hiding_places import HIDING_PLACES
from triforce_chat.lab.tasks.frames.varied.houses import HOUSES
from triforce_chat.lab.tasks.frames.varied.named_things import NAMED_THINGS
from triforce_chat.lab.tasks.frames.varied.names import NAMES
from triforce_chat.lab.tasks.frames.varied.numbers import NUMBERS
from triforce_chat.lab.tasks.frames.varied.objects import OBJECTS
from triforce_chat.lab.tasks.frames.varied.people import PEOPLE
from triforce_chat.lab.tasks.frames.varied.places import PLACES
from triforce_chat.lab.tasks.frames.varied.towns import TOWNS
from triforce_chat.lab.tasks.frames.varied.two_steps import TWO_STEPS

VARIED: Mapping[str, tuple[Frame, ...]] = MappingProxyType(
    {
        "number": (*NUMBERS, *CODES, *AMOUNTS),
        "name": (*NAMES, *PEOPLE, *NAMED_THINGS),
        "place": (*PLACES, *HIDING_PLACES, *TOWNS, *HOUSES),
        "date": DATES,
        "object": OBJECTS,
        "two-step": TWO_STEPS,
    }
)
