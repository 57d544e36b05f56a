"""How a command fails: one line on stderr and an exit code; a traceback only for defects or with --debug."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from triforce_chat.errors import Interrupted, TriforceError


@contextmanager
def failures(debug: bool) -> Iterator[None]:
    """Turn an error that a user can understand into one line and an exit code. Raises typer.Exit for those."""
    try:
        yield
    except BrokenPipeError:  # the reader of a pipe has closed it
        sys.stderr.close()
        raise typer.Exit(0) from None
    except (TriforceError, KeyboardInterrupt, MemoryError, RuntimeError, OSError) as error:
        known = _as_known(error)
        if debug or known is None:
            raise
        print_error(str(known))
        raise typer.Exit(known.exit_code) from None


def _as_known(error: BaseException) -> TriforceError | None:
    """The error as a user can understand it; None for a defect of the program."""
    if isinstance(error, TriforceError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if isinstance(error, OSError):
        return TriforceError(error.strerror or str(error))
    from triforce_chat.models.failures import is_out_of_memory, out_of_memory_error

    return out_of_memory_error() if is_out_of_memory(error) else None


def print_error(line: str) -> None:
    from triforce_chat.ui.clean import one_line

    print(f"error: {one_line(line)}", file=sys.stderr)
