"""Cache files that are corrupt, half written, too many or written twice: never a wrong answer."""

from __future__ import annotations

import errno
import itertools
import os
import random
import resource
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from support.caches import buffer_of
from support.caching_engine import CHUNK, CachingEngine, files
from support.labs import Lab

from triforce_chat.engine import prefix_cache
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.storage.kv import entry
from triforce_chat.storage.kv.cache_directory import DISK_SHARE, CacheDirectory


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", CHUNK)


@pytest.fixture(scope="module")
def prompt(lab: Lab) -> list[int]:
    return lab.text(CHUNK * 3 + 10)


@pytest.fixture
def expected(lab: Lab, prompt: list[int]) -> list[int]:
    return lab.greedy(prompt, 8)


def room(header: entry.EntryHeader) -> list[memoryview]:
    return [memoryview(bytearray(header.part_bytes)) for _ in range(3)]


def in_order(folder: Path) -> list[Path]:
    """The files in the order of their tokens."""
    return sorted(files(folder), key=lambda path: entry.read_header(path).start)


def check(caching: CachingEngine, prompt: list[int], expected: list[int], cached: int) -> None:
    assert caching.answer(prompt, n=8) == (expected, cached)


# Damage


def test_an_entry_is_a_safetensors_file(lab: Lab, prompt: list[int], tmp_path: Path) -> None:
    caching = CachingEngine(lab, tmp_path)
    caching.read(prompt, [DocumentSpan(CHUNK, 'Ümläute & "quotes"')])
    first = in_order(tmp_path)[0]
    with safe_open(first, "pt") as file:
        assert torch.equal(file.get_tensor("keys"), buffer_of(caching.engine.full).keys[:, :, :CHUNK])
        assert torch.equal(file.get_tensor("values"), buffer_of(caching.engine.full).values[:, :, :CHUNK])
        assert file.metadata()["title"] == 'Ümläute & "quotes"'


def test_a_flipped_byte_anywhere_is_detected(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path
) -> None:
    CachingEngine(lab, tmp_path).read(prompt)
    second = in_order(tmp_path)[1]
    good, header = second.read_bytes(), entry.read_header(second)
    seen: list[int] = []
    entry.load(second, header, lambda n, _: seen.append(n), room(header))
    assert sorted(seen) == [*range(header.parts)]
    start = 8 + int.from_bytes(good[:8], "little")
    positions = [*range(start), *random.Random(0).sample(range(start, len(good)), 300), len(good) - 1]
    for position in positions:
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        second.write_bytes(bad)
        with pytest.raises(entry.CorruptEntry):
            entry.load(second, header, lambda *_: None, room(header))
    check(CachingEngine(lab, tmp_path), prompt, expected, CHUNK)  # and the entry was written again
    assert second.read_bytes() == good
    check(CachingEngine(lab, tmp_path), prompt, expected, 3 * CHUNK)


@pytest.mark.parametrize("kept", [0, 7, 8, 100, 700, -1])
def test_a_file_of_the_wrong_length(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path, kept: int
) -> None:
    CachingEngine(lab, tmp_path).read(prompt)
    second = in_order(tmp_path)[1]
    good = second.read_bytes()
    second.write_bytes(good[:kept])
    check(CachingEngine(lab, tmp_path), prompt, expected, CHUNK)
    second.write_bytes(good + b"\0")
    check(CachingEngine(lab, tmp_path), prompt, expected, CHUNK)
    check(CachingEngine(lab, tmp_path), prompt, expected, 3 * CHUNK)


def test_a_good_file_in_the_wrong_place(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path
) -> None:
    CachingEngine(lab, tmp_path).read(prompt)
    first, second, _ = in_order(tmp_path)
    second.write_bytes(first.read_bytes())
    check(CachingEngine(lab, tmp_path), prompt, expected, CHUNK)


def test_a_file_of_another_version(lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path) -> None:
    CachingEngine(lab, tmp_path).read(prompt)
    second = in_order(tmp_path)[1]
    data, cut = second.read_bytes(), 8 + len(entry.SEAL % 0)
    for name in (b"shape", b"sums", b"title"):
        header = data[cut : 8 + int.from_bytes(data[:8], "little")].replace(name, name[::-1])
        seal = (entry.SEAL % zlib.crc32(header)).encode()
        second.write_bytes(data[:8] + seal + header + data[cut + len(header) :])
        assert len(CacheDirectory(tmp_path).texts()) == 1  # up to the one before
        check(CachingEngine(lab, tmp_path), prompt, expected, CHUNK)
        assert second.read_bytes() == data


def test_files_are_private(lab: Lab, prompt: list[int], tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "kv"
    CachingEngine(lab, folder).read(prompt)
    assert [path.stat().st_mode & 0o777 for path in (folder, *files(folder))] == [0o700] + 3 * [0o600]


def test_corrupt_numbers_do_not_stay_in_the_cache(lab: Lab, prompt: list[int], tmp_path: Path) -> None:
    """Slots after the last token are read as padding: a NaN there would reach the answer."""
    CachingEngine(lab, tmp_path).read(prompt)
    second = in_order(tmp_path)[1]
    data = second.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    second.write_bytes(data[:start] + b"\xff" * (len(data) - start))
    caching = CachingEngine(lab, tmp_path)
    events = caching.engine.prefill(prompt)
    assert next(events).cached == CHUNK
    next(events)
    assert buffer_of(caching.engine.full).keys.isfinite().all()


# Interruptions


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_fails(
    lab: Lab,
    prompt: list[int],
    expected: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    calls = []

    def fail(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    check(CachingEngine(lab, tmp_path), prompt, expected, 0)
    assert len(calls) == 2  # entries after the missing one are not tried
    assert len([*tmp_path.iterdir()]) == 1
    monkeypatch.undo()
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", CHUNK)
    check(CachingEngine(lab, tmp_path), prompt, expected, CHUNK)


def test_a_folder_that_cannot_be_made(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    check(CachingEngine(lab, tmp_path / "file" / "kv"), prompt, expected, 0)
    assert CacheDirectory(tmp_path / "file" / "kv").texts() == []


def test_a_disk_that_fills_up_in_the_middle_of_an_entry(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))  # a write ends early, the next one fails
    try:
        check(CachingEngine(lab, tmp_path), prompt, expected, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [*tmp_path.iterdir()] == []
    check(CachingEngine(lab, tmp_path), prompt, expected, 0)
    check(CachingEngine(lab, tmp_path), prompt, expected, 3 * CHUNK)


COPYING = """
import os, sys, time
from pathlib import Path
from triforce_chat.storage.kv import entry
os.fsync = id  # without fsync, which takes so long that the kills would all hit it
source, target = map(Path, sys.argv[1:])
print(flush=True)
while True:
    for path in source.iterdir():
        header = entry.read_header(path)
        parts = [b""] * header.parts
        room = [memoryview(bytearray(header.part_bytes)) for _ in range(2)]
        entry.load(path, header, lambda n, part: parts.__setitem__(n, bytes(part)), room)
        slowly = (time.sleep(1e-4) or memoryview(part) for part in parts)
        entry.save(target / path.name, header, slowly)
        (target / path.name).unlink(missing_ok=True)
"""


def test_processes_that_write_the_same_and_are_killed(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path
) -> None:
    """At any moment an entry is there and intact, or not there."""
    source, target = tmp_path / "source", tmp_path / "target"
    CachingEngine(lab, source).read(prompt)
    target.mkdir()
    command = [sys.executable, "-c", COPYING, str(source), str(target)]
    waits = random.Random(0)
    for _ in range(4):
        both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        for each in both:
            assert each.stdout
            each.stdout.readline()
        seen = [intact(source, target) for _ in range(waits.randrange(30))]
        for each in both:
            each.kill()
            each.communicate()
        assert all([*seen, intact(source, target)])
    there = [(target / path.name).exists() for path in in_order(source)]
    check(CachingEngine(lab, target), prompt, expected, CHUNK * [*there, False].index(False))
    check(CachingEngine(lab, target), prompt, expected, 3 * CHUNK)


def intact(source: Path, target: Path) -> bool:
    """True if every file in ``target`` equals the one in ``source``."""
    for path in source.iterdir():
        with suppress(FileNotFoundError):
            if (target / path.name).read_bytes() != path.read_bytes():
                return False
    return True


def test_unfinished_files_of_killed_processes_are_deleted_later(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path
) -> None:
    CachingEngine(lab, tmp_path).read(prompt)
    first = in_order(tmp_path)[0]
    first.rename(first.with_name(f".{first.name}.1.abc"))
    directory = CacheDirectory(tmp_path)
    assert directory.sweep() == 0  # another process may still write it
    check(CachingEngine(lab, tmp_path), prompt, expected, 0)
    assert directory.sweep(age=-1) == first.stat().st_size
    assert [*tmp_path.iterdir()] == [*tmp_path.glob("*.safetensors")]
    check(CachingEngine(lab, tmp_path), prompt, expected, 3 * CHUNK)


def test_two_processes_read_and_write_at_once(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path
) -> None:
    both = [CachingEngine(lab, tmp_path) for _ in range(2)]
    for _ in zip(*(caching.engine.prefill(prompt) for caching in both), strict=True):
        pass
    for caching in both:
        caching.disk_cache.writer.finish()
    assert len([*tmp_path.iterdir()]) == 3
    check(CachingEngine(lab, tmp_path), prompt, expected, 3 * CHUNK)


# Eviction


def reader(lab: Lab, folder: Path, at: int, **options: Any) -> CachingEngine:
    """A process whose clock stands at ``at`` seconds."""
    return CachingEngine(lab, folder, clock=lambda: at * 10**9, **options)


def test_the_least_recently_used_is_evicted_first(lab: Lab, tmp_path: Path) -> None:
    a, b, c = (lab.text(CHUNK * 2, seed=seed) for seed in (1, 2, 3))
    reader(lab, tmp_path, 1).read(a)
    size = files(tmp_path)[0].stat().st_size
    reader(lab, tmp_path, 2).read(b)
    reader(lab, tmp_path, 3).read(a)
    reader(lab, tmp_path, 4, limit=5 * size).read(c)
    assert len(files(tmp_path)) == 5
    assert reader(lab, tmp_path, 5).read(a) == 2 * CHUNK
    assert reader(lab, tmp_path, 6).read(c) == 2 * CHUNK
    assert reader(lab, tmp_path, 7, limit=0).read(b) == CHUNK  # its last entry was evicted before its first


def test_the_present_prompt_is_not_evicted(lab: Lab, tmp_path: Path) -> None:
    a, b, c = (lab.text(CHUNK * 2, seed=seed) for seed in (1, 2, 3))
    reader(lab, tmp_path / "other", 1).read(a)
    size = files(tmp_path / "other")[0].stat().st_size
    ticks = itertools.count()
    caching = CachingEngine(lab, tmp_path, limit=4 * size, clock=lambda: next(ticks) * 10**9)
    for text in (a, b, a, c):
        caching.read(text)
    assert reader(lab, tmp_path, 100).read(a) == 2 * CHUNK
    assert reader(lab, tmp_path, 101).read(c) == 2 * CHUNK
    assert reader(lab, tmp_path, 102).read(b) == 0


def test_a_text_that_is_too_long_is_stored_in_part(lab: Lab, tmp_path: Path) -> None:
    prompt = lab.text(CHUNK * 5)
    reader(lab, tmp_path / "other", 1).read(prompt)
    size = files(tmp_path / "other")[0].stat().st_size
    reader(lab, tmp_path, 1, limit=3 * size).read(prompt)
    assert len(files(tmp_path)) == 3
    assert reader(lab, tmp_path, 2, limit=3 * size).read(prompt) == 3 * CHUNK
    assert reader(lab, tmp_path, 3, limit=size // 2).read(lab.text(CHUNK, seed=4)) == 0
    assert len(files(tmp_path)) == 3  # nothing is evicted for an entry that cannot fit


def test_the_limit_is_a_share_of_the_free_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = os.statvfs(tmp_path)
    assert (
        0 < CacheDirectory(tmp_path / "not" / "made").limit(0) <= DISK_SHARE * usage.f_blocks * usage.f_frsize
    )
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 900})())
    assert CacheDirectory(tmp_path).limit(100) == 250
    assert CacheDirectory(tmp_path, 7).limit(100) == 7


def test_texts_are_listed_and_deleted(lab: Lab, tmp_path: Path) -> None:
    a = lab.text(CHUNK * 2 + 5)
    b = a[: CHUNK + 3] + lab.text(CHUNK, seed=8)
    reader(lab, tmp_path, 1).read(a, [DocumentSpan(CHUNK, "One"), DocumentSpan(len(a), "Two")])
    reader(lab, tmp_path, 2).read(b, [DocumentSpan(CHUNK, "One")])
    directory = CacheDirectory(tmp_path)
    later, sooner = directory.texts()
    assert (sooner.titles, sooner.tokens, sooner.complete, len(sooner.paths)) == (
        ("One", "Two"),
        len(a),
        True,
        3,
    )
    assert (later.titles, later.tokens, later.complete) == (("One",), 2 * CHUNK, False)
    assert (later.model, round(later.used), round(sooner.used)) == ("tiny", 2, 1)
    size, own = directory.used(), later.bytes - sooner.paths[0].stat().st_size
    assert directory.remove([later]) == own
    assert directory.used() == size - own
    assert [text.id for text in directory.texts()] == [sooner.id]
    sooner.paths[0].write_bytes(b"damaged")
    assert directory.texts() == []
    assert directory.collect() > 0
    assert [*tmp_path.iterdir()] == []
    assert directory.collect() == 0
