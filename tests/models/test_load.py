"""Loading: every supported architecture, silence, refusals, and drafts that fit their target."""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import SPECIAL, VOCABULARY, save_model, save_tokenizer, save_weights, write_gguf
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.errors import ModelError, OutOfMemory
from triforce_chat.models import load, placement
from triforce_chat.models.end_tokens import repair_gguf_tokenizer
from triforce_chat.models.load import LoadedModel, check_draft, load_model
from triforce_chat.models.packed import SMOLLM2_135M
from triforce_chat.models.placement import OnCpu, OnGpu
from triforce_chat.models.registry import resolve
from triforce_chat.models.silence_logs import silence_logs
from triforce_chat.models.stored_weights import stored_weights

FULL_ATTENTION = {"mistral": {"sliding_window": None}}


def load_tiny(folder: Path) -> LoadedModel:
    return load_model(str(folder), attention="sdpa")


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_supported_architectures(tmp_path: Path, model_type: str, capfd: pytest.CaptureFixture[str]) -> None:
    with silence_logs():
        save_model(tmp_path, model_type, **FULL_ATTENTION.get(model_type, {}))
    capfd.readouterr()
    loaded = load_tiny(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert loaded.model.config.model_type == model_type
    assert (loaded.context, loaded.vocab_size) == (128, len(VOCABULARY))
    assert not loaded.model.training
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    assert loaded.model.config._attn_implementation == "sdpa"
    assert loaded.model.dtype == torch.float32
    assert loaded.model(torch.tensor([[5, 6]])).logits.shape == (1, 2, len(VOCABULARY))


def test_weights_come_back_bit_for_bit(tmp_path: Path) -> None:
    save_model(tmp_path)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    found = load_tiny(tmp_path).model.state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_the_dtype_is_the_callers(tmp_path: Path) -> None:
    save_model(tmp_path)
    assert load_model(str(tmp_path), dtype=torch.float16, attention="sdpa").model.dtype == torch.float16


def test_end_tokens_from_all_sources(tmp_path: Path) -> None:
    save_model(tmp_path, eos_token_id=[7])
    assert load_tiny(tmp_path).eos_ids == {0, 2, 7}  # two special tokens of the tokenizer, and the config's


def test_a_marker_that_is_plain_text_ends_nothing(tmp_path: Path) -> None:
    save_weights(tmp_path, vocab_size=len(VOCABULARY) + 1)
    save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["<|eot_id|>"], special_tokens=False)
    tokenizer.save_pretrained(tmp_path)
    assert tokenizer.convert_tokens_to_ids("<|eot_id|>") == len(VOCABULARY)
    assert load_tiny(tmp_path).eos_ids == {0, 2}


def test_a_gguf_tokenizer_takes_special_tokens_from_the_config(tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(save_model(tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, eos_token="<|im_start|>")
    repair_gguf_tokenizer(tokenizer, config)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)
    assert tokenizer.clean_up_tokenization_spaces is False


@pytest.mark.usefixtures("empty_cache")
def test_gguf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loaded = load_tiny(write_gguf(tmp_path / "tiny.gguf"))
    assert capfd.readouterr() == ("", "")
    assert loaded.eos_ids == {0, 2}
    assert (loaded.tokenizer.bos_token, loaded.tokenizer.eos_token) == (SPECIAL[1], SPECIAL[2])
    assert loaded.tokenizer.decode(loaded.tokenizer("ab , c .")["input_ids"]) == "ab , c ."
    assert loaded.model(torch.tensor([[5, 6]])).logits.shape == (1, 2, len(VOCABULARY))


@pytest.mark.usefixtures("empty_cache")
def test_gguf_of_another_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="gemma2"):
        load_tiny(write_gguf(tmp_path / "tiny.gguf", "gemma2"))


def write_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)


def lose_a_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 100), "cannot be loaded"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "cannot be loaded"),
        (lambda folder: write_config(folder, "{"), "config.json cannot be read"),
        (lambda folder: write_config(folder, "[]"), "does not describe a model"),
        (lose_a_weight, "its weights lack model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_damaged_folders_are_one_line(tmp_path: Path, damage: Any, message: str) -> None:
    save_model(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        load_tiny(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_too_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    save_model(tmp_path)
    monkeypatch.setattr(load, "_weights", fail)
    with pytest.raises(OutOfMemory, match="does not fit into the memory of cpu") as caught:
        load_tiny(tmp_path)
    assert caught.value.exit_code == 6


def test_a_draft_of_the_same_vocabulary_passes(tmp_path: Path) -> None:
    target = load_tiny(save_model(tmp_path / "target"))
    draft = load_tiny(save_model(tmp_path / "draft", "qwen2", num_hidden_layers=1))
    check_draft(target, draft)


def test_a_draft_of_another_size_is_refused_with_both_sizes(tmp_path: Path) -> None:
    target = load_tiny(save_model(tmp_path / "target", vocab_size=1234))
    draft = load_tiny(save_model(tmp_path / "draft"))
    with pytest.raises(ModelError, match=rf"{len(VOCABULARY)} tokens, the target's 1,234"):
        check_draft(target, draft)


def test_a_draft_of_another_table_is_refused(tmp_path: Path) -> None:
    target = load_tiny(save_model(tmp_path / "target"))
    save_model(tmp_path / "draft")
    swapped = [*VOCABULARY[:-2], VOCABULARY[-1], VOCABULARY[-2]]
    save_tokenizer(tmp_path / "draft", swapped)
    with pytest.raises(ModelError, match=rf"both vocabularies have {len(VOCABULARY)} tokens, but 2 of them"):
        check_draft(target, load_tiny(tmp_path / "draft"))


def test_logs_are_silenced_and_restored(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.DEBUG)
    before = (sys.stderr, logging.root.manager.disable, transformers_logging.is_progress_bar_enabled())
    with silence_logs():
        print("a bar", file=sys.stderr)
        warnings.warn("a warning", stacklevel=1)
        logging.getLogger("transformers").error("a log line")
        status = threading.Thread(target=print, args=("status",), kwargs={"file": sys.stderr})
        status.start()
        status.join()
    assert before == (
        sys.stderr,
        logging.root.manager.disable,
        transformers_logging.is_progress_bar_enabled(),
    )
    assert capfd.readouterr() == ("", "status\n")


@pytest.mark.model
def test_what_is_known_of_the_small_model_s_file_before_it_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stored_weights(resolve("smollm2-135m"), OnCpu()) == SMOLLM2_135M.stored
    monkeypatch.setattr(placement, "kernels_compile", lambda: True)
    on_gpu = stored_weights(resolve("smollm2-135m"), OnGpu(torch.device("cuda"), torch.bfloat16))
    assert on_gpu == SMOLLM2_135M.repacked
    assert on_gpu is not None
    assert on_gpu.blocks == SMOLLM2_135M.repacked.blocks


@pytest.mark.model
def test_the_default_model_answers() -> None:
    load_model("default", attention="sdpa")  # converts it the first time
    start = time.process_time()  # other programs may hold the machine
    loaded = load_model("default", attention="sdpa")
    assert time.process_time() - start < 3
    assert (loaded.context, loaded.vocab_size, loaded.eos_ids) == (131_072, 49152, frozenset({0, 2}))
    assert loaded.sampling["repetition_penalty"] > 1
    assert answer(loaded, "What is the capital of France? Answer in one sentence.") == (
        "The capital of France is Paris."
    )


def answer(loaded: LoadedModel, question: str) -> str:
    """Greedy decoding in the plainest way."""
    form = ChatFormat(loaded.tokenizer)
    ids = form.render([Message("user", form.encode(question))])
    said: list[int] = []
    with torch.no_grad():
        while len(said) < 20:
            logits = loaded.model(torch.tensor([ids + said]), use_cache=False).logits
            said.append(int(logits[0, -1].argmax()))
            if said[-1] in loaded.eos_ids:
                break
    return loaded.tokenizer.decode(said[:-1])
