"""Standard output and standard error that a shell has closed (``>&-``, ``2>&-``)."""

from __future__ import annotations

import errno
import io
import os
import sys

OUTPUT, ERRORS = 1, 2  # file descriptors


class ClosedOutput(io.TextIOBase):
    """Standard output that cannot be written to. Python would drop what is printed there and report success."""

    encoding = "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:  # noqa: ARG002
        raise OSError(errno.EBADF, "standard output is closed")

    def fileno(self) -> int:
        return OUTPUT


def replace_closed_streams() -> None:
    """Make closed standard output an error for those who write to it, and discard what goes to closed standard error.

    Their numbers are taken, so that no file which is opened later gets one of them and is written to.
    """
    if sys.stdout is None:
        _take(OUTPUT, os.O_RDONLY)
        sys.stdout = ClosedOutput()
    if sys.stderr is None:
        _take(ERRORS, os.O_WRONLY)
        sys.stderr = open(ERRORS, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _take(number: int, mode: int) -> None:
    """Open the null device as this file descriptor."""
    opened = os.open(os.devnull, mode)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
