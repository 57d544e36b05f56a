"""The index of passages is made once, by whoever begins first."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from triforce_chat.chat import quoting
from triforce_chat.chat.quoting import LONG, index_of
from triforce_chat.cli.engines import index_ahead
from triforce_chat.documents import Document
from triforce_chat.documents.model import Page
from triforce_chat.settings.options import Options


def document(characters: int, title: str) -> Document:
    page = Page(1, "She lives at the inn. " * (characters // 22 + 1))
    return Document(title, f"{title}.txt", (page,))


def test_an_index_in_the_making_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def slow(documents: Any) -> Any:
        time.sleep(0.2)
        made.append(documents)
        return len(made)

    monkeypatch.setattr(quoting, "PassageIndex", slow)
    books, found = (document(100, "slow"),), list[Any]()
    threads = [threading.Thread(target=lambda: found.append(index_of(books))) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (found, made) == ([1, 1, 1], [books])


def test_it_is_made_ahead_for_long_documents_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(quoting, "PassageIndex", made.append)
    long, short = document(LONG, "long"), document(LONG // 3, "short")
    assert index_ahead([long], Options(passages=0)) is None
    assert index_ahead([short], Options()) is None
    ahead = index_ahead([long, short], Options())
    assert ahead
    ahead.join()
    assert made == [(long, short)]
