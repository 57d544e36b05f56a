"""What ended a rank, in words."""

from __future__ import annotations

from triforce_chat.errors import OutOfMemory, RankLost, TriforceError

# How torch says that a rank which it talked to is gone. That rank has its own story.
DESERTED = ("closed by peer", "reset by peer", "broken pipe", "connection refused", "timed out")


def deserted(error: BaseException) -> bool:
    """Whether a rank that this one talked to is gone."""
    return isinstance(error, Exception) and any(sign in str(error).lower() for sign in DESERTED)


def last_words(error: BaseException) -> tuple[str, int]:
    """An error as one line, and the exit code that suits it."""
    from triforce_chat.models.failures import is_out_of_memory

    if isinstance(error, TriforceError):
        return str(error), error.exit_code
    if is_out_of_memory(error):
        return "out of memory; choose a smaller --context or a smaller model", OutOfMemory.exit_code
    return f"{type(error).__name__}: {error}", RankLost.exit_code
