"""Token ids to text, without ever showing half a character or a piece of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

BROKEN = "\ufffd"
LONGEST_START = 3  # bytes of a character that is not complete; some tokenizers decode each to one BROKEN


@dataclass(frozen=True, slots=True)
class TextCodec:
    """What an engine needs of a tokenizer."""

    decode: Callable[[Sequence[int]], str]
    eos_ids: frozenset[int] = frozenset()  # tokens that end an answer


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model marks what it thinks before it answers."""

    begin: int  # the tokens around a thought
    end: int
    opened: bool = False  # the prompt ends with ``begin``, so that the first token is a thought already


class Detokenizer:
    """Decodes a growing answer incrementally.

    Only the tail since the last safe point is decoded again, together with the tokens before it, because a token's text
    depends on its neighbours. Text that ends inside a character is held back.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self.decode = decode
        self.ids: list[int] = []
        self.context = 0  # index of the first token that is decoded again
        self.shown = 0  # tokens whose text was returned

    def push(self, ids: Sequence[int]) -> str:
        """Append tokens; returns the characters that they complete."""
        self.ids.extend(ids)
        before = self.decode(self.ids[self.context : self.shown])
        after = self.decode(self.ids[self.context :])
        if after.endswith(BROKEN) or len(after) <= len(before):
            return ""
        self.context, self.shown = self.shown, len(self.ids)
        return after[len(before) :]

    def flush(self) -> str:
        """End the answer; returns the text that was held back."""
        before = self.decode(self.ids[self.context : self.shown])
        self.shown = len(self.ids)
        return self.decode(self.ids[self.context :])[len(before) :]


class StopStrings:
    """Cuts a stream of text at the first of several strings, even if they arrive in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = [stop for stop in stops if stop]
        self.held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Returns (text that is safe to show, whether a stop string was found)."""
        text = self.held + text
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            self.held = ""
            return text[: min(found)], True
        keep = max((overlap(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep], False


class ThoughtText:
    """The text of the thought with which an answer begins, without markers and without white space around it."""

    def __init__(self, decode: Callable[[Sequence[int]], str], thinking: Thinking | None) -> None:
        """``thinking``: None for a model that marks no thoughts."""
        self.text, self.tokens = "", 0
        self._thinking, self._detokenizer = thinking, Detokenizer(decode)
        self._open = thinking is not None and thinking.opened
        self._over = thinking is None
        self._space = ""  # white space that belongs to the thought only if something follows it

    def takes(self, token: int) -> bool:
        """Append a token if it belongs to the thought; its first one may be the marker alone."""
        if self._over or self._thinking is None:
            return False
        if not self._open and token != self._thinking.begin:
            self._over = True
            return False
        self._open, self._over = True, token == self._thinking.end
        self.tokens += 1
        if token not in (self._thinking.begin, self._thinking.end):
            self._append(self._detokenizer.push([token]))
        return True

    def _append(self, text: str) -> None:
        text = self._space + (text if self.text else text.lstrip())
        kept = text.rstrip()
        self.text, self._space = self.text + kept, text[len(kept) :]


class AnswerText:
    """The text of an answer, token by token, up to a stop string; a thought before it is kept apart."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str],
        thinking: Thinking | None = None,
    ) -> None:
        self.detokenizer, self.stops = Detokenizer(decode), StopStrings(stops)
        self.thought = ThoughtText(decode, thinking)
        self._begun = False

    def push(self, token: int) -> tuple[str, bool]:
        """Returns (text that is safe to show, whether a stop string was found)."""
        if self.thought.takes(token):
            return "", False
        text = self.detokenizer.push([token])
        if (
            self.thought.tokens and not self._begun
        ):  # blank lines between thought and answer belong to neither
            text = text.lstrip()
        self._begun = self._begun or bool(text)
        return self.stops.push(text)

    def resume(self, made: Sequence[int]) -> str:
        """Push the tokens of an interrupted answer; returns the text that was shown of it."""
        return "".join(self.push(token)[0] for token in made)

    def flush(self) -> str:
        """End the answer; returns the text that was held back."""
        return self._last(self.detokenizer.flush())

    def cut(self) -> str:
        """End the answer where it might go on; returns the text that was held back, without half a character."""
        return self._last(whole_characters(self.detokenizer.flush()))

    def _last(self, text: str) -> str:
        return self.stops.push(text)[0] + self.stops.held


def whole_characters(text: str) -> str:
    """Text without an end that further bytes may turn into a character."""
    rest = text.rstrip(BROKEN)
    return text[: max(len(rest), len(text) - LONGEST_START)]


def overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
