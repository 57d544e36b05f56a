"""Describes the error that ended a rank."""

from __future__ import annotations

from triforce_chat.errors import OutOfMemory, RankLost, TriforceError

# Parts of torch's messages when the connection to another rank breaks. That rank reports the cause itself.
BROKEN_CONNECTION = ("closed by peer", "reset by peer", "broken pipe", "connection refused", "timed out")


def is_lost_peer(error: BaseException) -> bool:
    """True if the error only says that another rank is gone."""
    return isinstance(error, Exception) and any(part in str(error).lower() for part in BROKEN_CONNECTION)


def describe_error(error: BaseException) -> tuple[str, int]:
    """An error as a line of text, and the exit code for it."""
    from triforce_chat.models.failures import is_out_of_memory

    if isinstance(error, TriforceError):
        return str(error), error.exit_code
    if is_out_of_memory(error):
        return "out of memory; choose a smaller --context or a smaller model", OutOfMemory.exit_code
    return f"{type(error).__name__}: {error}", RankLost.exit_code
