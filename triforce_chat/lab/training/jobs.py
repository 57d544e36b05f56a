"""The two trainings from a user's files to a folder that ``--model`` or ``--draft`` takes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from triforce_chat.chat.template import ChatFormat
from triforce_chat.documents import read
from triforce_chat.errors import DocumentError, UsageError
from triforce_chat.lab.tasks.book_questions import ReadBook, read_books, sets_in
from triforce_chat.lab.tasks.books import load_books, text_files
from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.lab.training.cards import write_card
from triforce_chat.lab.training.context import REPORTED, ContextRecipe, ContextTraining, example
from triforce_chat.lab.training.dataset import Dataset, Teacher
from triforce_chat.lab.training.draft import DraftRecipe, DraftTraining, TargetData, student_of
from triforce_chat.lab.training.ranks import ALONE, Ranks
from triforce_chat.lab.training.selfchat import Row, document_chats, everyday_chats, short_chats
from triforce_chat.models.load import LoadedModel
from triforce_chat.models.tokenizer import vocabulary_hash

TEXT = 8192  # tokens of running text

Tell = Callable[[dict[str, float]], None]


@dataclass(frozen=True, slots=True)
class Generation:
    """How much text the target makes for its draft; sizes in tokens."""

    minutes: float = 5.0
    sequences: int = 2048  # at once
    tokens: int = 192  # of an answer, at most
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 32_768, 124_928)  # of what is before it
    prefix_tokens: int = 262_144  # of all documents at once
    texts: int = 640  # that are only read, of TEXT tokens each


def books(
    loaded: LoadedModel, data: Sequence[Path], exclude: Sequence[str], questions: Path | None = None
) -> ExampleBuilder:
    """What builds examples from the texts in ``data``, with the questions about some of them in a folder.

    Raises UsageError if there are no texts, or no questions about any.
    """
    form = ChatFormat(loaded.tokenizer)
    found = load_books(data, form.encode, exclude)
    if not found:
        raise UsageError("--data contains no text")
    questioned = _questioned(form, data, exclude, questions) if questions else []
    return ExampleBuilder(loaded.tokenizer, found, questioned)


def _questioned(
    form: ChatFormat, data: Sequence[Path], exclude: Sequence[str], folder: Path
) -> list[ReadBook]:
    """The books in ``data`` that questions in ``folder`` are about.

    Raises UsageError if there are none, or for a question without a reply: that one only evaluates models.
    """
    sets, found = sets_in(folder), []
    for each in sets:
        if not all(question.reply for question in each.questions):
            raise UsageError(f"{folder}: a question about {each.title} has no reply to learn")
    for file in text_files(data, exclude):
        with suppress(UsageError, DocumentError):  # not every text has questions, or can be read
            found += read_books(form, [read(str(file))], sets)
    if not found:
        raise UsageError(f"the questions in {folder} are about none of the texts")
    return found


def self_chats(
    loaded: LoadedModel, builder: ExampleBuilder, seed: int, count: int
) -> tuple[list[Row], list[Row]]:
    """Conversations of the untouched model: short ones, half of them everyday questions, and readings.

    Readings are about documents that it can still read.
    """
    rng = random.Random(f"{seed}-chats")
    torch.manual_seed(seed)
    short = [*short_chats(loaded, rng, count - count // 2), *everyday_chats(loaded, rng, count // 2)]
    rows: list[Row] = []
    each = 16
    for length in (1024, 3072):
        if length < loaded.context // 2:
            prefixes = [builder.prompt(rng, length) for _ in range(max(1, count // 8 // each))]
            rows += document_chats(loaded, prefixes, rng, each)
    return short, rows


def train_context(
    loaded: LoadedModel,
    builder: ExampleBuilder,
    recipe: ContextRecipe,
    chats: int,
    folder: Path,
    tell: Tell,
    start: Path | None = None,
    ranks: Ranks = ALONE,
) -> None:
    """Train an adapter for long contexts into ``folder``, or go on with what is there."""
    check_context(loaded, builder, recipe)
    short, readings = self_chats(loaded, builder, recipe.seed, chats) if chats else ([], [])
    if ranks.first:
        tell({"conversations": len(short), "readings": len(readings)})
    torch.manual_seed(recipe.seed)
    training = ContextTraining(loaded, builder, (short, readings), recipe, folder, start, ranks)
    last: dict[str, float] = {}

    def report(figures: dict[str, float]) -> None:
        last.update(figures)
        tell(figures)

    training.run(report)
    if not ranks.first:
        return
    reach = f"{training.rope['max_position_embeddings']:,} tokens"
    if builder.questioned:
        purpose = (
            f"Lets {loaded.name} answer questions about books of up to {reach}, and say so when a text does not "
            "answer: a low-rank update of every linear layer, trained on questions about books and on conversations "
            "of the untouched model with itself."
        )
    else:
        purpose = (
            f"Lets {loaded.name} read {reach}: YaRN (factor {recipe.factor:g}) with a low-rank update of every "
            "linear layer, trained on books, on books with planted facts and reports that are asked about, and on "
            "conversations of the untouched model with itself."
        )
    titles = [book.title for book in builder.books]  # the conversations are about any of them
    write_card(folder, "Adapter", purpose, loaded.name, recipe, titles, last)


def check_context(loaded: LoadedModel, builder: ExampleBuilder, recipe: ContextRecipe) -> None:
    """Raise UsageError for what could not be trained or used, before minutes are spent on it."""
    if loaded.source.adapter is not None:
        raise UsageError(f"{loaded.name} has an adapter already; train its base {loaded.source.adapter.base}")
    reach = int(loaded.context * recipe.factor)
    if max(recipe.lengths) > reach:
        raise UsageError(f"--lengths go beyond the {reach:,} tokens that --factor {recipe.factor:g} allows")
    for length in recipe.lengths:
        try:
            for kind in (0.0, REPORTED):  # the first of each
                example(builder, random.Random(0), length, kind)
        except ValueError as error:
            raise UsageError(f"documents of {length:,} tokens cannot be made: {error}") from error


def teach(loaded: LoadedModel, builder: ExampleBuilder, plan: Generation, seed: int, tell: Tell) -> Dataset:
    """Let the target read and write until the minutes are over."""
    rng, dataset = random.Random(f"{seed}-lessons"), Dataset()
    torch.manual_seed(seed)
    teacher, started, turn = Teacher(loaded, builder, dataset), time.perf_counter(), 0
    teacher.read(rng, plan.texts, TEXT)
    if plan.minutes:  # otherwise the draft learns from what the target reads alone
        teacher.chat(rng, plan.sequences, plan.tokens)
    while time.perf_counter() - started < 60 * plan.minutes:
        length = plan.lengths[turn % len(plan.lengths)]
        texts = max(1, min(plan.sequences // 16, plan.prefix_tokens // length))
        write = teacher.continue_text if turn % 4 == 3 else teacher.converse
        write(rng, texts, plan.sequences // texts, length, plan.tokens)
        turn += 1
        tell(
            {
                "turn": turn,
                "seconds": time.perf_counter() - started,
                "length": length,
                "foretold": dataset.size,
            }
        )
    return dataset


def train_draft(
    targets: Sequence[LoadedModel],
    builder: ExampleBuilder,
    unseen: ExampleBuilder,
    recipe: DraftRecipe,
    plan: Generation,
    folder: Path,
    tell: Tell,
    start: Path | None = None,
) -> None:
    """Distil a draft for ``targets`` of one vocabulary into ``folder``; ``unseen`` holds texts that only judge it.

    The targets share the minutes of ``plan``. Raises UsageError for a shape that the draft can't have.
    """
    first = targets[0]
    check_draft_shape(first, recipe)
    check_same_tokens(targets)
    if start is not None:
        known = torch.arange(recipe.vocabulary) if recipe.vocabulary else None
        # A wrong --from fails before minutes are spent.
        student_of(first.model, recipe, known).begin_with(start)
    few = Generation(0.0, min(256, plan.sequences), plan.tokens, plan.lengths[:1], texts=0)
    plan = replace(plan, minutes=plan.minutes / len(targets), texts=plan.texts // len(targets))
    taught = [
        TargetData(
            target,
            unseen=teach_some(target, unseen, few, recipe.seed),
            dataset=teach(target, builder, plan, recipe.seed, tell),
        )
        for target in targets
    ]
    training = DraftTraining(taught, recipe, folder, start)
    figures = training.run(tell)
    names = " and ".join(target.name for target in targets)
    purpose = f"A draft for {names}: a small Llama with the same tokenizer, distilled from what they write."
    if recipe.built_on_target:
        purpose = (
            f"A draft that is built on {names}: layers between its embedding and its output matrix that also read "
            "its last hidden state, distilled from what it writes. It needs that model."
        )
    titles = [book.title for book in builder.books]
    write_card(folder, "Draft", purpose, first.name, recipe, titles, figures)


def check_same_tokens(targets: Sequence[LoadedModel]) -> None:
    """Raise UsageError for targets that can't share a draft."""
    hashes = {vocabulary_hash(target.tokenizer) for target in targets}
    if len(hashes) > 1 or len({target.vocab_size for target in targets}) > 1:
        raise UsageError("the targets have different vocabularies and can't share a draft")


def check_draft_shape(loaded: LoadedModel, recipe: DraftRecipe) -> None:
    """Raise UsageError for a width that no draft of this target can have."""
    wide: int = loaded.model.config.hidden_size
    if recipe.vocabulary >= loaded.vocab_size:
        raise UsageError(
            f"--vocabulary must be below {loaded.vocab_size:,}, the target's own; 0 means all of it"
        )
    if recipe.hidden > wide or recipe.hidden % recipe.head_dim:
        raise UsageError(
            f"--hidden must be a multiple of {recipe.head_dim} and at most {wide}, the target's own"
        )


def teach_some(loaded: LoadedModel, builder: ExampleBuilder, plan: Generation, seed: int) -> Dataset:
    """One turn of conversation and one of continuation."""
    rng, dataset = random.Random(f"{seed}-unseen"), Dataset()
    torch.manual_seed(seed + 1)
    teacher, texts = Teacher(loaded, builder, dataset), 8
    for write in (teacher.converse, teacher.continue_text):
        write(rng, texts, max(1, plan.sequences // texts), plan.lengths[0], plan.tokens)
    return dataset
