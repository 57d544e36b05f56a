"""How a command ends after its answers: which exit code they give."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from triforce_chat.errors import CutShort, Interrupted

if TYPE_CHECKING:
    from triforce_chat.chat.events import Tally
    from triforce_chat.ui.answers import Answered


def end(made: Sequence[Answered], as_schema: bool = False) -> None:
    """Exit as interrupted if an answer was, else as the first error wants, if there was one.

    ``as_schema``: the answers are to be JSON. Raises CutShort if one of them was cut before that was complete.
    """
    errors = [each.error for each in made if each.error]
    if not all(each.whole for each in made):
        raise typer.Exit(Interrupted.exit_code)
    if errors:
        raise typer.Exit(errors[0].exit_code)
    if as_schema:
        _require_json([each.tally for each in made])


def _require_json(tallies: Sequence[Tally]) -> None:
    from triforce_chat.ui.formatting import UNATTENDED_REMEDIES, cut_short

    cut = [tally for tally in tallies if cut_short(tally) and not _is_complete(tally.text)]
    if not cut:
        return
    which = "the answer is" if len(tallies) == 1 else f"{len(cut):,} of {len(tallies):,} answers are"
    remedy = UNATTENDED_REMEDIES[cut[0].finished.reason] if cut[0].finished else ""
    raise CutShort(f"{which} not complete JSON: {cut_short(cut[0])}; {remedy}")


def _is_complete(text: str) -> bool:
    """Whether the text of an answer that was cut is JSON nevertheless; of a number there could be more digits."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return not isinstance(value, int | float) or isinstance(value, bool)
