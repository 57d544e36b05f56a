"""Perplexity by position, against transformers' own loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.labs import Lab
from torch import Tensor
from torch.nn.functional import cross_entropy

from triforce_chat.documents import Document, Page
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.lab.evaluation import perplexity as module
from triforce_chat.lab.evaluation.corpus import joined
from triforce_chat.lab.evaluation.perplexity import bands, losses, windows


def stock_losses(lab: Lab, ids: list[int]) -> Tensor:
    return cross_entropy(lab.logits(ids)[:-1], torch.tensor(ids[1:]), reduction="none")


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 7)


@pytest.mark.parametrize("n", [2, 8, 9, 100])
def test_losses_are_those_of_transformers(lab: Lab, n: int) -> None:
    ids = lab.text(n)
    tokens = torch.tensor([ids])
    found = losses(lab.target, ids, FullCache(lab.target.shape, n))
    assert len(found) == n - 1
    assert found.mean().item() == pytest.approx(lab.stock(tokens, labels=tokens).loss.item(), rel=1e-4)


def test_losses_may_begin_late_and_forget_what_the_cache_held(lab: Lab) -> None:
    ids, cache = lab.text(60), FullCache(lab.target.shape, 60)
    losses(lab.target, lab.text(50, seed=5), cache)
    assert torch.allclose(losses(lab.target, ids, cache, 21), stock_losses(lab, ids)[20:], atol=1e-4)


def test_bands_take_the_tokens_of_their_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EDGES", (0, 4, 8, 16, 32))
    nats = torch.arange(1, 20).log()  # the token at position i has perplexity i
    found = list(bands(nats, nats[:7] - math.log(2)))
    assert [(band.start, band.end, band.tokens) for band in found] == [
        (0, 4, 3),
        (4, 8, 4),
        (8, 16, 8),
        (16, 20, 4),
    ]
    for band in found:
        positions = range(max(band.start, 1), band.end)
        assert band.perplexity == pytest.approx(math.prod(positions) ** (1 / len(positions)), rel=1e-5)
    assert [band.ratio for band in found] == [pytest.approx(2), pytest.approx(2), None, None]


def test_windows_score_the_farthest_band_with_little_context(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EDGES", (0, 8, 24))
    ids, size, stride = lab.text(50), 16, 6
    nats = losses(lab.target, ids, FullCache(lab.target.shape, 50))
    expected = []
    for at in range(24, 50):
        first = 24 + (at - 24) // stride * stride - (size - stride)
        expected.append(stock_losses(lab, ids[first : at + 1])[-1])
    (found,) = windows(lab.target, ids, nats, [stride], size)
    assert (found.least, found.most, found.tokens) == (10, 15, 26)
    assert math.log(found.perplexity) == pytest.approx(torch.stack(expected).mean().item(), rel=1e-4)
    assert found.ratio == pytest.approx(math.exp(nats[23:].mean()) / found.perplexity, rel=1e-5)


def test_no_windows_where_the_farthest_band_is_near(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EDGES", (0, 8))
    ids = lab.text(20)
    nats = losses(lab.target, ids, FullCache(lab.target.shape, 20))
    assert not list(windows(lab.target, ids, nats, [2], 9))
    assert list(windows(lab.target, ids, nats, [2], 8))


class Letters:
    """Stands for a chat format: one token per character."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def book(title: str, text: str) -> Document:
    return Document(title, title, (Page(1, text),))


def test_documents_are_joined_until_there_is_enough() -> None:
    books = [book("one", "aaaa"), book("two", "bbb"), book("three", "c")]
    form: Any = Letters()
    corpus = joined(form, books, 8)
    assert bytes(corpus.ids) == b"aaaa\n\nbb"
    assert [(part.title, part.tokens, part.used) for part in corpus.parts] == [("one", 4, 4), ("two", 5, 4)]
    everything = joined(form, books, 1000)
    assert bytes(everything.ids) == b"aaaa\n\nbbb\n\nc"
    assert corpus.words == "one (4 of 4) + two (4 of 5)"
