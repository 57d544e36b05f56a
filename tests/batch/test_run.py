"""The loop over the lines: Ctrl-C, and what is said of missing answers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from triforce_chat.batch.lines import Answered, Each, Line
from triforce_chat.batch.output_file import OutputFile
from triforce_chat.batch.run import answer_lines, missing, require_all
from triforce_chat.errors import Incomplete, Interrupted
from triforce_chat.ui.batch_progress import BatchView
from triforce_chat.ui.terminal import Leave

ERROR = {"code": "usage", "message": "No."}


@dataclass(frozen=True)
class Named:
    id: str
    name: str


LINES = [Named(str(number), f"book {number // 2}") for number in range(10)]


class Answerer:
    """Answers at once; does something before the end of one line."""

    def __init__(self, at: str = "", then: Callable[[], None] = lambda: None) -> None:
        self.at, self.then = at, then

    def answer(self, line: Line, each: Each) -> Answered:  # noqa: ARG002
        if line.id == self.at:
            self.then()
        return Answered({"id": line.id, "error": ERROR if line.id == "3" else None}, 1)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[OutputFile]:
    with OutputFile(tmp_path / "out.jsonl", "id", b'{"id":') as made:
        yield made


def view() -> BatchView:
    return BatchView([line.name for line in LINES], True)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_all_lines(output: OutputFile) -> None:
    assert not answer_lines(LINES, Answerer(), output, view())
    assert (len(output.answered), output.failed) == (9, {"3"})
    assert missing(LINES, output) == "1 of 10 answers is missing (book 1)"
    with pytest.raises(Incomplete, match="--retry-failed"):
        require_all(LINES, output, False)
    require_all(LINES[:3], output, True)


def test_ctrl_c_lets_the_running_answer_finish(output: OutputFile) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert answer_lines(LINES, Answerer("1", press), output, view())
    assert output.answered == {"0", "1"}
    assert signal.getsignal(signal.SIGINT) is before
    assert missing(LINES, output) == "8 of 10 answers are missing (book 1, book 2, book 3 and 1 more)"
    with pytest.raises(Interrupted, match="the same command goes on"):
        require_all(LINES, output, True)


def test_ctrl_c_again_ends_at_once_however_late(output: OutputFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def press_twice() -> None:
        press()
        monkeypatch.setattr(time, "monotonic", lambda: 1e9)
        press()

    with pytest.raises(Leave):
        answer_lines(LINES, Answerer("1", press_twice), output, view())
    assert output.answered == {"0"}
