"""``triforce-chat tune``, and what commands say about measured times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.commands import Outcome, run
from support.tiny_models import mute_special_tokens, save_model

from triforce_chat.cli.engines import open_session
from triforce_chat.cli.output import screen_of
from triforce_chat.doctor import stores
from triforce_chat.engine.events import Calibrated
from triforce_chat.serve.adapter import SessionAdapter
from triforce_chat.serve.chat_request import ChatCompletionRequest
from triforce_chat.settings.options import Options
from triforce_chat.settings.paths import calibration_file

Tune = Callable[..., Outcome]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shelf")
    torch.manual_seed(2)
    save_model(made / "tiny", max_position_embeddings=4096, initializer_range=0.3)
    mute_special_tokens(made / "tiny")
    (made / "a.txt").write_text("the first text " * 40)
    return made


@pytest.fixture
def here(shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tune:
    monkeypatch.chdir(shelf)
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRIFORCE_CHAT_MODEL", "tiny")
    monkeypatch.setenv("TRIFORCE_CHAT_DEVICE", "cpu")
    return run


def contexts(done: Outcome) -> list[int]:
    return [row["context"] for row in done.json["contexts"]]


def test_it_measures_once(here: Tune) -> None:
    done = here("tune", "--contexts", "300,1100", "--json")
    assert contexts(done) == [256, 1024]
    assert all(row["measured"] and 0 < row["best_ms"] <= row["plain_ms"] for row in done.json["contexts"])
    kept = calibration_file().read_text()
    assert here("tune", "--contexts", "400", "--json").json == done.json
    assert calibration_file().read_text() == kept


def test_a_document_says_how_long(here: Tune) -> None:
    assert contexts(here("tune", "a.txt", "--json")) == [512]


def test_for_people(here: Tune) -> None:
    done = here("tune", "a.txt")
    assert done.code == 0
    heading, row = done.out.splitlines()
    assert heading.split("  ")[0].strip() == "context of at least"
    assert heading.endswith("usable with --seed")
    assert (row.split()[0], row.split()[-1]) == ("512", "yes")


def test_more_than_the_context_has(here: Tune) -> None:
    here("tune", "--contexts", "5000").is_refusal(4, "longer --context")


def test_answers_with_a_seed_use_it(here: Tune) -> None:
    key = here("tune", "a.txt", "--json").json["calibration"]
    flags = ("--temperature", "1.5", "--seed", "3", "--max-tokens", "40")
    first, second = (here("ask", "a.txt", "Why?", *flags, "--json").json for _ in range(2))
    assert first["calibration"] == second["calibration"]
    assert first["calibration"].startswith(f"{key}-")
    assert first["token_ids"] == second["token_ids"]
    measured = '"event": "calibrated"'
    assert measured not in here("ask", "a.txt", "Why?", *flags, "--jsonl").out
    assert "calibration" not in here("ask", "a.txt", "Why?", "--max-tokens", "4", "--json").json


def test_a_first_answer_with_a_seed_measures(here: Tune) -> None:
    flags = ("--temperature", "1.5", "--seed", "3", "--max-tokens", "60", "--json")
    first, *others = (here("ask", "a.txt", "Why?", *flags).json["token_ids"] for _ in range(4))
    assert others == [first] * 3


def test_without_the_cache_a_seed_alone_leaves_times(here: Tune) -> None:
    flags = ("ask", "a.txt", "Why?", "--no-cache", "--max-tokens", "4", "--json")
    assert here(*flags).code == 0
    assert not calibration_file().exists()
    assert here(*flags, "--seed", "3").code == 0
    assert calibration_file().exists()


def test_without_the_cache_a_server_measures_once(here: Tune, shelf: Path) -> None:  # noqa: ARG001
    options = Options(model=str(shelf / "tiny"), device="cpu", max_tokens=4, no_cache=True)
    session, _ = open_session([], options, screen_of(Options(quiet=True)))
    adapter, measured = SessionAdapter(session), []
    for seed in ((), (("seed", 3),)) * 2:
        events = [*adapter.answer(ChatCompletionRequest((), "Why?", settings=seed))]
        measured.append(any(isinstance(event, Calibrated) for event in events))
    assert measured == [False, True, False, False]
    assert not calibration_file().exists()


def test_doctor_says_what_is_known(here: Tune) -> None:
    (before,) = stores.calibration()
    assert before.message == "tiny has not been measured on this machine yet; the first answers do that"
    assert here("ask", "a.txt", "Why?", "--max-tokens", "12").code == 0
    (after,) = stores.calibration()
    assert after.message.startswith("tiny: 1 entry for contexts of at least 512 tokens; from 512 tokens on ")
    assert after.message.endswith("expected with drafts")
