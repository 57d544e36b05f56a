"""Pages and sentences below an answer: the right ones with several documents and turns, and nothing disturbed."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest
from support.chat_sessions import ScriptedDecoder, TinySession, book
from support.fakes import tally_of

from triforce_chat.chat.events import ChatEvent, Source, Sourced
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Finished, Retraced, Text
from triforce_chat.models.load import LoadedModel

Made = tuple[Engine, LoadedModel]
ONE = ("It was night.\n", "", "The é mill\nstood still. A needle lay there! No.\n")
TWO = ("Morning came. Who saw it?\n", "The needle again.\n")


class PointingSession(TinySession):
    """A session whose answers attended to given texts in the prompt, the first one most."""

    def point_at(self, *texts: str) -> None:
        def attribute(request: Request, made: Sequence[int]) -> Generator[Retraced, None, list[float]]:  # noqa: ARG001
            yield Retraced(1, 1)
            weights = [0.0] * len(request.prompt)
            for weight, text in zip((4.0, 2.0, 1.0), texts, strict=False):
                wanted = self.encode(text)  # a token is a byte
                at = next(i for i in range(len(weights)) if request.prompt[i : i + len(wanted)] == wanted)
                weights[at : at + len(wanted)] = [weight] * len(wanted)
            return weights

        self.engine.attribute = attribute  # type: ignore[method-assign]

    def sources(self, question: str = "Where?") -> tuple[Source, ...]:
        tally = self.answer(question)
        assert tally.sourced is not None
        assert self.turns[-1].tally.sourced == tally.sourced
        return tally.sourced.sources


def test_pages_of_several_documents_and_turns(loaded: Made) -> None:
    session = PointingSession(loaded)
    session.add(book("One", *ONE))
    session.add(book("Two", *TWO, unit="section"))
    session.point_at("needle lay")
    assert session.sources() == (Source("One", "page", 3, 1.0, "A needle lay there!"),)
    session.add(book("Three", "A third text. Its needle is elsewhere."))
    session.point_at("needle again", "needle is", "night")
    first, second, third = session.sources("And now?")
    assert (first.document, first.unit, first.page, first.sentence) == (
        "Two",
        "section",
        2,
        "The needle again.",
    )
    assert (second.document, second.page, second.sentence) == ("Three", 1, "Its needle is elsewhere.")
    assert (third.document, third.page, third.sentence) == ("One", 1, "It was night.")
    given = [4 * len("needle again"), 2 * len("needle is"), len("night")]
    assert [each.share for each in (first, second, third)] == pytest.approx([n / sum(given) for n in given])


def test_pages_that_were_chosen_keep_their_numbers(loaded: Made) -> None:
    from triforce_chat.documents import parse_pages

    session = PointingSession(loaded)
    session.add(book("One", *ONE).select(parse_pages("3")))
    session.point_at("mill")
    assert session.sources() == (Source("One", "page", 3, 1.0, "The é mill stood still."),)


def test_the_question_and_headings_are_no_sources(loaded: Made) -> None:
    session = PointingSession(loaded)
    session.add(book("Some title", "text\n"))
    session.point_at("Some title", "brief", "Why")
    assert session.sources("Why is that?") == ()


def test_a_document_without_text_on_its_best_page_has_a_source(loaded: Made) -> None:
    session = PointingSession(loaded)
    session.add(book("One", "a\n", "\n \n"))
    session.point_at("\n \n")
    assert session.sources() == (Source("One", "page", 2, 1.0, ""),)


def test_sources_follow_the_end_and_change_no_token(loaded: Made) -> None:
    session, other = TinySession(loaded), TinySession(loaded)
    for each in (session, other):
        each.add(book("One", *ONE))
    request = other.request(other.question_ids("Why?"))
    expected = tally_of(other.engine.answer(request, plain=True)).token_ids
    events = list(session.ask("Why?"))
    assert isinstance(events[-1], Sourced)
    assert isinstance(events[-2], Retraced)
    assert isinstance(events[-3], Finished)
    assert [token for event in events if isinstance(event, Text) for token in event.token_ids] == expected
    sources = events[-1].sources
    assert [source.page for source in sources] in ([1, 3], [3, 1])  # page 2 is empty
    assert sum(source.share for source in sources) == pytest.approx(1)
    session.assert_like_fresh_engine("And?")


@pytest.mark.parametrize("last", [Finished, Retraced])
def test_stopped_while_sources_are_looked_for(loaded: Made, last: type[ChatEvent]) -> None:
    session = TinySession(loaded)
    session.add(book("One", *ONE))
    events = session.ask("Why?")
    for event in events:
        if isinstance(event, last):
            break
    events.close()
    assert session.turns[-1].tally.finished is not None
    assert session.turns[-1].tally.finished.reason != "interrupted"
    assert session.turns[-1].tally.sourced is None
    session.assert_like_fresh_engine("And?")


def test_without_documents_there_are_none(loaded: Made) -> None:
    session = TinySession(loaded)
    assert not any(isinstance(event, Sourced) for event in session.ask("Why?"))


def test_pages_that_the_answer_names_are_checked(loaded: Made) -> None:
    session = PointingSession(loaded, max_tokens=40)
    session.add(book("One", *ONE))
    session.point_at("mill")
    answer = 'It was "night" (p. 3), p. 9.'
    session.settings = session.settings.with_text("max_tokens", str(len(session.encode(answer))))
    session.engine.top = ScriptedDecoder(session.engine, session.encode(answer))  # type: ignore[assignment]
    tally = session.answer("When?")
    assert tally.text == answer
    assert tally.sourced is not None
    night, missing = tally.sourced.citations
    assert (night.page, night.quote, night.holds, night.found_on[0].page) == (3, "night", False, 1)
    assert (missing.page, missing.quote, missing.exists) == (9, None, False)
