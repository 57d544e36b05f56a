"""Thirty documents over all formats: chapters and reading order are those that were written."""

from __future__ import annotations

from pathlib import Path

from support.document_corpus import results

RIGHT = 27  # of 30


def test_chapters_and_reading_order(tmp_path: Path) -> None:
    found = results(tmp_path)
    assert len(found) == 30
    assert sum(each.chapters for each in found) >= RIGHT, [each.name for each in found if not each.chapters]
    assert sum(each.order for each in found) >= RIGHT, [each.name for each in found if not each.order]
