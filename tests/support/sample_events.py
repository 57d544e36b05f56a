"""The events of one short answer, and where it came from."""

from __future__ import annotations

from triforce_chat.chat.events import ChatEvent
from triforce_chat.chat.records import RunInfo
from triforce_chat.engine.events import Finished, Prefilled, Rebuilt, Text, Verified

RUN_INFO = RunInfo("a model", "a draft", "triforce", 1.5)
EVENTS: list[ChatEvent] = [
    Prefilled(10, 100, 10, 0.1),
    Prefilled(100, 100, 10, 2.0),
    Rebuilt(101, "first", 0.01),
    Verified("retrieval", 4, 3),
    Verified("target", 4, 4),
    Text((1, 2, 3, 4, 5), "Hé\x1b"),
    Verified("retrieval", 4, 4),
    Rebuilt(105, "acceptance", 0.02),
    Verified("target", 5, 1),
    Text((6, 7), " «llo»"),
    Finished("stop", 101, 10, 7, 2.0, 2.1, 0.7),
]
