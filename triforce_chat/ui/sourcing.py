"""Where an answer came from, in words: the line below it, what /sources shows, and citations that do not hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from triforce_chat.engine.events import Citation, Place, Sourced
from triforce_chat.ui import figures
from triforce_chat.ui.clean import clean

SHOWN_QUOTE = 60  # characters
SHOWN_PLACES = 3


def lines(sourced: Sourced | None) -> Iterator[tuple[str, str]]:
    """The pages, and a line for every citation that does not hold; each with its style."""
    if sourced is None:
        return
    if sourced.sources:
        yield line_of(sourced), "dim"
    for line in complaints(sourced.citations):
        yield line, "bold"


def line_of(sourced: Sourced) -> str:
    return f"sources: {places(sourced.sources[:SHOWN_PLACES])}"


def details(sourced: Sourced) -> Iterator[Text]:
    """Every page with its share and its sentence."""
    for source in sourced.sources:
        heading = f"{clean(source.document)}, {named(source.unit, source.page)}"
        yield Text.assemble((heading, "bold"), f"{figures.SEPARATOR}{figures.share(source.share)}")
        if source.sentence:
            yield Text(f"  {clean(source.sentence)}")
    for line in complaints(sourced.citations):
        yield Text(line, "bold")


def places(found: Iterable[Place]) -> str:
    """``treasure-island p. 12, p. 31, emma p. 7``: a title stands where it changes."""
    parts, title = [], None
    for place in found:
        page = named(place.unit, place.page)
        parts.append(page if place.document == title else f"{clean(place.document)} {page}")
        title = place.document
    return ", ".join(parts)


def named(unit: str, first: int, last: int | None = None) -> str:
    if last is None or last == first:
        return f"p. {first}" if unit == "page" else f"{unit} {first}"
    return f"pp. {first}-{last}" if unit == "page" else f"{unit}s {first}-{last}"


def complaints(citations: Iterable[Citation]) -> list[str]:
    """One line for each citation that does not hold."""
    return [_complaint(citation) for citation in citations if not citation.holds]


def _complaint(citation: Citation) -> str:
    pages = named(citation.unit, citation.page, citation.last_page)
    several = citation.last_page > citation.page
    missing = f"{pages} {'do' if several else 'does'} not exist"
    if citation.quote is None:
        return missing
    quote = f"“{figures.shortened(clean(' '.join(citation.quote.split())), SHOWN_QUOTE)}”"
    if not citation.exists:
        return f"{missing}; {quote} is {_where(citation)}"
    return f"{pages} {'do' if several else 'does'} not contain {quote}; it is {_where(citation)}"


def _where(citation: Citation) -> str:
    if not citation.found_on:
        return "nowhere in the documents"
    more = ", …" if len(citation.found_on) > SHOWN_PLACES else ""
    return f"in {places(citation.found_on[:SHOWN_PLACES])}{more}"
