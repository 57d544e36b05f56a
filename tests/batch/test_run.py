"""The loop over the lines: Ctrl-C, and what is said of missing answers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.batch_toys import HEAD, Toy, toys

from triforce_chat.batch.lines import Answered, Answering, Line, within
from triforce_chat.batch.output_file import OutputFile
from triforce_chat.batch.run import answer_lines, missing, require_all
from triforce_chat.batch.worker_pool import Done, ThisProcess, relayed
from triforce_chat.engine.events import Text
from triforce_chat.errors import Incomplete, Interrupted, TimeLimit
from triforce_chat.ui.batch_progress import BatchView
from triforce_chat.ui.terminal import Leave

ERROR = {"code": "usage", "message": "No."}


LINES = [Toy(str(number), f"book {number // 2}") for number in range(10)]


class Answerer:
    """Answers at once; does something before the end of one line."""

    def __init__(self, at: str = "", then: Callable[[], None] = lambda: None, width: int = 1) -> None:
        self.at, self.then, self.width = at, then, width

    def answer(self, lines: Sequence[Line]) -> Answering:
        for line in lines:
            yield Text((1,), "a")
            if line.id == self.at:
                self.then()
            yield Answered(line.id, {"id": line.id, "error": ERROR if line.id == "3" else None}, 1)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[OutputFile]:
    with OutputFile(tmp_path / "out.jsonl", "id", HEAD) as made:
        yield made


def view() -> BatchView:
    return BatchView([line.name for line in LINES], True)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_all_lines(output: OutputFile) -> None:
    assert not answer_lines(LINES, ThisProcess(Answerer()), output, view())
    assert (len(output.answered), output.failed) == (9, {"3"})
    assert missing(LINES, output) == "1 of 10 answers is missing (book 1)"
    with pytest.raises(Incomplete, match="--retry-failed"):
        require_all(LINES, output, False)
    require_all(LINES[:3], output, True)


def test_ctrl_c_lets_the_running_answer_finish(output: OutputFile) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert answer_lines(LINES, ThisProcess(Answerer("1", press)), output, view())
    assert output.answered == {"0", "1"}
    assert signal.getsignal(signal.SIGINT) is before
    assert missing(LINES, output) == "8 of 10 answers are missing (book 1, book 2, book 3 and 1 more)"
    with pytest.raises(Interrupted, match="the same command continues"):
        require_all(LINES, output, True)


def test_ctrl_c_lets_all_running_answers_finish(output: OutputFile) -> None:
    assert answer_lines(LINES, ThisProcess(Answerer("0", press, 2)), output, view())
    assert output.answered == {"0", "1"}


def test_ctrl_c_again_ends_at_once_however_late(output: OutputFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def press_twice() -> None:
        press()
        monkeypatch.setattr(time, "monotonic", lambda: 1e9)
        press()

    with pytest.raises(Leave):
        answer_lines(LINES, ThisProcess(Answerer("1", press_twice)), output, view())
    assert output.answered == {"0"}


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    seconds = iter([0.0, 1.0, 2.5])

    def answering() -> Answering:
        try:
            for _ in range(5):
                yield Text((1,), "a")
        except TimeLimit as error:
            for name in "ab":
                yield Answered(name, {"error": str(error)})

    *events, first, second = relayed(0, within(answering(), 2, lambda: next(seconds)))
    assert len(events) == 2
    assert first == Done(0, Answered("a", {"error": "no answer within 2 s"}))
    assert second == Done(0, Answered("b", {"error": "no answer within 2 s"}))


def test_ten_thousand_lines_begin_at_once(tmp_path: Path) -> None:
    lines = toys(2500, 4)
    started = time.process_time()

    def stop() -> None:
        assert time.process_time() - started < 1.0  # it takes a tenth
        raise Leave

    with OutputFile(tmp_path / "other.jsonl", "id", HEAD) as output:
        with pytest.raises(Leave):
            answer_lines(lines, ThisProcess(Answerer("0-0", stop)), output, BatchView([], True))
        assert missing(lines, output).startswith("10,000 of 10,000 answers are missing")
