"""A batch of many books takes no more memory than one of a few."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.batch_scale import memory
from support.serving import save_chat_model

BOOKS, WARM = 200, 100  # of different lengths; support/batch_scale.py takes any number
GROWTH = 8.0  # MB that the allocator may take meanwhile; each book's keys and values have 0.3 MB


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the size of a process in /proc")
def test_memory_is_flat_over_many_books(tmp_path: Path) -> None:
    model = save_chat_model(tmp_path / "model")
    flags = ("--model", str(model), "--device", "cpu", "--draft", "none", "--no-cache", "--stack", "lookup")
    found = memory(flags, tmp_path, BOOKS, 60, WARM)
    assert found["growth_mb"] < GROWTH, found
