"""The output of a batch: valid JSON lines at every moment, one writer, nothing of others destroyed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from triforce_chat.batch.output_file import NotWritten, OutputFile
from triforce_chat.errors import UsageError

HEAD = b'{"id":'
ERROR = {"code": "usage", "message": "No."}


def opened(path: Path) -> OutputFile:
    return OutputFile(path, "id", HEAD)


def record(name: str, error: dict[str, str] | None = None) -> dict[str, Any]:
    return {"id": name, "text": "é" * 20, "error": error}


def ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text("utf-8").splitlines()]


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file of this process may become longer than so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_what_is_there_is_known(path: Path) -> None:
    with opened(path) as output:
        output.append(record("a"))
        output.append(record("b", ERROR))
    with opened(path) as output:
        assert (output.answered, output.failed) == ({"a"}, {"b"})
    assert ids(path) == ["a", "b"]


def test_half_a_line_is_cut_off_wherever_it_was_cut(path: Path) -> None:
    with opened(path) as output:
        output.append(record("a"))
        whole = path.read_bytes()
        output.append(record("b"))
    both = path.read_bytes()
    for end in range(len(whole), len(both)):
        path.write_bytes(both[:end])
        with opened(path) as output:
            assert output.answered == {"a"}
        assert path.read_bytes() == whole
    for end in range(1, len(whole)):
        path.write_bytes(whole[:end])
        with opened(path) as output:
            assert not output.answered
        assert path.read_bytes() == b""


def test_lines_with_an_error_are_forgotten(path: Path) -> None:
    path.touch(0o640)
    with opened(path) as output:
        for name, error in (("a", None), ("b", ERROR), ("c", None), ("d", ERROR)):
            output.append(record(name, error))
        output.forget(output.failed)
        assert (ids(path), output.failed) == (["a", "c"], set())
        output.append(record("b"))
        with pytest.raises(UsageError, match="another process"):
            opened(path)
    assert ids(path) == ["a", "c", "b"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == [path.name]


def test_one_process_writes(path: Path) -> None:
    with opened(path), pytest.raises(UsageError, match="another process writes to"):
        opened(path)
    opened(path).__exit__(None, None, None)


def test_a_file_that_was_replaced_before_it_was_locked_is_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as output:
        output.append(record("a"))
        output.append(record("b", ERROR))
    lock = fcntl.flock

    def late(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        with opened(path) as other:
            other.forget(other.failed)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with opened(path) as output:
        output.append(record("c"))
    assert ids(path) == ["a", "c"]


def test_where_the_file_system_has_no_locks(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over a network without a lock server: one process of the machine writes all the same."""
    (tmp_path / "runtime").mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    lock, locked = fcntl.flock, []

    def refused(file: int, how: int) -> None:
        name = os.readlink(f"/proc/self/fd/{file}")
        if name.startswith(str(path)):
            raise OSError(errno.ENOLCK, "No locks available")
        locked.append(name)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", refused)
    with opened(path) as output:
        output.append(record("a"))
        output.append(record("b", ERROR))
        output.forget(output.failed)
        with pytest.raises(UsageError, match="another process writes to"):
            opened(path)
    assert all(name.startswith(str(tmp_path / "runtime")) for name in locked)
    with opened(path) as output:
        assert output.answered == {"a"}


@pytest.mark.parametrize(
    "content",
    [
        "a novel\n",
        "a novel",
        '{"a": 1}',
        '{"a": 1}\n',
        "[]\n",
        "7\n",
        '{"id":"a"}\n',
        '{"id":1,"error":null}\n',
    ],
)
def test_the_file_of_another_is_refused_and_left_alone(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(UsageError, match="line 1 is not an answer"):
        opened(path)
    assert path.read_text() == content


def test_a_place_that_is_no_file(tmp_path: Path) -> None:
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises(UsageError, match="is not a file"):
            opened(place)
    with pytest.raises(UsageError, match="No such file or directory"):
        opened(tmp_path / "nowhere" / "out.jsonl")


def test_a_full_disk_leaves_whole_lines(path: Path) -> None:
    with opened(path) as output:
        output.append(record("a"))
        size = path.stat().st_size
        with full_disk(size + 9), pytest.raises(NotWritten, match="File too large"):
            output.append(record("b"))
        assert ids(path) == ["a"]
        output.append(record("b", ERROR))
        with full_disk(9), pytest.raises(NotWritten, match="File too large"):
            output.forget(output.failed)
        assert (ids(path), output.failed) == (["a", "b"], {"b"})
    assert os.listdir(path.parent) == [path.name]
