"""Sentences of a page, and words looked up in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triforce_chat.documents import Document, Page
from triforce_chat.documents.search import find, pattern
from triforce_chat.documents.sentences import at, one_line, spans
from triforce_chat.errors import UsageError


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in spans(text)]


def document(*texts: str, title: str = "A book") -> Document:
    return Document(title, "", tuple(Page(number, text) for number, text in enumerate(texts, 1)))


def hits(words: str, *texts: str) -> list[tuple[int, str, int]]:
    return [(hit.page, hit.sentence, hit.count) for hit in find([document(*texts)], pattern(words))]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" \n\n ", []),
        ("No stop", ["No stop"]),
        ("One. Two! Three?  Four…\nfive", ["One.", "Two!", "Three?", "Four…", "five"]),
        ("He said “Go.” She went.", ["He said “Go.”", "She went."]),
        ("A heading\n\nA text. ", ["A heading", "A text."]),
        ("Mr. Lie saw Dr. Berg on p. 3. He left.", ["Mr. Lie saw Dr. Berg on p. 3.", "He left."]),
        ("J. R. Berg paid 3.50 crowns.", ["J. R. Berg paid 3.50 crowns."]),
        ("A line\nand another.", ["A line\nand another."]),
    ],
)
def test_sentences(text: str, parts: list[str]) -> None:
    assert sentences(text) == parts


@given(st.text(alphabet="aB. !?\n”(…"))
def test_sentences_lose_nothing_and_do_not_overlap(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())
    ends = [edge for span in spans(text) for edge in span]
    assert ends == sorted(ends)


def test_the_sentence_at_an_offset() -> None:
    text = "One.  Two."
    assert [at(spans(text), offset) for offset in (0, 3, 5, 6, 9)] == [
        (0, 4),
        (0, 4),
        (0, 4),
        (6, 10),
        (6, 10),
    ]


def test_one_line() -> None:
    assert (
        one_line("a light-\nhouse, well-known\nin Co-\nLondon  so\u00adft")
        == "a lighthouse, well-known in Co- London soft"
    )


@pytest.mark.parametrize(
    "text",
    [
        "The light house.",
        "THE LIGHT\nHOUSE.",
        "the light-house",
        "the li-\nght house",
        "the lig\u00adht  house",
    ],
)
def test_case_line_ends_and_hyphens_do_not_count(text: str) -> None:
    assert len(hits("the light-house", text)) == len(hits("The light house", text)) == 1


def test_quotes_are_alike() -> None:
    assert hits('isn\'t "safe"', "It isn’t “safe”.")


def test_nothing_is_a_pattern() -> None:
    assert hits("a.c (d", "abc d. a.c (d. a.c") == [(1, "a.c (d.", 1)]


def test_hits_by_page_and_sentence() -> None:
    texts = ("The lamp, the lamp. No. A lamp", "", "Lamps are\nlamps.")
    assert hits("lamp", *texts) == [
        (1, "The lamp, the lamp.", 2),
        (1, "A lamp", 1),
        (3, "Lamps are lamps.", 2),
    ]


def test_words_that_run_over_a_sentences_end_are_shown_whole() -> None:
    assert hits("end. Begin", "The end. Begin again. No.") == [(1, "The end. Begin", 1)]


def test_several_documents() -> None:
    found = find([document("the mill", title="One"), document("a mill", title="Two")], pattern("mill"))
    assert [(hit.document.title, hit.page) for hit in found] == [("One", 1), ("Two", 1)]


@pytest.mark.parametrize("words", ["", "  ", "-", " - ‑ "])
def test_no_words(words: str) -> None:
    with pytest.raises(UsageError, match="no words"):
        pattern(words)


@given(st.text(min_size=1, max_size=20), st.text(max_size=20))
def test_what_stands_there_is_found(words: str, around: str) -> None:
    try:
        wanted = pattern(words)
    except UsageError:
        return
    assert hits(words, f"{around} {words} {around}") or not words.strip() or not wanted.search(words)
