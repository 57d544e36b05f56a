"""Thoughts in the commands' output: folded away for people, in fields of their own for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import Outcome, run
from support.schemas import schema_errors
from support.thinking_models import ANSWER, THOUGHT, save_thinking_model

Ask = Callable[..., Outcome]
QUESTIONS = ["Where?", "Who lit the lamp?"]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shelf")
    save_thinking_model(made / "thinker")
    (made / "a.txt").write_text("The lamp was lit. " * 20)
    (made / "q.txt").write_text("\n".join(QUESTIONS))
    return made


@pytest.fixture
def ask(shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    monkeypatch.chdir(shelf)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    flags = ("--model", "thinker", "--max-tokens", "40", "--device", "cpu", "--draft", "none")
    return lambda *arguments: run("ask", *flags, "a.txt", *arguments)


def several(ask: Ask, *more: str) -> list[dict[str, object]]:
    done = ask("--questions", "q.txt", *more)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_only_answers_are_for_pipes(ask: Ask) -> None:
    assert ask("--questions", "q.txt").out == f"{ANSWER}\n\n{ANSWER}\n"
    told = ask("Where?", "--compare-autoregressive").out
    assert THOUGHT not in told
    assert told.count(ANSWER) == 2


def test_records_of_many_questions(ask: Ask) -> None:
    lines = several(ask, "--json")
    assert [(line["question"], line["text"], line["thought"]) for line in lines] == [
        (question, ANSWER, THOUGHT) for question in QUESTIONS
    ]
    assert [error for line in lines for error in schema_errors("answer", line)] == []


def test_events_of_many_questions(ask: Ask) -> None:
    lines = [line for line in several(ask, "--jsonl") if line["event"] == "text"]
    for number in range(len(QUESTIONS)):
        mine = [line for line in lines if line["question"] == number]
        assert "".join(str(line["thought"]) for line in mine) == THOUGHT
        assert "".join(str(line["text"]) for line in mine) == ANSWER


@pytest.mark.parametrize("arguments", [["Where?"], ["--questions", "q.txt"]])
def test_both_sides_of_a_comparison_have_their_thought(ask: Ask, arguments: list[str]) -> None:
    done = ask(*arguments, "--compare-autoregressive", "--json")
    for line in map(json.loads, done.out.splitlines()):
        assert (line["thought"], line["identical"]) == (THOUGHT, True)
        assert (line["autoregressive"]["text"], line["autoregressive"]["thought"]) == (ANSWER, THOUGHT)
        assert schema_errors("answer", line) == []
