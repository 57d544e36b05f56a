"""Things, animals, dishes, colours, languages, materials."""

from triforce_chat.lab.tasks.frames.varied.objects.living import LIVING
from triforce_chat.lab.tasks.frames.varied.objects.mixed import MIXED
from triforce_chat.lab.tasks.frames.varied.objects.things import THINGS

OBJECTS = (*MIXED, *LIVING, *THINGS)
