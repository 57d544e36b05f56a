"""What a conversation says of answers that go in circles, deny, or quote."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.chat_sessions import ScriptedDecoder, TinySession, book
from support.documents import opened

from triforce_chat.chat.citations import check_quotes
from triforce_chat.chat.denial import is_denial, standing
from triforce_chat.chat.events import Sourced, Tally
from triforce_chat.chat.repetition import SPAN, goes_in_circles
from triforce_chat.documents import Document, Page
from triforce_chat.documents.sentences import spans
from triforce_chat.engine.engine import Engine
from triforce_chat.lab.tasks.text_data import read_lines
from triforce_chat.models.load import LoadedModel

Made = tuple[Engine, LoadedModel]
COPIES = 3
CHEST = book("isle", "It was night.", "The old sea\nchest stood in the hall, and the lamp was out.", "End.")


@pytest.mark.parametrize("period", [1, 2, 7, 24, 25, 100, 256])
def test_circles_are_noticed_as_soon_as_there_are_enough_copies(period: int) -> None:
    start = [-1, -2, -3]
    ids = [*start, *(list(range(period)) * (SPAN + COPIES))]
    first = next(length for length in range(len(ids)) if goes_in_circles(ids[:length], COPIES))
    assert first == len(start) + max(COPIES * period, SPAN)


def test_what_changes_a_little_is_no_circle() -> None:
    line = list(range(30))
    assert not goes_in_circles([token for number in range(40) for token in (*line, 1000 + number)], COPIES)
    assert not goes_in_circles([0] * (SPAN - 1), COPIES)
    assert not goes_in_circles([], COPIES)


def in_circles(loaded: Made, said: str = "so it is. " * 40, **settings: int) -> tuple[TinySession, Tally]:
    session = TinySession(loaded, max_tokens=300, **settings)
    ids = session.encode(f"Well: {said}")[:300]
    session.engine.top = ScriptedDecoder(session.engine, ids)  # type: ignore[assignment]
    return session, session.answer("Why?")


def test_lines_that_end_elsewhere_in_each_copy_are_circles_nevertheless(loaded: Made) -> None:
    words = ("so it is, and was, and will be. " * 40).split()
    ends = [not number % 11 for number in range(len(words))]  # a copy has eight words
    wrapped = "".join(f"{word}{chr(10) if end else ' '}" for word, end in zip(words, ends, strict=True))
    _, tally = in_circles(loaded, wrapped)
    assert tally.finished is not None
    assert tally.finished.reason == "repetition"
    assert len(tally.text.split()) <= SPAN + 2


def test_an_answer_in_circles_is_stopped_and_can_be_continued(loaded: Made) -> None:
    session, tally = in_circles(loaded)
    assert tally.finished is not None
    assert tally.finished.reason == "repetition"
    assert tally.text == session.turns[-1].answer
    assert 3 <= tally.text.count("so it is.") < 15
    assert (tally.finished.completion_tokens, tally.finished.decode_s > 0) == (len(tally.token_ids), True)
    rest = session.encode("And so on. " * 2)
    session.engine.top = ScriptedDecoder(session.engine, rest)  # type: ignore[assignment]
    session.settings = session.settings.with_text("max-tokens", str(len(rest)))
    assert [event for event in session.resume() if event.kind == "finished"]
    assert session.turns[-1].answer.endswith("And so on. And so on. ")


def test_the_guard_can_be_turned_off(loaded: Made) -> None:
    _, tally = in_circles(loaded, loop_guard=0)
    assert tally.finished is not None
    assert tally.finished.reason == "length"


@pytest.mark.parametrize(
    ("answer", "denies"),
    [
        ("The document does not say.", True),
        ("The text doesn't tell us who paid for it; it is not named.", True),
        ("It is never explicitly stated in the book. The captain keeps silent.", True),
        ("There is no mention of a dog in this passage.", True),
        ("We aren't told which perfume it was.", True),
        ("The answer is not in the document.", True),
        ("The answer isn't in the book.", True),
        ("That is not in the text that you gave me.", True),
        ("This information could not be found anywhere in the provided passages.", True),
        ("I cannot answer that from the document.", True),
        ("That is not mentioned.", True),
        ("The text leaves that open.", True),
        ("The text gives no name for her.", True),
        ("The book, as far as it is shown here, doesn't mention it.", True),
        ("The key is not in the book but under the clock.", False),
        ("Her signature is not in the document case.", False),
        ("I cannot find words to express my displeasure.", False),
        ("She could not find it in the book; she had to look for it herself.", False),
        ("The text gives a name for her: Anna.", False),
        ("Nothing in the book pleased him.", False),
        ("The lamp was sold, but its price is not given.", False),
        ("He does not say a word.", False),
        ("The book is on the table.", False),
        ("Anna paid. She sold the boat. The text does not say for how much.", False),
        ("", False),
    ],
)
def test_denials(answer: str, denies: bool) -> None:
    assert is_denial(answer) is denies


@pytest.mark.parametrize("answer", read_lines("reading/denials"))
def test_what_the_models_are_trained_to_say_of_absent_answers_is_a_denial(answer: str) -> None:
    assert is_denial(answer)


def test_no_sentence_of_a_story_is_a_denial() -> None:
    story = (Path(__file__).parents[2] / "examples" / "the-lighthouse-at-varra.md").read_text("utf-8")
    assert [story[start:end] for start, end in spans(story) if is_denial(story[start:end])] == []


def test_words_of_the_question_that_stand_in_the_document() -> None:
    (found,) = standing("What was in the Sea Chest of the bishop?", [CHEST])
    assert (found.words, [place.page for place in found.found_on]) == ("Sea Chest", [2])
    assert standing("Who is the bishop?", [CHEST]) == ()
    assert standing("?", [CHEST]) == ()
    often = book("often", *["a lamp"] * 9)
    assert standing("Is there a lamp?", [often]) == ()  # a word that stands everywhere helps nobody
    (lamp,) = standing("Is there a lamp?", [CHEST])
    assert lamp.found_on[0].page == 2


def answered(loaded: Made, answer: str) -> Sourced:
    session = TinySession(loaded)
    session.add(CHEST)
    ids = session.encode(answer)
    session.settings = session.settings.with_text("max-tokens", str(len(ids)))
    session.engine.top = ScriptedDecoder(session.engine, ids)  # type: ignore[assignment]
    sourced = session.answer("What was in the sea chest?").sourced
    assert sourced is not None
    return sourced


def test_a_denial_has_no_sources(loaded: Made) -> None:
    denial = answered(loaded, "The document does not say.")
    assert denial.sources == ()
    assert [each.words for each in denial.standing] == ["sea chest"]
    told = answered(loaded, 'It says "the lamp was out".')
    assert told.sources
    assert told.standing == ()
    assert [(quote.words, quote.found_on[0].page) for quote in told.quotes] == [("the lamp was out", 2)]


def test_words_and_quotes_of_a_text_are_placed_as_its_sources_are() -> None:
    rain = "It rained on the roof and on the quay.\n" * 40
    text = f"CHAPTER I\n\n{rain}\nCHAPTER II\n\nA sea chest stood\nin the hall.\n{rain}The end was not the end.\n"
    tale = opened(text.encode())
    (chest,) = standing("What was in the sea chest?", [tale])
    assert [place.where for place in chest.found_on] == ["ch. II, l. 3-4"]
    quoted = check_quotes('"A sea chest stood in the hall" and "the end … not the end."', [tale])
    assert [[place.where for place in each.found_on] for each in quoted] == [
        ["ch. II, l. 3-4"],
        ["ch. II, l. 45"],
    ]


def test_a_quotation_that_ends_on_the_next_page_is_placed_by_its_first_words() -> None:
    first, second = "CHAPTER I\n\nThe keeper lit the", "lamp again.\n"
    tale = Document("tale", "", (Page(1, first), Page(2, second)), "section", has_lines=True)
    (quote,) = check_quotes('"the keeper lit the lamp again"', [tale])
    assert [(place.page, place.where) for place in quote.found_on] == [(1, "l. 3")]


def test_quotes_are_looked_up() -> None:
    answer = 'He says “chest stood in the hall, and” and "not a word of it". Then: "End". "It was so bright" (p. 2).'
    found, missing = check_quotes(answer, [CHEST])
    assert [place.page for place in found.found_on] == [2]
    assert (missing.words, missing.found_on) == ("not a word of it", ())
