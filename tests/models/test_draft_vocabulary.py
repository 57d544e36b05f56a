"""Drafts that know only some tokens, from their folders: what fits a target, what is refused, what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.answers import answer
from support.tiny_models import VOCABULARY, save_model, save_tokenizer, save_weights

from triforce_chat.engine.engine import Engine
from triforce_chat.engine.forward.cpu_layer import CpuLayer
from triforce_chat.engine.forward.quantized import QuantizedLinear
from triforce_chat.errors import ModelError
from triforce_chat.loading.join_draft import draft_runner
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.models.draft_vocabulary import FILE, DraftVocabulary, read_draft_vocabulary
from triforce_chat.models.load import LoadedModel, check_draft, load_model
from triforce_chat.models.tokenizer import vocabulary_hash
from triforce_chat.settings.settings import Settings

WIDE = len(VOCABULARY)
KNOWN = torch.arange(2, WIDE, 2)


@pytest.fixture
def target(tmp_path: Path) -> LoadedModel:
    torch.manual_seed(1)
    return load(save_model(tmp_path / "target", initializer_range=0.3))


def load(folder: Path, **options: Any) -> LoadedModel:
    return load_model(str(folder), attention="sdpa", **options)


def save_draft(
    folder: Path, target: LoadedModel, known: torch.Tensor = KNOWN, tokenizer: str = "", more: int = 1
) -> Path:
    """Without a tokenizer, as they are trained."""
    save_weights(folder, vocab_size=len(known) + more, num_hidden_layers=1, initializer_range=0.3)
    DraftVocabulary(known, tokenizer or vocabulary_hash(target.tokenizer)).save(folder)
    return folder


def drafting(folder: Path, target: LoadedModel) -> LoadedModel:
    return load(folder, tokenizer=target.tokenizer)


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    DraftVocabulary(torch.tensor([7, 3, 70_000]), "a hash").save(tmp_path)
    found = read_draft_vocabulary(tmp_path)
    assert found is not None
    assert found.target_ids.tolist() == [7, 3, 70_000]
    assert found.target_ids.dtype == torch.int64
    assert found.tokenizer == "a hash"


def test_a_draft_of_its_target_fits(target: LoadedModel, tmp_path: Path) -> None:
    draft = drafting(save_draft(tmp_path / "draft", target), target)
    check_draft(target, draft)
    runner = draft_runner(draft, target)
    assert runner.subset is not None
    assert runner.vocabulary == WIDE


def test_a_draft_without_a_vocabulary_of_its_own_is_as_before(target: LoadedModel, tmp_path: Path) -> None:
    draft = load(save_model(tmp_path / "draft", num_hidden_layers=1))
    assert draft.draft_vocabulary is None
    check_draft(target, draft)
    assert draft_runner(draft, target).subset is None
    assert read_draft_vocabulary(tmp_path / "nowhere") is None


@pytest.mark.usefixtures("kernels")
def test_a_draft_on_a_cpu_stays_in_16_bits(target: LoadedModel, tmp_path: Path) -> None:
    draft = load(save_model(tmp_path / "draft", head_dim=16))
    for weight in draft.model.parameters():
        weight.copy_(weight.to(torch.bfloat16))
    runner = draft_runner(draft, target)
    assert all(isinstance(layer, CpuLayer) for layer in runner.model.base_model.layers)
    assert isinstance(runner.model.lm_head, QuantizedLinear)


def test_a_draft_for_another_tokenizer_is_refused(target: LoadedModel, tmp_path: Path) -> None:
    save_model(tmp_path / "other")
    save_tokenizer(tmp_path / "other", [*VOCABULARY[:-2], VOCABULARY[-1], VOCABULARY[-2]])
    other = load(tmp_path / "other")
    draft = drafting(save_draft(tmp_path / "draft", other), target)
    check_draft(other, draft)
    with pytest.raises(ModelError, match=r"cannot draft for .*target: it was made for another tokenizer"):
        check_draft(target, draft)


@pytest.mark.parametrize(
    ("known", "more"),
    [(KNOWN, 0), (KNOWN, 2), (torch.tensor([3, WIDE]), 1)],
    ids=["too few weights", "too many weights", "an id that the target lacks"],
)
def test_a_vocabulary_of_other_weights_is_refused(
    target: LoadedModel, tmp_path: Path, known: torch.Tensor, more: int
) -> None:
    draft = drafting(save_draft(tmp_path / "draft", target, known, more=more), target)
    with pytest.raises(ModelError, match=r"draft is damaged: its weights and its vocabulary differ in size"):
        check_draft(target, draft)


def shortened(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def without_tokenizer(file: Path) -> None:
    save_file({"target_ids": torch.arange(3)}, file)


def without_this_entry(file: Path) -> None:
    save_file({"target_ids": torch.arange(3)}, file, {"other": "entry"})


def without_ids(file: Path) -> None:
    save_file({"ids": torch.arange(3)}, file, {"tokenizer": "a hash"})


@pytest.mark.parametrize(
    "damage",
    [shortened, emptied, without_tokenizer, without_this_entry, without_ids],
    ids=lambda d: d.__name__,
)
def test_a_damaged_file_is_one_line(
    target: LoadedModel, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = save_draft(tmp_path / "draft", target)
    damage(folder / FILE)
    with pytest.raises(ModelError, match=rf"draft: {FILE} is damaged; copy or train the draft again") as told:
        drafting(folder, target)
    assert "\n" not in str(told.value)


def engine_of(target: LoadedModel, draft: Path, stack: str) -> Engine:
    settings = Settings(
        model=target.name, draft=str(draft), stack=stack, budget=104, gamma=4, draft_gamma=2, device="cpu"
    )
    engine, loaded = load_engine(EngineSpec(settings))
    assert loaded.draft == str(draft)
    engine.eos_ids = frozenset()
    return engine


@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_a_draft_folder_drafts_exactly(target: LoadedModel, tmp_path: Path, stack: str) -> None:
    engine = engine_of(target, save_draft(tmp_path / "draft", target), stack)
    accepted = 0
    for start in range(3, 60, 4):
        prompt = [*range(start, start + 30), *range(start, start + 9)]
        said, count = answer(engine, prompt)
        assert said == answer(engine, prompt, plain=True)[0]
        accepted += count
    assert accepted > 0
    sampled = [answer(engine, [5, 6, 7], temperature=1.0, seed=seed)[0] for seed in range(5)]
    made = {token for ids in sampled for token in ids}
    assert made & set(KNOWN.tolist())
    assert made - set(KNOWN.tolist())


def test_an_engine_refuses_a_draft_for_another_tokenizer(target: LoadedModel, tmp_path: Path) -> None:
    draft = save_draft(tmp_path / "draft", target, tokenizer="that of another")
    with pytest.raises(ModelError, match="made for another tokenizer"):
        engine_of(target, draft, "naive")
