"""Malicious models: nothing is unpickled, nothing outside the folder is read, and the error is one line."""

from __future__ import annotations

import json
import pickle
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import Evil, save_adapter, save_model, write_gguf

from triforce_chat.errors import ModelError
from triforce_chat.models.gguf_header import check_gguf
from triforce_chat.models.load import load_model

INDEX = "model.safetensors.index.json"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture
def folder(tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose weights are in a pickle; unpickling anything fails the test."""

    def refuse(*_given: object, **_options: object) -> None:
        raise AssertionError("unpickled")

    made = save_model(tmp_path / "model")
    torch.save({"weight": Evil(trace)}, made / "pytorch_model.bin")
    torch.save({"weight": Evil(trace)}, tmp_path / "outside.bin")
    (made / "model.safetensors").rename(tmp_path / "outside.safetensors")
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    return made


def refusal(name: Path) -> str:
    with pytest.raises(ModelError) as error:
        load_model(str(name), attention="sdpa")
    assert str(error.value).isprintable()
    return str(error.value)


def changed(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_folder_of_pickles(folder: Path, trace: Path) -> None:
    assert "only pickled weights (pytorch_model.bin), which are never read" in refusal(folder)
    assert not trace.exists()


@pytest.mark.parametrize(
    "file",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "pytorch_model.bin",
        "..\\x.safetensors",
        "c:x.safetensors",
        7,
        None,
    ],
)
def test_an_index_that_leads_elsewhere(folder: Path, trace: Path, file: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": file}}))
    (folder / "other.safetensors").write_bytes(b"")
    assert "not read" in (said := refusal(folder)) or "damaged" in said
    assert not trace.exists()


@pytest.mark.parametrize(
    "named", ["adapter_model.bin", "other.safetensors.index.json", "../outside.safetensors"]
)
def test_a_configuration_that_leads_elsewhere(folder: Path, trace: Path, named: str) -> None:
    torch_file = folder / "pytorch_model.bin"
    torch_file.rename(folder / "adapter_model.bin")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "adapter_model.bin"}}
    (folder / "other.safetensors.index.json").write_text(json.dumps(index))
    (folder / "other.safetensors").write_bytes(b"")
    changed(folder / "config.json", transformers_weights=named)
    assert "names other weights" in refusal(folder)
    assert not trace.exists()


def test_a_pickle_by_another_name(folder: Path, trace: Path) -> None:
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    assert "cannot be loaded" in refusal(folder)
    assert not trace.exists()


def test_an_adapter_in_a_pickle(tmp_path: Path, folder: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter", folder)
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    assert "adapter_model.safetensors is missing" in refusal(adapter)


def test_code_beside_the_weights_does_not_run(tmp_path: Path, trace: Path) -> None:
    made = save_model(tmp_path / "model")
    (made / "evil.py").write_text(
        f"import os\nos.mkdir({str(trace)!r})\nclass Model: pass\nclass Config: pass\n"
    )
    names = {
        "AutoConfig": "evil.Config",
        "AutoModelForCausalLM": "evil.Model",
        "AutoTokenizer": ["evil.Model", None],
    }
    changed(made / "config.json", auto_map=names)
    changed(made / "tokenizer_config.json", auto_map=names)
    load_model(str(made), attention="sdpa")
    assert not trace.exists()


def header(tensors: int, entries: int, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, entries) + body


def entry(kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + value


HUGE = 1 << 60
ARRAYS = struct.pack("<IQ", 9, 1) * 50
GGUFS = {
    "entries": header(0, HUGE),
    "tensors": header(HUGE, 0),
    "a key": header(0, 1, struct.pack("<Q", HUGE) + bytes(64)),
    "a string": header(0, 1, entry(8, struct.pack("<Q", HUGE) + bytes(64))),
    "numbers": header(0, 1, entry(9, struct.pack("<IQ", 4, HUGE) + bytes(64))),
    "strings": header(0, 1, entry(9, struct.pack("<IQ", 8, HUGE) + bytes(64))),
    "arrays": header(0, 1, entry(9, ARRAYS)),
    "an unknown type": header(0, 1, entry(99, bytes(64))),
    "dimensions": header(1, 0, struct.pack("<Q", 1) + b"t" + struct.pack("<I", 1 << 31) + bytes(64)),
    "the end": header(0, 1)[:10],
    "another version": b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
    "another file": pickle.dumps({}),
}


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("name", GGUFS)
def test_a_gguf_file_that_declares_more_than_it_holds(tmp_path: Path, name: str) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(GGUFS[name])
    assert refusal(file).startswith("m.gguf: damaged")


def test_intact_gguf_files_pass(tmp_path: Path) -> None:
    check_gguf(write_gguf(tmp_path / "m.gguf"))


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(4, 2_000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=3))
def test_damaged_gguf_headers_end(intact: Path, edits: list[tuple[int, bytes]]) -> None:
    data = bytearray(intact.read_bytes())
    for at, new in edits:
        data[at : at + len(new)] = new
    file = intact.with_name("damaged.gguf")
    file.write_bytes(data)
    with suppress(ModelError):
        check_gguf(file)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("quantization_config", [1], "an unnamed method"),
        ("quantization_config", "int4", "an unnamed method"),
        ("quantization_config", {"quant_method": {}}, "an unnamed method"),
        ("num_hidden_layers", 0, "num_hidden_layers is 0"),
        ("num_hidden_layers", -1, "num_hidden_layers is -1"),
        ("num_attention_heads", 0, ""),
        ("max_position_embeddings", 10**30, "max_position_embeddings is 1000"),
        ("layer_types", 3, ""),
        ("rope_scaling", "x", ""),
        ("dual_chunk_attention_config", [3], ""),
    ],
)
def test_a_configuration_of_odd_values(tmp_path: Path, key: str, value: object, said: str) -> None:
    made = save_model(tmp_path / "model")
    changed(made / "config.json", **{key: value})
    assert said in refusal(made)


@pytest.mark.parametrize("value", ["x", [["a"]], {"a": 1}, 1.5, [None], True])
def test_an_odd_end_token(tmp_path: Path, value: object) -> None:
    made = save_model(tmp_path / "model")
    changed(made / "generation_config.json", eos_token_id=value)
    assert "eos_token_id is" in refusal(made)
