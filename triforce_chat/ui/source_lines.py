"""The sources of an answer as text: the lines below it, the details of /sources, and warnings about citations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from triforce_chat.chat.events import Citation, LookedUp, Place, Sourced
from triforce_chat.ui import formatting
from triforce_chat.ui.clean import clean

SHOWN_QUOTE = 60  # characters
SHOWN_PLACES = 3
NOWHERE = "nowhere in the documents"


def below_answer(sourced: Sourced | None) -> Iterator[tuple[str, str]]:
    """The lines below an answer, each with its style: its sources, and a warning for each false citation."""
    if sourced is None:
        return
    if sourced.sources:
        yield sources_line(sourced), "dim"
    for each in sourced.standing:
        yield standing_line(each), "dim"
    for line in checked_quotes(sourced.quotes):
        yield line, "dim"
    for line in warnings(sourced):
        yield line, "bold"


def standing_line(words: LookedUp) -> str:
    """Where a question's words appear, for an answer that denies."""
    return _appears(f"“{clean(words.words)}”", words.found_on)


def checked_quotes(quotes: Iterable[LookedUp]) -> Iterator[str]:
    """One line for each quotation that appears in the documents."""
    for quote in quotes:
        if quote.found_on:
            yield _appears(_quoted(quote.words), quote.found_on)


def _appears(quoted: str, places: Sequence[Place]) -> str:
    return f"{quoted} appears in {join_places(places[:SHOWN_PLACES])}"


def warnings(sourced: Sourced) -> list[str]:
    """One line for each citation that is false and each quotation that appears nowhere."""
    missing = [quote.words for quote in sourced.quotes if not quote.found_on]
    lines = [f"{_quoted(words)} appears {NOWHERE}" for words in missing]
    return [*citation_warnings(sourced.citations), *lines]


def _quoted(words: str) -> str:
    return f"“{formatting.shorten(clean(' '.join(words.split())), SHOWN_QUOTE)}”"


def sources_line(sourced: Sourced) -> str:
    """The most important source pages in one line."""
    return f"sources: {join_places(sourced.sources[:SHOWN_PLACES])}"


def details(sourced: Sourced) -> Iterator[Text]:
    """Each source page with its share and its sentence, then the warnings."""
    for source in sourced.sources:
        heading = join_places([source])
        yield Text.assemble((heading, "bold"), f"{formatting.SEPARATOR}{formatting.percent(source.share)}")
        if source.sentence:
            yield Text(f"  {clean(source.sentence)}")
    for line in checked_quotes(sourced.quotes):
        yield Text(line)
    for line in warnings(sourced):
        yield Text(line, "bold")


def join_places(found: Iterable[Place]) -> str:
    """Places as in "treasure-island p. 12, p. 31, emma ch. IV, l. 7": a title is named where it changes."""
    parts, title = [], None
    for place in found:
        page = place_label(place)
        parts.append(page if place.document == title else f"{clean(place.document)} {page}")
        title = place.document
    return ", ".join(parts)


def place_label(place: Place) -> str:
    """A place by its chapter and lines if they are known, else by its page or section."""
    return clean(place.where) or page_label(place.unit, place.page)


def page_label(unit: str, first: int, last: int | None = None) -> str:
    """A page or section, or a range of them."""
    if last is None or last == first:
        return f"p. {first}" if unit == "page" else f"{unit} {first}"
    return f"pp. {first}-{last}" if unit == "page" else f"{unit}s {first}-{last}"


def citation_warnings(citations: Iterable[Citation]) -> list[str]:
    """One line for each citation that is false."""
    return [_warning(citation) for citation in citations if not citation.holds]


def _warning(citation: Citation) -> str:
    pages = page_label(citation.unit, citation.page, citation.last_page)
    several = citation.last_page > citation.page
    missing = f"{pages} {'do' if several else 'does'} not exist"
    if citation.quote is None:
        return missing
    quote = _quoted(citation.quote)
    if not citation.exists:
        return f"{missing}; {quote} appears {_where(citation)}"
    return f"{pages} {'do' if several else 'does'} not contain {quote}; it appears {_where(citation)}"


def _where(citation: Citation) -> str:
    if not citation.found_on:
        return NOWHERE
    more = ", …" if len(citation.found_on) > SHOWN_PLACES else ""
    return f"in {join_places(citation.found_on[:SHOWN_PLACES])}{more}"
