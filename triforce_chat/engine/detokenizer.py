"""From token ids to characters, without ever showing half a character or a piece of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

BROKEN = "\ufffd"


@dataclass(frozen=True, slots=True)
class TextCodec:
    """What an engine needs of a tokenizer."""

    decode: Callable[[Sequence[int]], str]
    eos_ids: frozenset[int] = frozenset()  # tokens that end an answer


class Detokenizer:
    """Decodes a growing answer.

    Only the tail since the last safe point is decoded again, with the tokens before it as context, because
    a token's text depends on its neighbours. Text that ends inside a character is held back.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self.decode = decode
        self.ids: list[int] = []
        self.context = 0  # decode from here
        self.shown = 0  # tokens whose text is out

    def push(self, ids: Sequence[int]) -> str:
        """The characters that these tokens complete."""
        self.ids.extend(ids)
        before = self.decode(self.ids[self.context : self.shown])
        after = self.decode(self.ids[self.context :])
        if after.endswith(BROKEN) or len(after) <= len(before):
            return ""
        self.context, self.shown = self.shown, len(self.ids)
        return after[len(before) :]

    def flush(self) -> str:
        """What was held back, at the end of an answer."""
        before = self.decode(self.ids[self.context : self.shown])
        self.shown = len(self.ids)
        return self.decode(self.ids[self.context :])[len(before) :]


class StopStrings:
    """Cuts a stream of text at the first of several strings, even when it arrives in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = [stop for stop in stops if stop]
        self.held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that is safe to show, whether a stop string was met)."""
        text = self.held + text
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            self.held = ""
            return text[: min(found)], True
        keep = max((overlap(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep], False


class AnswerText:
    """The characters of an answer, token by token, up to a stop string."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self.detokenizer, self.stops = Detokenizer(decode), StopStrings(stops)

    def push(self, token: int) -> tuple[str, bool]:
        """(text that is safe to show, whether a stop string was met)."""
        return self.stops.push(self.detokenizer.push([token]))

    def recall(self, said: Sequence[int]) -> str:
        """Take an answer up where it was stopped; returns what of it could be shown then."""
        return "".join(self.push(token)[0] for token in said)

    def flush(self) -> str:
        """What was held back, at the end of an answer."""
        return self.stops.push(self.detokenizer.flush())[0] + self.stops.held


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
