"""What can go wrong for a user: one line of text and an exit code for each kind."""

from __future__ import annotations

INTERRUPTED = 130  # the shell's convention for SIGINT


class TriforceError(Exception):
    """A condition that the user can understand and act on; printed as one line, never as a traceback."""

    exit_code = 1
    code = "error"  # for programs: what a batch writes beside the line of text


class UsageError(TriforceError):
    """The command line or a setting makes no sense."""

    exit_code = 2
    code = "usage"


class StateError(TriforceError):
    """Data kept between runs cannot be read or written."""


class DocumentError(TriforceError):
    """A document cannot be read or holds no text."""

    exit_code = 3
    code = "unreadable_document"


class DoesNotFit(TriforceError):
    """The text is longer than the context; carries the numbers and the choices in its message."""

    exit_code = 4
    code = "context_length_exceeded"


class ModelError(TriforceError):
    """A model cannot be found, fetched or run by this program."""

    exit_code = 5
    code = "model_unavailable"


class OutOfMemory(TriforceError):
    """The machine has less memory than the work needs."""

    exit_code = 6
    code = "out_of_memory"


class ExactnessError(TriforceError):
    """Speculative output was measurably different from the target's own."""

    exit_code = 7


class RankLost(TriforceError):
    """One of the processes that share a model ended or failed, and with it all of them."""

    exit_code = 8

    def __init__(self, text: str, exit_code: int = exit_code) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # that of the error which ended the rank
        self._is_printed = False

    def claim_printing(self) -> bool:
        """True for the first caller, which prints the error: two threads may be about to, and one of them has to."""
        printed, self._is_printed = self._is_printed, True
        return not printed


class TimeLimit(TriforceError):
    """An answer took longer than the user allows."""

    code = "time_limit"


class Incomplete(TriforceError):
    """Some answers of a batch are missing; names which."""

    exit_code = 9


class CutShort(TriforceError):
    """An answer that should follow a JSON Schema ended before its JSON was complete."""

    exit_code = 10
    code = "cut_short"


class Interrupted(TriforceError):
    """The user pressed Ctrl-C."""

    exit_code = INTERRUPTED


def reason_of(error: OSError) -> str:
    """A system's error in one line, with the file that it is about."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason
