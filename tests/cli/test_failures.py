"""Signals that end a command."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.pseudo_terminal import Terminal

INTERRUPTED = """
import os, sys, threading, time
from triforce_chat.cli.failures import ended_by_signals

start = threading.Thread.start

def start_and_stay(thread):
    start(thread)
    time.sleep(0.2)  # the other thread is far ahead of the one that is interrupted

class Ending:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        sum(range(9))  # the handler runs here, where its exception is dropped

threading.Thread.start = start_and_stay
try:
    with ended_by_signals():
        Ending()
        threading.Event().wait(50)
except KeyboardInterrupt:
    sys.exit(7)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 7)]
)
def test_a_signal_in_a_destructor_is_not_lost(tmp_path: Path, number: signal.Signals, code: int) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    terminal = Terminal(script, int(number))
    assert terminal.close() == code
    assert "Exception ignored" not in terminal.written


def test_another_exception_in_a_destructor_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "reported.py"
    script.write_text(
        INTERRUPTED.replace("sum(range(9))", "1 / 0")
        .replace("os.kill", "print")
        .replace("wait(50)", "wait(0)")
    )
    terminal = Terminal(script, 1)
    assert terminal.close() == 0
    assert "ZeroDivisionError" in terminal.written
