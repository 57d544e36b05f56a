"""Things, animals, dishes, colours, languages, materials."""

from triforce_chat.training.frames.varied.objects.living import LIVING
from triforce_chat.training.frames.varied.objects.mixed import MIXED
from triforce_chat.training.frames.varied.objects.things import THINGS

OBJECTS = (*MIXED, *LIVING, *THINGS)
