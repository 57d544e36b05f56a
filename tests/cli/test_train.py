"""``triforce-chat train`` as a user meets it: from texts to a folder that the other commands take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.long_texts import prose
from support.trained_models import load, save_target
from typer.testing import CliRunner

from triforce_chat.chat.events import ChatEvent
from triforce_chat.cli.app import app
from triforce_chat.cli.options import parse_list
from triforce_chat.engine.engine import Request
from triforce_chat.engine.events import Text, Verified
from triforce_chat.lab.training import context, jobs
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.settings.settings import Settings

LENGTHS = "1200,1250,1300"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shelf")
    save_target(made / "base", hidden_size=64, head_dim=16)
    (made / "books" / "held").mkdir(parents=True)
    for i, name in enumerate(("one", "two", "held/three")):
        (made / "books" / f"{name}.txt").write_text(prose(i, 50))
    return made


def shrink(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jobs, "TEXT", 500)
    patch.setattr(context, "TOKENS_PER_QUESTION", 600)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def train_context(shelf: Path, out: Path, *more: object) -> Any:
    usual = ("--model", shelf / "base", "--data", shelf / "books", "--out", out, "--lengths", LENGTHS)
    sizes = ("--tokens", 1300, "--rank", 2, "--chats", 16, "--factor", 8, "--steps", 3, "--device", "cpu")
    return run("context", *usual, *sizes, *more)


def train_draft(shelf: Path, out: Path, *more: object) -> Any:
    texts = ("--data", shelf / "books", "--unseen", shelf / "books" / "held", "--out", out)
    sizes = ("--hidden", 64, "--layers", 1, "--texts", 2, "--sequences", 8, "--writing", 0.005)
    return run("draft", *texts, *sizes, "--lengths", "400,600", "--steps", 6, "--device", "cpu", *more)


@pytest.fixture(scope="module")
def adapter(shelf: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        result = train_context(shelf, shelf / "adapter")
    assert result.exit_code == 0, result.output
    return shelf / "adapter"


@pytest.fixture(scope="module")
def draft(shelf: Path, adapter: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        result = train_draft(shelf, shelf / "draft", "--model", adapter)
    assert result.exit_code == 0, result.output
    return shelf / "draft"


def test_every_step_is_told_and_logged(shelf: Path, tmp_path: Path) -> None:
    result = train_context(shelf, tmp_path / "made")
    told = result.stderr.splitlines()
    assert int(told[0].split()[1]) > 0
    assert [line.split("  ")[0] for line in told[1:]] == ["step 1", "step 2", "step 3"]
    assert result.stdout == ""
    lines = [json.loads(line) for line in (tmp_path / "made" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(1 < line["loss"] < 50 and line["length"] in (1200, 1250, 1300) for line in lines)


def test_a_trained_adapter_is_a_model(shelf: Path, adapter: Path) -> None:
    loaded = load(adapter)
    assert loaded.context == 4096
    base = load(shelf / "base").model.state_dict()
    changed = [
        name for name, weight in loaded.model.state_dict().items() if not torch.equal(weight, base[name])
    ]
    assert len(changed) == 14
    card = (adapter / "README.md").read_text()
    assert f"base_model: {shelf / 'base'}" in card
    assert "read 4,096 tokens" in card
    assert "| steps | 3 |" in card
    assert "| step | 3 |" in card
    assert card.endswith("## Data\n\n- three\n- one\n- two\n")


def test_a_trained_draft_drafts_exactly(adapter: Path, draft: Path) -> None:
    settings = Settings(
        model=str(adapter), draft=str(draft), stack="triforce", device="cpu", context=1500, gamma=4
    )
    engine, loaded = load_engine(EngineSpec(settings))
    assert loaded.draft == str(draft)
    stock, made = load(adapter).model, 0
    for size in (700, 800, 900, 1000):
        prompt = loaded.tokenizer(prose(size, 60))["input_ids"][:size]
        events = [*engine.answer(Request(prompt, 40))]
        ids = tokens_of(events)
        assert ids == tokens_of([*engine.answer(Request(prompt, 40), plain=True)])
        with torch.no_grad():
            plain = stock.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=40)
        assert ids == plain[0, size:].tolist()
        assert {event.level for event in events if isinstance(event, Verified)} == {"target", "retrieval"}
        made += len(ids)
    assert made > 60


def tokens_of(events: Sequence[ChatEvent]) -> list[int]:
    return [token for event in events if isinstance(event, Text) for token in event.token_ids]


def test_a_draft_says_how_often_it_is_accepted(draft: Path) -> None:
    card = (draft / "README.md").read_text()
    for heat in ("0", "0.6", "1"):
        assert f"| accepted at {heat} | 0." in card
    assert card.endswith("## Data\n\n- one\n- two\n")  # what judges is not trained on


def test_a_training_goes_on_in_its_folder(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "SAVE_EVERY", 1)
    with monkeypatch.context() as patch:
        patch.setattr(context, "save_adapter", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        stopped = train_context(shelf, tmp_path, "--steps", 4, "--minutes", 60)
    assert (stopped.exit_code, stopped.stderr.splitlines()[-1]) == (130, "error: interrupted")
    again = train_context(shelf, tmp_path, "--steps", 4, "--minutes", 60)
    assert again.exit_code == 0
    assert len(again.stderr.splitlines()) == 1  # nothing was left to train
    assert (tmp_path / "adapter_model.safetensors").is_file()


def test_a_training_can_start_with_an_adapter(shelf: Path, adapter: Path, tmp_path: Path) -> None:
    result = train_context(shelf, tmp_path / "more", "--from", adapter, "--steps", 1, "--chats", 0)
    assert result.exit_code == 0, result.output
    other = train_context(
        shelf, tmp_path / "other", "--from", adapter, "--steps", 1, "--chats", 0, "--rank", 3
    )
    refused(other, 5, "no update of shape (3, 64)")
    missing = train_context(shelf, tmp_path / "none", "--from", shelf / "books", "--chats", 0)
    refused(missing, 5, "adapter_model.safetensors is missing")


def refused(result: Any, code: int, message: str) -> None:
    """One line says why; told figures may stand before it."""
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    line = result.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    assert message in line
    assert sum(other.startswith("error: ") for other in result.stderr.splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize("train", [train_context, train_draft])
def test_a_place_that_cannot_be_written(shelf: Path, tmp_path: Path, train: Any) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "deeper"):
        refused(train(shelf, out), 2, f"--out {out} cannot be written")


NO_NUMBERS = "'{}' is not a list of numbers of at least 1; write for example 1024,8192"


@pytest.mark.parametrize("lengths", ["", "a,b,c", "0,1,2", "1;2;3", "-1,2,3"])
def test_wrong_lengths(shelf: Path, tmp_path: Path, lengths: str) -> None:
    result = train_context(shelf, tmp_path / "out", f"--lengths={lengths}")
    refused(result, 2, NO_NUMBERS.format(lengths))
    assert not (tmp_path / "out").exists()


def test_lengths_in_any_order(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(jobs, "train_context", lambda *arguments: seen.append(arguments[2]))
    assert train_context(shelf, tmp_path, "--lengths", "1300, 1200,1250,1300").exit_code == 0
    assert seen[0].lengths == (1200, 1250, 1300, 1300)
    assert seen[0].alpha == seen[0].rank == 2


def test_any_count_of_lengths_before_an_answer() -> None:
    assert parse_list("5") == [5]
    assert parse_list("5, 7,6") == [5, 6, 7]


def test_lengths_that_no_document_fits_in(shelf: Path, tmp_path: Path) -> None:
    refused(train_context(shelf, tmp_path, "--lengths", "90,1200,1300"), 2, "of 90 tokens cannot be made")
    refused(train_context(shelf, tmp_path, "--lengths", "1200,1300,4097"), 2, "beyond the 4,096 tokens")


def test_an_adapter_is_not_stretched_again(shelf: Path, adapter: Path, tmp_path: Path) -> None:
    again = train_context(shelf, tmp_path / "out", "--model", adapter)
    refused(again, 2, f"has an adapter already; train its base {shelf / 'base'}")


@pytest.mark.parametrize("train", [train_context, train_draft])
def test_no_texts(shelf: Path, tmp_path: Path, train: Any) -> None:
    (tmp_path / "empty").mkdir()
    model = ("--model", shelf / "base", "--exclude", "one", "--exclude", "two", "--exclude", "three")
    refused(train(shelf, tmp_path / "out", *model), 2, "there is no text")
    missing = train(shelf, tmp_path / "out", "--data", tmp_path / "nowhere.txt", "--model", shelf / "base")
    refused(missing, 3, "no such file")


def test_no_model(shelf: Path, tmp_path: Path) -> None:
    refused(train_draft(shelf, tmp_path, "--model", tmp_path / "nowhere"), 5, "nowhere")


@pytest.mark.parametrize("hidden", [32, 100, 128])
def test_a_width_that_no_draft_can_have(shelf: Path, tmp_path: Path, hidden: int) -> None:
    result = train_draft(shelf, tmp_path, "--model", shelf / "base", "--hidden", hidden)
    refused(result, 2, "--hidden must be a multiple of 64 and at most 64")


def test_a_draft_that_cannot_be_begun_with(shelf: Path, tmp_path: Path, draft: Path) -> None:
    more = ("--model", shelf / "base", "--from", draft)
    refused(train_draft(shelf, tmp_path / "out", *more, "--layers", 2), 2, "no draft of this --hidden")


def test_nothing_to_learn_from(shelf: Path, tmp_path: Path) -> None:
    refused(train_draft(shelf, tmp_path, "--writing", 0, "--texts", 0), 2, "nothing to learn from")


@pytest.mark.parametrize("flag", ["--steps", "--minutes"])
def test_no_time(shelf: Path, tmp_path: Path, flag: str) -> None:
    result = train_context(shelf, tmp_path, flag, 0)
    assert result.exit_code == 2
    assert f"'{flag}': Input should be greater" in result.stderr


def test_the_folder_of_another_training(shelf: Path, adapter: Path) -> None:
    refused(train_context(shelf, adapter, "--rank", 4), 2, "holds another training; choose another --out")
