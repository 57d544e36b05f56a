"""How many workers a machine has, and what each of them gets of it."""

from __future__ import annotations

import pytest

from triforce_chat.batch import places
from triforce_chat.batch.places import THREADS, VISIBLE, environments, worker_count
from triforce_chat.errors import UsageError
from triforce_chat.settings.settings import Settings


def settings(device: str = "auto", tp: int = 1) -> Settings:
    return Settings(device=device, tp=tp)


@pytest.mark.parametrize(
    ("wanted", "device", "tp", "gpus", "groups", "workers"),
    [
        (None, "auto", 1, 0, 9, None),
        (1, "auto", 1, 0, 9, 1),
        (4, "cpu", 1, 8, 9, 4),
        (4, "cpu", 1, 0, 3, 3),
        (None, "auto", 1, 1, 9, None),
        (None, "auto", 1, 4, 9, 4),
        (None, "cuda", 2, 4, 9, 2),
        (None, "auto", 4, 4, 9, None),
        (None, "auto", 1, 4, 3, 3),
        (None, "auto", 1, 4, 1, None),
        (1, "auto", 1, 4, 9, 1),
        (None, "cuda:1", 1, 4, 9, None),
        (2, "cuda:1", 1, 4, 9, 2),
    ],
)
def test_workers(
    wanted: int | None, device: str, tp: int, gpus: int, groups: int, workers: int | None
) -> None:
    assert worker_count(wanted, settings(device, tp), gpus, groups) == workers


def test_more_workers_than_gpus() -> None:
    with pytest.raises(UsageError, match="3 workers with --tp 2 need 6 GPUs; this machine has 4"):
        worker_count(3, settings(tp=2), 4, 9)


def test_each_worker_has_gpus_and_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "usable_cores", lambda: 16)
    assert environments(2, settings(tp=2), 4, {}) == [
        {THREADS: "4", VISIBLE: "0,1"},
        {THREADS: "4", VISIBLE: "2,3"},
    ]
    assert environments(2, settings(), 4, {VISIBLE: "7,5,3,1", THREADS: "2"}) == [
        {VISIBLE: "7"},
        {VISIBLE: "5"},
    ]
    assert environments(3, settings("cpu"), 4, {}) == [{THREADS: "5"}] * 3
    assert environments(32, settings("cpu"), 0, {}) == [{THREADS: "1"}] * 32
