"""Files that are damaged, half written, too many or written twice: never a wrong answer."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Lab
from library_desk import CHUNK, Desk, files
from safetensors import safe_open

from triforce_chat.engine import engine as engine_module
from triforce_chat.engine.memory import Passage
from triforce_chat.library import block
from triforce_chat.library.shelf import SHARE, Shelf

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "PREFILL_CHUNK", CHUNK)


@pytest.fixture(scope="module")
def prompt(lab: Lab) -> list[int]:
    return lab.text(CHUNK * 3 + 10)


@pytest.fixture
def expected(lab: Lab, prompt: list[int]) -> list[int]:
    return lab.greedy(prompt, 8)


def in_order(folder: Path) -> list[Path]:
    """Blocks from the first token on."""
    return sorted(files(folder), key=lambda path: block.read_label(path).start)


def check(desk: Desk, prompt: list[int], expected: list[int], cached: int) -> None:
    assert desk.answer(prompt, n=8) == (expected, cached)


# Damage


def test_a_block_is_a_safetensors_file(lab: Lab, prompt: list[int], tmp_path: Path) -> None:
    desk = Desk(lab, tmp_path)
    desk.read(prompt, [Passage(CHUNK, 'Ümläute & "quotes"')])
    first = in_order(tmp_path)[0]
    with safe_open(first, "pt") as file:
        assert torch.equal(file.get_tensor("keys"), desk.engine.full.slab.keys[:, :, :CHUNK])
        assert torch.equal(file.get_tensor("values"), desk.engine.full.slab.values[:, :, :CHUNK])
        assert file.metadata()["title"] == 'Ümläute & "quotes"'


def test_a_flipped_byte_anywhere_is_seen(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path
) -> None:
    Desk(lab, tmp_path).read(prompt)
    second = in_order(tmp_path)[1]
    good, label = second.read_bytes(), block.read_label(second)
    into = memoryview(bytearray(label.part_bytes))
    assert len([*block.load(second, label, into)]) == label.parts
    header = 8 + int.from_bytes(good[:8], "little")
    places = [*range(header), *random.Random(0).sample(range(header, len(good)), 300), len(good) - 1]
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        second.write_bytes(bad)
        with pytest.raises(block.Damaged):
            for _ in block.load(second, label, into):
                pass
    check(Desk(lab, tmp_path), prompt, expected, CHUNK)  # and the block was written anew
    assert second.read_bytes() == good
    check(Desk(lab, tmp_path), prompt, expected, 3 * CHUNK)


@pytest.mark.parametrize("kept", [0, 7, 8, 100, 700, -1])
def test_a_file_of_the_wrong_length(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path, kept: int
) -> None:
    Desk(lab, tmp_path).read(prompt)
    second = in_order(tmp_path)[1]
    good = second.read_bytes()
    second.write_bytes(good[:kept])
    check(Desk(lab, tmp_path), prompt, expected, CHUNK)
    second.write_bytes(good + b"\0")
    check(Desk(lab, tmp_path), prompt, expected, CHUNK)
    check(Desk(lab, tmp_path), prompt, expected, 3 * CHUNK)


def test_a_good_file_in_the_wrong_place(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path
) -> None:
    Desk(lab, tmp_path).read(prompt)
    first, second, _ = in_order(tmp_path)
    second.write_bytes(first.read_bytes())
    check(Desk(lab, tmp_path), prompt, expected, CHUNK)


def test_numbers_that_were_damaged_do_not_stay_in_the_cache(
    lab: Lab, prompt: list[int], tmp_path: Path
) -> None:
    """A slot behind the last token is read as padding: a NaN there would reach the answer."""
    Desk(lab, tmp_path).read(prompt)
    second = in_order(tmp_path)[1]
    data = second.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    second.write_bytes(data[:header] + b"\xff" * (len(data) - header))
    desk = Desk(lab, tmp_path)
    events = desk.engine.prefill(prompt)
    assert next(events).cached == CHUNK
    next(events)
    assert desk.engine.full.slab.keys.isfinite().all()


# Interruptions


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_refuses(
    lab: Lab,
    prompt: list[int],
    expected: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    calls = []

    def refuse(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    check(Desk(lab, tmp_path), prompt, expected, 0)
    assert len(calls) == 2  # what would follow on the block that is missing is not tried
    assert len([*tmp_path.iterdir()]) == 1
    monkeypatch.undo()
    monkeypatch.setattr(engine_module, "PREFILL_CHUNK", CHUNK)
    check(Desk(lab, tmp_path), prompt, expected, CHUNK)


def test_a_folder_that_cannot_be_made(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    check(Desk(lab, tmp_path / "file" / "kv"), prompt, expected, 0)
    assert Shelf(tmp_path / "file" / "kv").texts() == []


PROCESS = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from conftest import Lab
from library_desk import CHUNK, Desk
lab = Lab.of("llama", seed=1)
if sys.argv[3] != "whole":
    def die(handle, left=[int(sys.argv[3])]):
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
    os.fsync = die
desk = Desk(lab, Path(sys.argv[2]))
sys.stdin.readline()
print(*desk.answer(lab.text(CHUNK * 3 + 10), n=8)[0])
"""


def process(folder: Path, until: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROCESS, str(HERE), str(folder), until]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_that_is_killed_while_it_writes(
    lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path
) -> None:
    with process(tmp_path, "1") as killed:
        killed.communicate("go\n", timeout=60)
    assert killed.returncode == 9
    assert (len(files(tmp_path)), len([*tmp_path.iterdir()])) == (1, 2)
    shelf = Shelf(tmp_path)
    assert shelf.sweep() == 0  # it could be somebody's who still writes
    check(Desk(lab, tmp_path), prompt, expected, CHUNK)
    assert shelf.sweep(age=-1) > 0
    assert [*tmp_path.iterdir()] == [*tmp_path.glob("*.safetensors")]
    check(Desk(lab, tmp_path), prompt, expected, 3 * CHUNK)


def test_two_processes_at_once(lab: Lab, prompt: list[int], expected: list[int], tmp_path: Path) -> None:
    both = [process(tmp_path, "whole") for _ in range(2)]
    for each in both:
        assert each.stdin
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in both:
        with each:
            told, _ = each.communicate(timeout=60)
        assert told.split() == [str(token) for token in expected]
    assert len([*tmp_path.iterdir()]) == 3
    check(Desk(lab, tmp_path), prompt, expected, 3 * CHUNK)


# Room


def reader(lab: Lab, folder: Path, at: int, **options: Any) -> Desk:
    """A process that begins ``at`` seconds."""
    desk = Desk(lab, folder, **options)
    desk.library.served = at * 10**9
    return desk


def test_what_served_longest_ago_goes_first(lab: Lab, tmp_path: Path) -> None:
    a, b, c = (lab.text(CHUNK * 2, seed=seed) for seed in (1, 2, 3))
    reader(lab, tmp_path, 1).read(a)
    size = files(tmp_path)[0].stat().st_size
    reader(lab, tmp_path, 2).read(b)
    reader(lab, tmp_path, 3).read(a)
    reader(lab, tmp_path, 4, limit=5 * size).read(c)
    assert len(files(tmp_path)) == 5
    assert reader(lab, tmp_path, 5).read(a) == 2 * CHUNK
    assert reader(lab, tmp_path, 6).read(c) == 2 * CHUNK
    assert reader(lab, tmp_path, 7, limit=0).read(b) == CHUNK  # its end went before its beginning


def test_a_text_that_is_too_long_is_kept_as_far_as_there_is_room(lab: Lab, tmp_path: Path) -> None:
    prompt = lab.text(CHUNK * 5)
    reader(lab, tmp_path / "other", 1).read(prompt)
    size = files(tmp_path / "other")[0].stat().st_size
    reader(lab, tmp_path, 1, limit=3 * size).read(prompt)
    assert len(files(tmp_path)) == 3
    assert reader(lab, tmp_path, 2, limit=3 * size).read(prompt) == 3 * CHUNK
    assert reader(lab, tmp_path, 3, limit=size // 2).read(lab.text(CHUNK, seed=4)) == 0
    assert len(files(tmp_path)) == 3  # nothing is deleted for what does not fit anyway


def test_the_limit_is_a_share_of_the_free_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = os.statvfs(tmp_path)
    assert 0 < Shelf(tmp_path / "not" / "made").limit(0) <= SHARE * usage.f_blocks * usage.f_frsize
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 900})())
    assert Shelf(tmp_path).limit(100) == 100
    assert Shelf(tmp_path, 7).limit(100) == 7


def test_texts_and_being_rid_of_them(lab: Lab, tmp_path: Path) -> None:
    a = lab.text(CHUNK * 2 + 5)
    b = a[: CHUNK + 3] + lab.text(CHUNK, seed=8)
    reader(lab, tmp_path, 1).read(a, [Passage(CHUNK, "One"), Passage(len(a), "Two")])
    reader(lab, tmp_path, 2).read(b, [Passage(CHUNK, "One")])
    shelf = Shelf(tmp_path)
    later, sooner = shelf.texts()
    assert (sooner.titles, sooner.tokens, sooner.complete, len(sooner.paths)) == (
        ("One", "Two"),
        len(a),
        True,
        3,
    )
    assert (later.titles, later.tokens, later.complete) == (("One",), 2 * CHUNK, False)
    assert (later.model, round(later.used), round(sooner.used)) == ("tiny", 2, 1)
    size, own = shelf.used(), later.bytes - sooner.paths[0].stat().st_size
    assert shelf.remove([later]) == own
    assert shelf.used() == size - own
    assert [text.id for text in shelf.texts()] == [sooner.id]
    sooner.paths[0].write_bytes(b"damaged")
    assert shelf.texts() == []
    assert shelf.collect() > 0
    assert [*tmp_path.iterdir()] == []
    assert shelf.collect() == 0
