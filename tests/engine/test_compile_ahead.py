"""What is compiled ahead is what will be launched; Triton compiles for GPUs that are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from support.labs import ARCHITECTURES, random_model

pytest.importorskip("triton")

from support import dry_probe

from triforce_chat.engine import compile_ahead
from triforce_chat.engine.compile_ahead import Kernels

FORWARD = {"_norm_row", "_gate", "_rotate_head", "_attend", "_join"}
COMPILED = {
    **os.environ,
    "PYTHONWARNINGS": "ignore",
    "PYTHONPATH": f"{Path(__file__).parents[1]}:{Path.cwd()}",
}
COMPILED.pop("TRITON_INTERPRET", None)  # tests' own processes interpret the kernels


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    printed = subprocess.run(
        [sys.executable, dry_probe.__file__, "triforce"], env=COMPILED, stdout=subprocess.PIPE, check=True
    ).stdout
    probed: dict[str, Any] = json.loads(printed)
    return probed


def test_whatever_an_engine_launches_is_compiled_ahead(found: dict[str, Any]) -> None:
    assert found["missed"] == []
    assert set(found["launched"]) == FORWARD | {"_multiply"}
    assert set(found["ahead"]) == FORWARD | {"_multiply", "_score", "_gather", "_search"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_family_is_known(architecture: str, found: dict[str, Any]) -> None:
    assert set(found[architecture]) == FORWARD


def test_a_process_compiles_and_leaves_a_stamp(tmp_path: Path) -> None:
    config = random_model(head_dim=16).config.to_dict()
    job = {"capability": dry_probe.HOPPER, "models": [asdict(Kernels(config, "bfloat16", [64]))]}
    stamp = tmp_path / "cache" / "stamp"
    environment = {**COMPILED, "TRITON_CACHE_DIR": str(stamp.parent)}
    command = [sys.executable, "-m", compile_ahead.__name__, str(stamp)]
    subprocess.run(command, input=json.dumps(job, default=str).encode(), env=environment, check=True)
    assert {path.stem for path in stamp.parent.rglob("*.cubin")} == FORWARD
    assert stamp.exists()


@pytest.mark.gpu
def test_after_a_compilation_ahead_answers_compile_nothing(tmp_path: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    config = random_model(head_dim=16).config.to_dict()
    models = [asdict(each) for each in dry_probe.kernels_of(config)]
    job = json.dumps({"capability": 10 * major + minor, "models": models}, default=str).encode()
    environment = {**COMPILED, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", compile_ahead.__name__, str(tmp_path / "stamp")]
    subprocess.run(command, input=job, env=environment, check=True)
    before = {*tmp_path.rglob("*.cubin")}
    subprocess.run([sys.executable, dry_probe.__file__, "run"], env=environment, check=True)
    assert not {*tmp_path.rglob("*.cubin")} - before


def test_nothing_is_compiled_for_a_cpu() -> None:
    assert not compile_ahead.start([], torch.device("cpu"))
