"""Prompts of three kinds at chosen lengths, cut from several places of one long text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.errors import DoesNotFit
from triforce_chat.prompts import prompt

# They suit any novel, so that any book can be measured on.
QUESTIONS = (
    "Who is the most important person in this text, and what does this person want?",
    "Where does the story take place? Describe the place in your own words.",
    "Which two people disagree with each other, and about what?",
    "What has just happened at the end of the text?",
    "How do the people of this story earn their living?",
    "What does the text say about family?",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the target is to continue."""

    kind: str  # "summary", "question" or "continuation"
    place: int
    ids: list[int]
    stop: tuple[str, ...] = ()


def prompts(form: ChatFormat, text: Sequence[int], lengths: Sequence[int], places: int) -> Iterator[Prompt]:
    """Every kind at every length (exactly that many tokens) and place, ordered so that starts are shared.

    The places are spread over the text: the first begins at its start, the last ends with its end where the
    length is the largest. Raises DoesNotFit when the text is shorter than the largest length.
    """
    longest = max(lengths)
    if len(text) < longest:
        raise DoesNotFit(
            f"the documents have {len(text):,} tokens; a context of {longest:,} needs as many: add documents"
        )
    for place in range(places):
        start = place * (len(text) - longest) // max(1, places - 1)
        here = list(text[start : start + longest])
        question = QUESTIONS[place % len(QUESTIONS)]
        for length in sorted(lengths):
            for kind, request in (("summary", prompt("bench")), ("question", question)):
                ids = asked(form, here, request, length)
                yield Prompt(kind, place, ids, form.stop)
        for length in sorted(lengths):
            yield Prompt("continuation", place, here[:length])


def asked(form: ChatFormat, text: list[int], request: str, length: int) -> list[int]:
    """As much of the text as makes ``length`` tokens together with the request and the chat format."""
    ending = form.encode("\n\n" + request)
    room = length - len(form.render([Message("user", ending)]))
    if room < 1:
        raise DoesNotFit(f"a context of {length:,} tokens leaves no room for a text and a question about it")
    return form.render([Message("user", text[:room] + ending)])
