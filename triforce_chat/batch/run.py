"""Answering the lines of a batch until the last one or Ctrl-C, and what is said of those without an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from triforce_chat.batch.driver import Driver
from triforce_chat.batch.fingerprint import Maker
from triforce_chat.batch.lines import Line
from triforce_chat.batch.output_file import OutputFile
from triforce_chat.batch.queue import Queue
from triforce_chat.batch.worker_pool import WorkerPool
from triforce_chat.errors import Incomplete, Interrupted, TriforceError, UsageError
from triforce_chat.ui.batch_progress import BatchView
from triforce_chat.ui.formatting import count, shorten
from triforce_chat.ui.terminal import Interrupt

MOST_NAMED = 3  # lines that a message names
NAME_LENGTH = 80  # characters


class LastAnswers(Interrupt):
    """While entered, Ctrl-C lets the running answers be the last ones; again it raises ``Leave``, however late."""

    WINDOW = math.inf


def answer_lines(
    lines: Sequence[Line], pool: WorkerPool, output: OutputFile, view: BatchView, limit: float | None = None
) -> bool:
    """Have the lines answered and write each answer to the disk; returns whether Ctrl-C stopped that.

    ``limit``: seconds for an answer. Raises what ``Driver.run`` raises.
    """
    with LastAnswers(view.stopping) as interrupt, view, pool:
        Driver(Queue(lines), pool, output, view, limit).run(lambda: interrupt.requested)
    return interrupt.requested


def missing(lines: Sequence[Line], output: OutputFile) -> str:
    """How many lines have no answer, and the names of some of them; empty if all have one."""
    left = [line for line in lines if line.id not in output.answered]
    if not left:
        return ""
    names = list(dict.fromkeys(shorten(line.name, NAME_LENGTH) for line in left))
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    are = "is" if len(left) == 1 else "are"
    return f"{len(left):,} of {count(len(lines), 'answer')} {are} missing ({', '.join(names[:MOST_NAMED])}{more})"


def require_all(lines: Sequence[Line], output: OutputFile, interrupted: bool) -> None:
    """Raise Incomplete if lines have no answer, or Interrupted if Ctrl-C is the reason."""
    told = missing(lines, output)
    if not told:
        return
    if interrupted:
        raise Interrupted(f"interrupted: {told}; the same command continues")
    raise Incomplete(f"{told}: {output.path} says why; --retry-failed answers them again")


def stopped(error: TriforceError, lines: Sequence[Line], output: OutputFile) -> Incomplete:
    """The end of a batch that cannot go on now."""
    return Incomplete(f"{error}; {missing(lines, output)}; the same command continues")


def what_changed(lines: Sequence[Line], output: OutputFile, maker: Maker) -> dict[str, str]:
    """The lines whose answers were made of something else than a new one would be: what has changed, by id."""
    told = {
        line.id: maker.changes(output.fingerprints[line.id], line)
        for line in lines
        if line.id in output.answered and line.id in output.fingerprints
    }
    return {identifier: change for identifier, change in told.items() if change}


def refuse_changed(changes: dict[str, str], output: OutputFile) -> None:
    """Raise UsageError if there are such lines: answers that cost hours are not deleted unasked."""
    if changes:
        kinds = list(dict.fromkeys(shorten(change, NAME_LENGTH) for change in changes.values()))
        more = f" and {len(kinds) - MOST_NAMED:,} more" if len(kinds) > MOST_NAMED else ""
        raise UsageError(
            f"{output.path}: {count(len(changes), 'answer')} of {', '.join(kinds[:MOST_NAMED])}{more}; "
            "--retry-changed asks again, another --out keeps both"
        )


def unanswered(lines: Sequence[Line], output: OutputFile) -> list[Line]:
    """The lines that the output does not have."""
    known = output.answered | output.failed
    return [line for line in lines if line.id not in known]
