"""Encodings, and sections that lose nothing."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triforce_chat.documents import Document, read
from triforce_chat.documents.encoding import clean
from triforce_chat.documents.text import BLOCK_CHARS, parse_markdown, parse_text, sections
from triforce_chat.errors import DocumentError

PROSE = "It was a bright cold day in April, and nobody on the quay had expected the ship. " * 8


def from_bytes(data: bytes) -> Document:
    return read("-", stdin=io.BytesIO(data))


def starts(texts: list[str]) -> list[str]:
    return [text.strip().split("\n")[0] for text in texts]


@pytest.mark.parametrize("name", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_marks_are_dropped_and_letters_kept(name: str) -> None:
    text = "Ça va? مرحبا שלום 漢字 🙂 a\ufeffb"
    assert from_bytes(text.encode(name)).text == text


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark(name: str) -> None:
    assert from_bytes("Plain words, naïve ones.".encode(name)).text == "Plain words, naïve ones."


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("latin-1", "Le café était fermé, où êtes-vous allés cet été? Noël à Besançon."),
        ("cp1252", "It’s a “quote” — said Emma, naïvely."),
        ("cp1250", "Litwo! Ojczyzno moja! ty jesteś jak zdrowie; ten tylko się dowie, kto cię stracił."),
        ("cp1251", "Привет, как дела? Это обычный русский текст для проверки."),
        ("koi8_r", "Привет, как дела? Это обычный русский текст для проверки."),
        ("shift_jis", "これは日本語の文章です。長い文章を書きます。"),
        ("gb18030", "这是一个中文文本，用于测试编码检测。"),
    ],
)
def test_other_encodings_are_found_and_named(name: str, text: str) -> None:
    document = from_bytes(text.encode(name))
    assert document.text == text
    assert document.warning is not None
    assert document.warning.startswith("not UTF-8, read as ")


def test_a_cut_character_does_not_change_the_encoding() -> None:
    document = from_bytes(("naïve " * 50 + "é").encode()[:-1])
    assert document.text == "naïve " * 50 + "\ufffd"
    assert document.warning == "1 damaged character replaced"
    assert from_bytes(b"plain words only\xc3").text == "plain words only\ufffd"


def test_nuls_and_controls_in_text_survive() -> None:
    text = PROSE + "\0 \x1b[1m \u202e \u2028 \x85"
    assert from_bytes(text.encode()).text == text
    assert from_bytes((PROSE + "\0 é!").encode("latin-1")).text == PROSE + "\0 é!"


def test_binary_data_is_refused() -> None:
    with pytest.raises(DocumentError, match="standard input: binary data"):
        from_bytes(b"\x7fELF\2\1\1\0" + bytes(range(256)) * 4)
    with pytest.raises(DocumentError, match="standard input: an image"):
        from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4)


def test_halves_of_surrogate_pairs() -> None:
    assert clean("\ud83d\ude42 \ud83d.") == "🙂 \ufffd."


@given(st.text(max_size=400))
def test_utf8_round_trip(text: str) -> None:
    expected = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    parsed = parse_text(("\ufeff" + expected).encode())
    assert "".join(parsed.texts) == expected


@given(st.lists(st.sampled_from(["CHAPTER I", "1", "", "", "# A", "```", "===", PROSE, "x\fy"]), max_size=60))
def test_sections_lose_nothing(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert "".join(sections(text)) == text
    assert "".join(parse_text(text.encode()).texts) == text
    assert "".join(parse_markdown(text.encode()).texts) == text


@given(st.binary(max_size=300))
def test_any_bytes_are_text_or_one_error(data: bytes) -> None:
    try:
        document = from_bytes(data)
    except DocumentError:
        return
    assert document.text.strip()
    document.text.encode()


@pytest.mark.parametrize(
    "headings",
    [
        ["CHAPTER I", "CHAPTER II. The Quay", "CHAPTER III"],
        ["Chapter 1", "Chapter 2", "Epilogue".upper()],
        ["1", "2", "3"],
        ["I. THE PRISON DOOR", "II. THE MARKET", "III. THE END"],
        ["Part One", "Part Two: Ashore", "Part the Last"],
        ["ГЛАВА 1", "ГЛАВА 2", "第三章"],
    ],
)
def test_chapters(headings: list[str]) -> None:
    text = "A Book\n\n\n" + "".join(f"{heading}\n\n{PROSE}\n\n\n" for heading in headings)
    assert starts(sections(text)) == ["A Book", *headings[1:]]


def test_contents_stay_whole_and_parts_stay_with_their_first_chapter() -> None:
    contents = PROSE + "\n\nCONTENTS\n\n" + "".join(f"CHAPTER {n}\n\n" for n in range(1, 30))
    body = (
        f"\n\nPreface by the author, who thanks everybody.\n{PROSE}\n\nPART ONE\n\nCHAPTER 1\n\n{PROSE}\n\n"
    )
    assert starts(sections(contents + body))[1:] == ["CHAPTER 1", "PART ONE"]


def test_prose_is_no_heading() -> None:
    text = f"{PROSE}\n\nPart of her meaning was plain.\n\n{PROSE}\n\nI. Then he came.\n\n{PROSE}"
    assert sections(text) == [text]


def test_without_chapters_blocks_end_with_paragraphs() -> None:
    text = ("A line of some words.\n" * 9 + "\n") * 120
    parts = sections(text)
    assert len(parts) > 1
    assert all(part.endswith(".\n\n") for part in parts)
    assert all(500 <= part.count("\n") <= 520 for part in parts[:-1])


def test_long_chapters_are_cut_too_and_short_texts_are_not() -> None:
    chapter = ("word " * 100 + "\n\n") * 400
    parts = sections(f"CHAPTER I\n\n{chapter}CHAPTER II\n\n{PROSE}\n")
    assert parts[-1].startswith("CHAPTER II")
    assert max(map(len, parts)) < 2 * BLOCK_CHARS
    assert sections(PROSE) == [PROSE]


def test_text_without_any_paragraph_is_cut_all_the_same() -> None:
    assert len(sections("no empty line anywhere\n" * 5000)) == 5


def test_form_feeds_are_pages() -> None:
    document = from_bytes(b"one\n\ftwo\n\f \n\ffour\n\f")
    assert [page.text for page in document.pages] == ["one\n\f", "two\n\f", " \n\f", "four\n\f"]
    assert (document.unit, document.warning) == ("page", "page 3 contains no text: scanned?")


def test_markdown_headings() -> None:
    text = (
        "---\nauthor: me\n---\n\n# The Title #\n## First\na\n```sh\n# no heading\n```\n#hashtag\n"
        "#### Deep\nb\n\nSecond\n======\nc\n\n### Third\nd\n\n- - -\n\nrule\n\n---\n"
    )
    parsed = parse_markdown(text.encode())
    assert "".join(parsed.texts) == text
    assert starts(list(parsed.texts)) == ["---", "# The Title #", "Second", "### Third"]
    assert parsed.title == "The Title"


def test_markdown_without_headings_is_text() -> None:
    parsed = parse_markdown(f"CHAPTER I\n\n{PROSE}\n\nCHAPTER II\n\n{PROSE}".encode())
    assert (len(parsed.texts), parsed.title) == (2, "")
