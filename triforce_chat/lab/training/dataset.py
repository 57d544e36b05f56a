"""What a draft learns from: windows as its streaming cache will hold them, with the target's own hidden states.

The target sees its whole context; the draft sees attention sinks and a recent window (TriForce, section 4.2).
Final hidden states are kept instead of distributions: 1 KB a token, and the output head makes logits of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from triforce_chat.chat.template import ChatFormat
from triforce_chat.lab.generation import Generator
from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.lab.training.everyday import everyday
from triforce_chat.lab.training.requests import QUESTIONS, SUMMARIES
from triforce_chat.lab.training.selfchat import draw_sampling, opening, own_penalty
from triforce_chat.models.load import LoadedModel

SINKS, RECENT, SCORED = 16, 368, 192  # tokens of a window, and how many of its last are learnt
# Temperatures of texts under the target's own repetition penalty, and of those without one.
OWN_TEMPERATURES = (0.0, 0.0, 0.0, 0.3, 0.6, 1.0)
PLAIN_TEMPERATURES = (0.0, 0.6, 1.0)
LONGEST_SUFFIX = 64  # tokens between a shared text and where its continuations begin
TEXT_ROWS = 8  # of real text at a time


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens [n]; the last ``count`` of them were predicted from hidden states ``offset`` .. ``offset+count-1``."""

    tokens: list[int]
    count: int
    offset: int
    penalized: int = 0  # of the last tokens, those that the repetition penalty counts
    penalty: float = 1.0


class Batch(NamedTuple):
    """Windows side by side: b of them, n tokens wide, m tokens to predict."""

    tokens: Tensor  # [b, n]
    window: Tensor  # [m], where each token to predict belongs
    place: Tensor  # [m], the position there that predicts it
    states: Tensor  # [m, d], the target's hidden state that it was predicted from
    starts: Tensor  # [b], the first position whose token the penalty counts
    penalties: Tensor  # [b]

    @property
    def counts(self) -> Tensor:
        """How many tokens each window has to predict: [b]."""
        return torch.bincount(self.window, minlength=len(self.tokens))

    def rows(self, kept: Tensor) -> Batch:
        """The batch with only some of its tokens to predict: ``kept`` [m'], their numbers."""
        return self._replace(window=self.window[kept], place=self.place[kept], states=self.states[kept])

    def seen(self, rows: slice, vocabulary: int) -> Tensor:
        """Which tokens the answer already contained before some of the predicted tokens: [m', V]."""
        window, at = self.window[rows], torch.arange(self.tokens.shape[1], device=self.tokens.device)
        generated = (at >= self.starts[window, None]) & (at <= self.place[rows, None])
        ids = torch.where(generated, self.tokens[window], vocabulary)
        found = torch.zeros(len(ids), vocabulary + 1, dtype=torch.bool, device=ids.device)
        return found.scatter_(1, ids, True)[:, :vocabulary]

    def penalty(self, rows: slice) -> Tensor:
        """The repetition penalty of some of the predicted tokens: [m', 1]."""
        return self.penalties[self.window[rows], None]


class Dataset:
    """Windows, and all hidden states [M, d] on the target's device."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.parts: list[Tensor] = []
        self.size = 0

    def add(self, history: Sequence[int], sinks: Sequence[int], hidden: Tensor, penalty: float = 1.0) -> None:
        """``hidden`` [n, d] predicted the last n tokens of ``history``, which came after ``sinks``.

        They were drawn with the repetition ``penalty`` over themselves.
        ``history`` may lack its beginning, but not the last RECENT + n tokens.
        """
        n = len(hidden)
        for first in range(0, n, SCORED):
            count = min(SCORED, n - first)
            end = len(history) - n + first + count
            recent = history[max(0, end - RECENT) : end]
            penalized = 0 if penalty == 1 else min(first + count, len(recent))
            self.windows.append(Window([*sinks, *recent], count, self.size + first, penalized, penalty))
        self.parts.append(hidden)
        self.size += n

    @property
    def hidden(self) -> Tensor:
        if len(self.parts) > 1:
            self.parts = [torch.cat(self.parts)]
        return self.parts[0]

    def batches(self, size: int, rng: random.Random) -> Iterator[Batch]:
        """Endless shuffled batches."""
        while True:
            order = list(range(len(self.windows)))
            rng.shuffle(order)
            for first in range(0, max(1, len(order) - size + 1), size):
                yield self.batch([self.windows[i] for i in order[first : first + size]])

    def batch(self, windows: Sequence[Window]) -> Batch:
        device, sizes = self.hidden.device, [len(window.tokens) for window in windows]
        widest, counts = max(sizes), [window.count for window in windows]
        ends = [range(size - 1 - count, size - 1) for size, count in zip(sizes, counts, strict=True)]
        states = torch.cat([torch.arange(w.offset, w.offset + w.count) for w in windows])
        return Batch(
            torch.tensor([[*w.tokens, *[0] * (widest - len(w.tokens))] for w in windows]).to(device),
            torch.arange(len(windows)).repeat_interleave(torch.tensor(counts)).to(device),
            torch.cat([torch.arange(end.start, end.stop) for end in ends]).to(device),
            self.hidden[states.to(device)],
            torch.tensor([len(window.tokens) - window.penalized for window in windows], device=device),
            torch.tensor([window.penalty for window in windows], device=device),
        )


def sampling_choices(loaded: LoadedModel) -> list[tuple[float, float]]:
    """(temperature, repetition penalty) of what the target writes; most often under its own penalty."""
    penalty = own_penalty(loaded)
    return [(temperature, penalty) for temperature in OWN_TEMPERATURES] + [
        (temperature, 1.0) for temperature in PLAIN_TEMPERATURES
    ]


class Teacher:
    """Makes a dataset with a target on texts."""

    def __init__(self, loaded: LoadedModel, builder: ExampleBuilder, dataset: Dataset) -> None:
        self.loaded, self.builder, self.dataset = loaded, builder, dataset
        self.generator = Generator(loaded.model, loaded.eos_ids)
        self.form = ChatFormat(loaded.tokenizer)

    @torch.no_grad()
    def read(self, rng: random.Random, rows: int, length: int) -> None:
        """Real text, the target seeing up to ``length`` tokens of it."""
        device = self.loaded.model.device
        for first in range(0, rows, TEXT_ROWS):
            texts = [self.builder.running_text(rng, length).ids for _ in range(min(TEXT_ROWS, rows - first))]
            ids = torch.tensor(texts, device=device)
            hidden = self.loaded.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            for text, states in zip(texts, hidden, strict=True):
                self.dataset.add(text[SINKS:], text[:SINKS], states[SINKS + RECENT - 1 : -1].clone())

    def converse(self, rng: random.Random, documents: int, each: int, length: int, tokens: int) -> None:
        """Summaries and answers: ``each`` requests about each of some documents of ``length`` tokens."""
        _, after = opening(self.form)
        prefixes = [self.builder.prompt(rng, length) for _ in range(documents)]
        count = documents * each
        wordings = (*SUMMARIES, *QUESTIONS)
        asked = [self.form.encode(rng.choice(wordings)) + after for _ in range(count)]
        self._generate(rng, prefixes, asked, each, tokens)

    def chat(self, rng: random.Random, count: int, tokens: int) -> None:
        """Answers to ``count`` short everyday questions without a document."""
        before, after = opening(self.form)
        asked = [[before[-1], *self.form.encode(everyday(rng)), *after] for _ in range(count)]
        self._generate(rng, [before[:-1]], asked, count, tokens)

    def continue_text(self, rng: random.Random, texts: int, each: int, length: int, tokens: int) -> None:
        """Continuations of raw text, from ``each`` places shortly after a shared beginning."""
        prefixes, suffixes = [], []
        for _ in range(texts):
            ids = self.builder.running_text(rng, length + LONGEST_SUFFIX).ids
            prefixes.append(ids[:length])
            suffixes += [ids[length : length + rng.randint(1, LONGEST_SUFFIX)] for _ in range(each)]
        self._generate(rng, prefixes, suffixes, each, tokens)

    def _generate(
        self,
        rng: random.Random,
        prefixes: Sequence[list[int]],
        suffixes: Sequence[list[int]],
        each: int,
        tokens: int,
    ) -> None:
        device = self.loaded.model.device
        sampling = draw_sampling(rng, len(suffixes), device, sampling_choices(self.loaded))
        sampled = self.generator.run(torch.tensor(list(prefixes), device=device), suffixes, sampling, tokens)
        made, lengths, penalties = (
            sampled.tokens.tolist(),
            sampled.lengths.tolist(),
            sampling.penalty.tolist(),
        )
        for i, (suffix, answer, n) in enumerate(zip(suffixes, made, lengths, strict=True)):
            prefix = prefixes[i // each]
            history = [*prefix[max(SINKS, len(prefix) - RECENT) :], *suffix, *answer[:n]]
            self.dataset.add(history, prefix[:SINKS], sampled.hidden[i, :n].clone(), penalties[i])
