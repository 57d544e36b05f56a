"""Different texts at once, over plain decoding of the same: what is measured and printed."""

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
from triforce_chat.errors import OutOfMemory
from triforce_chat.lab.bench import batch
from triforce_chat.lab.bench.batch import Batched
from triforce_chat.lab.bench.table import batch_table


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("batch")
    torch.manual_seed(4)
    save_model(folder / "tiny", max_position_embeddings=8192, initializer_range=0.3)
    mute_special_tokens(folder / "tiny")
    book: Path = folder / "book.txt"
    book.write_text("the first text is long " * 300)
    common = ["bench", str(book), "--model", str(folder / "tiny"), "--device", "cpu", "--temperatures", "0"]
    return [*common, "--tokens", "6", "--repeats", "3", "--past-end", "--warmup", "2"]


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_a_record(command: list[str]) -> None:
    done = run(*command, "--batch", "3x300,2x400", "--stacks", "lookup,retrieval", "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert schema_errors("bench", record) == []
    rows = record["batches"]
    assert [(row["sequences"], row["context"], row["contender"]) for row in rows] == [
        (count, length, stack)
        for count, length in ((3, 300), (2, 400))
        for stack in ("autoregressive", "lookup", "retrieval")
    ]
    for row in rows:
        assert row["tokens"] == 6 * row["sequences"]
        assert 0 < row["spread_s"][0] <= row["seconds"] <= row["spread_s"][1]
        assert row["ms_per_token"] == pytest.approx(1000 * row["seconds"] / row["tokens"])
    plain, lookup, _ = rows[:3]
    assert (plain["speedup"], plain["tokens_per_round"]) == (1, 1)
    assert lookup["speedup"] == pytest.approx(plain["ms_per_token"] / lookup["ms_per_token"])
    assert lookup["full_speedup"] == pytest.approx(plain["full_ms_per_token"] / lookup["full_ms_per_token"])
    assert plain["full_ms_per_token"] == pytest.approx(plain["ms_per_token"], rel=0.5)  # all end at once


@pytest.mark.parametrize("same", [True, False])
def test_all_stacks_decode_what_plain_decoding_drew(
    command: list[str], monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    said: list[list[list[int]]] = []
    timed = batch._timed

    def kept(*given: Any) -> Any:
        run = timed(*given)
        said.append([tally.token_ids for tally in run.tallies])
        return run

    monkeypatch.setattr(batch, "_timed", kept)
    words = [*command, "--batch", "3x300", "--stacks", "lookup,retrieval", "--json", "--warmup", "0"]
    done = run(*words, "--temperatures", "0.8", "--repeats", "1", *(["--same-text"] if same else []))
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["same_text"], record["past_end"]) == (same, True)
    assert [row["contender"] for row in record["batches"]] == ["autoregressive", "lookup", "retrieval"]
    plain, *others = said
    assert [len(text) for text in plain] == [6, 6, 6]
    assert (others == [plain, plain]) is same


def test_more_sequences_than_memory_has_room_for(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "free_bytes", lambda _device: 10**6)
    done = run(*command, "--batch", "20x300", "--json")
    assert (done.exit_code, done.stdout) == (OutOfMemory.exit_code, "")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "20 x " in line
    assert line.endswith("1 MB are free: 10 at once fit")


def test_a_table(command: list[str]) -> None:
    done = run(*command, "--batch", "2x300", "--stacks", "autoregressive")
    assert done.exit_code == 0, done.stderr
    assert "2 x 300" in done.stdout
    row = Batched("auto", 4, 9000, 0.6, 128, 2.0, (1.5, 3.5), 15.6, 14.2, 1.2, None, 1.5, 1.7)
    assert [[*each.cells] for each in batch_table([row]).columns[9:]] == [["1.50"], ["1.70"]]


@pytest.mark.parametrize("other", ["--profile", "--stock"])
def test_what_goes_by_itself(command: list[str], other: str) -> None:
    done = run(*command, "--batch", "2x300", other)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--batch goes without" in done.stderr


def test_trees_go_with_batches(command: list[str]) -> None:
    asked = ["--batch", "2x300", "--stacks", "naive", "--vary", "tree=chain,sequoia", "--json"]
    done = run(*command, *asked, "--draft", command[command.index("--model") + 1])
    assert done.exit_code == 0, done.stderr
    rows = [row["contender"] for row in json.loads(done.stdout)["batches"]]
    assert rows == ["autoregressive", "naive tree=chain", "naive tree=sequoia"]


def test_what_is_refused(command: list[str]) -> None:
    both = run(*command, "--batch", "2x300", "--shared", "2")
    assert (both.exit_code, "one after the other" in both.stderr) == (2, True)
    wrong = run(*command, "--batch", "two")
    assert (wrong.exit_code, "'two' is not a batch" in wrong.stderr) == (2, True)
