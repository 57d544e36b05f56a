"""What a chat on a CPU does not import: half a second and a hundred megabytes of code that it never calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_models import save_model, write_quantized_gguf

UNUSED = (
    "torch._dynamo",
    "torch._inductor",
    "transformers.modeling_utils",
    "transformers.generation.utils",
    "triton",
)
ANSWER = """
import sys
from triforce_chat.engine.engine import Request
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.settings.settings import Settings
settings = Settings(model=sys.argv[1], draft=sys.argv[2], device="cpu", context=256, stack="triforce", budget=104)
engine, _ = load_engine(EngineSpec(settings))
assert list(engine.answer(Request([*range(3, 90)] * 2, 12)))
assert engine.draft
print(*sys.modules)
"""


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("target", ["quantized", "plain"])
def test_neither_torch_s_compiler_nor_the_models_of_transformers(tmp_path: Path, target: str) -> None:
    draft = save_model(tmp_path / "draft", max_position_embeddings=512)
    model = draft if target == "plain" else write_quantized_gguf(tmp_path / "tiny.gguf", context=512)
    command = [sys.executable, "-c", ANSWER, str(model), str(draft)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "transformers" in loaded
    assert not loaded.intersection(UNUSED)
