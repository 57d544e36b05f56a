"""``triforce-chat batch --workers`` with a real model on disk, and what is killed while it runs."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import run
from support.schemas import schema_errors
from support.serving import save_chat_model
from support.torment import Batch, told, torment, write_books

BOOKS, KILLS = 6, 2  # support/torment.py repeats the kills at will


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # With the padding, two ranks can share its vocabulary.
    return save_chat_model(tmp_path_factory.mktemp("model"), padding=1)


@pytest.fixture
def flags(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_books(tmp_path / "books", BOOKS, 200, seed=1)
    place = ("--model", str(model), "--device", "cpu", "--draft", "none", "--no-cache", "--temperature", "0")
    return ("books", "--question", "Who?", "--question", "Why?", *place, "--stack", "lookup")


def rows(path: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def test_workers_answer_as_one_process_does(flags: tuple[str, ...]) -> None:
    Path("books/torn.pdf").write_bytes(b"%PDF-1.7\n" + bytes(99))
    short = (*flags, "--max-tokens", "12")
    assert run("batch", *short, "--out", "alone.jsonl").code == 9
    done = run("batch", *short, "--out", "out.jsonl", "--workers", "2", "--json")
    assert (done.code, done.crash) == (9, None)
    assert "2 of 14 answers are missing (books/torn.pdf)" in done.err
    summary = json.loads(done.out)
    assert (summary["answered"], summary["new"], summary["failed"]) == (2 * BOOKS, 2 * BOOKS + 2, 2)
    assert summary["completion_tokens"] == 24 * BOOKS
    assert summary["timing"]["load_s"] > 0
    assert told(Path("out.jsonl")) == told(Path("alone.jsonl"))
    found = rows()
    assert [schema_errors("batch", row) for row in found] == [[]] * len(found)
    cached = [row["usage"]["cached_tokens"] for row in found if not row["error"]]
    assert min(cached) > 800  # the book, which its worker had read for both questions


def test_a_worker_of_two_ranks_answers_as_one_process_does(flags: tuple[str, ...]) -> None:
    short = (*flags, "--max-tokens", "12")
    assert run("batch", *short, "--out", "alone.jsonl", "--parallel", "1").code == 0
    done = run("batch", *short, "--out", "out.jsonl", "--workers", "1", "--tp", "2", "--json")
    assert (done.code, done.crash) == (0, None), done.err
    assert json.loads(done.out)["new"] == 2 * BOOKS
    assert told(Path("out.jsonl")) == told(Path("alone.jsonl"))


def test_a_model_that_no_worker_can_load(flags: tuple[str, ...]) -> None:
    Path("empty").mkdir()
    done = run("batch", *flags, "--out", "out.jsonl", "--workers", "2", "--model", "empty")
    done.is_refusal(5, "empty")


def test_an_answer_that_takes_too_long(flags: tuple[str, ...]) -> None:
    asked = ("--out", "out.jsonl", "--max-tokens", "2500", "--time-limit", "0.5")
    done = run("batch", "books/000.txt", *flags[1:], *asked)
    assert done.code == 9
    assert [row["error"] for row in rows()] == [
        {"code": "time_limit", "message": "no answer within 0.5 s"}
    ] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_killed_at_any_moment_workers_and_driver_go_on(flags: tuple[str, ...]) -> None:
    long = ("--max-tokens", "200")
    assert run("batch", *flags, *long, "--out", "whole.jsonl").code == 0
    batch = Batch([*flags, *long, "--workers", "2"])
    killed = torment(batch, Path("out.jsonl"), KILLS, 3.0, random.Random(3))
    assert killed["driver"]
    assert killed["worker"]
    assert told(Path("out.jsonl")) == told(Path("whole.jsonl"))
    assert len(rows()) == 2 * BOOKS
