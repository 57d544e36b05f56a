"""From loaded models and read documents to findings, one function per evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from rich.table import Table

from triforce_chat.chat.template import ChatFormat
from triforce_chat.documents import Document
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.errors import DoesNotFit, UsageError
from triforce_chat.lab.evaluation import comprehension as reading
from triforce_chat.lab.evaluation.acceptance import (
    CHILDREN,
    DIMENSIONS,
    MEASURES,
    Acceptance,
    Plan,
    matches,
    rates_by_rank,
    rows,
)
from triforce_chat.lab.evaluation.answers import FactAnswer, ShortAnswer, facts, replies, scores
from triforce_chat.lab.evaluation.corpus import joined
from triforce_chat.lab.evaluation.eviction import MEANINGS, continuations, streamed
from triforce_chat.lab.evaluation.eviction import Plan as EvictionPlan
from triforce_chat.lab.evaluation.logits import difference
from triforce_chat.lab.evaluation.perplexity import NEAR, bands, losses, windows
from triforce_chat.lab.evaluation.places import prompts
from triforce_chat.lab.evaluation.questions import QUESTIONS
from triforce_chat.lab.evaluation.sparsity import ORACLES, decay_rows, layer_rows, measure, pieces
from triforce_chat.lab.evaluation.sparsity import Plan as SparsityPlan
from triforce_chat.lab.evaluation.tables import (
    acceptance_table,
    band_table,
    comprehension_table,
    decay_tables,
    difference_table,
    eviction_table,
    fact_tables,
    layer_tables,
    reply_table,
    window_table,
)
from triforce_chat.lab.evaluation.tasks import planted_set
from triforce_chat.lab.tasks.book_questions import QuestionSet, read_books
from triforce_chat.lab.tasks.books import Book
from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.models.load import LoadedModel
from triforce_chat.settings.engine_options import sampling_of
from triforce_chat.settings.settings import Settings

T = TypeVar("T")
ShowProgress = Callable[[Iterable[Any], str], Iterator[Any]]  # passes items on and reports them


@dataclass(frozen=True, slots=True)
class Findings:
    """What an evaluation found: for programs, and for readers."""

    record: dict[str, Any]
    shown: Sequence[Table | str]


def perplexity(
    loaded: LoadedModel,
    texts: Sequence[Document],
    most: int,
    strides: Sequence[int],
    other: LoadedModel | None,
) -> Findings:
    """Perplexity by position in the first ``most`` tokens, beside a reference's where the text is near."""
    corpus = joined(ChatFormat(loaded.tokenizer), texts, most)
    if len(corpus.ids) < 2:
        raise DoesNotFit("the documents have fewer than 2 tokens; there is nothing to predict")
    ids = joined(ChatFormat(other.tokenizer), texts, min(most, NEAR)).ids if other else []
    if other and ids != corpus.ids[:NEAR]:
        raise UsageError(f"{other.name} splits text into other tokens; perplexities cannot be compared")
    runner = Runner(loaded.model, kv=loaded.kv)
    nats = losses(runner, corpus.ids, FullCache(runner.shape, len(corpus.ids)))
    short = list(windows(runner, corpus.ids, nats, strides))
    near = nats[:0]
    if other is not None:
        measured = Runner(other.model)
        near = losses(measured, ids, FullCache(measured.shape, len(ids)))
    found = list(bands(nats, near))
    record = {
        "tokens": len(corpus.ids),
        "made_for": loaded.context,
        "kv": kv_format(loaded),
        "kv_bytes_per_token": runner.shape.bytes_per_token,
        "documents": [asdict(part) for part in corpus.parts],
        "rows": [asdict(band) for band in found],
        "windows": [asdict(window) for window in short],
    }
    shown: list[Table | str] = [f"{len(corpus.ids):,} tokens: {corpus.words}", band_table(found)]
    if short:
        shown += ["The farthest positions again, with little context:", window_table(short)]
    return Findings(record, shown)


def eviction(
    loaded: LoadedModel, texts: Sequence[Document], plan: EvictionPlan, watch: ShowProgress
) -> Findings:
    """Perplexity of a stream under each rule by which the model's own cache forgets, and continuations."""
    form = ChatFormat(loaded.tokenizer)
    corpus = joined(form, texts, plan.tokens)
    if len(corpus.ids) <= plan.keep:
        raise DoesNotFit(
            f"the documents have {len(corpus.ids):,} tokens; {plan.keep:,} would not be forgotten"
        )
    runner = Runner(loaded.model, kv=loaded.kv)
    found = [streamed(runner, corpus.ids, name, plan) for name in watch(plan.rules, "rules")]
    made = continuations(runner, corpus.ids, plan) if plan.example else {}

    def text(ids: Sequence[int]) -> str:
        read: str = loaded.tokenizer.decode(ids)
        return read

    record = {
        "plan": asdict(plan),
        "tokens": len(corpus.ids),
        "made_for": loaded.context,
        "documents": [asdict(part) for part in corpus.parts],
        "rules": {name: MEANINGS[name] for name in plan.rules},
        "rows": [asdict(each) for each in found],
        "before": text(corpus.ids[: plan.example][-plan.continued :]),
        "continued": {name: text(ids) for name, ids in made.items()},
    }
    shown: list[Table | str] = [f"{len(corpus.ids):,} tokens: {corpus.words}", eviction_table(found)]
    shown += [f"{name}: {MEANINGS[name]}" for name in plan.rules]
    shown += [f"continued, {name}: {text(ids)}" for name, ids in made.items()]
    return Findings(record, shown)


def logits(
    loaded: LoadedModel, exact: LoadedModel, texts: Sequence[Document], tokens: int, rows: int
) -> Findings:
    """Logits of a model as it is used beside those of its expanded weights, over the first tokens of the texts."""
    corpus = joined(ChatFormat(loaded.tokenizer), texts, tokens)
    if not corpus.ids:
        raise DoesNotFit("the documents have no tokens; there is nothing to compare")
    found = difference(Runner(loaded.model, kv=loaded.kv), Runner(exact.model), corpus.ids, rows)
    record = {
        "weights": loaded.format,
        "kv": kv_format(loaded),
        "rows": rows,
        "documents": [asdict(part) for part in corpus.parts],
        **found.record(),
    }
    title = f"{loaded.name}: {loaded.format}, keys and values in {record['kv']}, beside expanded fp32 weights"
    return Findings(record, [title, difference_table(found)])


def kv_format(loaded: LoadedModel) -> str:
    """The format that keys and values are kept in."""
    return loaded.kv_format or loaded.format_of_rest


def acceptance(
    engine: Engine,
    loaded: LoadedModel,
    settings: Settings,
    texts: Sequence[Document],
    lengths: Sequence[int],
    places: int,
    plan: Plan,
    watch: ShowProgress,
) -> Findings:
    """Expected acceptance after prompts of every kind, length and place."""
    form = ChatFormat(loaded.tokenizer)
    corpus = joined(form, texts, sys.maxsize)
    sampling = sampling_of(settings, loaded)
    run = Acceptance(engine, sampling, plan)
    asked = watch(list(prompts(form, corpus.ids, lengths, places)), "prompts")
    scored = [each for prompt in asked for each in run.measure(prompt)]
    if plan.ranks and (rates := rates_by_rank(scored)):
        engine.calibrations.keep_ranks(rates)
    every = rows(scored)
    by = {name: rows(scored, (name, "policy")) for name in DIMENSIONS if name != "policy"}
    by["context and temperature"] = rows(scored, ("context", "temperature", "policy"))
    notes = [note for length in lengths if (note := remark(length, plan.budget.tokens))]
    record = {
        "draft": loaded.draft,
        "sampling": asdict(sampling),
        "plan": asdict(plan),
        "places": places,
        "documents": [asdict(part) for part in corpus.parts],
        "measures": MEASURES,
        "notes": notes,
        "rows": [row.record() for row in every],
        "matches": [row.record() for row in matches(scored)],
        **({"ranks": [row.record() for row in matches(scored, CHILDREN)]} if plan.ranks else {}),
        "by": {name: [row.record() for row in each] for name, each in by.items()},
    }
    meanings = [f"{name.replace('_', ' ')}: {meaning}" for name, meaning in MEASURES.items()]
    tables = [acceptance_table(each) for each in (every, *by.values())]
    return Findings(record, [*tables, "\n".join([*meanings, *notes])])


def sparsity(
    loaded: LoadedModel,
    texts: Sequence[Document],
    contexts: Sequence[int],
    places: int,
    plan: SparsityPlan,
    watch: ShowProgress,
) -> Findings:
    """How much of the attention small selections hold, at several places of the documents."""
    corpus = joined(ChatFormat(loaded.tokenizer), texts, sys.maxsize)
    asked = list(pieces(corpus.ids, contexts, places, plan.after))
    runner = Runner(loaded.model)
    found = [measure(runner, ids, context, place, plan) for context, place, ids in watch(asked, "places")]
    layers, decay = layer_rows(found, plan), decay_rows(found, plan)
    record = {
        "plan": asdict(plan),
        "places": places,
        "documents": [asdict(part) for part in corpus.parts],
        "policies": {name: ORACLES.get(name, "") for name in plan.names},
        "layers": layers,
        "decay": decay,
    }
    shown = [*layer_tables(layers), *decay_tables(decay)]
    return Findings(record, [*shown, "\n".join(f"{name}: {meaning}" for name, meaning in ORACLES.items())])


def remark(context: int, budget: int) -> str | None:
    """What a reader must know about the retrieval cache at this length."""
    if context <= budget:
        return f"At {context:,} tokens the retrieval cache holds everything: alpha is 1 but for rounding."
    if context <= 2 * budget:
        return (
            f"At {context:,} tokens the retrieval cache holds half of everything or more; auto leaves it out."
        )
    return None


def planted(
    engine: Engine,
    loaded: LoadedModel,
    settings: Settings,
    texts: Sequence[Document],
    lengths: Sequence[int],
    documents: int,
    page_tokens: int | None,
    watch: ShowProgress,
) -> Findings:
    """Questions about facts that were planted into the texts."""
    form = ChatFormat(loaded.tokenizer)
    books = [Book.of(document.title, document.text, form.encode) for document in texts]
    builder = ExampleBuilder(loaded.tokenizer, [book for book in books if book.tokens])
    sampling, seed = sampling_of(settings, loaded), settings.seed or 0
    found: list[FactAnswer] = []
    for length in lengths:
        cases = planted_set(builder, length, documents=documents, page_tokens=page_tokens, seed=seed)
        asked = facts(engine, length, cases, sampling, form.stop)
        found += watch(asked, f"answers at {length:,} tokens")
    present = [each for each in found if each.kind != "absent"]
    record = {
        "documents": [document.title for document in texts],
        "sampling": asdict(sampling),
        "seed": seed,
        "rows": [
            {"context": context, "depth": depth, **asdict(score)}
            for (context, depth), score in scores(present, lambda each: (each.context, each.depth)).items()
        ],
        "kinds": [
            {"context": context, "kind": kind, **asdict(score)}
            for (context, kind), score in scores(found, lambda each: (each.context, each.kind)).items()
        ],
        "denied": sum(each.denied for each in present),
        "wrong": [asdict(each) for each in found if not each.right],
    }
    return Findings(record, fact_tables(found))


def short_questions(
    engines: Iterable[tuple[Engine, LoadedModel]], settings: Settings, watch: ShowProgress
) -> Findings:
    """The fixed list of questions, put to each model in turn."""
    found: list[ShortAnswer] = []
    for engine, loaded in engines:
        sampling = sampling_of(settings, loaded)
        asked = replies(engine, loaded.name, ChatFormat(loaded.tokenizer), QUESTIONS, sampling)
        found += watch(asked, f"answers of {loaded.name}")
    right: dict[str, int] = {}
    for each in found:
        right[each.model] = right.get(each.model, 0) + each.right
    record = {
        "questions": len(QUESTIONS),
        "rows": [{"model": model, "right": count} for model, count in right.items()],
        "answers": [asdict(each) for each in found],
    }
    counts = ", ".join(f"{model} {count}/{len(QUESTIONS)}" for model, count in right.items())
    return Findings(record, [reply_table(found), f"right: {counts}"])


def comprehension(
    engine: Engine,
    loaded: LoadedModel,
    settings: Settings,
    texts: Sequence[Document],
    sets: Sequence[QuestionSet],
    lengths: Sequence[int],
    watch: ShowProgress,
) -> Findings:
    """The questions about each book at each length of context; 0 asks without the book."""
    form, sampling = ChatFormat(loaded.tokenizer), sampling_of(settings, loaded)
    books = read_books(form, texts, sets)
    found: list[reading.Answered] = []
    for length in lengths:
        for book in books:
            asked = reading.answers(engine, form, book, length, sampling, settings.passages)
            found += watch(asked, f"answers about {book.title} at {length:,} tokens")
    every = [
        {"context": length, **asdict(reading.summary([each for each in found if each.asked_at == length]))}
        for length in lengths
    ]
    record = {
        "model": loaded.name,
        "sampling": asdict(sampling),
        "passages": settings.passages,
        "books": [
            {"title": book.title, "tokens": len(book.ids), "asked": len(book.placed), "missing": book.missing}
            for book in books
        ],
        "rows": every,
        "answers": [asdict(each) for each in found],
    }
    return Findings(record, [comprehension_table(every)])
