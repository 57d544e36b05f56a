"""Questions that are answered at once, beside one alone: what is asked, counted and printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.schemas import schema_errors
from support.tiny_models import mute_special_tokens, save_model
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.lab.bench.table import together_table
from triforce_chat.lab.bench.together import QUESTIONS, Together, questions


def encode(text: str, add_special_tokens: bool) -> list[int]:
    assert not add_special_tokens
    return list(text.encode())


def test_all_questions_differ() -> None:
    made = questions(encode, 3 * len(QUESTIONS))
    assert len({tuple(ids) for ids in made}) == 3 * len(QUESTIONS)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("together")
    torch.manual_seed(4)
    save_model(folder / "tiny", max_position_embeddings=8192, initializer_range=0.3)
    mute_special_tokens(folder / "tiny")
    book: Path = folder / "book.txt"
    book.write_text("the first text is long " * 300)
    common = ["bench", str(book), "--model", str(folder / "tiny"), "--device", "cpu", "--contexts", "400"]
    return [*common, "--tokens", "5", "--repeats", "3", "--temperatures", "0", "--past-end"]


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_a_record(command: list[str]) -> None:
    done = run(*command, "--shared", "3", "--stacks", "autoregressive,lookup", "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert schema_errors("bench", record) == []
    assert record["rows"] == []
    plain, lookup = record["shared"]
    assert (plain["contender"], plain["context"], plain["sequences"], plain["tokens"]) == (
        *("autoregressive", 400, 3, 15),
    )
    assert plain["tokens_per_round"] == 1
    assert lookup["tokens_per_round"] >= 1
    low, high = plain["spread_s"]
    assert 0 < low <= plain["together_s"] <= high
    assert plain["times_one"] == pytest.approx(plain["together_s"] / plain["one_s"])
    assert plain["ms_per_token"] == pytest.approx(1000 * plain["together_s"] / 15)


def test_a_table(command: list[str]) -> None:
    done = run(*command, "--shared", "2", "--stacks", "autoregressive", "--warmup", "0")
    assert done.exit_code == 0, done.stderr
    assert "all/one" in done.stdout
    row = Together("auto", 9000, 0.6, 4, 128, 2.0, 3.0, (2.5, 3.5), 1.5, 23.4, 1.2, None)
    assert [*together_table([row]).columns[7].cells] == ["1.50"]


@pytest.mark.parametrize("other", ["--profile", "--same-text", "--stock"])
def test_what_goes_by_itself(command: list[str], other: str) -> None:
    done = run(*command, "--shared", "2", other)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--shared goes without" in done.stderr
