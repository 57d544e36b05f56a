"""What a chat on a CPU does not import: seconds and hundreds of megabytes of code that it never calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_models import save_model, write_quantized_gguf

from triforce_chat.loading.prepare import prepare
from triforce_chat.models.progress import ignore_note, ignore_progress
from triforce_chat.settings.settings import Settings

UNUSED = (
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "torch.fx.experimental.symbolic_shapes",
    "transformers",  # not even itself: its utilities alone take half a second, and a few more where disks are slow
    "huggingface_hub",
    "accelerate",
    "sklearn",
    "scipy",
    "pandas",
    "sympy",
    "triton",
)
ANSWER = """
import sys
from triforce_chat.engine.engine import Request
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.settings.settings import Settings
model, draft, dtype = sys.argv[1:]
settings = Settings(
    model=model, draft=draft, dtype=dtype, device="cpu", context=256, stack="triforce", budget=104
)
engine, _ = load_engine(EngineSpec(settings))
assert list(engine.answer(Request([*range(3, 90)] * 2, 12)))
assert engine.draft
print(*sys.modules)
"""


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("target", ["quantized", "expanded", "plain"])
def test_neither_torch_s_compiler_nor_transformers(tmp_path: Path, target: str) -> None:
    """From the second start on: at the first transformers reads the models' small files."""
    draft = save_model(tmp_path / "draft", max_position_embeddings=512)
    gguf, model, dtype = tmp_path / "tiny.gguf", draft, "float32" if target == "expanded" else "auto"
    if target != "plain":
        model = write_quantized_gguf(gguf, context=512, tied=target == "expanded")
    assert "transformers" in imported(model, draft, dtype)
    assert not imported(model, draft, dtype).intersection(UNUSED)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_the_first_start_of_a_prepared_model_is_like_any(tmp_path: Path, dtype: str) -> None:
    draft = save_model(tmp_path / "draft", max_position_embeddings=512)
    model = write_quantized_gguf(tmp_path / "tiny.gguf", context=512)
    for each in (model, draft):
        prepare(Settings(model=str(each), dtype=dtype, device="cpu"), ignore_progress, ignore_note)
    assert not imported(model, draft, dtype).intersection(UNUSED)


def imported(model: Path, draft: Path, dtype: str) -> set[str]:
    """All modules that a process which answers ends with."""
    command = [sys.executable, "-c", ANSWER, str(model), str(draft), dtype]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_loader_is_imported_meanwhile() -> None:
    code = """
import gc, sys, threading
from triforce_chat.cli.engines import LOADER, import_ahead
ahead = import_ahead()
assert threading.current_thread() is not ahead
ahead.join()
assert {LOADER, "torch"} <= sys.modules.keys()
assert gc.isenabled()
assert import_ahead() is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_early_end_waits_for_no_import(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    command = [sys.executable, "-m", "triforce_chat", "ask", str(tmp_path / "empty.txt"), "Why?"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
