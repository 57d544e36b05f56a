"""A dataset holds what a draft will see, and the hidden states with which the target foretold exactly that."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from support.labs import Lab
from support.long_texts import spelled
from support.trained_models import builder_of, load, save_target
from torch import Tensor

from triforce_chat.chat.template import Message
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.lab.generation import Sampled
from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.lab.tasks.dialogue import Example
from triforce_chat.lab.training import dataset as module
from triforce_chat.lab.training.dataset import RECENT, SINKS, Dataset, Teacher, Window, sampling_choices
from triforce_chat.lab.training.everyday import everyday
from triforce_chat.lab.training.requests import QUESTIONS, SUMMARIES
from triforce_chat.models.load import LoadedModel

FEW_SINKS, FEW_RECENT, FEW_SCORED = 4, 40, 25


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(save_target(tmp_path_factory.mktemp("target")))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SINKS", FEW_SINKS)
    monkeypatch.setattr(module, "RECENT", FEW_RECENT)
    monkeypatch.setattr(module, "SCORED", FEW_SCORED)
    monkeypatch.setattr(module, "TEXT_ROWS", 2)
    monkeypatch.setattr(module, "LONGEST_SUFFIX", 9)


@dataclass
class Witness:
    """Remembers whole texts: what was read, and what was generated behind what."""

    teacher: Teacher
    texts: list[list[int]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # where the model's own part begins

    @staticmethod
    def of(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Witness:
        made = Witness(Teacher(loaded, builder_of(loaded), Dataset()))
        plain, run = ExampleBuilder.running_text, made.teacher.generator.run

        def read(builder: ExampleBuilder, rng: random.Random, length: int) -> Example:
            example = plain(builder, rng, length)
            made.texts.append(example.ids)
            return example

        def generated(prefixes: Tensor, suffixes: list[list[int]], sampling: Any, tokens: int) -> Sampled:
            sampled = run(prefixes, suffixes, sampling, tokens)
            made.texts.clear()
            for i, suffix in enumerate(suffixes):
                before = [*prefixes[i * len(prefixes) // len(suffixes)].tolist(), *suffix]
                made.starts.append(len(before))
                made.texts.append(before + sampled.tokens[i, : sampled.lengths[i]].tolist())
            return sampled

        monkeypatch.setattr(ExampleBuilder, "running_text", read)
        monkeypatch.setattr(made.teacher.generator, "run", generated)
        return made

    @torch.no_grad()
    def states(self, text: list[int]) -> Tensor:
        """The plain model's final hidden state at every position."""
        out = self.teacher.loaded.model.base_model(torch.tensor([text]), use_cache=False)
        found: Tensor = out.last_hidden_state[0]
        return found

    def check(self, starts: list[int]) -> None:
        """All windows, in order, are those of all texts, of what stands behind ``starts``."""
        windows, hidden = iter(self.teacher.dataset.windows), self.teacher.dataset.hidden
        for text, start in zip(self.texts, starts, strict=True):
            states, at = self.states(text), start
            while at < len(text):
                window = next(windows)
                end = at + window.count
                assert 0 < window.count <= FEW_SCORED
                assert window.tokens == held(text[:end])
                kept = hidden[window.offset : window.offset + window.count]
                torch.testing.assert_close(kept, states[at - 1 : end - 1], rtol=1e-4, atol=1e-4)
                at = end
        assert next(windows, None) is None


def held(text: list[int], sinks: int = FEW_SINKS, recent: int = FEW_RECENT) -> list[int]:
    """What a streaming cache at its fullest is fed of a text."""
    cache = StreamingCache(Shape(1, 1, 1, 8, torch.float32, torch.device("cpu")), sinks, recent, 0)
    found: list[int] = cache.pending(torch.tensor(text)).tolist()
    return found


def test_a_window_is_as_large_as_the_streaming_cache_becomes(lab: Lab) -> None:
    cache = StreamingCache(lab.target.shape)
    assert cache.storage.capacity == SINKS + RECENT
    assert cache.sinks == SINKS


@pytest.mark.usefixtures("small")
def test_real_text(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = Witness.of(loaded, monkeypatch)
    witness.teacher.read(random.Random(0), rows=3, length=130)
    assert [len(text) for text in witness.texts] == [130] * 3
    witness.check([FEW_SINKS + FEW_RECENT] * 3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [8, 41, 200])
def test_continued_text(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    witness = Witness.of(loaded, monkeypatch)
    torch.manual_seed(0)
    witness.teacher.continue_text(random.Random(1), texts=2, each=3, length=length, tokens=60)
    assert len(witness.texts) == 6
    assert len(set(witness.starts)) > 2
    assert max(witness.starts) <= length + module.LONGEST_SUFFIX
    witness.check(witness.starts)


@pytest.mark.usefixtures("small")
def test_answers_about_documents(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = Witness.of(loaded, monkeypatch)
    torch.manual_seed(0)
    witness.teacher.converse(random.Random(1), documents=2, each=2, length=700, tokens=60)
    form = witness.teacher.form
    for text, start in zip(witness.texts, witness.starts, strict=True):
        asked = spelled(form, text[700:start]).removesuffix("<|im_end|>\n<|im_start|>assistant\n")
        assert asked in (*SUMMARIES, *QUESTIONS)
        assert spelled(form, text[:700]).startswith("<|im_start|>")
    witness.check(witness.starts)


def test_an_answer_that_ends_is_taken_up_to_its_end(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = Witness.of(loaded, monkeypatch)
    witness.teacher.generator.ends = torch.arange(100)
    torch.manual_seed(0)
    witness.teacher.continue_text(random.Random(1), texts=1, each=8, length=400, tokens=30)
    counts = [window.count for window in witness.teacher.dataset.windows]
    assert min(counts) < 30
    made = [text[start:] for text, start in zip(witness.texts, witness.starts, strict=True)]
    assert counts == [len(part) for part in made]
    assert all(min(part[:-1], default=100) >= 100 for part in made)
    assert witness.teacher.dataset.size == sum(counts)


def dataset_of(*counts: int) -> Dataset:
    """Windows of growing lengths; every hidden state is the token that it foretold."""
    made = Dataset()
    for i, count in enumerate(counts):
        history = torch.arange(1000 * i + 1, 1000 * i + 1 + count + 5 * (i + 1))
        made.add(history.tolist(), [], history[-count:, None].float())
    return made


def test_a_batch_pairs_every_state_with_its_token() -> None:
    made = dataset_of(3, 7, 1)
    batch = made.batch(made.windows)
    assert batch.tokens.shape == (3, 17)
    assert batch.window.bincount().tolist() == [3, 7, 1]
    following = batch.tokens[batch.window, batch.place + 1]
    assert batch.states[:, 0].tolist() == following.tolist()
    assert batch.states[:, 0].tolist() == [6, 7, 8, *range(1011, 1018), 2016]


def test_long_answers_become_several_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCORED", 4)
    made = dataset_of(10, 3)
    assert made.windows[:2] == [
        Window(list(range(1, 10)), 4, 0),
        Window(list(range(1, 14)), 4, 4),
    ]
    assert [window.count for window in made.windows] == [4, 4, 2, 3]
    assert made.batch(made.windows).states[:, 0].tolist() == [*range(6, 16), 1011, 1012, 1013]


def test_batches_shuffle_and_go_round() -> None:
    made = dataset_of(*[1] * 10)
    batches = made.batches(4, random.Random(0))
    rounds = [[next(batches).states[:, 0].tolist() for _ in range(2)] for _ in range(3)]
    seen = [[state for batch in some for state in batch] for some in rounds]
    assert all(len(some) == len(set(some)) == 8 for some in seen)
    assert seen[0] != seen[1]
    again = made.batches(4, random.Random(0))
    assert [next(again).states[:, 0].tolist() for _ in range(2)] == rounds[0]
    few = made.batches(99, random.Random(0))
    assert sorted(next(few).states[:, 0].tolist()) == sorted(made.hidden[:, 0].tolist())


def test_the_penalty_counts_what_the_answer_said_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCORED", 3)
    made, history = Dataset(), [7, 8, 9, 1, 2, 1, 3, 4]
    made.add(history, [5], torch.zeros(5, 1), penalty=1.1)
    made.add(history, [5], torch.zeros(2, 1))
    batch = made.batch(made.windows)
    seen = [row.nonzero()[:, 0].tolist() for row in batch.seen(slice(None), 10)]
    assert seen == [[], [1], [1, 2], [1, 2], [1, 2, 3], [], []]
    assert batch.penalty(slice(None))[:, 0].tolist() == pytest.approx([1.1] * 5 + [1.0] * 2)


def test_every_answer_keeps_the_penalty_that_it_was_drawn_with(loaded: LoadedModel) -> None:
    damped = dataclasses.replace(loaded, sampling={"repetition_penalty": 1.1})
    teacher = Teacher(damped, builder_of(loaded), Dataset())
    torch.manual_seed(0)
    teacher.continue_text(random.Random(0), texts=2, each=10, length=100, tokens=20)
    windows = teacher.dataset.windows
    assert {round(window.penalty, 3) for window in windows} == {1.0, 1.1}
    assert all(window.penalized == (window.count if window.penalty > 1 else 0) for window in windows)


def test_answers_to_everyday_questions(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = Witness.of(loaded, monkeypatch)
    torch.manual_seed(0)
    witness.teacher.chat(random.Random(1), count=6, tokens=30)
    dataset, form = witness.teacher.dataset, witness.teacher.form
    rng = random.Random(1)
    asked = [everyday(rng) for _ in range(6)]
    assert len(set(asked)) > 3
    for text, start, question, window in zip(
        witness.texts, witness.starts, asked, dataset.windows, strict=True
    ):
        assert text[:start] == form.render([Message("user", form.encode(question))])
        assert window.tokens == text  # shorter than what a draft sees
        assert window.count == len(text) - start <= 30
        kept = dataset.hidden[window.offset : window.offset + window.count]
        torch.testing.assert_close(kept, witness.states(text)[start - 1 : -1], rtol=1e-4, atol=1e-4)


def test_heats_have_the_targets_own_penalty(loaded: LoadedModel) -> None:
    assert set(sampling_choices(loaded)) == {(temperature, 1.0) for temperature in (0.0, 0.3, 0.6, 1.0)}
    found = sampling_choices(
        dataclasses.replace(loaded, sampling={"repetition_penalty": 1.1, "temperature": 0.4})
    )
    assert {penalty for _, penalty in found} == {1.0, 1.1}
    assert {temperature for temperature, penalty in found if penalty == 1.0} == {0.0, 0.6, 1.0}
    assert [penalty for _, penalty in found].count(1.1) > len(found) / 2
    assert found.count((0.0, 1.1)) > found.count((1.0, 1.1)) > 0
