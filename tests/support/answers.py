"""Answers of an engine as a list of tokens."""

from __future__ import annotations

from typing import Any

from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text, Verified
from triforce_chat.engine.sampling.options import Sampling


def answer(engine: Engine, prompt: list[int], plain: bool = False, **sampling: Any) -> tuple[list[int], int]:
    """The tokens, and how many of them had been proposed."""
    events = [*engine.answer(Request(prompt, 30, Sampling(**sampling)), plain=plain)]
    ids = [token for event in events if isinstance(event, Text) for token in event.token_ids]
    return ids, sum(event.accepted for event in events if isinstance(event, Verified))
