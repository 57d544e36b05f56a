"""A draft that is built on its target learns in one pass what it will compute token by token, and is saved whole."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.trained_models import builder_of, load, save_target
from torch import Tensor
from transformers import AutoConfig, DynamicCache, LlamaForCausalLM

from triforce_chat.errors import UsageError
from triforce_chat.lab.training import draft as module
from triforce_chat.lab.training.dataset import Dataset, Teacher, Window
from triforce_chat.lab.training.draft import (
    DraftRecipe,
    DraftTraining,
    TargetData,
    accepted,
    penalized,
    spread,
)
from triforce_chat.lab.training.segments import LONGEST, even_ages, random_ages
from triforce_chat.lab.training.students import BuiltOnTarget
from triforce_chat.models.draft_head import DraftHead, read_draft_head
from triforce_chat.models.draft_vocabulary import read_draft_vocabulary
from triforce_chat.models.load import LoadedModel

KNOWN = 120


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(save_target(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def dataset(loaded: LoadedModel) -> Dataset:
    import random

    made = Dataset()
    torch.manual_seed(0)
    Teacher(loaded, builder_of(loaded), made).continue_text(random.Random(0), 2, 6, 100, 30)
    return made


def recipe(**changes: Any) -> DraftRecipe:
    sizes = {"hidden": 32, "head_dim": 16, "layers": 2, "mlp": 64, "rate": 1e-2, "windows": 4, "steps": 40}
    usual = {"built_on_target": True, "vocabulary": KNOWN, "minutes": 1e6}
    return DraftRecipe(**{**sizes, **usual, **changes})


def training(
    loaded: LoadedModel, dataset: Dataset, folder: Path, start: Path | None = None, **changes: Any
) -> DraftTraining:
    return DraftTraining([TargetData(loaded, dataset, dataset)], recipe(**changes), folder, start)


def student_of(training: DraftTraining) -> BuiltOnTarget:
    assert isinstance(training.student, BuiltOnTarget)
    return training.student


def shaken(training: DraftTraining) -> BuiltOnTarget:
    """The student with no weight left at a round value."""
    student = student_of(training)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in [*student.llama.parameters(), student.head.ages]:
            parameter.add_(0.2 * torch.randn_like(parameter))
    return student


def one_by_one(
    llama: Any,
    head: DraftHead,
    loaded: LoadedModel,
    known: Tensor,
    window: Window,
    hidden: Tensor,
    ages: Tensor,
) -> Tensor:
    """Logits [count, n] of a window, every row made by itself and fed behind those before it."""
    words, heads = loaded.model.get_input_embeddings().weight, loaded.model.lm_head.weight
    states = hidden[window.offset : window.offset + window.count]
    first, cache, found = len(window.tokens) - 1 - window.count, DynamicCache(), []
    named = inspect.signature(type(llama).forward).parameters
    name = "cache" if "cache" in named else "past_key_values"  # before transformers 5.24
    for place, token in enumerate(window.tokens[:-1]):
        word = words[token] if token in known.tolist() else words[known].mean(0)
        row, i = head.embed @ word, place - first
        if i >= 0 and ages[i] >= 0:
            age = int(ages[i])
            row = row + head.state @ states[i - age - 1] + head.ages[min(age, len(head.ages) - 1)]
        out = llama(inputs_embeds=row[None, None], use_cache=True, **{name: cache})
        if i >= 0:
            found.append(heads[known] @ (head.output @ out.last_hidden_state[0, 0]))
    return torch.stack(found)


@torch.no_grad()
def test_all_segments_at_once_are_what_they_are_token_by_token(
    loaded: LoadedModel, dataset: Dataset, tmp_path: Path
) -> None:
    made = training(loaded, dataset, tmp_path)
    student, batch = shaken(made), dataset.batch(dataset.windows[:6])
    assert made.subset is not None
    assert bool((made._own(batch).tokens == KNOWN).any())  # some tokens are unknown
    ages = random_ages(batch)
    assert set(range(-1, LONGEST)) == set(ages.tolist())
    together = student.hidden(made._own(batch), ages) @ student.output_matrix()[:KNOWN].T
    parts = ages.split([window.count for window in dataset.windows[:6]])
    known, head = made.subset.target_ids, student.head.joined()
    for i, (window, own) in enumerate(zip(dataset.windows[:6], parts, strict=True)):
        expected = one_by_one(student.llama, head, loaded, known, window, dataset.hidden, own)
        torch.testing.assert_close(together[batch.window == i], expected, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_a_saved_draft_is_the_trained_one(loaded: LoadedModel, dataset: Dataset, tmp_path: Path) -> None:
    made = training(loaded, dataset, tmp_path / "made", steps=3)
    with torch.enable_grad():
        made.run(lambda _: None)
    folder, window = tmp_path / "made", dataset.windows[1]
    head, vocabulary = read_draft_head(folder), read_draft_vocabulary(folder)
    assert head is not None
    assert vocabulary is not None
    known, stored = vocabulary.target_ids, load_file(folder / "model.safetensors")
    assert all(name.startswith(("model.layers.", "model.norm.")) for name in stored)
    config = AutoConfig.from_pretrained(folder)
    assert (config.vocab_size, config.tie_word_embeddings, config.architectures) == (
        KNOWN + 1,
        False,
        ["LlamaForCausalLM"],
    )
    whole = LlamaForCausalLM(config)
    left = whole.load_state_dict(stored, strict=False)
    assert set(left.missing_keys) == {"model.embed_tokens.weight", "lm_head.weight"}
    assert not left.unexpected_keys
    batch = dataset.batch([window])
    ages = even_ages(batch)
    head = DraftHead(head.embed.float(), head.state.float(), head.ages.float(), head.output.float())
    expected = one_by_one(whole.model, head, loaded, known, window, dataset.hidden, ages)
    again = student_of(training(loaded, dataset, tmp_path / "again", folder))
    found = again.hidden(made._own(batch), ages) @ again.output_matrix()[:KNOWN].T
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    trained = made.student.hidden(made._own(batch), ages) @ made.student.output_matrix()[:KNOWN].T
    assert float((found - trained).abs().max()) < 0.05 * float(trained.std())  # in bf16


def test_what_is_the_targets_stays(loaded: LoadedModel, dataset: Dataset, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    made = training(loaded, dataset, tmp_path)
    start = [parameter.detach().clone() for parameter in made.student.parameters()]
    made.run(lambda _: None)
    assert all(torch.equal(value, before[name]) for name, value in loaded.model.state_dict().items())
    units = [each.data_ptr() for each in student_of(made).head.units]
    for old, new in zip(start, made.student.parameters(), strict=True):
        assert torch.equal(old, new) == (new.data_ptr() in units)


def test_what_the_layers_read_is_of_one_size(loaded: LoadedModel, dataset: Dataset, tmp_path: Path) -> None:
    """Whatever the sizes of the target's embedding and of each dimension of its states."""
    uneven = Dataset()
    uneven.windows = dataset.windows
    uneven.parts = [dataset.hidden * torch.logspace(0, 2, 32)]
    made = training(loaded, uneven, tmp_path)
    batch = uneven.batch(uneven.windows)
    ages = even_ages(batch)
    torch.testing.assert_close(spread(uneven.hidden), uneven.hidden.square().mean(0).sqrt(), rtol=0.2, atol=0)
    with torch.no_grad():
        read = student_of(made).embedded(made._own(batch), ages)[batch.window, batch.place]
    assert float(read[ages < 0].std()) == pytest.approx(1, abs=0.4)
    assert float(read[ages >= 0].std()) == pytest.approx(2**0.5, abs=0.4)


def foresighted(loaded: LoadedModel, seed: int) -> Dataset:
    """Random tokens, each foretold by a state that also says which comes after it."""
    heads = loaded.model.lm_head.weight.detach()
    random = torch.Generator().manual_seed(seed)
    unit = heads / heads.norm(dim=1, keepdim=True)
    dataset, count = Dataset(), 40
    for _ in range(40):
        tokens = torch.randint(3, 23, (count + 20,), generator=random)
        following = tokens[-count - 1 :].roll(-1)[1:]  # of the last, any will do
        hidden = 12 * unit[tokens[-count:]] + 4 * unit[following]
        dataset.windows.append(Window(tokens.tolist(), count, dataset.size))
        dataset.parts.append(hidden)
        dataset.size += count
    return dataset


def test_the_state_says_what_tokens_do_not(loaded: LoadedModel, tmp_path: Path) -> None:
    known, unseen = foresighted(loaded, 0), foresighted(loaded, 1)
    found = [
        DraftTraining(
            [TargetData(loaded, known, unseen)],
            recipe(built_on_target=built, vocabulary=40, layers=1, steps=400),
            tmp_path / str(built),
        ).run(lambda _: None)
        for built in (True, False)
    ]
    assert found[0]["token 1 at 0"] > found[1]["accepted at 0"] + 0.3
    assert found[0]["token 1 at 0"] > found[0]["token 2 at 0"] + 0.3


def test_the_test_tells_every_token_after_a_state(
    loaded: LoadedModel, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TEST_SLICE", 100)
    made = training(loaded, dataset, tmp_path)
    student = shaken(made)
    assert made.subset is not None
    told, parts = made.test(), []
    for window in dataset.windows:
        batch = dataset.batch([window])
        ages, head = even_ages(batch), student.head.joined()
        with torch.no_grad():
            args = (loaded, made.subset.target_ids, window, dataset.hidden, ages)
            narrow = one_by_one(student.llama, head, *args)
            p = batch.states @ loaded.model.lm_head.weight.T
        q = torch.full_like(p, float("-inf"))
        q[:, made.subset.target_ids] = narrow
        under = batch.seen(slice(None), loaded.vocab_size), batch.penalty(slice(None))
        p, q = penalized(p, *under)[0], penalized(q, *under)[0]
        parts.append((ages, {temperature: accepted(p, q, temperature) for temperature in (0.0, 0.6, 1.0)}))
    ages = torch.cat([own for own, _ in parts])
    for temperature in (0.0, 0.6, 1.0):
        all_of = torch.cat([own[temperature] for _, own in parts])
        means = [float(all_of[ages == age].mean()) for age in range(LONGEST)]
        assert told[f"accepted at {temperature:g}"] == pytest.approx(sum(means[:4]) / 4, abs=1e-4)
        if temperature == 0:
            assert [told[f"token {age + 1} at 0"] for age in range(LONGEST)] == pytest.approx(means, abs=2e-3)


def test_a_stopped_training_goes_on(
    loaded: LoadedModel, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAVE_EVERY", 2)
    monkeypatch.setattr(module, "TEST_EVERY", 1)
    told: list[float] = []
    states: dict[float, list[Tensor]] = {}

    def stop(figures: dict[str, float]) -> None:
        states[figures["step"]] = [parameter.detach().clone() for parameter in first.student.parameters()]
        if figures["step"] == 5:
            raise KeyboardInterrupt

    first = training(loaded, dataset, tmp_path, steps=7)
    with pytest.raises(KeyboardInterrupt):
        first.run(stop)
    other = Dataset()  # which the target wrote anew, of other states
    other.windows, other.parts = dataset.windows, [2 * dataset.hidden]
    second = training(loaded, other, tmp_path, steps=7)
    second.optimizer.resume(tmp_path)
    for kept, found in zip(states[4], second.student.parameters(), strict=True):
        assert torch.equal(kept, found)
    second.run(lambda figures: told.append(figures["step"]))
    assert told == [5, 6, 7, 7]
    assert read_draft_head(tmp_path) is not None


def test_a_draft_can_begin_with_another(loaded: LoadedModel, dataset: Dataset, tmp_path: Path) -> None:
    training(loaded, dataset, tmp_path / "first", steps=30).run(lambda _: None)
    other = Dataset()
    other.windows, other.parts = dataset.windows, [2 * dataset.hidden]
    second = training(loaded, other, tmp_path / "second", tmp_path / "first")
    before, after = read_draft_head(tmp_path / "first"), student_of(second).head.joined()
    assert before is not None
    for name in ("embed", "state", "ages", "output"):
        torch.testing.assert_close(
            getattr(after, name), getattr(before, name).float(), rtol=1e-5, atol=1e-7, msg=name
        )
    assert second.course.step == 0


@pytest.mark.parametrize(
    "changes",
    [{"layers": 1}, {"hidden": 16}, {"built_on_target": False}, {"built_on_target": False, "layers": 1}],
)
def test_a_draft_that_cannot_be_begun_with(
    loaded: LoadedModel, dataset: Dataset, tmp_path: Path, changes: dict[str, Any]
) -> None:
    training(loaded, dataset, tmp_path / "built", steps=1).run(lambda _: None)
    with pytest.raises(UsageError, match="no draft of this"):
        training(loaded, dataset, tmp_path / "out", tmp_path / "built", **changes)


def test_a_draft_that_stands_alone_cannot_be_begun_with(
    loaded: LoadedModel, dataset: Dataset, tmp_path: Path
) -> None:
    training(loaded, dataset, tmp_path / "alone", steps=1, built_on_target=False).run(lambda _: None)
    for folder in ("alone", "nowhere"):
        with pytest.raises(UsageError, match="no draft of this"):
            training(loaded, dataset, tmp_path / "out", tmp_path / folder)
