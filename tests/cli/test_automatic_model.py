"""Commands under ``--model auto``: which model they take, that they say so, and what they do if it cannot be had."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support.commands import Outcome, run
from support.tiny_models import mute_special_tokens, save_model

from triforce_chat.cli import bench, engines, evaluate
from triforce_chat.doctor import stores
from triforce_chat.errors import UsageError
from triforce_chat.loading import choose_model
from triforce_chat.loading.choose_model import BEST, MIDDLE, SMALL, Choice
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.models import inventory
from triforce_chat.models.presets import find_preset
from triforce_chat.settings.options import Options
from triforce_chat.storage.sessions.session_opener import portable_name
from triforce_chat.ui.terminal import Screen

ADVICE = "the other one answers better"
LIMITS = ("--max-tokens", 8, "--device", "cpu")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shelf")
    torch.manual_seed(2)
    for name in ("tiny", "twin"):
        save_model(made / name, max_position_embeddings=4096, initializer_range=0.3)
        mute_special_tokens(made / name)
    (made / "a.txt").write_text("the first text " * 20)
    return made


Chosen = Callable[..., None]


@pytest.fixture
def chosen(shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Chosen:
    """Sets what suits this machine, the best first; nobody has named a model."""
    monkeypatch.chdir(shelf)
    monkeypatch.delenv("TRIFORCE_CHAT_MODEL")
    monkeypatch.delenv("TRIFORCE_CHAT_DTYPE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))

    def put(*models: str) -> None:
        monkeypatch.setattr(choose_model, "choose", lambda *_: Choice(models, ADVICE))

    put("tiny")
    return put


def told_by(*arguments: object) -> dict[str, Any]:
    return run("ask", "a.txt", "Why?", *arguments, *LIMITS, "--json").json


def test_the_answer_names_its_model(chosen: Chosen) -> None:
    told = told_by()
    assert (told["model"], told["automatic"]) == ("tiny", True)
    assert told_by("--model", "auto")["model"] == "tiny"
    chosen("twin")
    assert told_by()["model"] == "twin"
    named = told_by("--model", "tiny")
    assert named["model"] == "tiny"
    assert "automatic" not in named


@pytest.mark.usefixtures("chosen")
def test_the_settings_name_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORCE_CHAT_MODEL", "twin")
    told = told_by()
    assert told["model"] == "twin"
    assert "automatic" not in told


def test_another_model_answers_if_the_chosen_one_cannot_be_had(chosen: Chosen) -> None:
    chosen("gone", "tiny")
    done = run("ask", "a.txt", "Why?", *LIMITS)
    assert done.code == 0
    assert done.out.strip()
    assert done.err.startswith("tiny answers, because gone cannot be had now: ")
    assert done.err.splitlines()[1:] == [
        "stopped at the limit of 8 tokens",
        "--max-tokens allows longer answers",
    ]
    assert run("ask", "a.txt", "Why?", *LIMITS, "--quiet").err == ""


def test_a_named_model_is_never_replaced(chosen: Chosen) -> None:
    chosen("tiny")
    run("ask", "a.txt", "Why?", *LIMITS, "--model", "gone").is_refusal(5, "no model 'gone'")


def test_nothing_can_be_had(chosen: Chosen) -> None:
    chosen("gone", "lost")
    run("ask", "a.txt", "Why?", *LIMITS).is_refusal(5, "no model 'gone'")


def test_verify_takes_it_too(chosen: Chosen) -> None:
    chosen("twin")
    assert (
        run("verify", "a.txt", "--stack", "lookup", "--tokens", 8, *LIMITS, "--json").json["model"] == "twin"
    )


@pytest.mark.parametrize(
    "command", [each.callback.__name__ for each in evaluate.app.registered_commands if each.callback]
)
def test_evaluations_take_it_too(chosen: Chosen, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    asked: list[str] = []

    def open_engine(spec: EngineSpec, *_: object, **_more: object) -> None:
        asked.append(spec.settings.model)
        raise UsageError("far enough")

    monkeypatch.setattr(evaluate, "open_engine", open_engine)
    monkeypatch.setattr(evaluate, "open_model", lambda options, *_: open_engine(EngineSpec(options.settings)))
    chosen("twin")
    documents = [] if command == "questions" else ["a.txt"]
    assert run("evaluate", command, *documents, "--device", "cpu").code == 2
    assert asked == ["twin"]


def test_notes_on_a_terminal(chosen: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice comes with the first download alone; which model answers is always said."""

    def noted() -> list[str]:
        text = io.StringIO()
        console = Console(file=text, width=200)
        assert engines.with_shown_model(Options(), Screen(console, console, "plain")).model == "tiny"
        return text.getvalue().splitlines()

    chosen("tiny")
    assert noted() == [ADVICE, "loading tiny", "tiny answers (auto)"]
    for module in (choose_model, inventory):
        monkeypatch.setattr(module, "is_missing", lambda _: False)
    assert noted() == ["tiny answers (auto)"]


def test_a_session_keeps_its_model(chosen: Chosen) -> None:
    def ask(*arguments: object) -> Outcome:
        return run("chat", *arguments, *LIMITS, stdin="Why?\n")

    assert ask("--session", "mine").code == 0
    chosen("twin")
    again = ask("-c")
    assert again.code == 0
    assert "was made with" not in again.err
    [session] = run("sessions", "ls", "--json").json["sessions"]
    assert (session["name"], Path(session["model"]).name, session["turns"]) == ("mine", "tiny", 2)


def test_the_old_name_of_the_small_model() -> None:
    assert find_preset("default") is find_preset("small")
    assert portable_name("default") == portable_name("small") == "small"
    assert portable_name("smollm2-135m") == "smollm2-135m"


# Without a model


@pytest.mark.parametrize(("size", "model"), [("24GB", BEST), ("6GB", MIDDLE), ("1GB", SMALL)])
def test_a_plan_for_a_card(monkeypatch: pytest.MonkeyPatch, size: str, model: str) -> None:
    monkeypatch.delenv("TRIFORCE_CHAT_MODEL")
    monkeypatch.delenv("TRIFORCE_CHAT_DTYPE")
    told = json.loads(run("plan", "--device-memory", size, "--host-memory", "64GB", "--json").out)
    assert (told["model"], told["automatic"]) == (model, True)
    named = ("--model", "small", "--device-memory", size, "--host-memory", "64GB", "--json")
    assert "automatic" not in json.loads(run("plan", *named).out)


def test_the_list_marks_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_model, "users_choice", lambda: Choice((MIDDLE, SMALL), ADVICE))
    done = run("models", "ls")
    assert [line.split()[0] for line in done.out.splitlines() if " (auto) " in line] == [MIDDLE]
    assert done.err == f"auto chooses {MIDDLE} here; {ADVICE}\n"
    told = run("models", "ls", "--json").json["models"]
    assert [record["name"] for record in told if record["automatic"]] == [MIDDLE]


def test_the_list_needs_no_right_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def choice() -> Choice:
        raise UsageError("no device 'tpu'")

    monkeypatch.setattr(choose_model, "users_choice", choice)
    done = run("models", "ls")
    assert (done.code, done.err) == (0, "")
    assert "auto" not in done.out


def test_doctor_looks_for_the_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRIFORCE_CHAT_MODEL")
    monkeypatch.delenv("TRIFORCE_CHAT_DTYPE")
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path))
    monkeypatch.setattr(choose_model, "users_choice", lambda: Choice((MIDDLE, SMALL), ADVICE))
    assert [*stores.small_model()] == []  # neither here nor chosen
    choice, missing = stores.chosen_model()
    assert (choice.status, choice.message) == ("ok", f"auto chooses {MIDDLE} here; {ADVICE}")
    assert (missing.status, missing.message.split()[0]) == ("warning", MIDDLE)
    monkeypatch.setattr(choose_model, "users_choice", lambda: Choice((SMALL,)))
    [choice] = stores.chosen_model()
    [missing] = stores.small_model()
    assert (choice.message, missing.message.split()[0]) == ("auto chooses small here", SMALL)


def test_a_bench_inflates_the_small_model(chosen: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def open_bench(recipe: bench.Recipe, *_: object) -> None:
        asked.append(recipe.settings.model)
        raise UsageError("far enough")

    chosen("tiny")
    monkeypatch.setattr(bench, "open_bench", open_bench)
    for more in ((), ("--inflate", "llama-2-7b"), ("--inflate", "llama-2-7b", "--model", "twin")):
        assert run("bench", "a.txt", *more).code == 2
    assert asked == ["tiny", SMALL, "twin"]
