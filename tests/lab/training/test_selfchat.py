"""Conversations of a model with itself are what a session would have sent and got."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from support.long_texts import messages, spelled
from support.trained_models import builder_of, load, save_target

from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.lab.training.everyday import everyday
from triforce_chat.lab.training.requests import QUESTIONS, SUMMARIES
from triforce_chat.lab.training.selfchat import (
    HEAT,
    SHORTEST,
    answered,
    document_chats,
    draw_sampling,
    everyday_chats,
    opening,
    short_chats,
)
from triforce_chat.models.load import LoadedModel

ENDS = frozenset(range(2, 60))  # so that even random questions end


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    made = load(save_target(tmp_path_factory.mktemp("target")))
    return dataclasses.replace(made, eos_ids=ENDS)


@pytest.fixture(scope="module")
def form(loaded: LoadedModel) -> ChatFormat:
    return ChatFormat(loaded.tokenizer)


@torch.no_grad()
def greedy(model: Any, ids: list[int], n: int) -> list[int]:
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=n, min_new_tokens=n)
    tokens: list[int] = out[0, len(ids) :].tolist()
    return tokens


def test_the_opening_is_the_templates(form: ChatFormat) -> None:
    before, behind = opening(form)
    assert (spelled(form, before), spelled(form, behind)) == (
        "<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    )


def test_short_chats_are_a_question_and_an_answer(loaded: LoadedModel, form: ChatFormat) -> None:
    torch.manual_seed(0)
    rows = short_chats(loaded, random.Random(0), count=40, answer=20)
    before, behind = opening(form)
    assert 10 < len(rows) <= 40
    for row in rows:
        assert row.ids[: row.start] == before
        said = row.ids[row.start :]
        at = next(i for i in range(len(said)) if said[i : i + len(behind)] == behind)
        question, answer = said[:at], said[at + len(behind) :]
        assert len(question) >= SHORTEST
        assert ENDS.isdisjoint(question)
        assert row.ids == [*form.render([Message("user", question)]), *answer]
        assert 1 <= len(answer) <= 20
        assert ENDS.isdisjoint(answer[:-1])
        assert len(answer) == 20 or answer[-1] in ENDS
    assert len({tuple(row.ids) for row in rows}) == len(rows)


def test_questions_without_an_end_are_dropped(loaded: LoadedModel) -> None:
    assert short_chats(dataclasses.replace(loaded, eos_ids=frozenset()), random.Random(0), 10) == []


def test_everyday_chats_keep_what_the_model_answers(
    loaded: LoadedModel, form: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triforce_chat.lab.training.selfchat.HEAT", 0.0)
    endless = dataclasses.replace(loaded, eos_ids=frozenset())
    rng = random.Random(1)
    rows = everyday_chats(endless, random.Random(1), 5, answer=6)
    for row in rows:
        asked = form.render([Message("user", form.encode(everyday(rng)))])
        assert row.ids[: row.start] == asked
        assert row.ids[row.start :] == greedy(loaded.model, asked, 6)


def test_document_chats_answer_about_their_document(
    loaded: LoadedModel, form: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, builder = random.Random(0), builder_of(loaded)
    prefixes = [builder.prompt(rng, 700) for _ in range(2)]
    monkeypatch.setattr(
        "triforce_chat.lab.training.selfchat.draw_sampling",
        lambda rng, count, device, _: draw_sampling(rng, count, device, [(0.0, 1.0)]),
    )
    rows = document_chats(dataclasses.replace(loaded, eos_ids=frozenset({2})), prefixes, rng, 3, answer=12)
    assert len(rows) == 6
    for i, row in enumerate(rows):
        assert row.ids[:700] == prefixes[i // 3]
        spoken = messages(spelled(form, row.ids[: row.start]).removesuffix("<|im_start|>assistant\n"))
        assert spoken[-1][1].rpartition("\n\n")[2] in (*SUMMARIES, *QUESTIONS)
        answer = row.ids[row.start :]
        assert answer == greedy(loaded.model, row.ids[: row.start], 12)[: len(answer)]
        assert len(answer) == 12 or answer[-1] == 2


def test_tempers_are_drawn_from_the_given_ones() -> None:
    drawn = draw_sampling(random.Random(0), 50, "cpu", [(0.0, 1.1), (0.7, 1.0)])
    pairs = zip(drawn.temperature.tolist(), drawn.penalty.tolist(), strict=True)
    assert {(round(temperature, 4), round(penalty, 4)) for temperature, penalty in pairs} == {
        (0.0, 1.1),
        (0.7, 1.0),
    }


def test_greedy_answers_are_under_the_models_own_penalty(loaded: LoadedModel) -> None:
    assert answered(loaded) == ((0.0, 1.0), (HEAT, 1.0))
    damped = dataclasses.replace(loaded, sampling={"repetition_penalty": 1.3})
    assert answered(damped) == ((0.0, 1.3), (HEAT, 1.0))
