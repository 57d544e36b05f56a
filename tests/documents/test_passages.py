"""Passages of documents found by a question's words."""

from __future__ import annotations

import pytest

from triforce_chat.documents.model import Document, Page
from triforce_chat.documents.passages import PASSAGE_WORDS, PassageIndex

FILLER = "The day was long and the road was dusty, and nobody in the village spoke of it again. "


def document(*texts: str) -> Document:
    return Document("T", "t.txt", tuple(Page(number, text) for number, text in enumerate(texts, 1)))


def test_the_passage_with_the_rare_words_is_found() -> None:
    text = FILLER * 40 + "The gardener gave her a pot of geraniums. " + FILLER * 40
    (found,) = PassageIndex([document(FILLER * 30, text)]).best("What did the gardener give her?", 1)
    assert "geraniums" in found.text
    assert found.page.number == 2
    assert len(found.text.split()) < 2 * PASSAGE_WORDS


def test_words_match_by_their_stems() -> None:
    text = FILLER * 20 + "He was digging in the ruins. " + FILLER * 20
    (found,) = PassageIndex([document(text)]).best("Who digs there?", 1)
    assert "digging" in found.text


def test_passages_come_in_reading_order_and_share_no_sentence() -> None:
    marked = "".join(FILLER * 9 + f"The heron of number {n} flew. " for n in range(8))
    found = PassageIndex([document(marked), document(FILLER * 20 + "A heron and another heron.")]).best(
        "heron", 4
    )
    assert len(found) == 4
    places = [(each.document.pages, each.page.number, each.start) for each in found]
    assert [place[2] for place in places[:-1]] == sorted(place[2] for place in places[:-1])
    assert "another heron" in found[-1].text
    assert not any(a.overlaps(b) for a in found for b in found if a is not b)


@pytest.mark.parametrize("question", ["", "?!", "zzyzx", '" OR *'])
def test_a_question_without_known_words_finds_nothing(question: str) -> None:
    assert PassageIndex([document(FILLER * 5, "", " \n")]).best(question.replace("OR", "qq"), 3) == []


def test_quotes_and_operators_in_a_question_are_words() -> None:
    index = PassageIndex([document("He said NEAR and stayed. " + FILLER * 5)])
    assert index.best('Who said "NEAR(" AND NOT near:* ^stayed?', 1)


def test_text_without_sentences_is_cut_by_words() -> None:
    table = " ".join(f"cell{n}" for n in range(2_000))
    (found,) = PassageIndex([document(table)]).best("cell1500", 1)
    assert "cell1500" in found.text.split()
    assert len(found.text.split()) <= 2 * PASSAGE_WORDS
