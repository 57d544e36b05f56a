"""Templates combined from tables of parts, for training only: questions must be understood, not memorized.

Trained on the written templates alone, a model answered 79 % of their questions and 48 % of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from triforce_chat.lab.tasks.template import Template
from triforce_chat.lab.tasks.text_data import read_rows

ACTS, FIGURES, ROLES, SPOTS, EVENTS, THINGS, TRAITS = (
    read_rows(f"composed/{name}")
    for name in ("acts", "figures", "roles", "spots", "events", "things", "traits")
)


def _numbers() -> Iterator[Template]:
    for what, pool, question in FIGURES:
        asked = (question, f"What is {what}?", f"Tell me {what}.", f"What do we learn about {what}?")
        for sentence in (
            f"{what} is {{{pool}}}.",
            f"Somebody had noted {what}: {{{pool}}}.",
            f"Everybody knew that {what} was {{{pool}}}, but nobody said so.",
            f"{{{pool}}} is {what}.",
        ):
            yield Template((sentence,), what, pool, asked)


def _names() -> Iterator[Template]:
    for past, done, what in ACTS:
        about = f"the person who {past} {what}"
        asked = (
            f"Who {past} {what}?",
            f"By whom was {what} {done}?",
            f"What is the name of {about}?",
            f"Who was it that {past} {what}?",
        )
        for sentence in (
            f"it was {{person}} who {past} {what}.",
            f"{{person}} {past} {what}, as the older people remember.",
            f"{what} was {done} by {{person}}.",
            f"When {what} was {done}, it was the work of {{person}}.",
        ):
            yield Template((sentence,), about, "person", asked)
    for (role,) in ROLES:
        named = (f"Who is {role}?", f"What is the name of {role}?", f"Tell me who {role} is.")
        for sentence in (f"{role} is {{person}}.", f"{{person}} is {role}.", f"{role} is called {{person}}."):
            yield Template((sentence,), role, "person", named)


def _places() -> Iterator[Template]:
    for who, does, where, verb in SPOTS:
        pool = where.partition("{")[2].rstrip("}")
        asked = tuple(f"{word} {verb.format(who)}?" for word in ("Where", "In what place", "At which place"))
        for sentence in (f"{who} {does} {where}.", f"As is well known, {who} {does} {where} to this day."):
            yield Template((sentence,), f"the place where {who} {does}", pool, asked)


def _dates() -> Iterator[Template]:
    happened = [(clause, about, verb) for clause, about, verb in EVENTS]
    happened += [
        (f"{what} was {done}", f"the time when {what} was {done}", f"was {what} {done}")
        for _, done, what in ACTS
    ]
    for clause, about, verb in happened:
        for pool, before, asks in (("year", "in", "In which year"), ("date", "on", "On which day")):
            asked = (
                f"When {verb}?",
                f"{asks} {verb}?",
                f"What does the document give as the time when {clause}?",
            )
            yield Template((f"{clause} {before} {{{pool}}}.",), about, pool, asked)
            yield Template((f"it was {before} {{{pool}}} that {clause}.",), about, pool, asked)


def _things() -> Iterator[Template]:
    for what, value, question in THINGS:
        pool = value.rpartition("{")[2].removeprefix("a ").rstrip("}")
        asked = (question, f"What is {what}?", f"Tell me {what}.")
        for sentence in (
            f"{what} is {value}.",
            f"People say that {what} is {value}.",
            f"They agree that {value} is {what}.",
        ):
            yield Template((sentence,), what, pool, asked)


def _two_steps() -> Iterator[Template]:
    for (role,) in ROLES:
        for trait, pool, *questions in TRAITS:
            asked = tuple(question.format(role) for question in questions)
            yield Template((f"{role} is {{person}}.", trait), "", pool, asked)


COMPOSED: Mapping[str, tuple[Template, ...]] = MappingProxyType(
    {
        "number": tuple(_numbers()),
        "name": tuple(_names()),
        "place": tuple(_places()),
        "date": tuple(_dates()),
        "object": tuple(_things()),
        "two-step": tuple(_two_steps()),
    }
)
