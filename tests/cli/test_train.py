"""``triforce-chat train`` as a user meets it: from texts to a folder that the other commands take."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import commands
from support.long_texts import prose
from support.trained_models import load, save_target
from transformers import AutoTokenizer
from typer.testing import CliRunner

from triforce_chat.chat.events import ChatEvent
from triforce_chat.cli.app import app
from triforce_chat.cli.options import parse_list
from triforce_chat.engine.engine import Request
from triforce_chat.engine.events import Text, Verified
from triforce_chat.engine.forward.subset import Subset
from triforce_chat.lab.training import context, jobs
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.models import load as loading
from triforce_chat.models import registry
from triforce_chat.models.draft_head import read_draft_head
from triforce_chat.models.draft_vocabulary import read_draft_vocabulary
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
    for temperature in ("0", "0.6", "1"):
        assert f"| accepted at {temperature} | 0." in card
    assert card.endswith("## Data\n\n- one\n- two\n")  # what judges is not trained on


SHIPS = [f"The ship of number {number} is here." for number in range(12)]


@pytest.fixture(scope="module")
def questions(shelf: Path) -> Path:
    """A folder with the questions about one more text."""
    made = shelf / "questions"
    made.mkdir()
    blocks = [
        f'[[question]]\nkind = "where"\nquestion = "Where is ship {i}?"\nreply = "It is here."\n'
        f'evidence = ["{quote}"]\n'
        for i, quote in enumerate(SHIPS)
    ]
    (made / "ships.toml").write_text('title = "The Ships"\nauthor = "A. Nonymous"\n' + "\n".join(blocks))
    (shelf / "novels").mkdir()
    parts = [part for i, quote in enumerate(SHIPS) for part in (prose(i, 6), quote)]
    (shelf / "novels" / "ships.txt").write_text("\n\n".join([*parts, prose(50, 20)]))
    (shelf / "novels" / "empty.txt").write_text("")  # passed over, as without questions
    return made


def test_an_adapter_can_learn_from_questions(shelf: Path, questions: Path, tmp_path: Path) -> None:
    more = ("--data", shelf / "novels", "--questions", questions, "--checkpoint")
    result = train_context(shelf, tmp_path / "made", *more)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (tmp_path / "made" / "log.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        assert 0 < line["answers"] < 100
        assert line["loss"] == pytest.approx(context.ANSWERS * line["of answers"], rel=1e-3)
    assert load(tmp_path / "made").context == 4096
    card = (tmp_path / "made" / "README.md").read_text()
    assert "answer questions about books of up to 4,096 tokens" in card
    assert "| checkpoint | True |" in card
    assert card.endswith("## Data\n\n- three\n- one\n- two\n- ships\n")  # conversations may be about any text


def test_questions_without_replies_are_not_learnt(shelf: Path, questions: Path, tmp_path: Path) -> None:
    """Those that evaluate models have none."""
    other = tmp_path / "questions"
    other.mkdir()
    for file in questions.glob("*.toml"):
        text = file.read_text()
        (other / file.name).write_text(re.sub("^reply = .*\n", "", text, flags=re.MULTILINE))
    done = train_context(shelf, tmp_path / "out", "--data", shelf / "novels", "--questions", other)
    refused(done, 2, "has no reply to learn")


def test_questions_about_none_of_the_texts(shelf: Path, questions: Path, tmp_path: Path) -> None:
    other = train_context(shelf, tmp_path / "out", "--questions", questions)
    refused(other, 2, f"the questions in {questions} are about none of the texts")
    left_out = ("--data", shelf / "novels", "--exclude", "ships", "--questions", questions)
    refused(train_context(shelf, tmp_path / "out", *left_out), 2, "are about none of the texts")
    empty = train_context(shelf, tmp_path / "out", "--questions", shelf / "novels")
    refused(empty, 2, "contains no .toml files with questions")
    long = ("--data", shelf / "novels", "--questions", questions, "--lengths", "1200,4090")
    refused(train_context(shelf, tmp_path / "out", *long), 2, "no book with questions has 4,090 tokens")


@pytest.mark.parametrize(
    ("name", "base"), [("medium", "qwen2.5-coder-0.5b"), ("large", "qwen2.5-coder-1.5b")]
)
def test_our_adapters_are_not_trained_again(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, base: str
) -> None:
    monkeypatch.setattr(registry, "wheel_model", lambda **_: shelf / "base")
    monkeypatch.setattr(loading, "merge", lambda *_: None)  # its weights are of another size
    again = train_context(shelf, tmp_path / "out", "--model", name)
    refused(again, 2, f"{name} has an adapter already; train its base {base}")


@pytest.fixture(scope="module")
def reduced(shelf: Path) -> Path:
    """A draft of two targets that knows a part of their tokens."""
    save_target(shelf / "twin", seed=1, hidden_size=64, head_dim=16)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        targets = ("--model", shelf / "base", "--also", shelf / "twin", "--lengths", "400")
        result = train_draft(shelf, shelf / "reduced", *targets, "--vocabulary", 200, "--steps", 40)
    assert result.exit_code == 0, result.output
    return shelf / "reduced"


@pytest.mark.parametrize("target", ["base", "twin"])
def test_a_draft_of_few_tokens_is_used(
    shelf: Path, reduced: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    known = read_draft_vocabulary(reduced)
    assert known is not None
    assert len(known.target_ids) == 200
    (shelf / "short.txt").write_text(prose(3, 4))
    limits = ("--max-tokens", 20, "--device", "cpu", "--temperature", 0, "--json")
    model = ("--model", shelf / target, "--draft", reduced)
    widened, widths = Subset.widened, []

    def seen(subset: Subset, logits: torch.Tensor) -> torch.Tensor:
        widths.append(logits.shape[-1])
        return widened(subset, logits)

    monkeypatch.setattr(Subset, "widened", seen)
    told = commands.run("ask", shelf / "short.txt", "Why?", *model, "--stack", "naive", *limits).json
    assert set(widths) == {201}
    plain = commands.run(
        "ask", shelf / "short.txt", "Why?", "--model", shelf / target, "--draft", "none", *limits
    )
    assert told["draft"] == str(reduced)
    assert told["token_ids"] == plain.json["token_ids"]
    assert f"| accepted at 1 by {shelf / target} | 0." in (reduced / "README.md").read_text()


def test_a_draft_of_few_tokens_can_be_trained_further(shelf: Path, reduced: Path, tmp_path: Path) -> None:
    more = ("--model", shelf / "twin", "--from", reduced, "--lengths", "400", "--writing", 0)
    result = train_draft(shelf, tmp_path / "made", *more, "--vocabulary", 200)
    assert result.exit_code == 0, result.output
    found, before = read_draft_vocabulary(tmp_path / "made"), read_draft_vocabulary(reduced)
    assert found is not None
    assert before is not None
    assert torch.equal(found.target_ids, before.target_ids)


@pytest.fixture(scope="module")
def built(shelf: Path) -> Path:
    """A draft that is built on its target."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        chosen = ("--model", shelf / "base", "--built-on-target", "--vocabulary", 200, "--lengths", "400")
        result = train_draft(shelf, shelf / "built", *chosen)
    assert result.exit_code == 0, result.output
    return shelf / "built"


def test_a_draft_that_is_built_on_its_target(shelf: Path, built: Path) -> None:
    head, known = read_draft_head(built), read_draft_vocabulary(built)
    assert head is not None
    assert known is not None
    assert (head.embed.shape, head.ages.shape, len(known.target_ids)) == ((64, 64), (6, 64), 200)
    card = (built / "README.md").read_text()
    assert f"A draft that is built on {shelf / 'base'}: layers between" in card
    assert "| built on target | True |" in card
    assert "| token 6 at 0 | 0" in card


def test_a_draft_that_is_built_on_its_target_can_be_trained_further(
    shelf: Path, built: Path, tmp_path: Path
) -> None:
    more = ("--model", shelf / "base", "--from", built, "--lengths", "400", "--writing", 0)
    result = train_draft(shelf, tmp_path / "made", *more, "--built-on-target", "--vocabulary", 200)
    assert result.exit_code == 0, result.output
    assert read_draft_head(tmp_path / "made") is not None
    for other in (("--built-on-target", "--vocabulary", 200, "--layers", 2), ("--vocabulary", 200)):
        told = "contains no draft of this --vocabulary, --hidden"
        refused(train_draft(shelf, tmp_path / "out", *more, *other), 2, told)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ((), "--built-on-target needs --vocabulary, for example 24575"),
        (
            ("--vocabulary", 200, "--also", "small"),
            "a draft that is built on its target has only one; leave out --also",
        ),
    ],
)
def test_what_a_draft_that_is_built_on_its_target_needs(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Sequence[object], told: str
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda *_: pytest.fail("a model was loaded before"))
    refused(train_draft(shelf, tmp_path, "--model", shelf / "base", "--built-on-target", *more), 2, told)


@pytest.mark.parametrize("vocabulary", [0, 199])
def test_a_draft_of_another_vocabulary_is_refused_at_once(
    shelf: Path, reduced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: int
) -> None:
    monkeypatch.setattr(jobs, "teach_some", lambda *_: pytest.fail("minutes were spent before"))
    more = ("--model", shelf / "base", "--from", reduced, "--vocabulary", vocabulary)
    refused(
        train_draft(shelf, tmp_path / "out", *more), 2, "contains no draft of this --vocabulary, --hidden"
    )


def test_targets_of_different_tokens_share_no_draft(shelf: Path, tmp_path: Path) -> None:
    save_target(tmp_path / "other", hidden_size=64, head_dim=16)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "other")
    tokenizer.add_tokens(["unheard"])
    tokenizer.save_pretrained(tmp_path / "other")
    targets = ("--model", shelf / "base", "--also", tmp_path / "other")
    told = "the targets have different vocabularies and can't share a draft"
    refused(train_draft(shelf, tmp_path / "out", *targets), 2, told)
    save_target(tmp_path / "wide", hidden_size=64, head_dim=16, vocab_size=512)
    targets = ("--model", shelf / "base", "--also", tmp_path / "wide")
    refused(train_draft(shelf, tmp_path / "out", *targets), 2, told)


@pytest.mark.parametrize("more", [0, 1])
def test_a_draft_cannot_know_more_than_its_target(shelf: Path, tmp_path: Path, more: int) -> None:
    width = load(shelf / "base").vocab_size
    result = train_draft(shelf, tmp_path, "--model", shelf / "base", "--vocabulary", width + more)
    refused(result, 2, f"--vocabulary must be below {width:,}, the target's own; 0 means all of it")


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
    refused(
        train_draft(shelf, tmp_path / "out", *more, "--layers", 2),
        2,
        "no draft of this --vocabulary, --hidden",
    )


def test_nothing_to_learn_from(shelf: Path, tmp_path: Path) -> None:
    refused(train_draft(shelf, tmp_path, "--writing", 0, "--texts", 0), 2, "nothing to learn from")


@pytest.mark.parametrize("flag", ["--steps", "--minutes"])
def test_no_time(shelf: Path, tmp_path: Path, flag: str) -> None:
    result = train_context(shelf, tmp_path, flag, 0)
    assert result.exit_code == 2
    assert f"'{flag}': Input should be greater" in result.stderr


def test_the_folder_of_another_training(shelf: Path, adapter: Path) -> None:
    refused(train_context(shelf, adapter, "--rank", 4), 2, "contains another training; choose another --out")
