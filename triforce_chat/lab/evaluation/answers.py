"""What a model answers, and how much of it is right."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.lab.evaluation.continuations import ContinuationRequest, continuations
from triforce_chat.lab.evaluation.questions import Question
from triforce_chat.lab.evaluation.tasks import Case, grade

FACT_TOKENS = 24  # longest answer about a planted fact
QUESTION_TOKENS = 64
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class FactAnswer:
    """An answer about a document with planted facts."""

    context: int
    document: int
    depth: float | None  # None: what was asked for is not there
    kind: str
    question: str
    expected: str
    said: str
    right: bool
    denied: bool  # says that the document does not hold it


@dataclass(frozen=True, slots=True)
class ShortAnswer:
    """An answer to a short question."""

    model: str
    question: str
    said: str
    right: bool


@dataclass(frozen=True, slots=True)
class Score:
    """How many answers of how many are right."""

    right: int
    asked: int

    def __str__(self) -> str:
        return f"{self.right}/{self.asked}"


def facts(
    engine: Engine, context: int, cases: Sequence[Case], sampling: Sampling, stop: Sequence[str]
) -> Iterator[FactAnswer]:
    """Ask for every planted fact, each on its own; a document is read once for all its questions."""
    for number, case in enumerate(cases):
        asked_after = [ContinuationRequest(asked.suffix, sampling) for asked in case.questions]
        made = continuations(engine, case.prefix, asked_after, FACT_TOKENS, stop)
        for asked, ids in zip(case.questions, made, strict=True):
            said = engine.decode(ids)
            yield FactAnswer(
                context=context,
                document=number,
                depth=asked.depth,
                kind=asked.kind,
                question=asked.question,
                expected=asked.answer,
                said=said,
                right=grade(said, asked.answer, asked.kind),
                denied=grade(said, "", "absent"),
            )


def replies(
    engine: Engine, name: str, form: ChatFormat, questions: Sequence[Question], sampling: Sampling
) -> Iterator[ShortAnswer]:
    """Ask short questions, each in a conversation of its own without a system prompt."""
    for question in questions:
        prompt = form.render([Message("user", form.encode(question.text))])
        said = answer(engine, Request(prompt, QUESTION_TOKENS, sampling, form.stop))
        yield ShortAnswer(name, question.text, said, question.right(said))


def answer(engine: Engine, request: Request) -> str:
    """The text of an answer."""
    return "".join(event.text for event in engine.answer(request) if isinstance(event, Text))


def scores(answers: Iterable[FactAnswer], key: Callable[[FactAnswer], Key]) -> dict[Key, Score]:
    """Right answers by some property, in the order of its first appearance."""
    groups: dict[Key, list[bool]] = {}
    for each in answers:
        groups.setdefault(key(each), []).append(each.right)
    return {value: Score(sum(right), len(right)) for value, right in groups.items()}
