"""Markup that does not end is text, and costs time by its length, not by the square of it."""

from __future__ import annotations

import time

import pytest
from support.growth import PIECES

from triforce_chat.documents.html import parse_html
from triforce_chat.documents.soup import ended

MARKUP = 200_000  # bytes; the square of it takes the parser from 3 to 60 s
SECONDS = 2.0  # of processor time; a tenth is enough on an idle machine
SQUARE = [name for name in PIECES if name != "elements that never end"]  # those take a tree for each


@pytest.mark.parametrize(
    ("page", "same"),
    [
        ("<p>a<!-- b -->c</p>", True),
        ("<p>a<!-- b --!>c</p>", True),
        ("<p>a<!-- b -- >c</p>", True),
        ("<![CDATA[ a ]]><p>b", True),
        ("<![if IE]><p>b<![endif]>", True),
        ("<?xml version='1.0'?><!DOCTYPE html><p>a", True),
        ("", True),
        ("a > b", True),
        ("<p>a<!-- b", False),
        ("<!-- a --><p>b<!-- c", False),
        ("<p>a < b", False),
        ("<p>a<![CDATA[ b ]>", False),
    ],
)
def test_only_what_does_not_end_is_changed(page: str, same: bool) -> None:
    assert (ended(page) == page) is same


def test_what_does_not_end_is_shown() -> None:
    assert list(parse_html(b"<p>A ship.<!-- a quay").texts) == ["A ship.<!-- a quay\n"]
    assert list(parse_html(b"<p>A ship.<!-- a quay --> a lamp <b").texts) == ["A ship. a lamp <b\n"]
    assert list(parse_html(b"<p>A ship.<![CDATA[ a quay").texts) == ["A ship.<![CDATA[ a quay\n"]


@pytest.mark.parametrize("name", SQUARE)
def test_time_goes_with_the_length(name: str) -> None:
    page = PIECES[name](MARKUP)
    began = time.process_time()
    parse_html(page)
    assert time.process_time() - began < SECONDS
