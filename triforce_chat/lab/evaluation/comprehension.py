"""Reading comprehension: questions about novels, asked with parts of the novels of chosen lengths in the context.

Every part contains the passages that answer its questions, where the book has them. Answers are judged by lists of
accepted strings, so that every verdict can be checked by hand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triforce_chat.chat.quoting import quoted_before
from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.documents import Document, Page
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.lab.evaluation.continuations import ContinuationRequest, continuations
from triforce_chat.lab.evaluation.tasks import SAYS_ABSENT, holds
from triforce_chat.lab.tasks.book_questions import BookQuestion, Placed, ReadBook
from triforce_chat.lab.tasks.dialogue import Dialogue
from triforce_chat.prompts import prompt

ANSWER_TOKENS = 64
MARGIN = 200  # tokens of the book before a part's first passage and after its last, if there are so many
OPENING_WORDS = 3
GRAM = 4
PHRASES = [phrase for phrase in SAYS_ABSENT if phrase != "no answer"]  # which people in novels may give, too
_NOT = r"(?:\bnot|\bnever|n['’]t)"
_TELLS = (
    r"(?:mention|state|specif|say|said|provid|giv|contain|includ|tell|told|nam|reveal|disclos|describ|indicat|"
    r"found|known|clear|identif|discuss)"
)
_DENIAL = re.compile(
    rf"\b(?:document|text|book|passages?|novel|story|chapter|excerpt|author|it|there) (?:\w+ ){{0,3}}\w*{_NOT} "
    rf"(?:\w+ ){{0,2}}{_TELLS}"
    rf"|\b(?:is|are|was|were|be|been)(?: ?{_NOT}) (?:\w+ ){{0,2}}{_TELLS}"
    r"|\bno (?:\w+ )?(?:mention|information|indication|details?)\b"
    r"|\bno answer (?:\w+ ){0,3}in (?:the|this)\b"
    r"|\bno (?:passage|part|chapter) (?:\w+ ){0,3}mentions\b"
    r"|\bnothing (?:about \w+ )?in (?:the|this) (?:document|text|book|passage|excerpt)\b"
    r"|\b(?:cannot|can not|can['’]t) be told from\b"
    r"|\b(?:cannot|can not|can['’]t|could not|couldn['’]t) (?:\w+ ){0,2}(?:find|found|answer|determine)"
    r"|\bwithout (?:\w+ )?(?:naming|saying|stating|specifying|mentioning|telling)\b"
    r"|\bnever (?:says|learn|names|mentions|states|tells us)\b"
    r"|\bbut not (?:who|whom|whose|what|which|where|when|why|how)\b"
    r"|\b(?:text|book|novel|document|story|passage|chapter|excerpt|author|narrator) (?:\w+ )?"
    r"(?:gives?|provides?|offers?|mentions?|names?|states?) (?:us )?no\b"
    rf"|\b(?:does|do|did) ?{_NOT} (?:\w+ )?(?:name|specify|identify|state)\b"
    r"|\b(?:unnamed|unspecified|unidentified|unknown)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+")
_POSSESSIVE = re.compile(r"['’]s\b")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Tokens [start, end) of a book, and the questions whose passages lie there."""

    start: int
    end: int
    placed: Sequence[Placed]


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to one question."""

    asked_at: int  # context as requested, in tokens; 0 if asked without the book
    context: int  # tokens before the question, fewer than requested where the book is shorter
    book: str
    kind: str
    passages: str  # "one", "two" or "absent"
    depth: float | None  # share of the excerpt before the (first) passage
    question: str
    accepted: tuple[str, ...]  # empty: the right answer is that the book does not say
    said: str
    right: bool
    denied: bool  # says that the book does not answer


@dataclass(frozen=True, slots=True)
class Summary:
    """All answers at one length; ``right`` and ``asked`` count them by the number of passages."""

    right: dict[str, int]
    asked: dict[str, int]
    denied: int  # of the answerable questions, how many were said to have no answer in the text
    repeated_grams: float
    opening: str  # the commonest first words
    opening_share: float


def excerpts(book: ReadBook, length: int) -> Iterator[Excerpt]:
    """The fewest parts of ``length`` tokens that hold all questions' passages, which are in the middle of each part."""
    rest = list(book.placed)
    while rest:
        first = rest[0].first
        size = 0
        while size < len(rest) and _reach(rest[: size + 1]) - first + 2 * MARGIN <= length:
            size += 1
        size = size or 1
        start = (first + _reach(rest[:size]) - length) // 2
        start = max(0, min(start, len(book.ids) - length))
        yield Excerpt(start, min(start + length, len(book.ids)), rest[:size])
        rest = rest[size:]


def _reach(placed: Sequence[Placed]) -> int:
    return max(each.last for each in placed)


def answers(
    engine: Engine, form: ChatFormat, book: ReadBook, context: int, sampling: Sampling, passages: int = 0
) -> Iterator[Answered]:
    """Ask all questions about a book with ``context`` tokens before each; 0 asks without the book.

    Between the two, ``passages`` of the context are quoted again, as a chat does with long documents.
    """
    if context == 0:
        yield from _from_memory(engine, form, book, sampling)
        return
    dialogue = Dialogue(form, prompt("system"), book.title)
    room = context - len(dialogue.prefix([]))
    for part in excerpts(book, room):
        text = book.ids[part.start : part.end]
        prefix = dialogue.prefix(text)
        read = [Document(book.title, book.title, (Page(1, form.tokenizer.decode(text)),))]
        questions = [quoted_before(each.question.text, read, passages) for each in part.placed]
        asked = [ContinuationRequest(dialogue.suffix(question), sampling) for question in questions]
        made = continuations(engine, prefix, asked, ANSWER_TOKENS, form.stop)
        for each, ids in zip(part.placed, made, strict=True):
            depth = (each.first - part.start) / (part.end - part.start)
            yield _judged(book, each.question, (context, len(prefix)), depth, engine.decode(ids))


def _from_memory(engine: Engine, form: ChatFormat, book: ReadBook, sampling: Sampling) -> Iterator[Answered]:
    """What the model knows of the book without reading it."""
    about = f"A question about the novel {book.title} by {book.author}: "
    for each in book.placed:
        ids = form.render([Message("user", form.encode(about + each.question.text))])
        made = continuations(
            engine, ids[:-1], [ContinuationRequest(ids[-1:], sampling)], ANSWER_TOKENS, form.stop
        )
        yield _judged(book, each.question, (0, 0), None, engine.decode(made[0]))


def _judged(
    book: ReadBook, question: BookQuestion, contexts: tuple[int, int], depth: float | None, said: str
) -> Answered:
    denied = says_absent(said)
    return Answered(
        asked_at=contexts[0],
        context=contexts[1],
        book=book.title,
        kind=question.kind,
        passages=question.passages,
        depth=depth,
        question=question.text,
        accepted=question.answers,
        said=said,
        right=denied if question.absent else any(contains(said, each) for each in question.answers),
        denied=denied,
    )


def summary(found: Sequence[Answered]) -> Summary:
    """Counts by number of passages, and how varied the answers are."""
    groups = ("one", "two", "absent")
    said = [each.said for each in found]
    opening, share = commonest_opening(said)
    return Summary(
        right={name: sum(each.right for each in found if each.passages == name) for name in groups},
        asked={name: sum(each.passages == name for each in found) for name in groups},
        denied=sum(each.denied for each in found if each.accepted),
        repeated_grams=repeated_grams(said),
        opening=opening,
        opening_share=share,
    )


def contains(said: str, accepted: str) -> bool:
    """Whether an answer contains an accepted string as whole words, or all its parts in their order.

    Case and punctuation do not count.
    """
    rest = _words(said)
    for part in map(_words, accepted.split("...")):
        _, found, rest = rest.partition(part)
        if not found:
            return False
        rest = " " + rest
    return True


def _words(text: str) -> str:
    """The words of a text in lower case without possessive endings, each between spaces."""
    return f" {' '.join(_WORD.findall(_POSSESSIVE.sub('', text.lower())))} "


def says_absent(said: str) -> bool:
    """Whether an answer says that the text does not hold what was asked for."""
    return _DENIAL.search(said) is not None or any(holds(said, phrase) for phrase in PHRASES)


def repeated_grams(texts: Sequence[str]) -> float:
    """The share of four-word sequences that occurred earlier in the same text."""
    repeated = total = 0
    for text in texts:
        words = text.lower().split()
        grams = [tuple(words[i : i + GRAM]) for i in range(len(words) - GRAM + 1)]
        total += len(grams)
        repeated += len(grams) - len(set(grams))
    return repeated / total if total else 0.0


def commonest_opening(texts: Sequence[str]) -> tuple[str, float]:
    """The first three words with which most texts begin, and the share of texts that begin so."""
    openings = Counter(" ".join(text.split()[:OPENING_WORDS]) for text in texts)
    opening, count = openings.most_common(1)[0]
    return opening, count / len(texts)
