"""Training a model to read far more than it was made for: YaRN (arXiv 2309.00071) and low-rank updates."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize

from triforce_chat.errors import UsageError
from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.lab.tasks.dialogue import Example
from triforce_chat.lab.training.course import Course, Log, Optimizer
from triforce_chat.lab.training.losses import divergence, next_token_loss
from triforce_chat.lab.training.lowrank import attach, load_updates, save_adapter
from triforce_chat.lab.training.ranks import ALONE, Ranks
from triforce_chat.lab.training.selfchat import Row
from triforce_chat.models.load import LoadedModel

SAVE_EVERY = 50  # steps
ANSWERS = 2.0  # weight of the answers beside that of the text, whatever their lengths
# Of the sequences are about reports and about planted facts; the rest is running text, as their documents are too.
REPORTED, PLANTED = 0.3, 0.55
REPORT_LENGTH = 2_048  # tokens of the shortest document with a report
TOKENS_PER_QUESTION = 200  # of a document that is asked about, up to ``MOST_QUESTIONS``
MOST_QUESTIONS = 120
TOKENS_PER_READING, MOST_READINGS = 500, 24  # the same for questions that come with a book
WHOLE_REACH = 0.3  # of the training, after which every length takes its turn
# cuDNN's backward pass over long rows takes less time than flash-attention's; the others are for what it refuses.
ATTENTION = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


@dataclass(frozen=True, slots=True)
class ContextRecipe:
    """What is trained, and for how long. Lengths in tokens, shortest first."""

    factor: float = 16.0  # of YaRN, over the positions that the model was made for; 1 leaves them as they are
    rank: int = 32
    alpha: float = 32.0
    rate: float = 4e-4
    steps: int = 300
    minutes: float = 25.0
    seed: int = 0
    lengths: tuple[int, ...] = (2_048, 8_192, 32_768, 124_928)
    tokens: int = 131_072  # of a step
    chats_per_step: int = 24  # short self-distilled conversations
    readings_per_step: int = 4  # those about documents
    # Compute activations again for the gradient, where they would not fit into memory.
    checkpoint: bool = False

    def length(self, step: int, progress: float) -> int:
        """Of the sequences of a step: short ones teach to find things, then it has to hold far away too."""
        reached = 2 + int((len(self.lengths) - 1) * progress / WHOLE_REACH)
        return self.lengths[:reached][::-1][step % min(reached, len(self.lengths))]


def example(builder: ExampleBuilder, rng: random.Random, length: int, kind: float) -> Example:
    """A sequence of ``length`` tokens; ``kind``, in [0, 1), chooses of which sort. Raises ValueError if too short.

    If there are books with questions, all sequences are about these.
    """
    if builder.questioned:
        return builder.with_questions(rng, length, max(1, min(MOST_READINGS, length // TOKENS_PER_READING)))
    questions = max(1, min(MOST_QUESTIONS, length // TOKENS_PER_QUESTION))
    if kind < REPORTED and length >= REPORT_LENGTH:
        return builder.with_reports(rng, length, questions)
    if kind < REPORTED + PLANTED:
        return builder.with_facts(rng, length, questions)
    return builder.running_text(rng, length)


def stretched(config: Any, factor: float) -> dict[str, Any]:
    """The RoPE parameters and positions of a configuration after YaRN with ``factor``."""
    original = config.max_position_embeddings
    if factor == 1:
        return {"rope_parameters": dict(config.rope_parameters), "max_position_embeddings": original}
    parameters = {
        "rope_type": "yarn",
        "rope_theta": config.rope_parameters["rope_theta"],
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    return {"rope_parameters": parameters, "max_position_embeddings": int(original * factor)}


def stretch(model: Any, rope: dict[str, Any]) -> None:
    """Give a loaded model other RoPE parameters."""
    model.config.rope_parameters = rope["rope_parameters"]
    model.config.max_position_embeddings = rope["max_position_embeddings"]
    rotary = model.base_model.rotary_emb
    model.base_model.rotary_emb = type(rotary)(config=model.config).to(model.device)


def recompute_activations(model: Any) -> None:
    """Keep only what enters each block, and compute the rest again for the gradient.

    transformers does so in training mode only; the supported models have no dropout that this would switch on.
    """
    # transformers renamed the function within version 5
    new = getattr(model, "activation_checkpointing_enable", None)
    (new or model.gradient_checkpointing_enable)({"use_reentrant": False})
    model.train()


class ContextTraining:
    """One training run; ``folder`` receives the adapter, the log and the state to resume from.

    ``chats`` are conversations of the untouched model: short ones, and such about documents. ``start`` is an adapter
    folder of the same rank whose updates it begins with. Several ``ranks`` read sequences of their own at every step;
    what they learn from them is averaged.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        builder: ExampleBuilder,
        chats: tuple[Sequence[Row], Sequence[Row]],
        recipe: ContextRecipe,
        folder: Path,
        start: Path | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.recipe, self.builder, self.folder, self.ranks = recipe, builder, folder, ranks
        short, readings = chats
        self.chats = {
            "divergence": (short, recipe.chats_per_step),
            "of readings": (readings, recipe.readings_per_step),
        }
        self.base = loaded.name
        self.teacher = loaded.model
        self.model = copy.deepcopy(loaded.model)
        self.rope = stretched(self.model.config, recipe.factor)
        stretch(self.model, self.rope)
        if recipe.checkpoint:
            recompute_activations(self.model)
        self.updates = attach(self.model, recipe.rank, recipe.alpha, recipe.seed)
        if start is not None:
            load_updates(start, self.updates)
        self.course = Course(recipe.steps, recipe.minutes, recipe.rate)
        trained = [parameter for update in self.updates.values() for parameter in update.parameters()]
        self.optimizer = Optimizer(trained, self.course)

    def run(self, report: Callable[[dict[str, float]], None]) -> None:
        """Train to the end, telling every step; an interrupted run goes on where it was saved."""
        self.optimizer.resume(self.folder)
        if self.ranks.broadcast(self.course.step) != self.course.step:
            raise UsageError(f"{self.folder} holds another state on every machine; share that folder")
        log = Log(self.folder, self.course.step) if self.ranks.first else None
        for length, examples in self._batches():
            rate = self.ranks.broadcast(self.course.learning_rate)
            figures = self._step(examples) | {"length": length, "rate": rate}
            self.ranks.average(self.optimizer.parameters)
            self.optimizer.step(rate)
            if log is None:
                continue
            report(log.add(self.course, figures))
            if self.course.step % SAVE_EVERY == 0:
                self.optimizer.save(self.folder)
        if log is not None:
            self.optimizer.save(self.folder)
            save_adapter(self.folder, self.updates, self.base, self.rope)

    def _batches(self) -> Iterator[tuple[int, list[Example]]]:
        """Every step's sequences, made while the step before runs."""
        with ThreadPoolExecutor(1) as pool:
            progress = self.ranks.broadcast(self.course.progress)
            coming = pool.submit(self._examples, self.course.step, progress)
            while progress < 1:
                ready = coming.result()
                coming = pool.submit(self._examples, self.course.step + 1, progress)
                yield ready
                progress = self.ranks.broadcast(self.course.progress)

    def _examples(self, step: int, progress: float = 0.0) -> tuple[int, list[Example]]:
        rng = random.Random(f"{self.ranks.seed(self.recipe.seed)}-{step}")
        # Made ahead of its step or right at it after a resumption: both must choose the same.
        progress = max(step / self.recipe.steps, progress)
        length = self.recipe.length(step, progress)
        count = max(1, self.recipe.tokens // length)
        return length, [example(self.builder, rng, length, rng.random()) for _ in range(count)]

    def _step(self, examples: list[Example]) -> dict[str, Tensor]:
        """Add this step's gradients."""
        figures = self._read(examples)
        rng = random.Random(f"{self.ranks.seed(self.recipe.seed)}-{self.course.step}-chats")
        for name, (rows, count) in self.chats.items():
            if rows:
                figures[name] = self._chat(rng.sample(rows, min(count, len(rows))))
        return figures

    def _read(self, examples: list[Example]) -> dict[str, Tensor]:
        ids = torch.tensor([example.ids for example in examples])
        answers = torch.zeros(ids.shape, dtype=torch.bool)
        for row, example in enumerate(examples):
            for start, end in example.answers:
                answers[row, start:end] = True
        device = self.model.device
        targets, answers = ids[:, 1:].flatten().to(device), answers[:, 1:].flatten().to(device)
        counted = answers if self.builder.questioned else torch.ones_like(answers)
        targets, answers = targets[counted], answers[counted]
        text = ~answers
        weights = text / text.sum().clamp_min(1) + ANSWERS * answers / answers.sum().clamp_min(1)
        with self._weights():
            hidden = self._hidden(self.model, ids.to(device))[:, :-1].flatten(0, 1)[counted]
            loss = next_token_loss(hidden, self.model.lm_head.weight, targets, weights)
            loss.backward()
        return {
            "loss": loss.detach(),
            "answers": answers.sum(),
            "of answers": self._lost(hidden, targets, answers),
        }

    @contextmanager
    def _weights(self) -> Iterator[None]:
        """The updated weights, made once: not where a block runs, which may run again for the gradient."""
        with parametrize.cached():
            for path in self.updates:
                _ = self.model.get_submodule(path).weight
            yield

    @torch.no_grad()
    def _lost(self, hidden: Tensor, targets: Tensor, answers: Tensor) -> Tensor:
        """Mean loss of the answers' tokens; 0 without any."""
        weights = torch.ones(int(answers.sum()), device=hidden.device)
        lost = next_token_loss(hidden[answers], self.model.lm_head.weight, targets[answers], weights)
        return lost / weights.sum().clamp_min(1)

    def _chat(self, rows: Sequence[Row]) -> Tensor:
        """Keep what the model could do: the divergence from the untouched model on its own conversations."""
        device, widest = self.model.device, max(len(row.ids) for row in rows)
        ids = torch.tensor([[*row.ids, *[0] * (widest - len(row.ids))] for row in rows], device=device)
        at = torch.arange(widest, device=device)[None]
        starts = torch.tensor([[row.start] for row in rows], device=device)
        ends = torch.tensor([[len(row.ids)] for row in rows], device=device)
        counted = (at >= starts - 1) & (at < ends - 1)
        with torch.no_grad():
            wanted = self._hidden(self.teacher, ids)[counted]
        with self._weights():
            loss = divergence(self._hidden(self.model, ids)[counted], wanted, self.model.lm_head.weight)
            loss.backward()
        return loss.detach()

    @staticmethod
    def _hidden(model: Any, ids: Tensor) -> Tensor:
        with sdpa_kernel(ATTENTION, set_priority=True):
            hidden: Tensor = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return hidden
