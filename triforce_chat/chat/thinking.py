"""Models that think before they answer: what their chat templates know of it, and which tokens are a thought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from triforce_chat.chat.events import Tally
from triforce_chat.engine.detokenizer import Thinking
from triforce_chat.errors import UsageError

if TYPE_CHECKING:
    from triforce_chat.chat.template import ChatFormat

MARKERS = ("<think>", "</think>")
SWITCHES = ("enable_thinking", "thinking")  # names of a template's variable that turns thoughts on and off
THINK: Mapping[str, bool | None] = {"auto": None, "on": True, "off": False}  # auto: as the template has it


def checked_think(think: str, form: ChatFormat) -> bool | None:
    """Whether thoughts are switched on or off, None if the template decides. Raises UsageError if they cannot be."""
    wanted, marks = THINK[think], form.thought_marks
    if wanted and marks is None:
        raise UsageError("this model does not think before it answers; leave out --think on")
    if wanted is False and marks is not None and not form.can_switch_thoughts:
        raise UsageError("this model always thinks before it answers; leave out --think off")
    return wanted


def split_thought(tally: Tally, marks: Thinking | None) -> tuple[list[int], list[int]]:
    """The tokens of an answer's thought, and those of the answer itself.

    A tally that was stored while the answer was made does not say how many tokens the thought has; the markers do.
    """
    ids = tally.token_ids
    if marks is None:
        return [], [*ids]
    count = tally.thought_tokens or _counted(ids, marks)
    return ids[:count], ids[count:]


def _counted(ids: Sequence[int], marks: Thinking) -> int:
    if marks.end in ids:
        return ids.index(marks.end) + 1
    return len(ids) if [*ids[:1]] == [marks.begin] else 0
