from __future__ import annotations

import io
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document as Line
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console
from support.consoles import written
from support.fakes import ScriptedConversation
from support.places import ROOT, SUPPORT
from support.pseudo_terminal import CTRL_C, CTRL_D, Terminal

from triforce_chat.chat.events import ChatEvent
from triforce_chat.documents import Document, Page
from triforce_chat.engine.events import Finished, FinishReason, Text
from triforce_chat.errors import INTERRUPTED, DoesNotFit
from triforce_chat.ui.prompt import SlashCompleter
from triforce_chat.ui.repl import FIRST_HINTS, HINT, REMEDIES, UNREAD, Labels, Repl
from triforce_chat.ui.terminal import Detail, Screen

ALT_ENTER = "\x1b\r"


class Chat:
    """The REPL on a pipe of keys."""

    def __init__(
        self, *answers: str | Exception, history: Path | None = None, detail: Detail = "bare"
    ) -> None:
        self.conversation = ScriptedConversation(*answers)
        self.out, self.err = Console(file=io.StringIO()), Console(file=io.StringIO(), width=100)
        self.read: list[str] = []
        labels = Labels("model", "stack")
        screen = Screen(self.out, self.err, detail)
        self.repl = Repl(self.conversation, self._document, screen, lambda: labels, history)

    def _document(self, path: str, _pages: str | None) -> Document:
        self.read.append(path)
        return Document(path, path, (Page(1, "x"),))

    def type(self, keys: str) -> int:
        with create_pipe_input() as keyboard:
            keyboard.send_text(keys)
            return self.repl.run(keyboard, DummyOutput())

    @property
    def said(self) -> str:
        return written(self.out)

    @property
    def remarks(self) -> str:
        return written(self.err)


@pytest.mark.parametrize(
    ("keys", "questions"),
    [
        ("hello\r", ["hello"]),
        ("\x1b[200~one\ntwo\n/three\n\x1b[201~\r", ["one\ntwo\n/three"]),
        (f"one{ALT_ENTER}two\r", ["one\ntwo"]),
        ('"""one\rtwo\r"""\rthree\r', ["one\ntwo", "three"]),
        (f"typed{CTRL_C}anew\r", ["anew"]),
        ("\r\r  \rx\r", ["x"]),
    ],
)
def test_keys(keys: str, questions: list[str]) -> None:
    chat = Chat()
    assert chat.type(keys + CTRL_D) == 0
    assert chat.conversation.questions == questions


def test_idle_ctrl_c_gives_a_hint() -> None:
    chat = Chat("fine")
    assert chat.type(f"{CTRL_C}{CTRL_C}{CTRL_C}still here?\r{CTRL_D}") == 0
    assert chat.remarks.count(HINT) == 3
    assert chat.said == "fine\n"


def test_ctrl_c_between_the_prompt_and_the_answer_does_not_end_the_chat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat = Chat("fine")

    def interrupted(_text: str) -> str:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(chat.repl._pastes, "unfold", interrupted)
    assert chat.type(f"never asked\rstill here?\r{CTRL_D}") == 0
    assert chat.conversation.questions == ["still here?"]


def test_exit() -> None:
    chat = Chat()
    assert chat.type("/exit\rnever\r") == 0
    assert chat.conversation.questions == []


def test_completion(tmp_path: Path) -> None:
    (tmp_path / "a book.pdf").touch()
    complete = SlashCompleter(Chat().repl._commands).get_completions

    def offered(typed: str) -> list[tuple[str, str]]:
        found = complete(Line(typed), CompleteEvent(completion_requested=True))
        return [(typed[: len(typed) + one.start_position] + one.text, one.display_meta_text) for one in found]

    assert ("/doc", "Add a document to this chat, or those of a folder or pattern.") in offered("/")
    assert [text for text, _ in offered("/sy")] == ["/system"]
    assert offered("/set temp") == [("/set temperature", "now 0.6")]
    assert [text for text, _ in offered(f"/doc {tmp_path}/a")] == [f"/doc {tmp_path}/a book.pdf"]
    assert [text for text, _ in offered(f"/save {tmp_path}/a")] == [f"/save {tmp_path}/a book.pdf"]
    assert [text for text, _ in offered(f"/export {tmp_path}/a")] == [f"/export {tmp_path}/a book.pdf"]
    assert offered("text /he") == offered("/clear x") == offered("/set\nx") == []


def stopped_at(count: int, events: Iterator[ChatEvent]) -> Generator[ChatEvent, None, None]:
    """The events, with a Ctrl-C at the one of this number."""
    for number, event in enumerate(events, 1):
        if number == count:
            os.kill(os.getpid(), signal.SIGINT)
        yield event


def test_a_stopped_first_reading_says_what_was_read_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat("fine", history=tmp_path / "history", detail="plain")
    chat.conversation.add(Document("book", "book", (Page(1, "x"),)))
    prefill = chat.conversation.prefill
    monkeypatch.setattr(chat.conversation, "prefill", lambda: stopped_at(2, prefill()))
    assert chat.type(f"go on\r{CTRL_D}") == 0
    stopped = "stopped while reading, 21,000 of 41,000 tokens done\n"
    header, introduction, rest = chat.remarks.partition(FIRST_HINTS[0])
    assert header.startswith("model · stack · /help shows the commands")
    assert introduction
    assert f"{stopped}{REMEDIES[UNREAD]}\n" in rest
    assert chat.said == "fine\n"


def test_a_stopped_answer_can_be_continued() -> None:
    chat = Chat("It was night. It rained.", detail="plain")
    ask = chat.conversation.ask
    chat.conversation.ask = lambda question: stopped_at(8, ask(question))  # type: ignore[method-assign]
    chat.type(f"Why?\r{CTRL_D}")
    assert "\nstopped after 4 tokens" in chat.remarks
    assert "\n/continue resumes the answer\n" in chat.remarks


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("length", "--max-tokens allows longer answers"),
        ("repetition", "--loop-guard 0 lets an answer repeat"),
    ],
)
def test_only_who_can_type_is_told_of_continue(reason: FinishReason, advice: str) -> None:
    def cut(_question: str) -> Iterator[ChatEvent]:
        yield from (Text((1,), "So."), Finished(reason, 9, 0, 1, 0.1, 0.1, 0.1))

    details: tuple[Detail, ...] = ("plain", "bare")
    for typed, detail in itertools.product((True, False), details):
        chat = Chat(detail=detail)
        chat.conversation.ask = cut  # type: ignore[assignment, method-assign]
        if typed:
            chat.type(f"Why?\r{CTRL_D}")
        else:
            chat.repl.run_lines(["Why?"])
        assert ("/continue resumes the answer" in chat.remarks) is typed
        assert (advice in chat.remarks) is not typed


def test_errors_do_not_end_the_chat() -> None:
    chat = Chat(DoesNotFit("the question needs 10 tokens,\n5 are left"), "short")
    assert chat.type(f"long\rshort\r{CTRL_D}") == 0
    assert "error: the question needs 10 tokens, 5 are left\n" in chat.remarks
    assert chat.said == "short\n"


def test_history_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    history = tmp_path / "state" / "history"
    Chat(history=history).type(f"remember me\r{CTRL_D}")
    assert history.stat().st_mode & 0o077 == 0
    chat = Chat(history=history)
    chat.type(f"\x1b[A\r{CTRL_D}")
    assert chat.conversation.questions == ["remember me"]


def test_a_history_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Chat(history=tmp_path / "file" / "history").type(f"x\r{CTRL_D}") == 0


def test_the_toolbar_has_the_numbers() -> None:
    chat = Chat()
    chat.type(f"/doc book\rhello\r{CTRL_D}")
    assert chat.repl._toolbar() == " model · context 1 / 131,072 tokens (0 %) · 20.0 ms/token · book"


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (90, " small in Q4_1, keys and values in float16 · context 9,547 / 131,072 tokens (7 %)"),
        (80, " small in Q4_1 · context 9,547 / 131,072 tokens (7 %) · a book"),
        (40, " small in Q4_1 · context 7 % · a book"),
        (30, " small in Q4_1 · context 7 %"),
    ],
)
def test_a_narrow_toolbar_still_tells_how_much_of_the_context_is_used(
    columns: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat()
    chat.out.width = columns
    chat.conversation.add(Document("a book", "a book", (Page(1, 9_547 * "x"),)))
    labels = Labels("small in Q4_1, keys and values in float16", "auto")
    monkeypatch.setattr(chat.repl, "_labels", lambda: labels)
    assert chat.repl._toolbar() == shown


@pytest.fixture
def on_terminal(tmp_path: Path) -> Iterator[Callable[[float], Terminal]]:
    """The demonstration chat on a real (pseudo) terminal, whose answers come to a text and not to their end."""
    started: list[Terminal] = []
    held = {"HELD_AT": "The captain", "GO_ON": str(tmp_path / "never")}

    def start(pause: float) -> Terminal:
        started.append(Terminal(SUPPORT / "ui_demo.py", pause, environ=held))
        return started[-1]

    yield start
    for terminal in started:
        terminal.kill()


def test_a_chat_on_a_terminal(on_terminal: Callable[[float], Terminal]) -> None:
    terminal = on_terminal(0.03)
    terminal.until(">")
    terminal.send("/sta\t")
    terminal.until("ts")
    terminal.send("\r")
    terminal.until("ask something first")
    terminal.send("\x1b[200~one\ntwo\x1b[201~")
    terminal.until("two")
    terminal.send("\r")
    terminal.until("The captain")
    terminal.send(CTRL_C)
    terminal.until("stopped after")
    terminal.until(">")
    terminal.send(CTRL_C)
    terminal.until(HINT)
    terminal.send("/pages\r")
    terminal.until("no document yet")
    terminal.until(">")
    terminal.send(CTRL_D)
    assert terminal.close() == 0


def test_the_second_ctrl_c_leaves(on_terminal: Callable[[float], Terminal]) -> None:
    terminal = on_terminal(600)  # the engine does not reach its next event
    terminal.until(">")
    terminal.send("hello\r")
    terminal.until("reading the first piece")
    terminal.send(CTRL_C)
    terminal.until("stopping")
    terminal.send(CTRL_C)
    assert terminal.close() == INTERRUPTED


def test_the_terminal_side_knows_no_tensors() -> None:
    code = "import sys, triforce_chat.ui.repl; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
