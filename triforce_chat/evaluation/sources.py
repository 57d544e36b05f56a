"""Whether the pages named below an answer are those that it came from: facts planted on random pages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from triforce_chat.config import Settings
from triforce_chat.documents import Document, Page
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.events import Tally
from triforce_chat.errors import DoesNotFit
from triforce_chat.evaluation.tasks import grade
from triforce_chat.models.load import LoadedModel
from triforce_chat.session import Session
from triforce_chat.training.documents import paragraphs
from triforce_chat.training.facts import SINGLE, Fact, facts_of

FRAME = 128  # tokens around a document: system text, heading, question, answer
NAMED = 3  # pages that count as named


@dataclass(frozen=True, slots=True)
class Case:
    """A document of even pages, and the facts that stand on some of them."""

    document: Document
    planted: list[tuple[Fact, int]]  # with the page's number


@dataclass(frozen=True, slots=True)
class Traced:
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


def cases(
    texts: Sequence[Document],
    count: Callable[[str], int],
    length: int,
    page_tokens: int,
    documents: int,
    facts: int,
    seed: int,
) -> list[Case]:
    """``documents`` excerpts of about ``length`` tokens, of each text in turn, with ``facts`` on random pages.

    ``count`` says how many tokens a text has. Raises DoesNotFit when a text is too short.
    """
    made = []
    for number in range(documents):
        rng = random.Random(f"{seed}/{length}/{number}")
        kinds = [SINGLE[(number + i) % len(SINGLE)] for i in range(facts)]
        text = texts[number % len(texts)]
        pages = excerpt(rng, text, count, max(1, (length - FRAME) // page_tokens), page_tokens)
        made.append(plant(rng, text, pages, facts_of(rng, kinds, "test")))
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
) -> Iterator[Traced]:
    """Ask for every fact in a conversation of its own; a document is read once for all of them."""
    for case in found:
        session = Session(engine, loaded, settings)
        session.add(case.document)
        for fact, page in case.planted:
            tally = Tally()
            for event in session.ask(fact.question):
                tally.add(event)
            session.clear()
            yield _traced(length, case.document, fact, page, tally)


def _traced(length: int, document: Document, fact: Fact, page: int, tally: Tally) -> Traced:
    assert tally.sourced is not None
    sources = tally.sourced.sources
    shown = next((source.sentence for source in sources if source.page == page), "")
    return Traced(
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
        sentence=" ".join(fact.sentences[0].split()) in shown or (shown in fact.sentences[0] and bool(shown)),
        seconds=tally.sourced.seconds,
    )
