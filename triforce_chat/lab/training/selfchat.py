"""Conversations that a model makes up by itself, so that training it further does not unlearn them.

Given only the opening of a user's turn, an instruction-tuned model writes a user's question (Magpie,
arXiv 2406.08464); then it answers it. Short everyday questions are those of ``everyday``; documents are asked about
in the wordings of ``requests``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.lab.generation import Generator, Sampled, SequenceSampling
from triforce_chat.lab.training.everyday import everyday
from triforce_chat.lab.training.requests import QUESTIONS, SUMMARIES
from triforce_chat.models.load import LoadedModel

SHORTEST = 3  # tokens of a question worth an answer
HEAT = 0.7  # temperature of the answers that are not greedy


@dataclass(frozen=True, slots=True)
class Row:
    """A conversation in tokens; the model's own part begins at ``start``."""

    ids: list[int]
    start: int


def tokens_of(sampled: Sampled) -> list[list[int]]:
    """The tokens of every sequence up to its end."""
    tokens, lengths = sampled.tokens.tolist(), sampled.lengths.tolist()
    return [row[:length] for row, length in zip(tokens, lengths, strict=True)]


def opening(form: ChatFormat) -> tuple[list[int], list[int]]:
    """What the chat template puts before and after a first question."""
    ids = form.render([Message("user", [-1])])
    at = ids.index(-1)
    return ids[:at], ids[at + 1 :]


def draw_sampling(
    rng: random.Random, count: int, device: Any, choices: Sequence[tuple[float, float]]
) -> SequenceSampling:
    """A (temperature, repetition penalty) for each of ``count`` sequences."""
    drawn = [rng.choice(choices) for _ in range(count)]
    return SequenceSampling(
        torch.tensor([temperature for temperature, _ in drawn], device=device),
        torch.tensor([penalty for _, penalty in drawn], device=device),
    )


def answered(loaded: LoadedModel) -> tuple[tuple[float, float], ...]:
    """(temperature, repetition penalty) of answers: greedy ones under the model's own penalty."""
    return (0.0, own_penalty(loaded)), (HEAT, 1.0)


def own_penalty(loaded: LoadedModel) -> float:
    """The repetition penalty of the model's preset; 1 without one."""
    return loaded.sampling.get("repetition_penalty", 1.0)


def short_chats(loaded: LoadedModel, rng: random.Random, count: int, answer: int = 192) -> list[Row]:
    """About ``count`` questions and answers of up to ``answer`` tokens."""
    generator, device = Generator(loaded.model, loaded.eos_ids), loaded.model.device
    before, _ = opening(ChatFormat(loaded.tokenizer))
    prefix, last = torch.tensor([before[:-1]], device=device), before[-1:]
    sampling = draw_sampling(rng, count, device, [(1.0, 1.0)])
    asked = [
        ids[:-1]
        for ids in tokens_of(generator.run(prefix, [last] * count, sampling, 48))
        if ends(ids, loaded)
    ]
    asked = [ids for ids in asked if len(ids) >= SHORTEST]
    return [Row(head + generated, len(before)) for head, generated in _answered(loaded, rng, asked, answer)]


def everyday_chats(loaded: LoadedModel, rng: random.Random, count: int, answer: int = 96) -> list[Row]:
    """``count`` short everyday questions, and the model's answers of up to ``answer`` tokens."""
    form = ChatFormat(loaded.tokenizer)
    asked = [form.encode(everyday(rng)) for _ in range(count)]
    return [Row(head + generated, len(head)) for head, generated in _answered(loaded, rng, asked, answer)]


def _answered(
    loaded: LoadedModel, rng: random.Random, asked: Sequence[list[int]], most: int
) -> list[tuple[list[int], list[int]]]:
    """First questions without a document as the model reads them, and what it says, up to ``most`` tokens each."""
    if not asked:
        return []
    generator, device = Generator(loaded.model, loaded.eos_ids), loaded.model.device
    before, after = opening(ChatFormat(loaded.tokenizer))
    sampling = draw_sampling(rng, len(asked), device, answered(loaded))
    prefix, last = torch.tensor([before[:-1]], device=device), before[-1:]
    generated = generator.run(prefix, [last + ids + after for ids in asked], sampling, most)
    return [(before + ids + after, then) for ids, then in zip(asked, tokens_of(generated), strict=True)]


def ends(ids: Sequence[int], loaded: LoadedModel) -> bool:
    return bool(ids) and ids[-1] in loaded.eos_ids


def document_chats(
    loaded: LoadedModel, prefixes: Sequence[Sequence[int]], rng: random.Random, each: int, answer: int = 192
) -> list[Row]:
    """``each`` questions about every document; ``prefixes`` are prompts of equal length up to the question."""
    generator, device = Generator(loaded.model, loaded.eos_ids), loaded.model.device
    form = ChatFormat(loaded.tokenizer)
    _, after = opening(form)
    asked = [form.encode(rng.choice((*SUMMARIES, *QUESTIONS))) + after for _ in range(each * len(prefixes))]
    sampling = draw_sampling(rng, len(asked), device, answered(loaded))
    generated = generator.run(torch.tensor(list(prefixes), device=device), asked, sampling, answer)
    heads = [[*prefixes[i // each], *question] for i, question in enumerate(asked)]
    return [Row(head + ids, len(head)) for head, ids in zip(heads, tokens_of(generated), strict=True)]
