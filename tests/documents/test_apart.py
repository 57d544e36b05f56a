"""The process that parses a document ends with the one that asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ASKS = """
from triforce_chat.documents import apart, child
apart._START = "import sys; sys.path = sys.argv[1:]; from triforce_chat.documents import child; import os, time; " \\
    "child.answer = lambda _: (print(os.getpid(), file=open(%r, 'w'), flush=True), time.sleep(600)); child.main()"
apart.parse_apart(b"text", "text", None, False)
"""


def test_the_parser_dies_with_its_parent(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", ASKS % str(told)])
    parser = int(until_told(told))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 60
    while alive(parser):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def until_told(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
