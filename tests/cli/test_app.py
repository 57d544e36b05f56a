"""The program as a user meets it: real models on disk, real documents, real signals, exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from pypdf import PdfReader, PdfWriter
from reportlab.pdfgen.canvas import Canvas
from rich.console import Console
from support.commands import Outcome, run
from support.consoles import written
from support.places import ROOT
from support.rules import middle_accepts_everything
from support.schemas import schema_errors
from support.serving import PATIENCE, save_chat_model
from support.tiny_models import VOCABULARY, mute_special_tokens, save_model

from triforce_chat import __version__
from triforce_chat.chat.events import ChatEvent, Tally
from triforce_chat.cli import reading
from triforce_chat.cli.ending import end
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.events import Finished
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling import executor
from triforce_chat.errors import CutShort
from triforce_chat.settings.options import Options
from triforce_chat.ui.answers import Answered
from triforce_chat.ui.terminal import Screen

CONTEXT = 65_536
ENDLESS = (1 << 31) - 1  # tokens; no configuration may name more
EXAMPLE = ROOT / "examples" / "the-lighthouse-at-varra.pdf"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models and documents."""
    made = tmp_path_factory.mktemp("shelf")
    torch.manual_seed(2)
    save_model(made / "tiny", max_position_embeddings=CONTEXT, initializer_range=0.3)
    mute_special_tokens(made / "tiny")
    save_model(made / "other", vocab_size=len(VOCABULARY) + 8)
    save_model(made / "endless", max_position_embeddings=ENDLESS)
    save_chat_model(made / "bytes")
    (made / "empty").mkdir()
    (made / "a.txt").write_text("the first text " * 40)
    (made / "b.md").write_text("# Second\n\nthe second text\n")
    (made / "middling.txt").write_text("word " * (CONTEXT // 8))
    (made / "long.txt").write_text("word " * (CONTEXT // 4))
    chapter = "A ship came in at night.\n" * 24
    (made / "novel.txt").write_text(f"CHAPTER I\n\n{chapter}\nCHAPTER II\n\n{chapter}")
    (made / "nothing.txt").write_text("")
    (made / "binary.txt").write_bytes(bytes(range(256)) * 40)
    (made / "three.pdf").write_bytes(pdf("page one", "page two", "page three"))
    (made / "locked.pdf").write_bytes(locked(pdf("a secret"), "open sesame"))
    return made


def pdf(*texts: str) -> bytes:
    buffer = io.BytesIO()
    canvas = Canvas(buffer, invariant=1)
    for text in texts:
        canvas.drawString(72, 720, text)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def locked(data: bytes, password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(data)))
    writer.encrypt(password, "owner", algorithm="AES-256")
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


@pytest.fixture
def ask(shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Outcome]:
    """``triforce-chat COMMAND ...`` beside the documents, with the tiny model unless another is named."""
    monkeypatch.chdir(shelf)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))

    def called(command: str, *arguments: object, stdin: str | bytes | None = None) -> Outcome:
        named = [] if "--model" in arguments else ["--model", "tiny"]
        short = [] if "--max-tokens" in arguments else ["--max-tokens", "12"]
        place = [] if "--device" in arguments else ["--device", "cpu"]
        return run(command, *named, *short, *place, *arguments, stdin=stdin)

    return called


CUT = "stopped at the limit of 12 tokens\n--max-tokens allows longer answers\n"
Ask = Callable[..., Outcome]


# Answers


def test_version() -> None:
    assert run("--version").out == f"triforce-chat {__version__}\n"


def test_usage_lines_name_arguments_as_they_are_written() -> None:
    for command, usage in (("ask", '[DOC...] "QUESTION"'), ("chat", "[DOC...]"), ("summarize", "DOC...")):
        assert run(command, "--help").out.splitlines()[0] == f"Usage: root {command} [OPTIONS] {usage}"


def test_lists_of_commands_have_whole_sentences() -> None:
    listed = " ".join(run("--help").out.partition("Commands:")[2].split())
    assert "run it again to continue after an interruption." in listed
    assert "and how often its drafts are accepted." in listed
    assert "..." not in listed


def test_help_documents_the_exit_codes() -> None:
    told = " ".join(run("--help").out.split())
    codes = "0 success, 1 unexpected error, 2 usage, 3 unreadable document, 4 does not fit the context, "
    codes += "5 model unavailable, 6 out of memory, 7 exactness failure, 8 a GPU process of --tp ended, "
    codes += "9 answers of a batch missing, 10 an answer with --schema cut short, "
    assert codes + "130 interrupted" in told
    for command in ("summarize", "ask", "chat", "verify", "bench"):
        assert command in told


def test_a_summary_of_each_chapter(ask: Ask) -> None:
    done = ask("summarize", "novel.txt", "--by", "chapter", "--json")
    first, second = map(json.loads, done.out.splitlines())
    assert first["chapter"] == {"document": "novel", "number": 1, "title": "CHAPTER I"}
    assert second["usage"]["prompt_tokens"] < 900, "a chapter is read by itself"
    told = ask("summarize", "novel.txt", "--by", "chapter").out
    summaries = first["text"].strip(), second["text"].strip()
    assert told == "## novel, CHAPTER I\n\n{}\n\n## novel, CHAPTER II\n\n{}\n".format(*summaries)
    ask("summarize", "a.txt", "--by", "chapter").is_refusal(
        2, "a has no chapters that can be recognized by its headings"
    )
    ask("summarize", "novel.txt", "--by", "chapter", "--jsonl").is_refusal(2, "--by chapter")


def test_chapters_are_chosen(ask: Ask) -> None:
    whole, second, first = (
        ask("ask", "novel.txt", "Why?", "--json", *flags).json
        for flags in ((), ("--chapters", "2"), ("--until", "chapter 1"))
    )
    assert second["usage"]["prompt_tokens"] < whole["usage"]["prompt_tokens"] - 400
    assert first["sources"][0]["where"].startswith("ch. I, l. ")
    assert second["sources"][0]["where"].startswith("ch. II, l. ")
    assert whole["sources"][0]["where"].startswith("ch. I")
    ask("ask", "novel.txt", "Why?", "--chapters", "9").is_refusal(2, "novel has no chapter 9; it has 1-2")


def test_only_the_answer_goes_to_stdout(ask: Ask) -> None:
    done = ask("ask", "a.txt", "Why?")
    told = ask("ask", "a.txt", "Why?", "--json").json
    assert done.code == 0
    assert done.out == told["text"] + "\n"
    assert told["finish_reason"] == "length"
    assert done.err == CUT
    assert "\x1b" not in done.out
    quiet = ask("ask", "a.txt", "Why?", "--quiet")
    assert (quiet.out, quiet.err) == (done.out, "")


def test_the_json_object(ask: Ask) -> None:
    told = ask("summarize", "a.txt", "--json", "--stack", "lookup").json
    assert list(told) == [
        *("schema", "model", "draft", "stack", "text", "token_ids"),
        *("finish_reason", "usage", "timing", "speculation", "sources", "citations"),
    ]
    (source,) = told["sources"]
    assert (source["document"], source["unit"], source["page"], source["share"]) == ("a", "section", 1, 1.0)
    assert source["sentence"]
    assert told["citations"] == []
    assert (told["schema"], told["model"], told["draft"], told["stack"]) == (1, "tiny", None, "lookup")
    assert told["finish_reason"] == "length"
    assert len(told["token_ids"]) == told["usage"]["completion_tokens"] == 12
    assert told["usage"]["prompt_tokens"] > 600
    assert told["usage"]["cached_tokens"] == 0
    assert set(told["timing"]) == {
        *("load_s", "prefill_s", "first_token_s", "decode_s", "tokens_per_s", "ms_per_token")
    }
    assert all(seconds > 0 for seconds in told["timing"].values())
    assert set(told["speculation"]) == {"rounds", "tokens_per_round", "rebuilds", "levels"}
    assert [set(entry) for entry in told["speculation"]["levels"]] == [
        {"name", "proposed", "tested", "accepted", "acceptance"}
    ]


def test_a_comparison_in_json(ask: Ask) -> None:
    told = ask("ask", "a.txt", "Why?", "--json", "--compare-autoregressive", "--stack", "triforce").json
    assert told["identical"] is True
    assert (told["ties"], told["mismatches"]) == (0, 0)
    assert told["autoregressive"]["token_ids"] == told["token_ids"]
    assert set(told["autoregressive"]["timing"]) == set(told["timing"]) - {"load_s"}
    assert told["decode_speedup"] > 0
    assert told["end_to_end_speedup"] > 0
    assert [entry["name"] for entry in told["speculation"]["levels"]] == ["retrieval", "target"]


def test_a_comparison_for_people(ask: Ask) -> None:
    done = ask("ask", "a.txt", "Why?", "--compare-autoregressive")
    assert done.code == 0
    assert "identical, 12 of them" in done.out


def test_events_as_lines(ask: Ask) -> None:
    lines = [json.loads(line) for line in ask("ask", "a.txt", "Why?", "--jsonl").out.splitlines()]
    names = [line["event"] for line in lines]
    assert names[0] == "prefilled"
    assert names[-3:] == ["finished", "retraced", "sourced"]
    assert lines[-1]["sources"] == ask("ask", "a.txt", "Why?", "--json").json["sources"]
    assert {"verified", "text"} <= set(names)
    text = "".join(line["text"] for line in lines if line["event"] == "text")
    assert text == ask("ask", "a.txt", "Why?", "--json").json["text"]
    assert all(line["schema"] == 1 for line in lines)


def asked_together(ask: Ask, tmp_path: Path, *more: str) -> Outcome:
    """Three questions about one document, two of them at a time."""
    (tmp_path / "q.txt").write_text("Why?\n\nWho is the first text about, and who wrote it?\nHow?\n")
    return ask("ask", "a.txt", "--questions", str(tmp_path / "q.txt"), "--parallel", "2", *more)


def test_many_questions_get_the_answers_that_each_gets_alone(ask: Ask, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in asked_together(ask, tmp_path, "--json").out.splitlines()]
    assert [line["question"] for line in lines] == [
        *("Why?", "Who is the first text about, and who wrote it?", "How?")
    ]
    for line in lines:
        alone = ask("ask", "a.txt", line["question"], "--json").json
        assert (line["token_ids"], line["sources"]) == (alone["token_ids"], alone["sources"])
        assert schema_errors("answer", line) == []


def test_many_questions_for_people_and_as_events(ask: Ask, tmp_path: Path) -> None:
    told = asked_together(ask, tmp_path)
    answers = [
        json.loads(line)["text"].strip() for line in asked_together(ask, tmp_path, "--json").out.splitlines()
    ]
    assert (told.code, told.out) == (0, "\n\n".join(answers) + "\n")
    events = [json.loads(line) for line in asked_together(ask, tmp_path, "--jsonl").out.splitlines()]
    assert [event for line in events for event in schema_errors("events", line)] == []
    assert events[0]["question"] is None
    texts = [
        "".join(e["text"] for e in events if e["event"] == "text" and e["question"] == i) for i in range(3)
    ]
    assert [text.strip() for text in texts] == answers


def test_questions_that_cannot_be_asked(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "long.txt").write_text("Why?\n" + "word " * CONTEXT + "\n")
    for name, code in (("blank.txt", 2), ("binary.txt", 2), ("absent.txt", 2)):
        done = ask("ask", "a.txt", "--questions", str(tmp_path / name))
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done.err


def test_a_question_that_does_not_fit_concerns_itself_alone(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("Why?\n" + "word " * CONTEXT + "\nHow?\n")
    done = ask("ask", "a.txt", "--questions", str(tmp_path / "q.txt"), "--json")
    why, long, how = map(json.loads, done.out.splitlines())
    assert [why["text"], how["text"]] == [
        ask("ask", "a.txt", each, "--json").json["text"] for each in ("Why?", "How?")
    ]
    assert (long["error"]["code"], long["finish_reason"]) == ("context_length_exceeded", "error")
    assert schema_errors("answer", long) == []
    assert f"{CONTEXT:,}" in long["error"]["message"]
    told = ask("ask", "a.txt", "--questions", str(tmp_path / "q.txt"))
    assert (told.code, told.out) == (4, f"{why['text'].strip()}\n\n{how['text'].strip()}\n")
    first, second, third = told.err.splitlines()
    assert second.startswith("2. word word")
    cut = "stopped at the limit of 12 tokens"
    assert (first, third) == (f"1. Why?: {cut}", f"3. How?: {cut}")
    events = ask("ask", "a.txt", "--questions", str(tmp_path / "q.txt"), "--jsonl")
    assert [
        found for line in events.out.splitlines() for found in schema_errors("events", json.loads(line))
    ] == []
    (failed,) = [line for line in map(json.loads, events.out.splitlines()) if line["event"] == "failed"]
    assert (events.code, failed["question"], failed["error"]) == (4, 1, long["error"])


def test_many_questions_compared_with_plain_decoding(ask: Ask, tmp_path: Path) -> None:
    done = asked_together(ask, tmp_path, "--compare-autoregressive", "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert len(lines) == 3
    for line in lines:
        alone = ask("ask", "a.txt", line["question"], "--json", "--stack", "autoregressive").json
        assert line["autoregressive"]["token_ids"] == alone["token_ids"]
        assert (line["identical"], line["mismatches"]) == (True, 0)
    told = asked_together(ask, tmp_path, "--compare-autoregressive").out.splitlines()
    assert (told[0], told.count("without speculation:")) == ("with speculation:", 1)
    assert told[-1].endswith("3 of 3 have the same tokens")
    events = asked_together(ask, tmp_path, "--compare-autoregressive", "--jsonl").out.splitlines()
    sides = [
        (line["question"], line["side"]) for line in map(json.loads, events) if line["event"] == "finished"
    ]
    assert sorted(sides) == [(i, side) for i in range(3) for side in ("autoregressive", "speculative")]


FORM = {"type": "object", "properties": {"lit": {"enum": ["yes", "no"]}}, "required": ["lit"]}


@pytest.fixture
def form(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "form.json").write_text(json.dumps({**FORM, "additionalProperties": False}))
    return "--schema", str(tmp_path / "form.json"), "--model", "bytes"


def test_many_answers_of_a_schema(ask: Ask, tmp_path: Path, form: tuple[str, ...]) -> None:
    done = asked_together(ask, tmp_path, *form, "--json", "--max-tokens", "40")
    answers = [json.loads(json.loads(line)["text"]) for line in done.out.splitlines()]
    assert (done.code, len(answers)) == (0, 3)
    assert all(answer["lit"] in ("yes", "no") for answer in answers)


@pytest.mark.parametrize(
    ("how", "which"),
    [
        ([], "the answer is"),
        (["--json"], "the answer is"),
        (["--jsonl"], "the answer is"),
        (["--compare-autoregressive"], "2 of 2 answers are"),
    ],
)
def test_json_that_a_limit_cuts_is_no_success(
    ask: Ask, form: tuple[str, ...], how: list[str], which: str
) -> None:
    done = ask("ask", "a.txt", "Why?", *form, "--max-tokens", "5", *how)
    assert (done.code, done.crash) == (10, None)
    assert how == ["--jsonl"] or '{"lit' in done.out.replace("\\", "")
    last = f"error: {which} not complete JSON: stopped at the limit of 5 tokens; --max-tokens allows longer"
    assert done.err.splitlines()[-1].startswith(last)
    assert done.err.count("--max-tokens") == 1


def test_a_question_beside_those_of_a_file(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("Why?\n")
    questions = ("--questions", str(tmp_path / "q.txt"))
    for question in ("Who?", "Tell me why."):
        done = ask("ask", "a.txt", question, *questions)
        done.is_refusal(2, f"{question}: no such file; with --questions all arguments are documents: write")
    ask("ask", "a.txt", "missing.txt", *questions).is_refusal(3, "missing.txt: no such file")
    assert ask("ask", "?.txt", *questions).code == 0
    assert ask("ask", "a.tx?", *questions).code == 0


def test_many_answers_that_a_limit_cuts(ask: Ask, tmp_path: Path, form: tuple[str, ...]) -> None:
    done = asked_together(ask, tmp_path, *form, "--json", "--max-tokens", "5")
    assert (done.code, len(done.out.splitlines())) == (10, 3)
    assert done.err.splitlines()[-1].startswith("error: 3 of 3 answers are not complete JSON: ")


@pytest.mark.parametrize(
    ("text", "code"), [('{"lit": ""}', 0), ("true", 0), ("12", 10), ('{"lit": ', 10), ("", 10)]
)
def test_what_is_complete_though_it_was_cut(text: str, code: int) -> None:
    tally = Tally(text=text, finished=Finished("length", 1, 0, 5, 0.1, 0.1, 0.1))
    made = [Answered(tally, None)]
    end(made)
    with pytest.raises(CutShort) if code else contextlib.nullcontext():
        end(made, as_schema=True)


def test_nobody_waits_for_sources_that_nobody_sees(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def attribute(*_: object) -> Iterator[ChatEvent]:
        raise AssertionError("sources were looked for")
        yield

    monkeypatch.setattr(Engine, "attribute", attribute)
    assert ask("ask", "a.txt", "Why?").code == 0


def prompt_tokens(done: Outcome) -> int:
    return int(done.json["usage"]["prompt_tokens"])


def test_every_document_is_read(ask: Ask) -> None:
    plain = ("--json", "--system", "Be brief.")  # the usual text depends on whether there are documents
    alone = prompt_tokens(ask("ask", "Why?", *plain))
    first = prompt_tokens(ask("ask", "a.txt", "Why?", *plain)) - alone
    second = prompt_tokens(ask("ask", "b.md", "Why?", *plain)) - alone
    assert first > 500
    assert second > 20
    assert prompt_tokens(ask("ask", "a.txt", "b.md", "Why?", *plain)) - alone == first + second


def test_standard_input_is_a_document(ask: Ask, shelf: Path) -> None:
    text = (shelf / "a.txt").read_bytes()
    size = prompt_tokens(ask("ask", "-", "Why?", "--json", stdin=text))
    assert size > 500
    both = prompt_tokens(ask("ask", "b.md", "-", "Why?", "--json", stdin=text))
    assert both > size


def test_chosen_pages(ask: Ask) -> None:
    whole = prompt_tokens(ask("summarize", "three.pdf", "--json"))
    some = prompt_tokens(ask("summarize", "three.pdf", "--pages", "1,3", "--json"))
    assert whole - some == len("pagetwo") + 1  # the space is a token, the line end is none here


def test_a_password_opens_a_document(ask: Ask) -> None:
    assert prompt_tokens(ask("summarize", "locked.pdf", "--password", "open sesame", "--json")) > 0


@pytest.mark.parametrize("stack", ["triforce", "auto"])
def test_the_same_seed_says_the_same(ask: Ask, stack: str) -> None:
    def said(seed: int) -> list[int]:
        flags = ("--temperature", 1.5, "--seed", seed, "--stack", stack, "--json", "--max-tokens", 40)
        ids: list[int] = ask("ask", "a.txt", "Why?", *flags).json["token_ids"]
        return ids

    assert said(1) != said(2)
    assert [said(1) for _ in range(4)] == [said(1)] * 4


def test_a_draft_of_the_same_vocabulary(ask: Ask) -> None:
    told = ask("ask", "b.md", "Why?", "--draft", "tiny", "--stack", "naive", "--json").json
    assert told["draft"] == "tiny"
    assert told["speculation"]["levels"][0]["acceptance"] == 1.0
    assert (
        told["token_ids"]
        == ask("ask", "b.md", "Why?", "--stack", "autoregressive", "--json").json["token_ids"]
    )


@pytest.mark.parametrize("length", [255, 300, 5000])
def test_a_long_question(ask: Ask, length: int) -> None:
    done = ask("ask", "x" * length, "--json")
    assert done.crash is None
    assert prompt_tokens(done) > length


def test_a_question_of_undecodable_bytes(ask: Ask) -> None:
    done = ask("ask", "caf\udce9")
    assert done.crash is None
    assert done.code in (0, 2)


# Refusals


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ask", "a.txt", "Why?", "--stack", "turbo"], "no stack 'turbo'; choose one of auto, triforce"),
        (["ask", "a.txt", "Why?", "--stack", "naive"], "needs a draft model: pass --draft"),
        (["ask", "a.txt", "Why?", "--policy", "max"], "no policy 'max'"),
        (["ask", "a.txt", "Why?", "--max-tokens", "0"], "max-tokens must be at least 1"),
        (["ask", "a.txt", "Why?", "--budget", "9"], "budget must be at least 104"),
        (["ask", "a.txt", "Why?", "--temperature", "-1"], "temperature must be 0 or more"),
        (["ask", "a.txt", "Why?", "--temperature", "nan"], "temperature"),
        (["ask", "a.txt", "Why?", "--temperature", "inf"], "temperature"),
        (["ask", "a.txt", "Why?", "--repetition-penalty", "inf"], "repetition"),
        (["ask", "a.txt", "Why?", "--top-p", "0"], "top-p must be above 0"),
        (["ask", "a.txt", "Why?", "--temperature", "1", "--seed", "99999999999999999999"], "seed"),
        (
            ["ask", "a.txt", "Why?", "--device", "abacus"],
            "no device 'abacus'; choose auto, cpu, cuda or cuda:1",
        ),
        (["ask", "a.txt", "Why?", "--device", "meta"], "device"),
        (["ask", "a.txt", "Why?", "--pages", "one"], "'one' is not a page or a range of pages"),
        (["ask", "three.pdf", "Why?", "--pages", "2-4"], "page 4 is out of range"),
        (["ask", "a.txt"], "no question given"),
        (["ask", "-"], "no question given"),
        (["ask", "a.txt", "  "], 'the question is empty; use: triforce-chat ask a.txt "QUESTION"'),
        (["ask", "a.txt", ""], 'the question is empty; use: triforce-chat ask a.txt "QUESTION"'),
        (["ask", ""], 'the question is empty; use: triforce-chat ask "QUESTION"'),
        (
            ["ask", "a.txt", "Who", "keeps", "it?"],
            "keeps: no such file; if it is a word of the question, put the question in quotes; use: triforce-chat "
            'ask a.txt "QUESTION"',
        ),
        (["ask", "-", "-", "Why?"], "standard input can be read only once"),
        (["chat", "--json"], "--json and --jsonl are for ask and summarize"),
        (["chat", "-"], "give it the document as a file"),
    ],
)
def test_usage(ask: Ask, arguments: list[str], told: str) -> None:
    ask(*arguments, stdin="text").is_refusal(2, told)


@pytest.mark.parametrize("arguments", [["--colour"], ["dance"], ["ask"], ["ask", "a", "b", "--gamma", "x"]])
def test_a_command_line_that_cannot_be_read(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.code, done.out, done.crash) == (2, "", None)
    assert "Usage:" in done.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing.pdf"], "missing.pdf: no such file"),
        (["a.txt", "missing.pdf"], "missing.pdf: no such file"),
        (["empty"], "empty is a folder without documents; give a file"),
        (["nothing.txt"], "nothing.txt: empty"),
        (["binary.txt"], "binary.txt: binary data"),
        (["-"], "standard input: empty"),
        (["locked.pdf"], "the PDF is encrypted: pass its password with --password"),
        (["locked.pdf", "--password", "wrong"], "this password does not open it"),
        (["missing\n\x1b[31m.txt"], "no such file"),
    ],
)
def test_unreadable_documents(ask: Ask, arguments: list[str], told: str) -> None:
    done = ask("summarize", *arguments)
    done.is_refusal(3, told)
    assert "\x1b" not in done.err


def test_an_empty_file_of_a_folder_is_skipped_with_a_line(ask: Ask, tmp_path: Path) -> None:
    shelf = tmp_path / "books"
    shelf.mkdir()
    for name, text in (("a.txt", ""), ("b.txt", "some text"), ("c.md", " \n")):
        (shelf / name).write_text(text)
    done = ask("ask", shelf, "Why?")
    assert done.code == 0
    assert done.err == f"{shelf}/a.txt: empty, skipped\n{shelf}/c.md: contains no text, skipped\n{CUT}"
    ask("ask", shelf, shelf / "a.txt", "Why?").is_refusal(3, f"{shelf}/a.txt: empty")
    (shelf / "b.txt").write_text("")
    ask("ask", shelf, "Why?").is_refusal(3, "nothing to read: all 3 files found are empty")
    (shelf / "b.txt").unlink()
    (shelf / "c.md").unlink()
    ask("ask", shelf, "Why?").is_refusal(3, f"{shelf}/a.txt: empty")
    ask("ask", "", "Why?").is_refusal(3, "'': no such file")


@pytest.mark.parametrize("typed", [True, False])
def test_who_has_to_type_a_document_is_told_how_it_ends(monkeypatch: pytest.MonkeyPatch, typed: bool) -> None:
    class Keyboard(io.TextIOWrapper):
        def isatty(self) -> bool:
            return typed

    monkeypatch.setattr(sys, "stdin", Keyboard(io.BytesIO(b"A text.")))
    err = Console(file=io.StringIO(), width=80)
    (document,) = reading.read_all(["-"], Options(), Screen(err, err, "plain"))
    assert document.text == "A text."
    assert ("Ctrl-D" in written(err)) == typed


def test_a_closed_standard_input_is_refused(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    read_one = reading.read_one

    def after_closing(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(sys, "stdin", None)  # as Python leaves it after <&-
        return read_one(*arguments, **named)

    monkeypatch.setattr(reading, "read_one", after_closing)
    ask("summarize", "-").is_refusal(3, "standard input: cannot be read (it is closed)")


def test_a_document_is_looked_at_before_a_model(ask: Ask) -> None:
    ask("summarize", "missing.pdf", "--model", "absent").is_refusal(3, "missing.pdf")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["long.txt"], "tokens do not fit"),
        (["a.txt", "--context", "300"], "its first section alone does not fit, only about"),
        (["a.txt", "--context", str(CONTEXT + 1)], "was made for 65,536 tokens; --context 65,537 is more"),
        (["a.txt", "--max-tokens", str(CONTEXT)], "do not fit"),
    ],
)
def test_what_does_not_fit(ask: Ask, arguments: list[str], told: str) -> None:
    ask("summarize", *arguments).is_refusal(4, told)


@pytest.mark.parametrize("documents", [["chapters.md"], ["a.txt", "chapters.md"]])
def test_the_advice_for_what_does_not_fit_works(ask: Ask, shelf: Path, documents: list[str]) -> None:
    chapters = [f"# Chapter {number}\n\n{'lorem ipsum ' * 30}\n\n" for number in range(12)]
    (shelf / "chapters.md").write_text("".join(chapters))
    flags = ("--context", 3000, "--json")
    refused = ask("summarize", *documents, *flags)
    refused.is_refusal(4, "--pages 1-")
    advised = re.search(r"--pages [\d,-]+", refused.err)
    assert advised is not None
    assert prompt_tokens(ask("summarize", *documents, *flags, *advised[0].split())) > 1000


def test_what_is_much_too_long_is_refused_before_the_weights_are_read(
    ask: Ask, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_weights(*_: object) -> None:
        raise AssertionError("the weights are read")

    paragraph = "word " * 100 + "\n\n"
    (shelf / "huge.txt").write_text(paragraph * (CONTEXT // 50))
    monkeypatch.setattr("triforce_chat.models.load._weights", read_weights)
    refused = ask("ask", "huge.txt", "Why?")
    refused.is_refusal(4, "huge: about ")
    found = re.search(r"about ([\d,]+) tokens do not fit: .* --pages (1-\d+) would fit", refused.err)
    assert found
    assert int(found[1].replace(",", "")) > CONTEXT
    ask("chat", "huge.txt").is_refusal(4, "huge: about ")
    ask("ask", "Why?", "--think", "on").is_refusal(
        2, "does not think before it answers; leave out --think on"
    )


def test_a_question_that_does_not_fit(ask: Ask) -> None:
    ask("ask", "b.md", "x " * 400, "--context", 600).is_refusal(4, "the context has room for 600")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "absent"], "no model 'absent'"),
        (["--model", "empty"], "contains neither .safetensors nor .gguf weights"),
        (["--model", "a.txt"], "a model is a folder or a .gguf file"),
        (["--model", "tiny", "--draft", "other"], "choose a draft of the same family"),
        (["--model", "tiny", "--draft", "absent"], "no model 'absent'"),
    ],
)
def test_models_that_cannot_be_used(ask: Ask, arguments: list[str], told: str) -> None:
    ask("ask", "Why?", *arguments).is_refusal(5, told)


def test_a_cache_beyond_the_memory(ask: Ask) -> None:
    ask("ask", "Why?", "--model", "endless", "--context", ENDLESS).is_refusal(
        6, f"no memory for a cache of {ENDLESS:,} tokens"
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory"),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=lambda error: f"{type(error).__name__}: {str(error)[-30:]}",
)
def test_memory_that_runs_out_while_answering(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def answer(*_arguments: object) -> Iterator[Any]:
        raise error
        yield

    monkeypatch.setattr(Engine, "answer", answer)
    ask("ask", "a.txt", "Why?").is_refusal(6, "out of memory")


@pytest.mark.parametrize("forwards", [0, 1, 4])
def test_memory_that_runs_out_in_the_middle_of_a_forward(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, forwards: int
) -> None:
    count, hidden = [0], Runner._hidden

    def starving(runner: Runner, *arguments: Any) -> torch.Tensor:
        count[0] += 1
        if count[0] == forwards + 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return hidden(runner, *arguments)

    monkeypatch.setattr(Runner, "_hidden", starving)
    done = ask("ask", "a.txt", "Why?", "--stack", "autoregressive")
    assert (done.code, done.crash) == (6, None)
    assert done.err == "error: out of memory; choose a smaller --context, fewer pages or a smaller model\n"
    assert bool(done.out.strip()) == (forwards > 1)  # what was said stands


def test_an_inexact_answer(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "verify", middle_accepts_everything)
    done = ask("ask", "a.txt", "the first text the", "--compare-autoregressive", "--json", "--max-tokens", 60)
    assert done.code == 7
    assert json.loads(done.out)["mismatches"] > 0
    assert "tokens differ from plain decoding beyond rounding" in done.err
    assert done.err.count("\n") == 1


def test_tracebacks_only_for_those_who_ask(ask: Ask) -> None:
    done = ask("ask", "a.txt", "Why?", "--stack", "turbo", "--debug")
    assert type(done.crash).__name__ == "UsageError"


# Exactness of this machine


def test_verify(ask: Ask) -> None:
    done = ask("verify", "a.txt", "--tokens", 24, "--json")
    assert done.code == 0
    outcomes = json.loads(done.out)["stacks"]
    assert [outcome["stack"] for outcome in outcomes] == [
        *("auto", "triforce", "triforce-int4", "retrieval", "streaming", "lookup", "autoregressive")
    ]
    assert all(outcome["passed"] and outcome["greedy_tokens"] == 24 for outcome in outcomes)
    assert all(outcome["sampled_tokens"] + outcome["sampled_ties"] == 24 for outcome in outcomes)


def test_verify_leaves_out_what_these_settings_rule_out(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values that are quantized already have no quantized copy."""
    noted: list[str] = []
    monkeypatch.setattr("triforce_chat.cli.verify.show_notes", lambda notes, _: noted.extend(notes))
    done = ask("verify", "a.txt", "--kv", "int8", "--tokens", 8, "--json")
    assert done.code == 0
    assert [outcome["stack"] for outcome in json.loads(done.out)["stacks"]] == [
        *("auto", "triforce", "retrieval", "streaming", "lookup", "autoregressive")
    ]
    assert [note.partition(" keys")[0] for note in noted if note.startswith("not tested")] == [
        "not tested: the stack 'triforce-int4' quantizes",
        "not tested: the stack 'naive' needs a draft model: pass --draft",
    ]


def test_verify_finds_a_wrong_rule(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "verify", middle_accepts_everything)
    done = ask("verify", "a.txt", "--stack", "lookup", "--tokens", 48)
    assert done.code == 7
    assert "not exact: lookup" in done.err


@pytest.mark.parametrize("context", [600, 1010])
def test_verify_tests_something_or_refuses(ask: Ask, shelf: Path, context: int) -> None:
    """A text that leaves no room must not count as exact."""
    (shelf / "kilo.txt").write_text("k" * 1000)
    done = ask("verify", "kilo.txt", "--stack", "lookup", "--tokens", 20, "--context", context, "--json")
    assert done.crash is None
    assert done.code == 4 or json.loads(done.out)["stacks"][0]["greedy_tokens"] > 0


# The chat without a terminal


def test_chat_over_lines(ask: Ask) -> None:
    done = ask("chat", "a.txt", stdin="Why?\n\n/tokens\nHow?\n")
    assert done.code == 0
    answers = done.out.splitlines()
    assert len(answers) == 2
    assert "context" in done.err


def test_a_chat_goes_on_after_a_mistake_and_tells_it(ask: Ask) -> None:
    done = ask("chat", stdin="/doc missing.pdf\nWhy?\n")
    assert done.code == 3
    assert "error: missing.pdf: no such file" in done.err
    assert len(done.out.splitlines()) == 1


def test_a_chat_where_no_history_can_be_kept(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/state")
    done = ask("chat", stdin="Why?\n")
    assert done.crash is None
    assert done.code == 0


# Real processes, real signals


def started(shelf: Path, *arguments: object, out: int | IO[bytes] = subprocess.PIPE, **env: str) -> Any:
    command = [
        sys.executable,
        "-m",
        "triforce_chat",
        *map(str, arguments),
        "--model",
        "tiny",
        "--device",
        "cpu",
        "--no-cache",
    ]
    return subprocess.Popen(
        command,
        cwd=shelf,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell may ignore it
    )


def test_ctrl_c_in_an_answer_keeps_what_was_said(shelf: Path) -> None:
    with started(shelf, "ask", "a.txt", "Why?", "--max-tokens", 50_000) as process:
        first = process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert first.strip()
    assert rest.endswith(b"\n")
    assert b"Traceback" not in told


def test_ctrl_c_in_an_answer_in_json_keeps_what_was_said(shelf: Path) -> None:
    with started(shelf, "ask", "a.txt", "Why?", "--max-tokens", 50_000, "--json", "--jsonl") as process:
        while b'"event": "text"' not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert b"Traceback" not in told
    last = json.loads(rest.splitlines()[-1])
    assert last.get("finish_reason") == "interrupted"
    assert last["token_ids"]


def test_ctrl_c_in_a_prefill(shelf: Path) -> None:
    with started(shelf, "summarize", "middling.txt", "--jsonl", "--max-tokens", 5) as process:
        for _ in range(2):
            assert b'"event": "prefilled"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert b'"event": "text"' not in rest
    assert b"Traceback" not in told


def test_a_reader_that_has_seen_enough(shelf: Path) -> None:
    with started(shelf, "ask", "a.txt", "Why?", "--max-tokens", 5_000) as process:
        assert len(process.stdout.read(10)) == 10
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 0


def test_a_terminal_that_wants_only_the_answer(shelf: Path, ask: Ask) -> None:
    screen, terminal = pty.openpty()
    arguments = ("ask", "a.txt", "Why?", "--max-tokens", 12, "--quiet")
    with started(shelf, *arguments, out=terminal, TERM="xterm") as process:
        os.close(terminal)
        shown = everything(screen)
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert shown.decode().replace("\r\n", "\n") == ask("ask", "a.txt", "Why?").out


def everything(screen: int) -> bytes:
    """What a program wrote on its terminal until it left."""
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(screen, 4096):
            shown += piece
    os.close(screen)
    return shown


def test_a_real_process_tells_its_exit_code(shelf: Path) -> None:
    with started(shelf, "summarize", "missing.pdf") as process:
        out, told = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, told) == (3, b"", b"error: missing.pdf: no such file\n")


# The small model


@pytest.mark.model
def test_the_small_model_knows_a_capital() -> None:
    flags = ("--max-tokens", 24, "--json", "--device", "cpu", "--no-cache")
    told = run("ask", "What is the capital of France?", *flags).json
    assert "Paris" in told["text"]
    assert told["finish_reason"] in ("stop", "length")


@pytest.mark.model
def test_the_small_model_summarizes_pages_exactly() -> None:
    flags = ("--pages", "1-2", "--max-tokens", 40, "--json", "--compare-autoregressive", "--temperature", 0)
    told = run("summarize", EXAMPLE, *flags, "--device", "cpu", "--no-cache").json
    assert told["usage"]["completion_tokens"] == len(told["token_ids"]) <= 40
    assert told["usage"]["prompt_tokens"] > 300
    assert told["identical"]
    assert (told["mismatches"], told["autoregressive"]["token_ids"]) == (0, told["token_ids"])


@pytest.mark.model
def test_the_small_model_reuses_its_cache() -> None:
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.chat.template import ChatFormat
    from triforce_chat.documents import parse_pages, read
    from triforce_chat.engine.events import Finished
    from triforce_chat.loading.load_engine import load_engine
    from triforce_chat.loading.spec import EngineSpec
    from triforce_chat.settings.settings import Settings

    settings = Settings(model="small", max_tokens=8, device="cpu")
    engine, loaded = load_engine(EngineSpec(settings))
    session = ChatSession(engine, loaded, settings)
    session.add(read(str(EXAMPLE)).select(parse_pages("1")))
    answers = [[*session.ask(question)] for question in ("Who is there?", "And where?")]
    first, second = (event for answer in answers for event in answer if isinstance(event, Finished))
    assert first.prompt_tokens > 200
    assert 0 <= second.cached_tokens - first.prompt_tokens <= 8
    assert not set(ChatFormat(loaded.tokenizer).encode("<|im_end|><|im_start|>")) & loaded.eos_ids


def test_importing_the_program_registers_no_exit_handler() -> None:
    """``FastExit`` would be called before one that is registered before it, which would then never be."""
    code = "import atexit; n = atexit._ncallbacks(); import triforce_chat.cli.app; print(atexit._ncallbacks() - n)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "0\n"


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(7)", 7), ("sys.exit()", 0), ("sys.exit('late')", 1), ("1 / 0", 1)]
)
@pytest.mark.parametrize("heavy", [False, True])
def test_the_process_ends_after_its_exit_handlers(ending: str, code: int, heavy: bool) -> None:
    """With torch loaded it does not free its objects, so the handlers from before the program are left out."""
    script = (
        "import atexit, sys, triforce_chat.cli.app as module\n"
        "atexit.register(print, 'the last')\n"
        "def app():\n"
        f"    {'import torch' if heavy else 'pass'}\n"
        "    atexit.register(lambda: print('handled'))\n"
        "    print('answered')\n"
        f"    {ending}\n"
        "module.app = app\n"
        "module.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    last = "" if heavy and code != 1 else "the last\n"
    assert (done.stdout, done.returncode) == (f"answered\nhandled\n{last}", code)
    assert ("late" in done.stderr, "ZeroDivisionError" in done.stderr) == ("late" in ending, "/" in ending)
