"""Which books and questions a batch has, and their ids."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from triforce_chat.batch.books import book_lines, read_lines
from triforce_chat.documents.files import find_files
from triforce_chat.errors import UsageError


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.PDF", "notes.md", "cover.jpg", ".hidden.txt", "more/c.epub", ".git/d.txt"):
        path = tmp_path / "books" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "books" / "pipe.txt")
    return tmp_path


ALL = ["books/a.PDF", "books/b.txt", "books/notes.md", "books/more/c.epub"]


@pytest.mark.parametrize(
    ("named", "found"),
    [
        (["books"], ALL),
        (["./books/"], ALL),
        (["books/b.txt", "books"], ["books/b.txt", "books/a.PDF", "books/notes.md", "books/more/c.epub"]),
        (["books/*.t*"], ["books/b.txt", "books/pipe.txt"]),
        (["books/**/*.epub"], ["books/more/c.epub"]),
        (["mor*", "books/mor*"], ["mor*", "books/more/c.epub"]),
        (["books/cover.jpg"], ["books/cover.jpg"]),
        (["missing.pdf", "empty"], ["missing.pdf", "empty"]),
    ],
)
def test_files(shelf: Path, named: list[str], found: list[str]) -> None:
    assert shelf.is_dir()
    assert find_files(named) == found


def test_a_file_whose_name_looks_like_a_pattern(shelf: Path) -> None:
    (shelf / "a[1].txt").touch()
    (shelf / "a1.txt").touch()
    assert find_files(["a[1].txt"]) == ["a[1].txt"]


def test_ids_tell_lines_apart_and_stay() -> None:
    lines = book_lines(["a", "ab"], ["bc", "c"])
    assert [(line.file, line.question) for line in lines] == [
        ("a", "bc"),
        ("a", "c"),
        ("ab", "bc"),
        ("ab", "c"),
    ]
    assert len({line.id for line in lines}) == 4
    assert lines[0].id == "40bb547d936bbd31318ee37a"  # in outputs of earlier versions
    assert book_lines(["\udce9"], ["\ud800"])[0].id


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    path.write_bytes("\ufeffWho?\r\n\r\n  Why? \n\n".encode())
    assert read_lines(path) == ["Who?", "Why?"]
    for content, told in ((b"", "no line"), (b" \n\n", "no line"), (bytes(range(256)) * 9, "binary data")):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=told):
            read_lines(path)
    with pytest.raises(UsageError, match="No such file"):
        read_lines(tmp_path / "none")
