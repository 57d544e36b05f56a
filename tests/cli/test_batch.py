"""``triforce-chat batch`` with real models on disk: answers, resumption, bad input, signals, a full disk."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import Outcome, run
from support.schemas import schema_errors
from support.serving import PATIENCE, save_chat_model

from triforce_chat.batch.books import HEAD, KEY
from triforce_chat.batch.output_file import OutputFile
from triforce_chat.chat.session import ChatSession
from triforce_chat.cli import batch_job as module
from triforce_chat.cli import reading
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.errors import RankLost

QUESTIONS = ("Who?", "Why is it so?", "Where?")
BOOKS = 4
KILLS = 2  # support/torment.py repeats them at will
Rows = list[dict[str, Any]]
Batch = Callable[..., Outcome]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def flags(model: Path) -> tuple[str, ...]:
    place = ("--model", str(model), "--device", "cpu", "--draft", "none", "--no-cache", "--temperature", "0")
    return (*place, "--stack", "lookup", "--max-tokens", "12")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    for number in range(BOOKS):
        (tmp_path / "books" / f"{number}.txt").write_text(f"Book {number} of the keeper's log. " * 30)
    (tmp_path / "q.txt").write_text("\n".join(QUESTIONS[1:]) + "\n\n")
    return tmp_path


@pytest.fixture
def batch(shelf: Path, flags: tuple[str, ...]) -> Batch:
    assert shelf.is_dir()
    return lambda *arguments: run("batch", *arguments, *flags)


BOOK = ("books", "--question", QUESTIONS[0], "--questions", "q.txt", "--out", "out.jsonl")


def rows(path: str = "out.jsonl") -> Rows:
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def told(found: Rows) -> list[tuple[Any, ...]]:
    """What is the same in every run."""
    names = ("custom_id", "file", "question", "token_ids", "text", "finish_reason", "sources", "error")
    return sorted(tuple(json.dumps(row.get(name)) for name in names) for row in found)


def codes(found: Rows) -> list[str | None]:
    return [row["error"] and row["error"]["code"] for row in found]


# Books


def test_every_question_about_every_book(batch: Batch, flags: tuple[str, ...]) -> None:
    done = batch(*BOOK)
    assert (done.code, done.out) == (0, "")
    found = rows()
    assert [row["file"] for row in found] == [f"books/{n}.txt" for n in range(BOOKS) for _ in QUESTIONS]
    assert {(row["file"], row["question"]) for row in found} == {
        (f"books/{number}.txt", question) for number in range(BOOKS) for question in QUESTIONS
    }
    assert [schema_errors("batch", row) for row in found] == [[]] * len(found)
    for row in found[:3]:
        alone = run("ask", row["file"], row["question"], "--json", *flags).json
        for name in ("text", "token_ids", "finish_reason", "sources", "citations", "model", "draft", "stack"):
            assert row[name] == alone[name]
        assert row["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


@pytest.mark.parametrize("parallel", [1, 8])
def test_a_book_is_read_once(batch: Batch, monkeypatch: pytest.MonkeyPatch, parallel: int) -> None:
    read: list[int] = []
    prefill = Runner.prefill

    def counted(self: Runner, ids: Any, *rest: Any) -> None:
        read.append(len(ids))
        prefill(self, ids, *rest)

    monkeypatch.setattr(Runner, "prefill", counted)
    assert batch(*BOOK, "--parallel", str(parallel)).code == 0
    book = len(Path("books/0.txt").read_text())
    first, *others = (row["usage"]["cached_tokens"] for row in rows()[:3])
    # Where questions are answered at once, the book is read before the first of them.
    assert first > book if parallel > 1 else first < 200
    assert all(cached > book for cached in others)
    assert sum(read) < BOOKS * 1.4 * book


def test_questions_that_are_answered_at_once_are_answered_as_one_by_one(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards: list[int] = []
    compute = Runner.compute

    def counted(self: Runner, feeds: Any, *rest: Any, **more: Any) -> Any:
        forwards.append(len(feeds))
        return compute(self, feeds, *rest, **more)

    monkeypatch.setattr(Runner, "compute", counted)
    assert batch(*BOOK, "--parallel", "1").code == 0
    assert max(forwards) == 1
    assert batch(*BOOK[:-2], "--out", "at-once.jsonl").code == 0
    assert max(forwards) == len(QUESTIONS)
    assert told(rows("at-once.jsonl")) == told(rows())


def test_an_error_of_questions_that_are_answered_at_once_is_that_of_one(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    attribute = Engine.attribute

    def broken(self: Engine, request: Any, made: Any) -> Any:
        if "Why" in self.decode(request.prompt):
            raise ZeroDivisionError("a secret")
        return attribute(self, request, made)

    monkeypatch.setattr(Engine, "attribute", broken)
    assert batch(*BOOK).code == 9
    failed = [row["question"] for row in rows() if row["error"]]
    assert failed == [QUESTIONS[1]] * BOOKS
    assert len(rows()) == BOOKS * len(QUESTIONS)


def test_books_are_opened_when_it_is_their_turn(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[int] = []
    read = reading.read_one

    def watched(path: str, *rest: Any, **more: Any) -> Any:
        answered.append(len(rows()))
        return read(path, *rest, **more)

    monkeypatch.setattr(module, "read_one", watched)
    assert batch(*BOOK).code == 0
    assert answered == [len(QUESTIONS) * number for number in range(BOOKS)]


def test_what_is_there_is_skipped(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert batch(*BOOK[:-2], "--out", "whole.jsonl").code == 0
    assert batch("books/2.txt", "--question", QUESTIONS[1], "--out", "out.jsonl").code == 0
    summary = batch(*BOOK, "--json").json
    assert (summary["lines"], summary["answered"], summary["new"]) == (12, 12, 11)
    assert told(rows()) == told(rows("whole.jsonl"))
    monkeypatch.setattr(module, "open_session", None)  # nothing is left that needs a model
    summary = batch(*BOOK, "--json").json
    assert (summary["answered"], summary["new"], summary["failed"], summary["missing"]) == (12, 0, 0, 0)


def test_a_second_process_is_refused(batch: Batch) -> None:
    with OutputFile(Path("out.jsonl"), KEY, HEAD):
        batch(*BOOK).is_refusal(2, "another process writes to out.jsonl")
    assert batch(*BOOK).code == 0


def test_half_a_line_is_healed(batch: Batch) -> None:
    assert batch(*BOOK).code == 0
    whole = Path("out.jsonl").read_bytes()
    before = told(rows())
    Path("out.jsonl").write_bytes(whole[:-40])
    assert batch(*BOOK, "--json").json["new"] == 1
    assert told(rows()) == before


def test_bad_books_are_lines_and_the_others_are_answered(batch: Batch) -> None:
    Path("books/binary.txt").write_bytes(bytes(range(256)) * 40)
    Path("books/empty.txt").touch()
    Path("books/long.txt").write_text("word " * 2000)
    Path("books/torn.pdf").write_bytes(b"%PDF-1.7\n" + bytes(99))
    bad = ("missing.txt", "books/empty.txt", "books/binary.txt", "books/long.txt", "books/torn.pdf")
    done = batch("missing.txt", "books/empty.txt", "books", "--question", "Who?", "--out", "out.jsonl")
    assert (done.code, done.out, done.crash) == (9, "", None)
    error = "error: 5 of 9 answers are missing (missing.txt, books/empty.txt, books/binary.txt and 2 more): "
    assert done.err.splitlines()[-1].startswith(error)
    found = {row["file"]: row for row in rows()}
    assert [schema_errors("batch", row) for row in found.values()] == [[]] * 9
    assert {file for file, row in found.items() if row["error"]} == set(bad)
    assert codes([found[file] for file in bad]) == [
        *("unreadable_document", "unreadable_document", "unreadable_document"),
        *("context_length_exceeded", "unreadable_document"),
    ]
    assert all("\n" not in found[file]["error"]["message"] for file in bad)


def test_an_empty_book_of_a_folder_is_skipped_as_by_ask(batch: Batch) -> None:
    for name, text in (("empty.txt", ""), ("blank.txt", " \n" * 4000)):
        Path("books", name).write_text(text)
    done = batch(*BOOK)
    assert (done.code, {row["file"] for row in rows()}) == (0, {f"books/{n}.txt" for n in range(BOOKS)})
    assert done.err.startswith(
        "books/blank.txt: contains no text, skipped\nbooks/empty.txt: empty, skipped\n"
    )
    named = batch("books", "books/empty.txt", *BOOK[1:-1], "named.jsonl")
    assert (named.code, codes(rows("named.jsonl"))[-3:]) == (9, ["unreadable_document"] * 3)
    for number in range(BOOKS):
        Path(f"books/{number}.txt").write_text("")
    batch(*BOOK[:-1], "none.jsonl").is_refusal(3, f"nothing to read: all {BOOKS + 2} files found are empty")


def test_what_is_no_file_is_not_opened(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opened the pipe would wait for ever, and all other lines with him."""
    os.mkfifo("pipe.txt")
    opened: list[str] = []
    monkeypatch.setattr(module, "read_one", lambda path, *_, **__: opened.append(path))
    given = ("pipe.txt", "/dev/zero", "https://nowhere/book.txt")
    assert batch(*given, "--question", "Who?", "--out", "out.jsonl").code == 9
    assert (codes(rows()), opened) == (["unreadable_document"] * 3, [])
    Path("in.jsonl").write_text(request("a", documents=["pipe.txt"]))
    asked = ("--requests", "in.jsonl", "--out")
    assert batch(*asked, "answers.jsonl").code == 9
    assert (codes(rows("answers.jsonl")), opened) == (["unreadable_document"], [])
    batch("pipe.txt", *asked, "more.jsonl").is_refusal(3, "pipe.txt: a pipe or a device; a batch reads files")


def test_a_question_that_does_not_fit_harms_no_other(batch: Batch) -> None:
    asked = ("--question", "x" * 4000, "--question", "Who?")
    assert batch("books/0.txt", *asked, "--out", "out.jsonl").code == 9
    assert codes(rows()) == ["context_length_exceeded", None]  # neither was answered beside the other


def test_failures_are_answered_again_when_that_is_wanted(batch: Batch) -> None:
    Path("books/0.txt").rename("away.txt")
    asked = ("books/0.txt", "books/1.txt", "--question", "Who?", "--out", "out.jsonl")
    assert batch(*asked).code == 9
    Path("away.txt").rename("books/0.txt")
    kept = batch(*asked, "--json")
    assert kept.code == 9
    assert json.loads(kept.out)["new"] == 0
    assert batch(*asked, "--retry-failed", "--json").json["new"] == 1
    assert codes(rows()) == [None, None]


def test_a_defect_is_one_line_of_the_output(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ChatSession.request

    def broken(self: ChatSession, question: Any, *rest: Any) -> Any:
        if len(self.documents) and self.documents[0].title == "1":
            raise ZeroDivisionError("a secret")
        return request(self, question, *rest)

    monkeypatch.setattr(ChatSession, "request", broken)
    done = batch("books", "--question", "Who?", "--out", "out.jsonl")
    assert done.code == 9
    assert codes(rows()) == [None, "internal_error", None, None]
    assert "secret" in done.err
    assert "secret" not in Path("out.jsonl").read_text()


def test_a_lost_rank_ends_the_batch(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> Any:
        raise RankLost("rank 1 ended")

    monkeypatch.setattr(ChatSession, "request", lost)
    assert batch(*BOOK).code == 8
    assert rows() == []


def test_a_full_disk_stops_at_once_and_the_next_run_goes_on(batch: Batch) -> None:
    assert batch(*BOOK[:-2], "--out", "whole.jsonl").code == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path("whole.jsonl").stat().st_size // 2, before[1]))
    try:
        done = batch(*BOOK, "--json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    have = len(rows())
    summary = json.loads(done.out)
    assert (summary["answered"], summary["new"], summary["missing"]) == (have, have, 12 - have)
    assert 0 < have < 12
    assert done.code == 9
    line = done.err.splitlines()[-1]
    assert line.startswith(f"error: out.jsonl: File too large; {12 - have} of 12 answers are missing (books/")
    assert batch(*BOOK, "--json").json["new"] == 12 - have
    assert told(rows()) == told(rows("whole.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["books"], "no question given"),
        (["books", "--question", " "], "a question is empty"),
        (["--question", "Who?"], "no book given"),
        (["-", "--question", "Who?"], "batch reads files, not standard input"),
        (["books", "--questions", "none.txt"], "none.txt: No such file"),
        (["books", "--questions", "blank.txt"], "blank.txt: no line that is not blank"),
        (["books", "--questions", "binary"], "binary: binary data"),
        (["--files", "blank.txt", "--question", "Who?"], "blank.txt: no line"),
        (["--requests", "q.txt", "--question", "Who?"], "--requests contains the questions"),
        (["--requests", "none.jsonl"], "none.jsonl: No such file"),
        (["--requests", "q.txt", "-"], "batch reads files"),
        (["books", "--question", "Who?", "--jsonl"], "--jsonl is for ask"),
        (["books", "--question", "Who?", "--out", "q.txt"], "q.txt: line 1 is not an answer of such a batch"),
        (["books", "--question", "Who?", "--out", "books"], "books is not a file"),
    ],
)
def test_usage(batch: Batch, arguments: list[str], message: str) -> None:
    Path("blank.txt").write_text("\n \n")
    Path("binary").write_bytes(bytes(range(256)) * 40)
    out = [] if "--out" in arguments else ["--out", "out.jsonl"]
    batch(*arguments, *out).is_refusal(2, message)


def test_books_of_a_list(batch: Batch) -> None:
    Path("list.txt").write_text("books/3.txt\n\nbooks/1.txt\n")
    asked = ("--files", "list.txt", "--question", "Who?", "--out", "out.jsonl")
    assert batch("books/1.txt", *asked).code == 0
    assert [row["file"] for row in rows()] == ["books/1.txt", "books/3.txt"]


def test_progress_fits_a_log_file(batch: Batch) -> None:
    lines = batch(*BOOK).err.splitlines()
    assert lines[0].startswith("0 of 12 questions · 0 of 4 books")
    assert lines[-1].startswith("12 of 12 questions · 4 of 4 books")
    assert len(lines) < 5
    assert not any("\x1b" in line or "\r" in line for line in lines)
    assert batch(*BOOK[:-2], "--out", "other.jsonl", "--quiet").err == ""


# Requests


def request(custom_id: str, **body: Any) -> str:
    messages = [{"role": "user", "content": f"Who is {custom_id}?"}]
    whole = {"model": "default", "messages": messages, "max_tokens": 6, **body}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": whole}
    )


def test_requests(batch: Batch) -> None:
    lines = [
        request("a"),
        "{half",
        request("b", model="gpt-4"),
        request("a"),
        request("c", stream=True),
        request("d", max_tokens=10**6),
        request("e", top_p=7),
        request("f").replace("POST", "GET"),
        request("g")[:-1] + ', "more": 1}',
        request("h", temperature=1.0, seed=3, stop=["zz"]),
    ]
    Path("in.jsonl").write_text("\n".join(lines))
    asked = ("--requests", "in.jsonl", "--out", "out.jsonl")
    done = batch("books/0.txt", *asked)
    assert done.code == 9
    assert "8 of 10 answers are missing (line 2, b, a and 5 more)" in done.err
    found = rows()
    assert [row["custom_id"] for row in found] == ["a", None, "b", "a", "c", "d", "e", "f", "g", "h"]
    statuses = [row["response"] and row["response"]["status_code"] for row in found]
    assert statuses == [200, None, 404, None, *(400,) * 5, 200]
    assert codes(found) == [
        *(None, "invalid_json", "model_not_found", "duplicate_custom_id", "unsupported_parameter"),
        *("context_length_exceeded", "invalid_request_error", "invalid_request_error"),
        *("unknown_parameter", None),
    ]
    made_of = [set(row) - {"id", "custom_id", "response", "error"} for row in found]
    assert made_of == [set() if row["error"] else {"fingerprint"} for row in found]
    body = found[0]["response"]["body"]
    assert (body["object"], body["usage"]["completion_tokens"]) == ("chat.completion", 6)
    assert found[9]["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] > 800
    assert batch("books/0.txt", *asked, "--json").code == 9
    assert rows() == found


def test_a_request_is_answered_as_ask_does(batch: Batch, flags: tuple[str, ...]) -> None:
    Path("in.jsonl").write_text(request("a", max_tokens=12))
    assert batch("books/0.txt", "--requests", "in.jsonl", "--out", "out.jsonl").code == 0
    alone = run("ask", "books/0.txt", "Who is a?", "--json", *flags).json
    message = rows()[0]["response"]["body"]["choices"][0]["message"]
    assert message["content"] == alone["text"]


def test_corrected_requests_are_answered(batch: Batch) -> None:
    Path("in.jsonl").write_text("\n".join([request("a"), "{half", request("b", model="other")]))
    asked = ("--requests", "in.jsonl", "--out", "out.jsonl")
    assert batch(*asked).code == 9
    Path("in.jsonl").write_text("\n".join([request("a"), request("c"), request("b")]))
    assert batch(*asked, "--json", "--retry-failed").json["new"] == 2
    assert [(row["custom_id"], row["error"]) for row in rows()] == [("a", None), ("c", None), ("b", None)]


def test_documents_of_requests_are_read_before_a_model_is_loaded(batch: Batch) -> None:
    Path("in.jsonl").write_text(request("a"))
    batch("gone.txt", "--requests", "in.jsonl", "--out", "out.jsonl").is_refusal(3, "gone.txt: no such file")


def test_requests_about_documents_of_their_own(batch: Batch, flags: tuple[str, ...]) -> None:
    two, torn = ["books/0.txt", "books/1.txt"], ["books/0.txt", "gone.txt"]
    lines = [
        request("a", documents=two, max_tokens=12),
        request("b", documents=two),
        request("c", documents=torn),
        request("d", documents="books/0.txt"),
        request("e", documents=["-"]),
        request("f"),
        request("g", documents=["books/long.txt"]),
    ]
    Path("books/long.txt").write_text("word " * 2000)
    Path("in.jsonl").write_text("\n".join(lines))
    assert batch("--requests", "in.jsonl", "--out", "out.jsonl").code == 9
    found = {row["custom_id"]: row for row in rows()}
    bad = [found[name] for name in "cdeg"]
    assert codes(bad) == [
        *("unreadable_document", "invalid_request_error", "invalid_request_error", "context_length_exceeded")
    ]
    assert [row["response"] and row["response"]["status_code"] for row in bad] == [400, None, None, 400]
    assert bad[0]["response"]["body"]["error"]["param"] == "documents"
    alone = run("ask", *two, "Who is a?", "--json", *flags).json
    assert found["a"]["response"]["body"]["choices"][0]["message"]["content"] == alone["text"]
    prompts = {name: found[name]["response"]["body"]["usage"] for name in "abf"}
    book = len(Path("books/0.txt").read_text())
    assert prompts["f"]["prompt_tokens"] < book
    assert prompts["b"]["prompt_tokens_details"]["cached_tokens"] > 2 * book
    assert [file["path"] for file in found["a"]["fingerprint"]["files"]] == two


# What has changed since


ASKED = ("books/0.txt", "books/1.txt", "--question", "Who?", "--out", "out.jsonl")


def test_a_changed_book_is_noticed(batch: Batch) -> None:
    assert batch(*ASKED).code == 0
    before = rows()
    Path("books/0.txt").touch()  # another time, the same content
    assert batch(*ASKED, "--json").json["new"] == 0
    Path("books/1.txt").write_text("Another book. " * 30)
    batch(*ASKED).is_refusal(
        2, "out.jsonl: 1 answer of another books/1.txt; --retry-changed asks again, another --out keeps both"
    )
    assert rows() == before
    assert batch(*ASKED, "--retry-changed", "--json").json["new"] == 1
    assert rows()[0] == before[0]
    assert rows()[1]["fingerprint"] != before[1]["fingerprint"]
    assert batch(*ASKED, "--json").json["new"] == 0


def test_a_book_that_is_gone_has_its_answers(batch: Batch) -> None:
    assert batch(*ASKED).code == 0
    Path("books/1.txt").unlink()
    assert batch(*ASKED, "--json").json["new"] == 0


def test_another_model_and_other_settings_are_noticed(
    batch: Batch, flags: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    assert batch(*ASKED).code == 0
    batch(*ASKED, "--top-k", "3").is_refusal(2, "2 answers of other settings")
    batch(*ASKED, "--system", "Be brief.").is_refusal(2, "2 answers of other settings")
    twin = tmp_path / "twin"
    shutil.copytree(model, twin)
    with_twin = ("batch", *ASKED, *flags, "--model", twin, "--stack", "autoregressive")
    assert run(*with_twin, "--json").json["new"] == 0  # the same weights, and a stack changes no answer
    weights = bytearray((twin / "model.safetensors").read_bytes())
    for place in range(len(weights) // 2, len(weights), 1000):
        weights[place] ^= 1
    (twin / "model.safetensors").write_bytes(weights)
    run(*with_twin).is_refusal(2, "2 answers of another model")
    assert run(*with_twin, "--retry-changed", "--json").json["new"] == 2


def test_a_changed_request_is_noticed(batch: Batch) -> None:
    asked = ("--requests", "in.jsonl", "--out", "out.jsonl")
    Path("in.jsonl").write_text("\n".join([request("a"), request("b")]))
    assert batch(*asked).code == 0
    Path("in.jsonl").write_text("\n".join([request("b"), request("a", max_tokens=7)]))
    batch(*asked).is_refusal(2, "1 answer of another request")
    batch("books/0.txt", *asked).is_refusal(2, "2 answers of other documents, another request")
    assert batch(*asked, "--retry-changed", "--json").json["new"] == 1


def test_answers_of_earlier_versions_are_kept(batch: Batch) -> None:
    assert batch(*ASKED).code == 0
    old = [{name: value for name, value in row.items() if name != "fingerprint"} for row in rows()]
    Path("out.jsonl").write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in old))
    assert batch(*ASKED, "--top-k", "3", "--json").json["new"] == 0


# Shards


def test_shards_are_the_whole(batch: Batch) -> None:
    assert batch(*BOOK).code == 0
    asked = BOOK[:-2]
    for index in range(3):
        name = f"shard-{index}.jsonl"
        summary = batch(*asked, "--shard", f"{index}/3", "--out", name, "--json").json
        assert summary["lines"] == summary["new"] == len(rows(name)) if Path(name).exists() else 0
    parts = [rows(f"shard-{index}.jsonl") for index in range(3)]
    assert sum(map(len, parts)) == 12
    assert told([row for part in parts for row in part]) == told(rows())
    books = [{row["file"] for row in part} for part in parts]
    assert sum(map(len, books)) == BOOKS


def test_what_is_no_shard(batch: Batch) -> None:
    for text in ("3/3", "1", "0/0", "-1/3", "a/b"):
        batch(*BOOK, f"--shard={text}").is_refusal(2, f"'{text}' is not a shard")


# Real processes


def started(flags: tuple[str, ...], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "triforce_chat", "batch", *BOOK, *flags, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell may ignore it
    )


def written() -> int:
    return Path("out.jsonl").stat().st_size if Path("out.jsonl").exists() else 0


def wait_for(size: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 2 * PATIENCE
    while written() < size and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_killed_at_any_moment_it_goes_on(shelf: Path, flags: tuple[str, ...]) -> None:
    assert shelf.is_dir()
    long = ("--max-tokens", "100")
    assert run("batch", *BOOK[:-2], "--out", "long.jsonl", *flags, *long).code == 0
    chance, seen = random.Random(4), set()
    size = Path("long.jsonl").stat().st_size
    for _ in range(KILLS):
        with started(flags, *long) as process:
            part = size // (KILLS + 1)
            wait_for(written() + 1 + chance.randrange(part // 2), process)
            time.sleep(chance.random() / 20)
            process.kill()
        seen.add(written())
        complete = Path("out.jsonl").read_bytes().rpartition(b"\n")[0] if written() else b""
        assert all(json.loads(line)["error"] is None for line in complete.splitlines())
    assert len(seen) == KILLS  # moments with different outputs
    assert max(seen) < size
    with started(flags, *long) as process:
        _, err = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 0, err
    assert told(rows()) == told(rows("long.jsonl"))


def test_ctrl_c_ends_after_the_running_answer(shelf: Path, flags: tuple[str, ...]) -> None:
    assert shelf.is_dir()
    with started(flags, "--max-tokens", "700") as process:
        wait_for(1, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=2 * PATIENCE)
    found = rows()
    assert (process.returncode, out) == (130, "")
    assert len(found) in range(1, 7)  # the next book may have been begun
    assert {row["usage"]["completion_tokens"] for row in found} == {700}
    assert f"error: interrupted: {12 - len(found)} of 12 answers are missing (books/" in err
    assert "Traceback" not in err


def test_ctrl_c_twice_ends_at_once(shelf: Path, flags: tuple[str, ...]) -> None:
    assert shelf.is_dir()
    with started(flags, "--max-tokens", "2500", "--plain") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("0 of 12 questions")
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert "Ctrl-C again" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=2 * PATIENCE)
    assert (process.returncode, out, rows()) == (130, "", [])
    assert err.splitlines()[-1].startswith("error: interrupted: 12 of 12 answers are missing")
    assert "Traceback" not in err
