"""Training for long contexts: what it reads, what its losses are, and that an interruption changes nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.long_texts import prose, spelled
from support.places import SUPPORT
from support.trained_models import LENGTHS, builder_of, chats, load, recipe, save_target, training
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from triforce_chat.documents import Document, Page
from triforce_chat.lab.tasks.book_questions import BookQuestion, QuestionSet, read_books
from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.lab.tasks.dialogue import Example
from triforce_chat.lab.training import context as module
from triforce_chat.lab.training.context import ContextTraining, example, stretched
from triforce_chat.lab.training.course import LOG
from triforce_chat.lab.training.ranks import Ranks
from triforce_chat.models.adapter import WEIGHTS
from triforce_chat.models.load import LoadedModel


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(save_target(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def builder(loaded: LoadedModel) -> ExampleBuilder:
    return builder_of(loaded)


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions for documents that hold few tokens, in a vocabulary of few words."""
    monkeypatch.setattr(module, "TOKENS_PER_QUESTION", 600)


def logged(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def stopping(step: int) -> Callable[[dict[str, float]], None]:
    def report(figures: dict[str, float]) -> None:
        if figures["step"] == step:
            raise KeyboardInterrupt

    return report


@pytest.mark.usefixtures("seldom")
@pytest.mark.parametrize("stop", [1, 3, 5, 6])
def test_an_interrupted_training_ends_where_an_uninterrupted_one_does(
    loaded: LoadedModel, builder: ExampleBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    monkeypatch.setattr(module, "SAVE_EVERY", 1)
    training(loaded, builder, tmp_path / "whole").run(lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        training(loaded, builder, tmp_path / "parts").run(stopping(stop))
    assert not (tmp_path / "parts" / WEIGHTS).exists()
    told: list[dict[str, float]] = []
    training(loaded, builder, tmp_path / "parts").run(told.append)
    assert [line["step"] for line in told] == list(range(stop, 8))  # its state was saved one step before
    whole, parts = (load_file(tmp_path / name / WEIGHTS) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    assert all(tensor.abs().max() > 0 for tensor in whole.values())
    whole_log, parts_log = logged(tmp_path / "whole"), logged(tmp_path / "parts")
    assert [line | {"seconds": 0} for line in whole_log] == [line | {"seconds": 0} for line in parts_log]


@pytest.mark.usefixtures("seldom")
def test_what_has_ended_is_not_trained_again(
    loaded: LoadedModel, builder: ExampleBuilder, tmp_path: Path
) -> None:
    training(loaded, builder, tmp_path, steps=1).run(lambda _: None)
    before = (tmp_path / WEIGHTS).read_bytes()
    told: list[dict[str, float]] = []
    training(loaded, builder, tmp_path, steps=1).run(told.append)
    assert told == []
    assert (tmp_path / WEIGHTS).read_bytes() == before


@pytest.mark.usefixtures("seldom")
def test_a_training_can_begin_with_another(
    loaded: LoadedModel, builder: ExampleBuilder, tmp_path: Path
) -> None:
    first = training(loaded, builder, tmp_path / "first", steps=1)
    first.run(lambda _: None)
    second = ContextTraining(loaded, builder, ([], []), recipe(), tmp_path / "second", tmp_path / "first")
    for name, update in second.updates.items():
        assert torch.equal(update.b, first.updates[name].b.bfloat16().float())
        assert update.b.abs().max() > 0
    assert second.course.step == 0


@pytest.mark.usefixtures("seldom")
def test_two_processes_train_as_one_that_reads_for_both(
    loaded: LoadedModel, builder: ExampleBuilder, tmp_path: Path
) -> None:
    made = training(loaded, builder, tmp_path / "one", steps=3)
    for rank in range(2):
        made.ranks = Ranks(rank, 2)
        made._step(made._examples(0)[1])
    program = SUPPORT / "training_ranks.py"
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    subprocess.run((*launch, program, loaded.source.name, tmp_path), check=True, timeout=120)
    gradients, first = torch.load(tmp_path / "rank-0.pt")
    for parameter, averaged in zip(made.optimizer.parameters, gradients, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(averaged, parameter.grad / 2)
    assert any(gradient.abs().max() > 0 for gradient in gradients)
    _, second = torch.load(tmp_path / "rank-1.pt")
    assert all(torch.equal(*both) for both in zip(first, second, strict=True))
    assert [line["step"] for line in logged(tmp_path / "two")] == [1, 2, 3]
    assert (tmp_path / "two" / WEIGHTS).is_file()


def test_the_losses_are_those_of_plain_formulas(
    loaded: LoadedModel, builder: ExampleBuilder, tmp_path: Path
) -> None:
    made = training(loaded, builder, tmp_path)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for update in made.updates.values():
            update.b.normal_(0, 0.05, generator=generator)
    rng = random.Random(0)
    ids = [[rng.randrange(3, 300) for _ in range(50)] for _ in range(2)]
    examples = [Example(ids[0], [(10, 14), (40, 50)]), Example(ids[1], [])]
    figures = made._read(examples)
    logits = made.model(torch.tensor(ids)).logits[:, :-1]
    each = cross_entropy(logits.flatten(0, 1), torch.tensor(ids)[:, 1:].flatten(), reduction="none")
    answered = torch.zeros(2, 49, dtype=torch.bool)
    answered[0, 9:13] = answered[0, 39:49] = True
    answers, text = each[answered.flatten()], each[~answered.flatten()]
    plain = text.mean() + module.ANSWERS * answers.mean()
    torch.testing.assert_close(figures["loss"], plain.detach())
    assert int(figures["answers"]) == 14
    parameters = made.optimizer.parameters
    for parameter, expected in zip(parameters, torch.autograd.grad(plain, parameters), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-5)
        parameter.grad = None
    rows = chats()[:2]
    kept = made._chat(rows)
    sums = torch.zeros(())
    for row in rows:
        with torch.no_grad():
            wanted = loaded.model(torch.tensor([row.ids])).logits[0, row.start - 1 : -1].log_softmax(-1)
        found = made.model(torch.tensor([row.ids])).logits[0, row.start - 1 : -1].log_softmax(-1)
        sums = sums + kl_div(found, wanted, log_target=True, reduction="sum")
    mean = sums / sum(len(row.ids) - row.start for row in rows)
    torch.testing.assert_close(kept, mean.detach())
    for parameter, expected in zip(parameters, torch.autograd.grad(mean, parameters), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("seldom")
def test_a_step_reads_as_many_tokens_as_the_recipe_says(
    loaded: LoadedModel, builder: ExampleBuilder, tmp_path: Path
) -> None:
    made = training(loaded, builder, tmp_path, tokens=4000)
    read = [made._examples(step) for step in range(8)]
    for length, examples in read:
        assert length in LENGTHS
        assert [len(example.ids) for example in examples] == [length] * (4000 // length)
    asked = [len(example.answers) for _, examples in read for example in examples]
    assert set(asked) == {0, 2}
    assert made._examples(3) == read[3]
    assert training(loaded, builder, tmp_path, tokens=1)._examples(0)[1][0].ids


def test_all_lengths_are_read_and_the_longest_last() -> None:
    lengths = [recipe(steps=120).length(step, step / 120) for step in range(120)]
    assert LENGTHS[2] not in lengths[:18]
    assert lengths[18:].count(LENGTHS[2]) == 34
    assert all(lengths.count(length) >= 34 for length in LENGTHS)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_count_of_lengths(count: int) -> None:
    some = tuple(range(1200, 1200 + count))
    asked = recipe(lengths=some)
    lengths = [asked.length(step, step / 100) for step in range(100)]
    assert set(lengths) == set(some)
    assert lengths.index(some[-1]) <= 60
    assert max(map(lengths.index, some[:2])) < 2


def test_the_untouched_model_stays_so(loaded: LoadedModel, builder: ExampleBuilder, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    made = training(loaded, builder, tmp_path)
    assert made.model.config.max_position_embeddings == 2048
    assert loaded.model.config.max_position_embeddings == 512
    assert loaded.model.config.rope_parameters["rope_type"] == "default"
    assert all(torch.equal(value, before[name]) for name, value in loaded.model.state_dict().items())


def test_yarn_keeps_the_base_and_its_positions(loaded: LoadedModel) -> None:
    assert stretched(loaded.model.config, 4.0) == {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        "max_position_embeddings": 2048,
    }


def test_a_factor_of_one_keeps_the_positions(
    loaded: LoadedModel, questioned: ExampleBuilder, tmp_path: Path
) -> None:
    config = loaded.model.config
    assert stretched(config, 1.0) == {
        "rope_parameters": config.rope_parameters,
        "max_position_embeddings": 512,
    }
    made = training(loaded, questioned, tmp_path / "made", factor=1.0, steps=1)
    assert made.model.config.rope_parameters == config.rope_parameters
    before, after = (model.base_model.rotary_emb for model in (loaded.model, made.model))
    assert torch.equal(before.inv_freq, after.inv_freq)
    assert before.attention_scaling == after.attention_scaling == 1
    made.run(lambda _: None)
    adapted = load(tmp_path / "made")
    assert adapted.context == 512
    assert adapted.model.config.rope_parameters == config.rope_parameters
    assert torch.equal(adapted.model.base_model.rotary_emb.inv_freq, before.inv_freq)


# Books with questions


SHIPS = [f"The ship of number {number} is here." for number in range(12)]


@pytest.fixture(scope="module")
def questioned(loaded: LoadedModel, builder: ExampleBuilder) -> ExampleBuilder:
    questions = [BookQuestion("where", f"{quote[4:20]}?", (quote,), reply="It is here.") for quote in SHIPS]
    text = "\n\n".join(part for i, quote in enumerate(SHIPS) for part in (prose(i, 6), quote))
    document = Document("Ships", "ships.txt", (Page(1, text + "\n\n" + prose(50, 30)),))
    books = read_books(builder.format, [document], [QuestionSet("Ships", "A. Nonymous", tuple(questions))])
    return ExampleBuilder(loaded.tokenizer, builder.books, books)


def gradients(made: ContextTraining) -> list[Tensor]:
    found = []
    for parameter in made.optimizer.parameters:
        assert parameter.grad is not None
        found.append(parameter.grad)
        parameter.grad = None
    return found


def moved_a_little(made: ContextTraining) -> ContextTraining:
    """Updates begin at zero, where half of their gradients are zero, too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for update in made.updates.values():
            update.b.normal_(0, 0.05, generator=generator)
    return made


def test_books_with_questions_are_all_that_is_read(
    loaded: LoadedModel, questioned: ExampleBuilder, tmp_path: Path
) -> None:
    made = training(loaded, questioned, tmp_path)
    for step in range(4):
        length, examples = made._examples(step)
        for each in examples:
            assert len(each.ids) == length
            assert "# Ships\n\n" in spelled(questioned.format, each.ids)
            assert 1 <= len(each.answers) <= length // module.TOKENS_PER_READING
    most = example(questioned, random.Random(0), 3000, 0.0)
    assert example(questioned, random.Random(0), 3000, 0.9) == most


def test_only_answers_are_learnt_from_questions(
    loaded: LoadedModel, questioned: ExampleBuilder, tmp_path: Path
) -> None:
    made = moved_a_little(training(loaded, questioned, tmp_path))
    rng = random.Random(0)
    ids = [[rng.randrange(3, 300) for _ in range(50)] for _ in range(2)]
    examples = [Example(ids[0], [(10, 14), (40, 50)]), Example(ids[1], [(20, 23)])]
    figures = made._read(examples)
    assert int(figures["answers"]) == 17
    logits = made.model(torch.tensor(ids)).logits[:, :-1]
    each = cross_entropy(logits.flatten(0, 1), torch.tensor(ids)[:, 1:].flatten(), reduction="none")
    answered = torch.zeros(2, 49, dtype=torch.bool)
    answered[0, 9:13] = answered[0, 39:49] = answered[1, 19:22] = True
    plain = module.ANSWERS * each[answered.flatten()].mean()
    torch.testing.assert_close(figures["loss"], plain.detach())
    torch.testing.assert_close(figures["of answers"], plain.detach() / module.ANSWERS)
    found = gradients(made)
    for gradient, expected in zip(found, torch.autograd.grad(plain, made.optimizer.parameters), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)
    # What stands behind the last answer is no target, and nothing that comes later is read.
    examples[1] = Example([*ids[1][:23], *reversed(ids[1][23:])], [(20, 23)])
    torch.testing.assert_close(made._read(examples)["loss"], figures["loss"])


def test_the_figures_count_the_answers_tokens(
    loaded: LoadedModel, questioned: ExampleBuilder, tmp_path: Path
) -> None:
    told: list[dict[str, float]] = []
    made = training(loaded, questioned, tmp_path, steps=3, tokens=2600)
    counts = [
        sum(end - start for each in made._examples(step)[1] for start, end in each.answers)
        for step in range(3)
    ]
    made.run(told.append)
    assert [figures["answers"] for figures in told] == counts
    for figures in told:
        assert figures["loss"] == pytest.approx(module.ANSWERS * figures["of answers"], rel=1e-4)


def test_activations_that_are_computed_again_change_nothing(
    loaded: LoadedModel, questioned: ExampleBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = type(loaded.model.base_model.layers[0].self_attn)
    forward, calls = attention.forward, [0]

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        return forward(*arguments, **named)

    monkeypatch.setattr(attention, "forward", counted)
    found, times = [], []
    for name, checkpoint in (("whole", False), ("again", True)):
        made = training(loaded, questioned, tmp_path / name, steps=1, checkpoint=checkpoint)
        examples = moved_a_little(made)._examples(0)[1]
        calls[0] = 0
        made._read(examples)
        times.append(calls[0])
        found.append(gradients(made))
        training(loaded, questioned, tmp_path / name, steps=1, checkpoint=checkpoint).run(lambda _: None)
    assert times[1] == 2 * times[0] > 0
    for plain, again in zip(*found, strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(plain, again, rtol=1e-4, atol=1e-6)
    whole, again = (load_file(tmp_path / name / WEIGHTS) for name in ("whole", "again"))
    assert whole.keys() == again.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(tensor, again[name], rtol=1e-2, atol=1e-4)
    assert not loaded.model.training
