"""The requests of a file: which lines are one, and that only their places are kept."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from triforce_chat.batch import requests
from triforce_chat.batch.requests import request_lines
from triforce_chat.errors import UsageError


def line(custom_id: object, **more: object) -> str:
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": {}, **more}
    )


def codes(path: Path, *lines: str) -> list[str | None]:
    path.write_text("\n".join(lines))
    return [each.error.code if each.error else None for each in request_lines(path)]


def test_bad_lines_are_told_apart_from_requests(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    found = codes(
        path, line("a"), "", "{half", "[]", line("a"), line(7), line(""), line("b"), '{"\\ud800": 1}'
    )
    assert found == [None, "invalid_json", "invalid_json", "duplicate_custom_id", *4 * (None,)]
    lines = request_lines(path)
    assert [each.error is None for each in lines] == [True, False, False, False, False, False, True, False]
    assert [each.name for each in lines] == ["a", "line 3", "line 4", "a", "line 6", "line 7", "b", "line 9"]
    assert len({each.id for each in lines}) == len(lines)
    text = path.read_bytes()
    assert text[lines[6].start : lines[6].start + lines[6].size] == line("b").encode() + b"\n"


def test_an_id_stays_when_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    codes(path, line("a"), line("b"))
    before = [each.id for each in request_lines(path)]
    codes(path, line("c"), line("a", body={"model": "other"}), line("b"))
    assert [each.id for each in request_lines(path)][1:] == before


def test_a_corrected_line_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    codes(path, "{half")
    (before,) = request_lines(path)
    codes(path, "{other")
    assert request_lines(path)[0].id != before.id


def test_a_line_may_be_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_BODY_BYTES", 200)
    assert codes(tmp_path / "in.jsonl", line("a", body={"x": "y" * 200}), line("b")) == [
        "request_too_large",
        None,
    ]


def test_no_requests(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n\n")
    for name in ("in.jsonl", "missing.jsonl"):
        with pytest.raises(UsageError, match=name):
            request_lines(tmp_path / name)


def test_ten_thousand_requests_are_found_at_once(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(line(f"r{number}", body={"x": "y" * 500}) for number in range(10_000)))
    started = time.process_time()
    assert len(request_lines(path)) == 10_000
    assert time.process_time() - started < 1.0  # it takes a tenth
