"""Pages that an answer names, checked against the pages' own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triforce_chat.chat.citations import check_citations, contains, normalized
from triforce_chat.chat.events import Citation, Place
from triforce_chat.documents import Document, Page

ONE = "The keeper lit the lamp at dusk. It was a well-\nknown light-\nhouse, and nobody doubted its"
TWO = "strength. “Come up,” said Miss Ellery; ‘the ﬁrst ﬂoor isn’t safe.’\nHer father — an engineer — had built it."
THREE = "In 1894 it cost 1,200 crowns. The keeper lit the lamp again."


def book(*texts: str, title: str = "Varra", unit: str = "page", first: int = 1) -> Document:
    return Document(title, "", tuple(Page(n, text) for n, text in enumerate(texts, first)), unit)


VARRA = book(ONE, TWO, THREE)


def only(answer: str, *documents: Document) -> Citation:
    (citation,) = check_citations(answer, documents or (VARRA,))
    return citation


def found(citation: Citation) -> list[int]:
    return [place.page for place in citation.found_on]


@pytest.mark.parametrize(
    "answer",
    [
        "“lit the lamp at dusk” (p. 1)",
        'He "LIT THE LAMP,  AT DUSK" [page 1].',
        "As page 1 says, «lit the lamp at dusk».",
        "On pp. 1-2 we read “the keeper lit the lamp”.",
        "Pages 1 and 2: “nobody doubted its strength”.",
        "“nobody doubted its strength” (p. 1)",  # runs on to the next page
        "“nobody doubted its strength” (p. 2)",
        "“a well-known lighthouse” stands on p. 1.",
        "“a wellknown light-house” stands on p. 1.",
        "p. 2: ‘the first floor isn't safe’",
        "p. 2 has “the first floor isn‘t safe”.",
        "“Her father - an engineer - had built it” p.2",
        "“Her father ... built it” (page 2)",
        "“[H]er father […] built it.” (page 2)",
        "See page 2 for „Come up“.",
        "The cost was “1,200 crowns” on p. 3.",
        "He wrote: “Come up. The first floor isn’t safe.” (p. 2)".replace("up. The", "up,” said “the"),
        "It is told on page 3.",
        "It is told on pages 1–3.",
        "It is told on page 3, in 1894.",
    ],
)
def test_what_holds(answer: str) -> None:
    checked = check_citations(answer, [VARRA])
    assert checked
    assert all(citation.holds and not citation.found_on for citation in checked)


def test_words_that_stand_on_another_page() -> None:
    citation = only("“lit the lamp again” (p. 1)")
    assert citation == Citation("page", 1, 1, "lit the lamp again", False, (Place("Varra", "page", 3),), True)


def test_words_that_stand_nowhere() -> None:
    citation = only("Page 2 says “lit the fuse”.")
    assert (citation.holds, citation.found_on, citation.exists) == (False, (), True)


def test_words_across_a_border_are_found_on_the_first_of_its_pages() -> None:
    assert found(only("“doubted its strength” (p. 3)")) == [1]


def test_words_on_several_pages_are_found_on_all() -> None:
    assert found(only("“the keeper lit the lamp” (p. 2)")) == [1, 3]


def test_a_neighbour_that_holds_the_words_alone_does_not_count() -> None:
    assert not only("“come up” (p. 1)").holds
    assert not only("“come up” (p. 3)").holds


@pytest.mark.parametrize("answer", ["This is on page 4.", "It is told on pp. 2-9.", "See p. 0."])
def test_pages_that_do_not_exist(answer: str) -> None:
    citation = only(answer)
    assert (citation.quote, citation.holds, citation.exists) == (None, False, False)


def test_a_quotation_from_a_page_that_does_not_exist() -> None:
    citation = only("“lit the lamp again” (p. 12)")
    assert (citation.holds, citation.exists, found(citation)) == (False, False, [3])


def test_each_quotation_belongs_to_the_nearest_page_of_its_sentence() -> None:
    answer = (
        "First “at dusk” (p. 1), then “an engineer” (p. 2). He said “nothing at all”. "
        "Later, p. 3 has “crowns” and “again”."
    )
    assert [(each.page, each.quote, each.holds) for each in check_citations(answer, [VARRA])] == [
        (1, "at dusk", True),
        (2, "an engineer", True),
        (3, "crowns", True),
        (3, "again", True),
    ]


def test_a_page_in_brackets_behind_the_stop_belongs_to_the_sentence() -> None:
    citation = only("She said: “The first floor is safe.” (p. 2)")
    assert (citation.quote, citation.holds) == ("The first floor is safe.", False)


def test_the_same_claim_counts_once() -> None:
    assert len(check_citations("Page 1. Again page 1. And “dusk” on p. 1; “dusk” on page 1.", [VARRA])) == 2


@pytest.mark.parametrize(
    "answer",
    ["", "Nothing here.", "p. x", "pages", "1894", "page 1.5", "map. 3", "the 3rd page", "p.", "pages 3-2"],
)
def test_what_names_no_page(answer: str) -> None:
    assert check_citations(answer, [VARRA]) == ()


def test_sections_are_another_unit() -> None:
    chapters = book("It began.", "It ended.", title="Tale", unit="section")
    assert check_citations("See page 7 of “It began”.", [chapters]) == ()
    assert only("“It ended” is in section 1.", chapters).found_on == (Place("Tale", "section", 2),)
    assert [each.holds for each in check_citations("p. 1 and section 2", [VARRA, chapters])] == [True, True]


def test_any_of_several_documents_may_hold_the_words() -> None:
    other = book("Nothing but rain.", "More rain.", title="Rain")
    assert only("“but rain” (p. 1)", VARRA, other).holds
    assert only("“more rain” (p. 1)", VARRA, other).found_on == (Place("Rain", "page", 2),)


def test_pages_keep_their_own_numbers() -> None:
    part = book("The mill.", "The weir.", first=40)
    assert only("“the weir” (p. 41)", part).holds
    assert not only("“the weir” (p. 2)", part).exists


def test_left_out_words_keep_their_order() -> None:
    assert contains("one two three four", "one … three")
    assert contains("one two three four", "... two … four ...")
    assert not contains("one two three four", "three … one")
    assert not contains("one two", "one … one")


def test_whole_words_only() -> None:
    assert not contains("the lamplighter", "the lamp")
    assert contains("the lamp, lighter", "lamp lighter")


@given(st.text(), st.integers(0, 40), st.integers(1, 40))
def test_whatever_is_cut_between_words_is_contained(text: str, start: int, length: int) -> None:
    pieces = text.split()
    cut = " ".join(pieces[start : start + length])
    assert contains(" ".join(pieces), cut) or not normalized(cut).strip()


@given(st.text(alphabet="ab -“”\".…[]()p0123\n'"))
def test_any_answer_can_be_checked(answer: str) -> None:
    for citation in check_citations(answer, [VARRA]):
        assert citation.page <= citation.last_page
        assert not (citation.holds and citation.found_on)
        assert citation.exists or not citation.holds


@given(st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta"]), min_size=1, max_size=6), st.data())
def test_a_divided_word_is_the_same_word(parts: list[str], data: st.DataObject) -> None:
    broken = " ".join(f"{part[:2]}-\n{part[2:]}" if data.draw(st.booleans()) else part for part in parts)
    assert contains(f"x {broken} y", " ".join(parts))
