"""GGUF files read by this package's reader: everything as transformers gives it with gguf's own."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from support.tiny_models import write_gguf
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from triforce_chat.errors import ModelError
from triforce_chat.models import dequantize as module
from triforce_chat.models import gguf_for_transformers, gguf_header
from triforce_chat.models.dequantize import BLOCKS, dequantize
from triforce_chat.models.gguf_for_transformers import forget_metadata, quick_gguf
from triforce_chat.models.gguf_header import read_header
from triforce_chat.models.gguf_reader import QuickReader
from triforce_chat.models.load import load_config, load_model, tokens_of
from triforce_chat.models.registry import resolve

pytestmark = pytest.mark.usefixtures("empty_cache")

OTHERS = [Kind.Q2_K, Kind.Q3_K, Kind.IQ4_NL, Kind.F16, Kind.F32]  # left to gguf


def stored(kind: Kind, rows: int = 7, blocks: int = 5) -> np.ndarray[Any, Any]:
    """Random bytes [rows, bytes of a row], without infinite or undefined scales."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(kind).integers(0, 256, (rows, blocks * size), dtype=np.uint8)
    finite = data & 0xBF  # clears an exponent bit of every number, wherever it is
    return finite if kind in (Kind.F16, Kind.F32, Kind.BF16) else _with_finite_scales(finite, data, size)


def _with_finite_scales(
    finite: np.ndarray[Any, Any], data: np.ndarray[Any, Any], size: int
) -> np.ndarray[Any, Any]:
    """``data``, but for the first four and the last two bytes of a block, where the fp16 scales are."""
    mixed = data.reshape(-1, size).copy()
    mixed[:, [1, 3, -1]] = finite.reshape(-1, size)[:, [1, 3, -1]]
    return mixed.reshape(data.shape)


@pytest.mark.parametrize("kind", [*BLOCKS, *OTHERS], ids=lambda kind: kind.name)
def test_blocks_are_what_gguf_makes_of_them(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 512)  # several chunks, the last one smaller
    data = stored(kind)
    expected = gguf.quants.dequantize(data, kind)
    made = dequantize(data, kind)
    assert (made.dtype, made.shape) == (np.float32, expected.shape)
    assert np.array_equal(made, expected, equal_nan=True)
    assert len(np.unique(made)) > 20


def test_bf16() -> None:
    numbers = torch.randn(6, 32).bfloat16()
    data = numbers.view(torch.uint8).numpy()
    assert torch.equal(torch.from_numpy(dequantize(data, Kind.BF16)), numbers.float())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_the_reader_finds_the_tensors_that_gguf_finds(file: Path) -> None:
    own, theirs = QuickReader(file), gguf.GGUFReader(file)
    assert len(own.tensors) == len(theirs.tensors) > 0
    for mine, other in zip(own.tensors, theirs.tensors, strict=True):
        assert (mine.name, mine.tensor_type) == (other.name, other.tensor_type)
        assert mine.data.tobytes() == other.data.tobytes()


def read(file: Path, kind: Any, quick: bool) -> Any:
    with quick_gguf() if quick else nullcontext():
        return kind.from_pretrained(file.parent, gguf_file=file.name)


def test_config_and_tokenizer_are_the_same(file: Path) -> None:
    assert read(file, AutoConfig, True).to_dict() == read(file, AutoConfig, False).to_dict()
    own, theirs = (read(file, AutoTokenizer, quick) for quick in (True, False))
    assert own.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert own.special_tokens_map == theirs.special_tokens_map
    assert own.chat_template == theirs.chat_template


def test_weights_are_the_same(file: Path) -> None:
    own, theirs = (read(file, AutoModelForCausalLM, quick).state_dict() for quick in (True, False))
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[name], theirs[name]) for name in own)


def test_ggufs_own_reader_is_back_afterwards(file: Path) -> None:
    own = gguf.GGUFReader, gguf.dequantize
    load_model(str(file), attention="sdpa")
    assert (gguf.GGUFReader, gguf.dequantize) == own


def test_models_are_read_without_ggufs_own_reader(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "GGUFReader", lambda *_: pytest.fail("the slow reader"))
    load_model(str(file), attention="sdpa")


def test_a_tensor_beyond_the_end_of_the_file(file: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:-64])
    read_header(cut)
    with pytest.raises(ModelError, match=r"cut\.gguf cannot be loaded: .* ends beyond the end of the file"):
        load_model(str(cut), attention="sdpa")


def test_entries_of_every_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("flags", [True, False])
    writer.add_array("texts", ["a", "é", ""])
    writer.add_float64("exact", 0.1)
    writer.add_bool("yes", True)
    writer.add_custom_alignment(64)
    writer.add_tensor("t", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(tmp_path / "m.gguf")
    values = {name: entry.value for name, entry in header.entries.items()}
    assert values["numbers"].tolist() == [1, 2, 3]
    assert values["flags"].tolist() == [True, False]
    assert [text.decode() for text in values["texts"]] == ["a", "é", ""]
    assert (values["exact"], values["yes"], values["general.architecture"]) == (0.1, True, b"llama")
    (tensor,) = header.tensors
    assert (tensor.name, tensor.shape, tensor.offset % 64) == ("t", (2, 3), 0)
    own, theirs = QuickReader(tmp_path / "m.gguf"), gguf.GGUFReader(tmp_path / "m.gguf")
    assert own.tensors[0].data.tobytes() == theirs.tensors[0].data.tobytes()


def test_a_load_reads_the_metadata_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_metadata()
    headers, checkpoints = Mock(wraps=gguf_header._Parser), Mock(wraps=gguf_for_transformers.OWN_LOAD)
    monkeypatch.setattr(gguf_header, "_Parser", headers)
    monkeypatch.setattr(gguf_for_transformers, "OWN_LOAD", checkpoints)
    source = resolve(str(file))
    first, second = load_config(source), load_config(source)
    tokens_of(source)
    assert (headers.call_count, checkpoints.call_count) == (1, 1)
    first.rope_parameters["rope_theta"] = 7.0  # of the caller's own
    assert second.to_dict() == load_config(source).to_dict() != first.to_dict()
    gguf_for_transformers._load_checkpoint(str(file))["tokenizer"]["tokens"].clear()
    assert gguf_for_transformers._load_checkpoint(str(file))["tokenizer"]["tokens"]
    load_model(str(file), attention="sdpa")
    assert (
        gguf_for_transformers._metadata.cache_info().currsize == gguf_header._read.cache_info().currsize == 0
    )


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", context=64)
    assert load_config(resolve(str(file))).max_position_embeddings == 64
    write_gguf(file, context=96)
    os.utime(file, ns=(0, 0))
    assert load_config(resolve(str(file))).max_position_embeddings == 96
