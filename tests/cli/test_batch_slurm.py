"""The script for Slurm arrays, run as Slurm runs it but for Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.serving import PATIENCE, save_chat_model
from support.torment import write_books

SCRIPT = Path(__file__).parents[2] / "examples" / "batch.slurm"
FLAGS = "--device cpu --draft none --stack lookup --temperature 0"


@pytest.fixture
def task(tmp_path: Path) -> dict[str, str]:
    """The environment of a task; the program's name leads to the one under test, with flags for a test's machine."""
    model = save_chat_model(tmp_path / "model")
    write_books(tmp_path / "books", 4, 30, seed=1)
    (tmp_path / "q.txt").write_text("Who?\nWhy?\n")
    program = tmp_path / "bin" / "triforce-chat"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m triforce_chat "$@" {FLAGS} --max-tokens $TOKENS\n'
    )
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "MODEL": str(model), "OMP_NUM_THREADS": "1", "TOKENS": "4"}


def start(folder: Path, task: dict[str, str], index: int, count: int = 2) -> subprocess.Popen[str]:
    array = {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_ARRAY_TASK_COUNT": str(count)}
    command = ["bash", str(SCRIPT), "books", "q.txt", "answers"]
    return subprocess.Popen(
        command, cwd=folder, env={**task, **array}, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_the_parts_are_all_answers(tmp_path: Path, task: dict[str, str]) -> None:
    for index in range(2):
        with start(tmp_path, task, index) as process:
            assert process.wait(6 * PATIENCE) == 0
    parts = sorted((tmp_path / "answers").glob("part-*.jsonl"))
    rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert len({(row["file"], row["question"]) for row in rows}) == len(rows) == 8


def test_the_signal_before_the_end_lets_the_running_answer_finish(
    tmp_path: Path, task: dict[str, str]
) -> None:
    with start(tmp_path, {**task, "TOKENS": "600"}, 0, count=1) as process:
        out = tmp_path / "answers" / "part-0.jsonl"
        deadline = time.monotonic() + 3 * PATIENCE
        while not (out.exists() and out.stat().st_size):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)  # to the script alone, as B: says
        _, told = process.communicate(timeout=3 * PATIENCE)
    assert process.returncode == 130
    assert "interrupted" in told
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert 0 < len(rows) < 8
    assert {row["usage"]["completion_tokens"] for row in rows} == {600}
