"""The real program on a pseudo-terminal, used as a person would."""

from __future__ import annotations

import base64
import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.pseudo_terminal import CTRL_C, ENTER, TAB, Terminal
from support.tiny_models import mute_special_tokens, save_model

from triforce_chat.ui.repl import HINT
from triforce_chat.ui.stream import LINK_RATE

CONTEXT = 65_536
PASTE = "\x1b[200~{}\x1b[201~"
BOXES = re.compile("[\u2500-\u259f]")
STYLES = re.compile("\x1b\\[(?:\\d+;)*[1-4]m")  # bold, dim, italic and underlined
COLOURS = re.compile("\x1b\\[(?:\\d+;)*(?:[349][0-7]|10[0-7]|[34]8;[25][\\d;]*)(?:;\\d+)*m")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shelf")
    torch.manual_seed(2)
    save_model(made / "tiny", max_position_embeddings=CONTEXT, initializer_range=0.3)
    mute_special_tokens(made / "tiny")
    (made / "novel.txt").write_text("word " * 4_000)
    (made / "edit").write_text("#!/bin/sh\nprintf 'from the editor\\n' > \"$1\"\n")
    (made / "edit").chmod(0o755)
    return made


@pytest.fixture
def chat(shelf: Path, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []
    places = {"XDG_STATE_HOME": str(tmp_path), "TRIFORCE_CHAT_CACHE": str(tmp_path / "cache")}

    def start(*arguments: object, **environ: str) -> Terminal:
        flags = ("--model", "tiny", "--device", "cpu", "--no-cache", *arguments)
        started.append(
            Terminal("-m", "triforce_chat", "chat", *flags, cwd=shelf, environ={**places, **environ})
        )
        return started[-1]

    yield start
    for terminal in started:
        terminal.kill()


def test_a_person_at_a_terminal(chat: Callable[..., Terminal], shelf: Path) -> None:
    flags = ("--max-tokens", 20_000, "--stack", "triforce", "--loop-guard", 0)  # only Ctrl-C is to stop it
    person = chat(*flags, EDITOR=str(shelf / "edit"))
    person.until("Ctrl-D exits")
    person.until(">")
    completes_by_tab_and_stops_a_prefill(person)
    stops_an_answer(person)
    types_ahead_and_resizes(person)
    goes_on_and_copies(person)
    writes_in_an_editor(person)
    person.send(f"/export chat.json{ENTER}")
    person.until("wrote 3 turns")
    person.until(">")
    assert person.leave() == 0
    turns = json.loads((shelf / "chat.json").read_text())["turns"]
    assert [turn["question"] for turn in turns] == ["Why?", "one\ntwo", "from the editor"]
    assert [turn["finish_reason"] for turn in turns] == ["interrupted", "length", "length"]
    assert len(turns[1]["token_ids"]) == 80
    copied = re.findall(r"\x1b\]52;c;([^\x07]*)\x07", person.written)
    assert [base64.b64decode(text).decode() for text in copied] == [turns[1]["text"].strip()]


def completes_by_tab_and_stops_a_prefill(person: Terminal) -> None:
    person.send(f"/sta{TAB}")
    person.until("/sta", "ts")
    person.send(ENTER)
    person.until("ask something first")
    person.until(">")
    person.send(f"/doc no{TAB}")
    person.until("vel.txt")
    person.send(ENTER)
    person.until("added novel", "reading")
    person.until("s left")  # so at least one chunk is in the cache
    person.send(CTRL_C)
    person.until("stopped while reading")
    person.until(">")


def stops_an_answer(person: Terminal) -> None:
    person.send(f"Why?{ENTER}")
    began = time.monotonic(), len(person.written)
    person.until("drafting")
    person.until("tokens/s")
    person.send(CTRL_C)
    person.until("stopped after")
    seconds, size = time.monotonic() - began[0], len(person.written) - began[1]
    assert size < 2 * LINK_RATE * (seconds + 1)
    for _ in range(2):
        person.until(">")
        person.send(CTRL_C)
        person.until(HINT)
    person.until(">")
    person.send(f"/stats{ENTER}")
    shown = person.until("from the cache", "accepted in each of", "built ")
    assert re.search(r"[1-9][\d,]* from the cache", shown)  # what was read before Ctrl-C was not read again


def types_ahead_and_resizes(person: Terminal) -> None:
    person.until(">")
    person.send(f"/set max-tokens 40{ENTER}")
    person.until("max-tokens = 40")
    person.until(">")
    person.send(PASTE.format("one\ntwo"))
    person.until("one", "two")
    person.resize(40, 10)
    person.send(f"{ENTER}/tokens{ENTER}/pages{ENTER}")
    person.until("stopped at the limit of 40 tokens")
    person.until("left", "novel: 1 section")
    person.resize(80, 24)


def goes_on_and_copies(person: Terminal) -> None:
    person.until(">")
    person.send(f"/continue{ENTER}")
    person.until("stopped at the limit of 40 tokens")
    person.until(">")
    person.send(f"/copy{ENTER}")
    person.until("to the terminal's clipboard")


def writes_in_an_editor(person: Terminal) -> None:
    person.until(">")
    person.send(f"/editor{ENTER}")
    person.until("from the editor")
    person.send(ENTER)
    person.until("stopped at the limit of 40 tokens")
    person.until(">")


def test_a_window_that_is_closed_ends_the_program(chat: Callable[..., Terminal]) -> None:
    person = chat("--max-tokens", 20_000)
    person.until("Ctrl-D exits")
    person.until(">")
    person.send(f"Why?{ENTER}")
    person.until("drafting")
    assert person.hang_up() in (-signal.SIGHUP, 1, 129)


@pytest.mark.parametrize("dumb", [True, False])
def test_plain_is_whole_lines(chat: Callable[..., Terminal], dumb: bool) -> None:
    person = chat(
        "novel.txt", "--max-tokens", 40, *([] if dumb else ["--plain"]), TERM="dumb" if dumb else "xterm"
    )
    person.until("loading tiny", "reading: 25 %", "reading: 50 %", "reading: 75 %", "reading: 100 %")
    person.until("tokens read: ", " new in ")
    person.until(">")
    before = len(person.written)
    person.send(f"Why?{ENTER}/stats{ENTER}")
    person.until("stopped at the limit of 40 tokens; ")
    person.until("target: accepted ", "accepted per round: ")
    person.until(">")
    assert person.leave() == 0
    assert not BOXES.search(person.written)
    assert not re.search(r"\x1b\[[0-9;]*[1-9][0-9;]*m", person.written[before:])
    if dumb:
        assert "\x1b" not in person.written


def test_a_chat_that_goes_on_shows_its_last_turn_and_no_color_takes_colours_alone(
    chat: Callable[..., Terminal],
) -> None:
    flags = ("--session", "kept", "--max-tokens", 8)
    person = chat(*flags)
    person.until("Ctrl-D exits")
    person.send("Where is the quay?" + ENTER)
    person.until("stopped at the limit of 8 tokens", ">")
    assert person.leave() == 0
    assert COLOURS.search(person.written)
    again = chat("-c", "--max-tokens", 8, NO_COLOR="1")
    again.until("session kept: 1 turn", "Where is the quay?", ">")
    assert again.leave() == 0
    assert not COLOURS.search(again.written)
    assert STYLES.search(again.written)
