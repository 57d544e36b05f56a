"""Whether the pages named below an answer are those that it came from: facts planted on random pages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.table import Table

from triforce_chat.chat.events import Tally
from triforce_chat.chat.session import ChatSession
from triforce_chat.chat.template import ChatFormat
from triforce_chat.documents import Document, Page
from triforce_chat.engine.engine import Engine
from triforce_chat.errors import DoesNotFit
from triforce_chat.lab.evaluation.answers import FACT_TOKENS
from triforce_chat.lab.evaluation.runs import Findings, ShowProgress
from triforce_chat.lab.evaluation.tables import table
from triforce_chat.lab.evaluation.tasks import grade, holds
from triforce_chat.lab.tasks.books import paragraphs
from triforce_chat.lab.tasks.facts import SINGLE, Fact, facts_of
from triforce_chat.models.load import LoadedModel
from triforce_chat.settings.settings import Settings

FRAME = 128  # tokens around a document: system prompt, heading, question, answer
NAMED = 3  # pages that count as named
MEANINGS = (
    "Of the answers that are right: first: the fact's page is named first; first 3: it is among the first three; "
    "sentence: the sentence shown for it is the planted one. ms: what naming the pages takes."
)


@dataclass(frozen=True, slots=True)
class Case:
    """A document of even pages, and the facts that stand on some of them."""

    document: Document
    planted: list[tuple[Fact, int]]  # with the page's number


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """An answer about a planted fact, and the pages that it is said to come from."""

    context: int
    document: str
    pages: int  # of the document
    kind: str
    question: str
    expected: str
    said: str
    right: bool
    page: int  # where the fact stands
    named: tuple[int, ...]  # the pages named, the most likely first
    sentence: bool  # the sentence shown for the page is the planted one
    seconds: float  # what naming took

    @property
    def rank(self) -> int | None:
        """1 when the fact's page is named first; None when it is not named at all."""
        return self.named.index(self.page) + 1 if self.page in self.named else None


@dataclass(frozen=True, slots=True)
class Score:
    """Counts of a group of questions; all but ``asked`` are of those answered rightly."""

    asked: int
    right: int
    first: int  # the fact's page is named first
    named: int  # it is among the first three
    chance: float  # how often it would be if three pages were drawn
    sentences: int  # the sentence shown for it holds the fact
    seconds: float  # what naming took, on average

    @staticmethod
    def of(group: Sequence[SourceCheck]) -> Score:
        right = [each for each in group if each.right]
        ranks = [each.rank or NAMED + 1 for each in right]
        return Score(
            asked=len(group),
            right=len(right),
            first=ranks.count(1),
            named=sum(rank <= NAMED for rank in ranks),
            chance=sum(min(1.0, NAMED / each.pages) for each in group) / len(group),
            sentences=sum(each.sentence for each in right),
            seconds=sum(each.seconds for each in group) / len(group),
        )

    def record(self) -> dict[str, Any]:
        rate = self.named / self.right if self.right else None
        return {**asdict(self), "named_of_right": rate}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is planted into what."""

    lengths: Sequence[int]  # tokens of an excerpt, about
    documents: int  # excerpts of each length, of the texts in turn
    facts: int  # in each
    page_tokens: int
    seed: int


def findings(
    engine: Engine,
    loaded: LoadedModel,
    settings: Settings,
    texts: Sequence[Document],
    plan: Plan,
    watch: ShowProgress,
) -> Findings:
    """How often the page of a planted fact is among those named, of the questions answered rightly."""
    asking = replace(settings, max_tokens=FACT_TOKENS)
    form = ChatFormat(loaded.tokenizer)
    found: list[SourceCheck] = []
    for length in plan.lengths:
        made = cases(texts, lambda text: len(form.encode(text)), length, plan)
        found += watch(traced(engine, loaded, asking, length, made), f"answers at {length:,} tokens")
    by_kind = scores(found, lambda each: (each.context, each.kind))
    overall = scores(found, lambda each: (each.context, "all"))
    rows = [
        {"context": context, "kind": kind, **score.record()}
        for (context, kind), score in (by_kind | overall).items()
    ]
    record = {
        "documents": [text.title for text in texts],
        "plan": asdict(plan),
        "rows": rows,
        "answers": [{**asdict(each), "rank": each.rank} for each in found],
    }
    return Findings(record, [score_table(by_kind | overall), MEANINGS])


def scores(
    found: Iterable[SourceCheck], key: Callable[[SourceCheck], tuple[int, str]]
) -> dict[tuple[int, str], Score]:
    groups: dict[tuple[int, str], list[SourceCheck]] = {}
    for each in found:
        groups.setdefault(key(each), []).append(each)
    return {group: Score.of(members) for group, members in groups.items()}


def score_table(found: Mapping[tuple[int, str], Score]) -> Table:
    columns = ("context", "kind", "asked", "right", "first", f"first {NAMED}", "by chance", "sentence", "ms")
    lines = (
        (
            f"{context:,}",
            kind,
            str(score.asked),
            str(score.right),
            share(score.first, score.right),
            share(score.named, score.right),
            f"{score.chance:.0%}",
            share(score.sentences, score.right),
            f"{1000 * score.seconds:.0f}",
        )
        for (context, kind), score in found.items()
    )
    return table(columns, lines)


def share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else ""


def cases(texts: Sequence[Document], count: Callable[[str], int], length: int, plan: Plan) -> list[Case]:
    """Excerpts of about ``length`` tokens with facts on random pages; ``count`` says how many a text has.

    Raises DoesNotFit when a text is too short.
    """
    made = []
    pages = max(1, (length - FRAME) // plan.page_tokens)
    for number in range(plan.documents):
        rng = random.Random(f"{plan.seed}/{length}/{number}")
        kinds = [SINGLE[(number + i) % len(SINGLE)] for i in range(plan.facts)]
        text = texts[number % len(texts)]
        parts = excerpt(rng, text, count, pages, plan.page_tokens)
        made.append(plant(rng, text, parts, facts_of(rng, kinds, "test")))
    return made


def excerpt(
    rng: random.Random, text: Document, count: Callable[[str], int], pages: int, page_tokens: int
) -> list[list[str]]:
    """``pages`` consecutive pages as paragraphs; each is complete with the paragraph that fills it."""
    parts = list(paragraphs(text.text))
    at = rng.randrange(max(1, len(parts) // 2))
    made: list[list[str]] = []
    room = 0
    for part in parts[at:]:
        if room <= 0:
            if len(made) == pages:
                return made
            made.append([])
            room += page_tokens
        made[-1].append(part)
        room -= count(part + "\n\n")
    raise DoesNotFit(f"{text.title} is too short for {pages} pages of {page_tokens} tokens")


def plant(rng: random.Random, text: Document, pages: list[list[str]], facts: Sequence[Fact]) -> Case:
    """Put every fact on a random page, as a paragraph of its own or at the end of one."""
    planted = []
    for fact in facts:
        number = rng.randrange(len(pages))
        page = pages[number]
        at = rng.randrange(len(page) + 1)
        if at and rng.random() < 0.5:
            page[at - 1] += f" {fact.sentences[0]}"
        else:
            page.insert(at, fact.sentences[0])
        planted.append((fact, number + 1))
    written = tuple(Page(number, "\n\n".join(page) + "\n\n") for number, page in enumerate(pages, 1))
    return Case(Document(text.title, text.source, written), planted)


def traced(
    engine: Engine, loaded: LoadedModel, settings: Settings, length: int, found: Sequence[Case]
) -> Iterator[SourceCheck]:
    """Ask for every fact in a conversation of its own; a document is read once for all of them."""
    for case in found:
        session = ChatSession(engine, loaded, settings)
        session.add(case.document)
        for fact, page in case.planted:
            tally = Tally()
            for event in session.ask(fact.question):
                tally.add(event)
            session.clear()
            yield _traced(length, case.document, fact, page, tally)


def _traced(length: int, document: Document, fact: Fact, page: int, tally: Tally) -> SourceCheck:
    assert tally.sourced is not None
    sources = tally.sourced.sources
    shown = next((source.sentence for source in sources if source.page == page), "")
    return SourceCheck(
        context=length,
        document=document.title,
        pages=len(document.pages),
        kind=fact.kind,
        question=fact.question,
        expected=fact.answer,
        said=tally.text,
        right=grade(tally.text, fact.answer, fact.kind),
        page=page,
        named=tuple(source.page for source in sources),
        sentence=holds(shown, fact.answer) and holds(fact.sentences[0], shown),
        seconds=tally.sourced.seconds,
    )
