"""Standard output and standard error that are closed or full: nothing is lost without an error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.serving import save_chat_model

CLOSED = "error: standard output is closed\n"


def shell(redirection: str, command: Sequence[object]) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments and a redirection of the shell's."""
    words = ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def program(redirection: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return shell(redirection, ["-m", "triforce_chat", *arguments])


@pytest.mark.parametrize("command", [["--version"], ["--help"], ["ask", "--help"], ["schema"], ["paths"]])
@pytest.mark.parametrize(
    ("redirection", "error"), [(">&-", CLOSED), (">/dev/full", "error: No space left on device\n")]
)
def test_what_cannot_be_printed_is_an_error(redirection: str, error: str, command: list[str]) -> None:
    made = program(redirection, *command)
    assert (made.returncode, made.stdout, made.stderr) == (1, "", error)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_answer_that_nobody_gets_is_an_error(tmp_path: Path, flags: list[str]) -> None:
    save_chat_model(tmp_path / "model")
    (tmp_path / "a.txt").write_text("some words " * 20)
    asked = ["--model", tmp_path / "model", "--max-tokens", "4", "--stack", "lookup", "--quiet", *flags]
    made = program(">&-", "ask", tmp_path / "a.txt", "Why?", *asked)
    assert (made.returncode, made.stdout, made.stderr) == (1, "", CLOSED)


def test_a_reader_that_has_enough_is_no_error() -> None:
    made = program("| head -c 1", "schema")
    assert (made.returncode, made.stdout, made.stderr) == (0, "{", "")


def test_closed_standard_error_takes_nothing_to_standard_output(tmp_path: Path) -> None:
    made = program("2>&-", "ask", tmp_path / "missing.txt", "Why?", "--model", tmp_path)
    assert (made.returncode, made.stdout) == (3, "")


def test_no_file_gets_the_number_of_a_closed_stream() -> None:
    code = (
        "import os; from triforce_chat.cli.closed_streams import replace_closed_streams as replace; replace(); "
        "numbers = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]; raise SystemExit(min(numbers))"
    )
    assert shell(">&- 2>&-", ["-c", code]).returncode > 2
    assert shell("<&- >&- 2>&-", ["-c", code]).returncode == 0  # that of standard input alone
