"""What is measured: settings in every combination, and the prompts they are tried on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.documents import Document
from triforce_chat.engine.engine import PLAIN
from triforce_chat.errors import DoesNotFit, UsageError
from triforce_chat.models.load import LoadedModel
from triforce_chat.prompts import prompt
from triforce_chat.settings.settings import Settings

LENGTH = "tokens"  # of the answer; the only varied setting that plain decoding knows
VARIABLE = (
    "budget",
    "chunk",
    "gamma",
    "draft-gamma",
    "policy",
    "middle",
    "tree",
    "tree-size",
    "tree-depth",
    LENGTH,
)
OF_TREES = ("tree-size", "tree-depth")  # settings that chains do not know
LEAST = 2  # tokens of an answer
Choice = tuple[str, str]  # a setting and its value, as they are typed


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured on every prompt; ``settings.max_tokens`` is the answer's length."""

    settings: Settings
    varied: Mapping[str, str]

    @property
    def plain(self) -> bool:
        return self.settings.stack == PLAIN.name

    @property
    def footing(self) -> tuple[float | None, int]:
        """Plain decoding with the same is what a case is held against."""
        return self.settings.temperature, self.settings.max_tokens

    @property
    def name(self) -> str:
        return " ".join([self.settings.stack, *(f"{name}={value}" for name, value in self.varied.items())])


def cases(
    settings: Settings,
    stacks: Sequence[str],
    temperatures: Sequence[float],
    vary: Sequence[str],
    one_by_one: bool = False,
) -> list[Case]:
    """Every stack at every temperature with every combination of ``vary``, each item like "budget=512,1024".

    ``one_by_one`` varies one setting at a time, the others stay as in ``settings``. Plain decoding, which knows the
    answer's length alone, comes once for each, and so do chains whatever the sizes of trees. Raises UsageError.
    """
    choices = [_choices(text) for text in vary]
    if len({name for [(name, _), *_] in choices}) < len(choices):
        raise UsageError("--vary names a setting twice; write all its values in one, as in gamma=4,8")
    if settings.seed is not None and "auto" in stacks:
        raise UsageError(
            "with --seed the stack auto plans with stored step times, unlike bench; leave it out of --stacks"
        )
    tried: list[float | None] = [*temperatures] or [settings.temperature]
    made = []
    for temperature, stack in product(tried, stacks):
        base = replace(settings, temperature=temperature, stack=stack)
        known = [each for each in choices if stack != PLAIN.name or each[0][0] == LENGTH]
        combined: Iterable[Sequence[Choice]] = _alone(known, base) if one_by_one else product(*known)
        different = dict.fromkeys(_relevant(chosen, base) for chosen in combined)
        made += [Case(reduce(_changed, chosen, base), dict(chosen)) for chosen in different]
    return made


def _relevant(chosen: Sequence[Choice], base: Settings) -> tuple[Choice, ...]:
    """The choices that the stack supports."""
    branching = reduce(_changed, chosen, base).drafts_trees
    return tuple(each for each in chosen if branching or each[0] not in OF_TREES)


def _alone(choices: Sequence[Sequence[Choice]], base: Settings) -> list[list[Choice]]:
    """Each choice by itself, and plain decoding at the usual length as well, which the most are held against."""
    found = [[choice] for each in choices for choice in each]
    usual = (LENGTH, str(base.max_tokens))
    return [[], *found] if not found or (base.stack == PLAIN.name and [usual] not in found) else found


def _choices(text: str) -> list[Choice]:
    name, _, values = text.partition("=")
    if name not in VARIABLE or not values:
        raise UsageError(
            f"'{text}' varies nothing; write for example budget=512,1024 ({', '.join(VARIABLE)})"
        )
    return [(name, value) for value in values.split(",")]


def _changed(settings: Settings, choice: Choice) -> Settings:
    name, value = choice
    changed = settings.with_text("max-tokens" if name == LENGTH else name, value)
    if changed.max_tokens < LEAST:
        raise UsageError(f"{LENGTH} must be at least {LEAST}, not {value}")
    return changed


def texts_of(loaded: LoadedModel, documents: Sequence[Document]) -> list[list[int]]:
    """The tokens of each document, which take seconds to find."""
    form = ChatFormat(loaded.tokenizer)
    return [form.encode(document.text + "\n\n") for document in documents]


def prompts_of(
    loaded: LoadedModel, texts: Sequence[Sequence[int]], length: int, count: int
) -> list[list[int]]:
    """Requests to summarize exactly ``length`` tokens each of the texts.

    They begin with one text after the other, and once all have been the first, further inside them.
    """
    form = ChatFormat(loaded.tokenizer)
    made = []
    for n in range(count):
        first, round_ = n % len(texts), n // len(texts)
        text = [token for part in (*texts[first:], *texts[:first]) for token in part]
        made.append(_prompt(form, text[round_ * length :], length))
    return made


def _prompt(form: ChatFormat, text: Sequence[int], length: int) -> list[int]:
    # Worded for itself, so that figures stay comparable.
    question = form.encode("\n\n" + prompt("bench"))
    room = length - len(form.render([Message("user", question)]))
    if room > len(text):
        raise DoesNotFit(
            f"the documents have {len(text):,} tokens left for a prompt; a context of {length:,} needs {room:,}"
        )
    return form.render([Message("user", [*text[: max(room, 0)], *question])])
