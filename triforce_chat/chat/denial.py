"""Answers that deny: "The text does not say". They come from no page, but the question's words may stand on some."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from triforce_chat.chat.events import LookedUp, Place
from triforce_chat.documents import Document
from triforce_chat.documents.search import find, pattern
from triforce_chat.documents.sentences import spans

# What surely is the user's own document, and what may also be a thing in a story ("it was not in the book").
_SURE = r"(?:documents?|texts?|passages?|excerpts?|context)"
_TEXT = rf"(?:{_SURE}|book|novel|story|author|narrator|chapter)"
_THE = r"(?:the|this|these|your)\s+(?:\w+\s+)?"
_SHOWN = r"(?:\s+(?:itself|here|provided|given|in\s+front\s+of\s+me)|,[^,.;]{1,50},)?"
_NOT = r"(?:does not|doesn['’]t|do not|don['’]t|did not|didn['’]t|never|nowhere)"
_IS_NOT = r"(?:(?:is|are|was|were)\s+(?:not|never)|(?:is|are|was|were)n['’]t)"
_CANNOT = r"(?:cannot|can\s+not|can['’]t|could\s+not|couldn['’]t)"
_HOW = r"(?:(?:explicitly|directly|actually|even)\s+)?"
_TELLS = (
    r"(?:say|says|tell|tells|mention|mentions|state|states|specify|specifies|contain|contains|provide|provides|give|gives|"
    r"reveal|reveals|identify|identifies|name|names|explain|explains|describe|describes|include|includes|hold|answer)"
)
_TOLD = r"(?:said|told|mentioned|stated|specified|given|provided|named|described|revealed|answered|disclosed|discussed)"
_KNOWLEDGE = (
    r"(?:answer|information|mention|indication|details?|name|title|surname|figure|number|date|age|reason)"
)
_ENDS = r"(?=\s*(?:[.,;:!?)]|$|(?:that\s+)?(?:I|you|we)\b|provided|given|itself))"
_DENIALS = (
    rf"\b{_TEXT}{_SHOWN}\s+{_NOT}\s+{_HOW}{_TELLS}\b",
    rf"\b{_TEXT}{_SHOWN}\s+(?:gives?|provides?|contains?|offers?|has|have|holds?|makes?)\s+(?:us\s+)?no\s+{_KNOWLEDGE}\b",
    rf"\b{_TEXT}{_SHOWN}\s+leaves?\s+(?:that|this|it)\s+(?:open|unsaid|unanswered)\b",
    rf"(?:\b(?:not|never)|n['’]t)\s+(?:\w+\s+)?{_TOLD}\s+(?:anywhere\s+)?(?:in|by)\s+{_THE}{_TEXT}\b",
    rf"{_IS_NOT}\s+(?:to\s+be\s+)?(?:(?:found|present|contained|included|available)\s+)?(?:anywhere\s+)?"
    rf"(?:in|within|from)\s+{_THE}{_SURE}{_ENDS}",
    rf"^(?:the|that|this)?\s*(?:answer|information)\s+{_IS_NOT}\s+(?:\w+\s+)?(?:in|within|from)\s+{_THE}{_TEXT}\b",
    rf"{_CANNOT}\s+(?:be\s+(?:told|answered|found|determined|known|inferred)|(?:find|answer|tell|determine)\b.{{0,60}}?)"
    rf"\s+(?:anywhere\s+)?(?:in|from|by|with)\s+{_THE}{_SURE}\b",
    rf"\bno\s+(?:information|mention)\b.{{0,60}}\b{_TEXT}\b",
    rf"^(?:there\s+is\s+)?(?:no\s+answer|nothing)\b.{{0,30}}\bin\s+{_THE}{_SURE}\b",
    rf"^no\s+(?:passage|part|chapter)\s+(?:in|of)\s+{_THE}{_TEXT}\s+{_TELLS}\b",
    rf"^(?:the\s+answer|that|this|it)\s+{_IS_NOT}\s+{_HOW}{_TOLD}\W*$",
    r"\b(?:we|readers)\s+(?:are not|aren['’]t|are never)\s+told\b",
)
_DENIAL = re.compile("|".join(_DENIALS), re.IGNORECASE | re.DOTALL)
LONGEST = 2  # sentences: a longer answer tells something, too
_COMMON_WORDS = """
    about after again also because been before being between both could does doing down during each
    else ever every from give given gives have having here himself herself into itself just know
    like made make many more most much must name named names never only other over please said same
    says shall should some such tell tells text book document story than that their them then there
    these they this those through under until upon very wanted was were what when where which while
    whom whose will with would your answer chapter page describe explain mention mentioned according
    the and for are his her who how why did has had him she its one two out not you can may all any
"""
COMMON = frozenset(_COMMON_WORDS.split())
_WORD = re.compile(r"[^\W\d_][\w'’-]*")
MOST_PAGES = 5  # on which a single word may stand to be worth telling
SHOWN = 2  # phrases


def is_denial(answer: str) -> bool:
    """True if an answer says in its first sentence that the documents do not tell, and little else."""
    sentences = spans(answer)
    if not sentences or len(sentences) > LONGEST:
        return False
    start, end = sentences[0]
    return bool(_DENIAL.search(answer[start:end].strip()))


def standing(question: str, documents: Sequence[Document]) -> tuple[LookedUp, ...]:
    """The longest phrases of the question that stand in the documents, each with its first pages."""
    found: list[LookedUp] = []
    for phrase in _phrases(question):
        if any(phrase.casefold() in each.words.casefold() for each in found):
            continue
        places = _places(phrase, documents)
        alone = " " not in phrase
        if places and not (alone and len(places) > MOST_PAGES):
            found.append(LookedUp(phrase, places))
        if len(found) == SHOWN:
            break
    return tuple(found)


def _phrases(question: str) -> Iterator[str]:
    """Runs of neighbouring words that mean something, the longest first; then single words, the longest first."""
    runs: list[list[str]] = [[]]
    before = 0
    for match in _WORD.finditer(question):
        adjacent = not question[before : match.start()].strip()
        before = match.end()
        common = match[0].casefold() in COMMON or len(match[0]) < 3
        if common or not adjacent:
            runs.append([])
        if not common:
            runs[-1].append(match[0])
    for size in range(max(map(len, runs)), 1, -1):
        for run in runs:
            yield from (" ".join(run[at : at + size]) for at in range(len(run) - size + 1))
    yield from sorted({word for run in runs for word in run}, key=lambda word: (-len(word), word))


def _places(phrase: str, documents: Sequence[Document]) -> tuple[Place, ...]:
    hits = islice(
        find(documents, re.compile(rf"\b{pattern(phrase).pattern}", re.IGNORECASE)), 10 * MOST_PAGES
    )
    first: dict[tuple[str, int], Place] = {}
    for hit in hits:
        place = Place(hit.document.title, hit.document.unit, hit.page, where=hit.where)
        first.setdefault((place.document, place.page), place)
    return tuple(first.values())[: MOST_PAGES + 1]
