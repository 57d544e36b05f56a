"""A batch of many books takes no more memory than one of a few."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.commands import run
from support.serving import save_chat_model
from support.torment import write_books

from triforce_chat.cli import batch_job, reading

BOOKS, WARM = 300, 100
LENGTH = 500  # characters of each book: oneDNN keeps code for each new length
GROWTH = 4 << 20  # bytes that the allocator may take meanwhile; each book's keys and values have 0.3 MB


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the size of the process in /proc")
def test_memory_is_flat_over_three_hundred_books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_books(tmp_path / "books", BOOKS, 300, seed=1)
    for book in (tmp_path / "books").iterdir():
        book.write_text(book.read_text()[:LENGTH])
    sizes: list[int] = []
    read = reading.read_one

    def watched(*given: Any, **more: Any) -> Any:
        sizes.append(resident())
        return read(*given, **more)

    monkeypatch.setattr(batch_job, "read_one", watched)
    model = save_chat_model(tmp_path / "model")
    flags = ("--model", model, "--device", "cpu", "--draft", "none", "--no-cache", "--stack", "lookup")
    asked = ("--question", "Who?", "--question", "Why?", "--out", tmp_path / "out.jsonl", "--max-tokens", "1")
    assert run("batch", tmp_path / "books", *asked, *flags, "--quiet").code == 0
    assert len(sizes) == BOOKS
    assert max(sizes[WARM:]) - sizes[WARM] < GROWTH
