"""Distilling a small draft from any target: the same tokenizer, a fraction of the size.

What counts is how often the target accepts a proposal, which is one minus the total variation between both
distributions (Leviathan et al., arXiv 2211.17192); DistillSpec (arXiv 2310.08461) compares the losses.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from triforce_chat.engine.forward.subset import Subset
from triforce_chat.lab.training.course import Course, Log, Optimizer
from triforce_chat.lab.training.dataset import Batch, Dataset
from triforce_chat.lab.training.students import BuiltOnTarget, StandAlone, Student
from triforce_chat.models.draft_vocabulary import FILE, DraftVocabulary, read_draft_vocabulary
from triforce_chat.models.load import LoadedModel
from triforce_chat.models.tokenizer import vocabulary_hash

SLICE, TEST_SLICE = 8192, 2048  # positions whose logits exist at a time
SAVE_EVERY, TEST_EVERY = 1000, 250  # steps
TEMPERATURES = (1.0, 0.6, 0.3)  # take turns in the second half
TESTED = (0.0, 0.6, 1.0)
FIRST = 4  # tokens after a state of the target whose acceptance is told as one figure


@dataclass(frozen=True, slots=True)
class DraftRecipe:
    """The draft's shape and its training."""

    built_on_target: bool = (
        False  # reads the target's hidden states, and shares its embedding and output matrix
    )
    vocabulary: int = 0  # tokens that it knows, the most frequent ones; 0: all that the target knows
    hidden: int = 256
    layers: int = 3
    mlp: int = 1024
    head_dim: int = 64
    rate: float = 3e-3
    decay: float = 0.1
    windows: int = 128  # of a step
    steps: int = 6_000
    minutes: float = 6.0
    seed: int = 0


class Distance(torch.autograd.Function):
    """``kl * KL(p || q) + tv * TV(p, q)`` summed over rows, with the gradient made on the way forth.

    student [n, d], its head [V, d], its batch with the teacher's states [n, D], the teacher's head [V, D], all at
    one temperature and both under the repetition penalty that the text was written with.
    """

    @staticmethod
    def forward(
        ctx: Any,
        student: Tensor,
        head: Tensor,
        batch: Batch,
        teacher_head: Tensor,
        temperature: float,
        kl: float,
        tv: float,
    ) -> Tensor:
        total = torch.zeros((), device=student.device)
        grad_student = torch.empty_like(student)
        grad_head = torch.zeros_like(head, dtype=torch.float32)  # many small ones are added
        narrow = head.to(student.dtype)
        measure = compiled_distance() if student.is_cuda else distance
        for first in range(0, len(student), SLICE):
            rows = slice(first, first + SLICE)
            wanted, logits = batch.states[rows] @ teacher_head.T, student[rows] @ narrow.T
            seen, penalty = batch.seen(rows, len(head)), batch.penalty(rows)
            loss, grad = measure(wanted, logits, seen, penalty, temperature, kl, tv)
            total += loss
            grad_student[rows] = grad @ narrow
            grad_head += grad.T @ student[rows]
        ctx.save_for_backward(grad_student, grad_head.to(head.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        grad_student, grad_head = ctx.saved_tensors
        return upstream * grad_student, upstream * grad_head, None, None, None, None, None


def penalized(logits: Tensor, seen: Tensor, penalty: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [n, V] under the repetition penalty [n, 1] of what was ``seen`` [n, V], and by what each grew.

    The penalty depends on a logit's sign and size, which a softmax alone leaves free: a draft that never meets
    it while it learns proposes other tokens under it than its target.
    """
    growth = torch.where(seen, torch.where(logits > 0, 1 / penalty, penalty), 1.0)
    return logits * growth, growth


def distance(
    wanted: Tensor, logits: Tensor, seen: Tensor, penalty: Tensor, temperature: float, kl: float, tv: float
) -> tuple[Tensor, Tensor]:
    """The loss between logits [n, V] at one temperature, and its gradient with respect to the second.

    Every sum runs along a row first: a compiler joins those in the same few passes.
    """
    wanted, _ = penalized(wanted.float(), seen, penalty)
    found, growth = penalized(logits.float(), seen, penalty)
    log_p, log_q = torch.log_softmax(wanted / temperature, -1), torch.log_softmax(found / temperature, -1)
    p, q = log_p.exp(), log_q.exp()
    each = kl * (p * (log_p - log_q)).sum(-1) + tv * (1 - torch.minimum(p, q).sum(-1))
    below = q < p
    caught = torch.where(below, q, 0).sum(-1, keepdim=True)
    grad = kl * (q - p) + tv * q * (caught - below.to(q.dtype))
    return each.sum(), (grad * growth / temperature).to(logits.dtype)


@cache
def compiled_distance() -> Callable[..., tuple[Tensor, Tensor]]:
    """``distance`` in a few passes over the logits instead of thirty."""
    return torch.compile(distance, dynamic=True)


class TargetData(NamedTuple):
    """A target, what its draft learns from it, and texts of it that only judge the draft."""

    target: LoadedModel
    dataset: Dataset
    unseen: Dataset


def frequent_tokens(targets: Sequence[TargetData], count: int) -> Tensor:
    """The ``count`` tokens that occur most often in the datasets, in ascending order: [count].

    Among those that occur equally often, or never, the lower ids come first: byte-pair encodings number their tokens
    by frequency. The targets' end tokens are always among them.
    """
    width = min(each.target.vocab_size for each in targets)
    times = Counter(token for each in targets for window in each.dataset.windows for token in window.tokens)
    seen = torch.zeros(width, dtype=torch.int64)
    for token, number in times.items():
        seen[token] = number
    for each in targets:
        seen[list(each.target.eos_ids)] = 1 << 62
    return seen.sort(descending=True, stable=True).indices[:count].sort().values


def student_of(
    target: Any, recipe: DraftRecipe, known: Tensor | None, dataset: Dataset | None = None
) -> Student:
    """A fresh draft of a target, that learns from ``dataset``."""
    if known is None or not recipe.built_on_target:
        return StandAlone(target, recipe, known)
    return BuiltOnTarget(target, recipe, known, None if dataset is None else spread(dataset.hidden))


class DraftTraining:
    """One training run; ``folder`` receives the draft, the log and the state to resume from.

    Several targets of one vocabulary take turns at the steps. ``start`` is a draft's folder of the same shape whose
    weights it begins with.
    """

    def __init__(
        self, targets: Sequence[TargetData], recipe: DraftRecipe, folder: Path, start: Path | None = None
    ) -> None:
        self.targets, self.recipe, self.folder = targets, recipe, folder
        first = targets[0].target
        self.vocabulary = self._vocabulary(start)
        known = None if self.vocabulary is None else self.vocabulary.target_ids.to(first.model.device)
        self.subset = None if known is None else Subset(known, first.vocab_size)
        heads = [each.target.model.lm_head.weight for each in targets]
        self.heads = heads if known is None else [head[known] for head in heads]
        self.student = student_of(first.model, recipe, known, targets[0].dataset)
        if start is not None:
            self.student.begin_with(start)
        self.course = Course(recipe.steps, recipe.minutes, recipe.rate, warmup=100)
        self.optimizer = Optimizer(self.student.parameters(), self.course, recipe.decay)

    def _vocabulary(self, start: Path | None) -> DraftVocabulary | None:
        """What the draft knows: as in an interrupted training, or as the draft that it starts with."""
        count = self.recipe.vocabulary
        if not count:
            (self.folder / FILE).unlink(missing_ok=True)  # of another training
            return None
        tokenizer = vocabulary_hash(self.targets[0].target.tokenizer)
        stored = [read_draft_vocabulary(folder) for folder in (self.folder, start) if folder]
        fitting = (each for each in stored if each and len(each.target_ids) == count)
        known = next((each for each in fitting if each.tokenizer == tokenizer), None)
        if known is None:
            known = DraftVocabulary(frequent_tokens(self.targets, count), tokenizer)
        self.folder.mkdir(parents=True, exist_ok=True)
        known.save(self.folder)
        return known

    def run(self, report: Callable[[dict[str, float]], None]) -> dict[str, float]:
        """Train to the end; returns the expected acceptance on unseen text by temperature."""
        self.optimizer.resume(self.folder)
        log = Log(self.folder, self.course.step)
        rng = random.Random(f"{self.recipe.seed}-{self.course.step}")
        batches = [each.dataset.batches(self.recipe.windows, rng) for each in self.targets]
        lost: dict[str, Tensor] = {}
        while not self.course.done:
            turn = self.course.step % len(batches)
            lost = {"loss": self._step(next(batches[turn]), self.heads[turn])}
            if self.course.step % TEST_EVERY == 0:
                report(log.add(self.course, {**lost, **self.test()}))
            if self.course.step % SAVE_EVERY == 0:
                self.optimizer.save(self.folder)
        self.optimizer.save(self.folder)
        figures = self.test()
        report(log.add(self.course, {**lost, **figures}))
        self.student.save(self.folder)
        return figures

    def _step(self, batch: Batch, teacher_head: Tensor) -> Tensor:
        late = self.course.progress > 0.5
        temperature = TEMPERATURES[self.course.step % len(TEMPERATURES)] if late else 1.0
        batch = self._own(batch)
        ages = self.student.ages(batch)
        counted = (ages >= 0).nonzero()[:, 0]  # before the layers, as it waits for the device
        hidden, batch = self.student.hidden(batch, ages)[counted], batch.rows(counted)
        kl, tv = (0.3, 1.0) if late else (1.0, 0.0)
        head = self.student.output_matrix()[: len(teacher_head)]
        summed: Tensor = Distance.apply(hidden, head, batch, teacher_head, temperature, kl, tv)  # type: ignore[no-untyped-call]
        loss = summed / len(hidden)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _own(self, batch: Batch) -> Batch:
        """The batch in the draft's ids."""
        return batch if self.subset is None else batch._replace(tokens=self.subset.embedded(batch.tokens))

    @torch.no_grad()
    def test(self, windows: int = 256) -> dict[str, float]:
        """Expected acceptance on unseen text of each target at each tested temperature.

        Of a draft that is built on its target, that of the first FIRST tokens after a state, and at temperature 0
        also of each alone.
        """
        figures: dict[str, float] = {}
        for each in self.targets:
            by = f" by {each.target.name}" if len(self.targets) > 1 else ""
            found = self._tested(each, windows)  # [temperatures, ages]
            means = found[:, :FIRST].mean(-1).tolist()
            figures |= {
                f"accepted at {temperature:g}{by}": mean
                for temperature, mean in zip(TESTED, means, strict=True)
            }
            if found.shape[1] > 1:
                figures |= {f"token {age + 1} at 0": value for age, value in enumerate(found[0].tolist())}
        return figures

    def _tested(self, data: TargetData, windows: int) -> Tensor:
        unseen, teacher_head = data.unseen, data.target.model.lm_head.weight
        batch = unseen.batch(unseen.windows[:: max(1, len(unseen.windows) // windows)])
        ages = self.student.ages(batch, even=True)
        counted = (ages >= 0).nonzero()[:, 0]
        hidden = self.student.hidden(self._own(batch), ages)[counted]
        batch, ages = batch.rows(counted), ages[counted]
        head = self.student.output_matrix().to(hidden.dtype)
        sums = torch.zeros(len(TESTED), self.student.longest, device=hidden.device)
        for first in range(0, len(hidden), TEST_SLICE):
            rows = slice(first, first + TEST_SLICE)
            under = batch.seen(rows, len(teacher_head)), batch.penalty(rows)
            found = hidden[rows] @ head.T
            p, _ = penalized((batch.states[rows] @ teacher_head.T).float(), *under)
            q, _ = penalized((self.subset.widened(found) if self.subset else found).float(), *under)
            for each, temperature in zip(sums, TESTED, strict=True):
                each.index_add_(0, ages[rows], accepted(p, q, temperature))
        return sums / torch.bincount(ages, minlength=self.student.longest)


def spread(states: Tensor, most: int = 65_536) -> Tensor:
    """The root mean square of each dimension of hidden states [n, H], of about ``most`` of them: [H]."""
    some = states[:: max(1, len(states) // most)].float().square().mean(0).sqrt()
    return some.clamp(min=1e-2 * float(some.mean()))


def accepted(p: Tensor, q: Tensor, temperature: float) -> Tensor:
    """Expected acceptance of each row of logits [n, V]: sum of min(p, q), at 0 whether both agree: [n]."""
    if temperature == 0:
        return (p.argmax(-1) == q.argmax(-1)).float()
    return torch.minimum((p / temperature).softmax(-1), (q / temperature).softmax(-1)).sum(-1)
