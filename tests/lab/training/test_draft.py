"""A draft begins with the target's own words, learns to agree with it, and is saved as transformers reads it."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.trained_models import builder_of, load, save_target
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.errors import UsageError
from triforce_chat.lab.training import draft as module
from triforce_chat.lab.training.course import LOG
from triforce_chat.lab.training.dataset import Dataset, Teacher, Window
from triforce_chat.lab.training.draft import (
    DraftRecipe,
    DraftTraining,
    TargetData,
    accepted,
    frequent_tokens,
    penalized,
)
from triforce_chat.lab.training.students import StandAlone, fresh_draft
from triforce_chat.models.draft_vocabulary import read_draft_vocabulary
from triforce_chat.models.load import LoadedModel
from triforce_chat.models.tokenizer import vocabulary_hash


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(save_target(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def dataset(loaded: LoadedModel) -> Dataset:
    made = Dataset()
    torch.manual_seed(0)
    Teacher(loaded, builder_of(loaded), made).continue_text(random.Random(0), 2, 6, 100, 30)
    return made


def recipe(**changes: Any) -> DraftRecipe:
    sizes = {"hidden": 32, "head_dim": 16, "layers": 1, "mlp": 64, "rate": 1e-2, "windows": 4, "steps": 40}
    return DraftRecipe(**{**sizes, "minutes": 1e6, **changes})


def training(loaded: LoadedModel, dataset: Dataset, folder: Path, **changes: Any) -> DraftTraining:
    return DraftTraining([TargetData(loaded, dataset, dataset)], recipe(**changes), folder)


def llama_of(training: DraftTraining) -> LlamaForCausalLM:
    assert isinstance(training.student, StandAlone)
    return training.student.llama


def test_the_embedding_spans_the_leading_directions(loaded: LoadedModel) -> None:
    target = copy.deepcopy(loaded.model)
    generator = torch.Generator().manual_seed(0)
    words = target.get_input_embeddings().weight.detach()
    strengths = torch.linspace(5, 0.1, words.shape[1])
    turn, _ = torch.linalg.qr(torch.randn(32, 32, generator=generator))
    words.copy_(torch.randn(words.shape, generator=generator) * strengths @ turn)
    draft = fresh_draft(target, recipe(hidden=16))
    found = draft.get_input_embeddings().weight.detach().double()
    assert found.shape == (loaded.vocab_size, 16)
    values = torch.linalg.svdvals(words.double())
    torch.testing.assert_close(torch.linalg.svdvals(found), values[:16], rtol=1e-4, atol=1e-4)
    left = words.double() - found @ torch.linalg.lstsq(found, words.double()).solution
    assert float(left.square().sum()) == pytest.approx(float(values[16:].square().sum()), rel=1e-4)


def test_a_fresh_draft_has_the_shape_of_its_recipe(loaded: LoadedModel) -> None:
    draft = fresh_draft(loaded.model, recipe(layers=2, mlp=48))
    config = draft.config
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (2, 2, 16)
    assert (config.num_hidden_layers, config.intermediate_size, config.vocab_size) == (
        2,
        48,
        loaded.vocab_size,
    )
    assert draft.lm_head.weight is draft.get_input_embeddings().weight
    same, other = (fresh_draft(loaded.model, recipe(layers=2, mlp=48, seed=seed)) for seed in (0, 1))
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(same.state_dict()[name], draft.state_dict()[name])
    assert not torch.equal(same.state_dict()[name], other.state_dict()[name])


def test_a_trained_draft_agrees_more_often(loaded: LoadedModel, dataset: Dataset, tmp_path: Path) -> None:
    made = training(loaded, dataset, tmp_path, steps=150)
    before = made.test()
    after = made.run(lambda _: None)
    assert after["accepted at 1"] > before["accepted at 1"] + 0.2
    assert after["accepted at 0"] > before["accepted at 0"] + 0.05
    assert made.course.step == 150


def test_the_test_is_the_mean_acceptance_of_all_foretold_tokens(
    loaded: LoadedModel, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE", 100)
    made = training(loaded, dataset, tmp_path)
    found = made.test()
    for temperature in (0.0, 0.6, 1.0):
        parts = []
        for window in dataset.windows:
            with torch.no_grad():
                q = llama_of(made)(torch.tensor([window.tokens])).logits[0, -1 - window.count : -1]
                p = loaded.model.lm_head(dataset.hidden[window.offset : window.offset + window.count])
            batch = dataset.batch([window])
            under = batch.seen(slice(None), loaded.vocab_size), batch.penalty(slice(None))
            parts.append(accepted(penalized(p, *under)[0], penalized(q, *under)[0], temperature))
        assert found[f"accepted at {temperature:g}"] == pytest.approx(
            float(torch.cat(parts).mean()), abs=1e-4
        )


def test_a_saved_draft_is_the_trained_one(loaded: LoadedModel, dataset: Dataset, tmp_path: Path) -> None:
    made = training(loaded, dataset, tmp_path, steps=3)
    made.run(lambda _: None)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["model_type"], config["dtype"]) == ("llama", "bfloat16")
    assert (config["hidden_size"], config["vocab_size"], config["eos_token_id"]) == (32, loaded.vocab_size, 2)
    assert config["max_position_embeddings"] == 1024
    assert config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    stored = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert stored.dtype == torch.bfloat16
    with torch.no_grad():
        for parameter in llama_of(made).parameters():
            parameter.copy_(parameter.bfloat16())
        ids = torch.tensor([dataset.windows[0].tokens])
        torch.testing.assert_close(
            stored.float()(ids).logits, llama_of(made)(ids).logits, rtol=1e-4, atol=1e-4
        )


def test_a_stopped_training_goes_on(
    loaded: LoadedModel, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAVE_EVERY", 2)
    monkeypatch.setattr(module, "TEST_EVERY", 1)
    told: list[float] = []

    def stop(figures: dict[str, float]) -> None:
        if figures["step"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training(loaded, dataset, tmp_path, steps=7).run(stop)
    assert not (tmp_path / "config.json").exists()
    training(loaded, dataset, tmp_path, steps=7).run(lambda figures: told.append(figures["step"]))
    assert told == [5, 6, 7, 7]
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7, 7]
    assert all(line["loss"] > 0 for line in lines)


def test_a_draft_can_begin_with_another(loaded: LoadedModel, dataset: Dataset, tmp_path: Path) -> None:
    first = training(loaded, dataset, tmp_path / "first", steps=30)
    first.run(lambda _: None)
    targets = [TargetData(loaded, dataset, dataset)]
    second = DraftTraining(targets, recipe(), tmp_path / "second", tmp_path / "first")
    for ours, theirs in zip(llama_of(second).parameters(), llama_of(first).parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16().float())
    assert llama_of(second).lm_head.weight is llama_of(second).get_input_embeddings().weight
    assert second.course.step == 0
    for changes in ({"layers": 2}, {"hidden": 16}):
        with pytest.raises(UsageError, match="no draft of this"):
            DraftTraining(targets, recipe(**changes), tmp_path / "third", tmp_path / "first")
    with pytest.raises(UsageError, match="no draft of this"):
        DraftTraining(targets, recipe(), tmp_path / "third", tmp_path / "nowhere")


def test_what_has_ended_is_not_trained_again(loaded: LoadedModel, dataset: Dataset, tmp_path: Path) -> None:
    first = training(loaded, dataset, tmp_path, steps=2).run(lambda _: None)
    weights = (tmp_path / "model.safetensors").read_bytes()
    again = training(loaded, dataset, tmp_path, steps=2).run(lambda _: None)
    assert again == first
    assert (tmp_path / "model.safetensors").read_bytes() == weights


def test_a_draft_knows_the_most_frequent_tokens(loaded: LoadedModel, dataset: Dataset) -> None:
    known = frequent_tokens([TargetData(loaded, dataset, dataset)], 20)
    times = torch.bincount(torch.tensor([token for window in dataset.windows for token in window.tokens]))
    ends = set(loaded.eos_ids)
    assert known.tolist() == sorted(set(known.tolist()))
    assert ends < set(known.tolist())
    least = min(int(times[token]) for token in known.tolist() if token not in ends)
    assert all(n <= least for token, n in enumerate(times.tolist()) if token not in known)


def test_a_draft_of_few_tokens_learns_from_two_targets(
    loaded: LoadedModel, dataset: Dataset, tmp_path: Path
) -> None:
    twin = dataclasses.replace(loaded, name="twin")
    targets = [TargetData(loaded, dataset, dataset), TargetData(twin, dataset, dataset)]
    count = loaded.vocab_size - 40
    made = DraftTraining(targets, recipe(vocabulary=count, steps=150), tmp_path)
    assert llama_of(made).config.vocab_size == count + 1
    before = made.test()
    after = made.run(lambda _: None)
    assert after["accepted at 1 by twin"] == after[f"accepted at 1 by {loaded.name}"]
    assert after["accepted at 1 by twin"] > before["accepted at 1 by twin"] + 0.2
    stored = read_draft_vocabulary(tmp_path)
    assert stored is not None
    assert torch.equal(stored.target_ids, frequent_tokens(targets, count))
    assert stored.tokenizer == vocabulary_hash(loaded.tokenizer)
    # What a runner makes of it: the target's ids, no chance for what the draft doesn't know, the same acceptance.
    runner = Runner(copy.deepcopy(llama_of(made)), loaded.vocab_size, target_ids=stored.target_ids)
    window = dataset.windows[0]
    ids = torch.tensor([window.tokens])
    logits = runner(ids, FullCache(runner.shape, len(window.tokens)), ids.shape[1])[0]
    assert logits.shape == (ids.shape[1], loaded.vocab_size)
    unknown = torch.ones(loaded.vocab_size, dtype=torch.bool)
    unknown[stored.target_ids] = False
    assert torch.isneginf(logits[:, unknown]).all()
    assert torch.isfinite(logits[:, ~unknown]).all()


def test_a_draft_of_few_tokens_can_begin_with_another(
    loaded: LoadedModel, dataset: Dataset, tmp_path: Path
) -> None:
    """It knows the same tokens, whatever is frequent in its own dataset, and its folder says which."""
    first = training(loaded, dataset, tmp_path / "first", vocabulary=40, steps=2)
    first.run(lambda _: None)
    other = Dataset()
    other.windows = [Window(list(range(200, 300)), 1, 0)]
    targets = [TargetData(loaded, other, dataset)]
    second = DraftTraining(targets, recipe(vocabulary=40), tmp_path / "second", tmp_path / "first")
    assert first.vocabulary is not None
    assert second.vocabulary is not None
    assert not torch.equal(frequent_tokens(targets, 40), first.vocabulary.target_ids)
    stored = read_draft_vocabulary(tmp_path / "second")
    assert stored is not None
    for found in (stored, second.vocabulary):
        assert torch.equal(found.target_ids, first.vocabulary.target_ids)
        assert found.tokenizer == first.vocabulary.tokenizer
    for count in (0, 39):
        with pytest.raises(UsageError, match="no draft of this"):
            DraftTraining(targets, recipe(vocabulary=count), tmp_path / "third", tmp_path / "first")


@pytest.mark.parametrize("count", [2, 40])
def test_what_a_draft_does_not_know_counts_as_rejected(
    loaded: LoadedModel, dataset: Dataset, tmp_path: Path, count: int
) -> None:
    made = DraftTraining([TargetData(loaded, dataset, dataset)], recipe(vocabulary=count), tmp_path)
    assert made.subset is not None
    known = (dataset.hidden @ loaded.model.lm_head.weight.T).softmax(-1)[:, made.subset.target_ids]
    assert 0 < made.test()["accepted at 1"] <= float(known.sum(-1).mean()) + 1e-3
