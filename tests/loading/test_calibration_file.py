"""The file of calibrations: its keys, and what happens to it in other hands."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.stored_calibrations import times

from triforce_chat.engine.speculation.calibration import Calibration, Measured
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.loading.calibration_file import KEPT, CalibrationFile, about_machine, entries_for

OPTIONS = StackOptions(middle="full")
ABOUT: dict[str, Any] = {**about_machine(torch.device("cpu")), "model": "small", "dtype": "float32"}


def news(seconds: float = 0.1, bucket: int = 1024) -> Calibration:
    table = {"target": times(seconds, 0.001)}
    return Calibration({bucket: Measured(table, {})}, {bucket: table})


def seconds(found: Calibration, bucket: int = 1024) -> float:
    return found.measured[bucket].times["target"].steps(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "calibration.json"


def test_what_was_written_is_read(path: Path) -> None:
    CalibrationFile(ABOUT, path).write(OPTIONS, news())
    found = CalibrationFile(ABOUT, path).read(OPTIONS)
    assert found.plain() == news().plain()


@pytest.mark.parametrize(
    ("about", "options"),
    [
        ({"threads": 64}, {}),
        ({"torch": "3.0"}, {}),
        ({"program": "9"}, {}),
        ({"model": "medium"}, {}),
        ({"dtype": "bfloat16"}, {}),
        ({"offloaded": True}, {}),
        ({}, {"name": "triforce"}),
        ({}, {"middle": "int8"}),
        ({}, {"gamma": 3}),
        ({}, {"budget": replace(OPTIONS.budget, tokens=2048)}),
    ],
)
def test_two_keys_do_not_mix(path: Path, about: dict[str, Any], options: dict[str, Any]) -> None:
    mine, other = CalibrationFile(ABOUT, path), CalibrationFile({**ABOUT, **about}, path)
    theirs = replace(OPTIONS, **options)
    assert mine.key(OPTIONS) != other.key(theirs)
    mine.write(OPTIONS, news(0.1))
    assert not other.read(theirs).measured
    other.write(theirs, news(0.7))
    assert seconds(mine.read(OPTIONS)) == 0.1
    assert seconds(other.read(theirs)) == 0.7


def test_acceptance_by_rank_is_kept_for_all_stacks_of_these_models(path: Path) -> None:
    file, other = CalibrationFile(ABOUT, path), CalibrationFile({**ABOUT, "model": "medium"}, path)
    assert file.ranks() is None
    file.write(OPTIONS, news())
    file.keep_ranks((0.5, 0.2))
    file.keep_ranks((0.6, 0.1))
    assert CalibrationFile(ABOUT, path).ranks() == (0.6, 0.1)
    assert other.ranks() is None
    assert seconds(file.read(OPTIONS)) == 0.1
    file.write(OPTIONS, news(0.3, 2048))
    assert file.ranks() == (0.6, 0.1)
    damaged = json.loads(path.read_text())
    for entry in damaged["entries"].values():
        entry.update({"ranks": ["a"]} if "ranks" in entry else {})
    path.write_text(json.dumps(damaged))
    assert file.ranks() is None
    assert seconds(file.read(OPTIONS)) == 0.1


def test_what_was_measured_first_stays(path: Path) -> None:
    """Also by another process, after this one had read the file."""
    file = CalibrationFile(ABOUT, path)
    file.write(OPTIONS, news(0.1))
    file.write(OPTIONS, news(0.7))
    file.write(OPTIONS, news(0.3, 2048))
    found = file.read(OPTIONS)
    assert [seconds(found, bucket) for bucket in (1024, 2048)] == [0.1, 0.3]
    assert found.learnt[1024]["target"].steps(1) == 0.7


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "\x00",
        '{"format": 2, "entries": {}}',
        '{"format": 1}',
        '{"format": 1, "entries": []}',
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    file = CalibrationFile(ABOUT, path)
    assert file.read(OPTIONS).plain() == Calibration().plain()
    assert entries_for(ABOUT, "small", path) == []
    file.write(OPTIONS, news())
    assert seconds(file.read(OPTIONS)) == 0.1


@pytest.mark.parametrize("entry", [None, 3, [], {"about": 3}, {"measured": {"1024": {"times": 1}}}])
def test_a_damaged_entry_is_ignored_and_replaced(path: Path, entry: Any) -> None:
    file = CalibrationFile(ABOUT, path)
    path.parent.mkdir()
    path.write_text(json.dumps({"format": 1, "entries": {file.key(OPTIONS): entry, "x": entry}}))
    assert not file.read(OPTIONS).measured
    assert entries_for(ABOUT, "small", path) == []
    file.write(OPTIONS, news())
    assert seconds(file.read(OPTIONS)) == 0.1


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = CalibrationFile(ABOUT, tmp_path / "file" / "calibration.json")
    file.write(OPTIONS, news())
    assert not file.read(OPTIONS).measured


def test_the_newest_entries_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CalibrationFile(ABOUT, path)
    for second in range(KEPT + 5):
        monkeypatch.setattr(time, "time", lambda second=second: float(second))
        file.write(replace(OPTIONS, gamma=second + 1), news())
    kept = [bool(file.read(replace(OPTIONS, gamma=second + 1)).measured) for second in range(KEPT + 5)]
    assert kept == [False] * 5 + [True] * KEPT


def test_entries_of_a_model_on_this_machine(path: Path) -> None:
    CalibrationFile(ABOUT, path).write(OPTIONS, news())
    CalibrationFile({**ABOUT, "threads": 64}, path).write(OPTIONS, news())
    CalibrationFile({**ABOUT, "model": "medium"}, path).write(OPTIONS, news())
    (found,) = entries_for(ABOUT, "small", path)
    assert found.key == CalibrationFile(ABOUT, path).key(OPTIONS)
    assert seconds(found.calibration) == 0.1
