"""A program on a (pseudo) terminal of its own: keys go in, what it writes comes out."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")
CTRL_C, CTRL_D, TAB, ENTER = "\x03", "\x04", "\t", "\r"
QUIET = {"OMP_NUM_THREADS": "1", "PROMPT_TOOLKIT_NO_CPR": "1"}  # nobody here tells where the cursor is
NOISE = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "EDITOR", "VISUAL"}
PATIENCE = 60.0  # seconds; other work may hold the machine

# A session leader takes the first terminal that it opens as its own: Ctrl-C becomes SIGINT only there.
LEAD = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.executable, sys.argv[1:])"


class Terminal:
    """``python *arguments`` on a terminal of ``size`` (columns, rows)."""

    def __init__(
        self,
        *arguments: object,
        cwd: Path | None = None,
        size: tuple[int, int] = (80, 24),
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.written = ""  # everything, escape codes included
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character
        self._terminal, inside = pty.openpty()
        self._taken = 0  # characters that ``until`` has returned, escape codes left out
        self.resize(*size)
        kept = {name: value for name, value in os.environ.items() if name not in NOISE}
        self._process = subprocess.Popen(
            [sys.executable, "-c", LEAD, sys.executable, *map(str, arguments)],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=cwd,
            env={**kept, **QUIET, "TERM": "xterm-256color", **environ},
            start_new_session=True,
        )
        os.close(inside)

    @property
    def pid(self) -> int:
        return self._process.pid

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def until(self, *texts: str, seconds: float = PATIENCE) -> str:
        """Read until every text has come, escape codes left out; returns what came up to the last of them.

        What comes behind that is left for the next call.
        """
        end = time.monotonic() + seconds
        while missing := [text for text in texts if text not in self._fresh]:
            assert time.monotonic() < end, f"{missing} did not come: {self._fresh[-2000:]!r}"
            has_ended = self._process.poll() is not None  # asked first: what it wrote last can still be read
            assert self._read(0.1) or not has_ended, f"it ended: {self._fresh[-2000:]!r}"
        end_of_last = max(self._fresh.find(text) + len(text) for text in texts)
        found = self._fresh[:end_of_last]
        self._taken += end_of_last
        return found

    def close(self) -> int:
        """Wait for the end and return the exit code; a terminal that nobody reads would block its writer."""
        end = time.monotonic() + PATIENCE
        while self._process.poll() is None:
            assert time.monotonic() < end, f"it did not end: {self._fresh[-2000:]!r}"
            self._read(0.1)
        while self._read(0.0):
            pass
        return self._process.returncode

    def leave(self) -> int:
        """Press Ctrl-D until the program ends; between two prompts nobody listens to one."""
        end = time.monotonic() + PATIENCE
        os.set_blocking(self._terminal, False)
        while self._process.poll() is None:
            assert time.monotonic() < end, f"it did not end: {self._fresh[-2000:]!r}"
            with suppress(OSError):  # just now closed by the program: a write may fail, or else wait for ever
                self.send(CTRL_D)
            self._read(0.5)
        return self.close()

    def hang_up(self) -> int:
        """Close the window and wait for the end."""
        os.close(self._terminal)
        self._terminal = -1
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._terminal >= 0:
            os.close(self._terminal)

    @property
    def _fresh(self) -> str:
        return ESCAPES.sub("", self.written)[self._taken :]

    def _read(self, seconds: float) -> bool:
        if not select.select([self._terminal], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self._terminal, 65536)
        except OSError:  # Linux says so when the last process has closed the terminal
            return False
        self.written += self._decoder.decode(piece)
        return bool(piece)
