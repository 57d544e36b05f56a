"""Runs ``rank_probe`` on several processes, once per test run, and reads its results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from support.head_drafts import save_head_draft
from support.places import SUPPORT
from support.tiny_models import save_model
from triforce_chat.cache_folder import CACHE_VARIABLE
from triforce_chat.models.load import load_model
from triforce_chat.settings.settings import STACKS

PROBE = SUPPORT / "rank_probe.py"
PRINTED = "printed.txt"  # output of the ranks; written last, so it marks a finished run
PATIENCE = 300  # seconds; the machine may be busy
SIZES: dict[str, Any] = {"max_position_embeddings": 1024, "vocab_size": 100, "initializer_range": 0.3}
FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
HEADED = ("headed/target", "headed/target.big")  # their draft reads their states


class Found:
    """The results that one run of ``rank_probe`` left in its folder."""

    def __init__(self, folder: Path, size: int) -> None:
        self.printed = (folder / PRINTED).read_text()
        self.models: dict[str, Any] = json.loads((folder / "found.json").read_text())
        self.states = [(folder / f"{rank}.jsonl").read_text().splitlines() for rank in range(size)]


def save_headed(folder: Path) -> Sequence[str]:
    """Save a target, to be loaded as it is and inflated, and a draft that reads its states."""
    torch.manual_seed(3)
    target = load_model(str(save_model(folder / "target", **SIZES)), attention="sdpa")
    known = torch.tensor([token for token in range(SIZES["vocab_size"]) if token % 9])
    save_head_draft(folder / "draft", target.model, target.tokenizer, known)
    return HEADED


def check_headed(found: Found) -> None:
    """Drafts that read states give several ranks the tokens of one process, under every stack."""
    for name in ("target", "target.big"):
        model = found.models[name]
        for what in ("plain", "seeded", "forced"):
            assert model["shared"][what] == model["alone"][what]
    assert found.models["target"]["stacks"] == dict.fromkeys(STACKS, found.models["target"]["alone"]["plain"])


def once(
    factory: pytest.TempPathFactory,
    name: str,
    make: Callable[[Path], Sequence[str]],
    size: int,
    **environ: str,
) -> Found:
    """Run the program once, even where several processes share the tests; ``make`` saves the models it names."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock"):
        if not (folder / PRINTED).is_file():
            folder.mkdir()
            models = [str(folder / model) for model in make(folder)]
            command = [sys.executable, str(PROBE), str(size), str(folder), *models]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
                env={**os.environ, CACHE_VARIABLE: str(folder / "cache"), **environ},
            )
            assert done.returncode == 0, done.stderr
            (folder / PRINTED).write_text(done.stdout + done.stderr)
    return Found(folder, size)
