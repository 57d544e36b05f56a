"""Signals that end a command."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import typer
from support.pseudo_terminal import Terminal

from triforce_chat.cli.failures import failures
from triforce_chat.errors import RankLost

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


LOSING = """
import os, signal, sys, threading, typer
from triforce_chat.cli.failures import failures
from triforce_chat.errors import RankLost

def lose(number, frame):
    raise RankLost("rank 1 is lost")

class Ending:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGUSR1)
        sum(range(9))

signal.signal(signal.SIGUSR1, lose)
try:
    with failures(False):
        Ending()
        threading.Event().wait(50)
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


def test_a_lost_rank_that_is_noticed_in_a_destructor_ends_the_program(tmp_path: Path) -> None:
    script = tmp_path / "losing.py"
    script.write_text(LOSING)
    terminal = Terminal(script)
    assert terminal.close() == RankLost.exit_code
    assert terminal.written == "error: rank 1 is lost\r\n"


def test_a_lost_rank_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    lost = RankLost("rank 1 is lost")
    for told in ("error: rank 1 is lost\n", ""):  # the second time as if another thread had been quicker
        with pytest.raises(typer.Exit), failures(False):
            raise lost
        assert capsys.readouterr().err == told


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
