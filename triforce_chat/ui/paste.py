"""Long pastes are shown as one short mark in the prompt, and sent whole."""

from __future__ import annotations

from contextlib import suppress

from prompt_toolkit.history import FileHistory, InMemoryHistory

from triforce_chat.ui.formatting import count

MOST_LINES, MOST_CHARACTERS = 5, 2_000  # of a paste that is shown as it is


class Pastes:
    """The texts behind the marks of one chat."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """The text, or a mark for it if it is long."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.strip("\n").count("\n") + 1
        if lines <= MOST_LINES and len(text) <= MOST_CHARACTERS:
            return text
        size = count(lines, "line") if lines > MOST_LINES else count(len(text), "character")
        mark = f"[paste {len(self._texts) + 1}: {size}]"
        self._texts[mark] = text
        return mark

    def unfold(self, text: str) -> str:
        """The text with the pastes themselves in place of their marks."""
        for mark, whole in self._texts.items():
            text = text.replace(mark, whole)
        return text


class UnfoldedFileHistory(FileHistory):
    """A history in a file that remembers whole pastes: their marks mean nothing to the next chat."""

    def __init__(self, path: str, pastes: Pastes) -> None:
        super().__init__(path)
        self._pastes = pastes

    def append_string(self, string: str) -> None:
        with suppress(OSError):  # a full disk stops no chat
            super().append_string(self._pastes.unfold(string))


class UnfoldedHistory(InMemoryHistory):
    """``UnfoldedFileHistory`` in memory only."""

    def __init__(self, pastes: Pastes) -> None:
        super().__init__()
        self._pastes = pastes

    def append_string(self, string: str) -> None:
        super().append_string(self._pastes.unfold(string))
