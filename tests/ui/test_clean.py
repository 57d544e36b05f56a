from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triforce_chat.ui.clean import Cleaner, clean

HOSTILE = st.text(st.sampled_from("ab[];\x07\x1b\\m0\n\t\r\x9b\x9d\x9c\x90K?"), max_size=40)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jgone \x9d0;t\x9cx", "gone x"),
        ("\x1bPq#0\x1b\\sixel", "sixel"),
        ("tab\tline\nbell\x07 back\x08 return\r\n", "tab\tline\nbell back return\n"),
        ("שלום \u200fעולם", "שלום \u200fעולם"),
        ("\ud800lone", "lone"),
        ("\x1b", ""),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@given(HOSTILE)
def test_nothing_that_a_terminal_obeys_is_left(raw: str) -> None:
    assert all(char in "\n\t" or unicodedata.category(char) != "Cc" for char in clean(raw))


@given(HOSTILE, st.integers(0, 40))
def test_pieces_come_out_as_the_whole(raw: str, cut: int) -> None:
    cleaner = Cleaner()
    assert cleaner.feed(raw[:cut]) + cleaner.feed(raw[cut:]) + cleaner.rest() == clean(raw)


def test_a_sequence_that_never_ends_does_not_swallow_the_answer() -> None:
    cleaner = Cleaner()
    shown = cleaner.feed("\x1b]") + "".join(cleaner.feed("word ") for _ in range(2_000)) + cleaner.rest()
    assert shown.count("word") == 2_000
