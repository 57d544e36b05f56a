"""On a CPU quantized weights of a GGUF file stay as they are, and the model is the expanded one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from support.head_drafts import save_head_draft
from support.tiny_models import LAYERS, VOCABULARY, save_adapter, write_gguf, write_quantized_gguf
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from triforce_chat.engine.cpu_kernels.quantized_matrix import SUPPORTED
from triforce_chat.engine.forward.quantized import QuantizedEmbedding, QuantizedLayer, QuantizedLinear
from triforce_chat.engine.group import SINGLE
from triforce_chat.errors import ModelError
from triforce_chat.loading.join_draft import share_matrices
from triforce_chat.models import placement, presets, registry
from triforce_chat.models import stored_weights as module
from triforce_chat.models.gguf_header import read_header
from triforce_chat.models.load import LoadedModel, check_draft, load_model
from triforce_chat.models.placement import OnCpu
from triforce_chat.models.presets import find_preset
from triforce_chat.models.registry import resolve
from triforce_chat.models.stored_weights import stored_weights
from triforce_chat.storage.kv.fingerprint import fingerprint

IDS = torch.randint(3, len(VOCABULARY), (1, 100), generator=torch.Generator().manual_seed(0))
MATRICES = 7 * LAYERS

pytestmark = pytest.mark.usefixtures("kernels", "empty_cache")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_quantized_gguf(tmp_path / "tiny.gguf")


def load(file: Path, keep: bool = True, **options: Any) -> LoadedModel:
    options = {"note": lambda text: pytest.fail(text), **options}
    return load_model(str(file), attention="sdpa", keep_format=keep, **options)


@torch.inference_mode()
def logits(loaded: LoadedModel) -> Tensor:
    found: Tensor = loaded.model(IDS).logits
    return found


def same(kept: LoadedModel, expanded: LoadedModel) -> None:
    """The logits of all positions are equal up to rounding, and far from constant."""
    own, theirs = logits(kept), logits(expanded)
    assert theirs.std() > 0.5
    assert (own - theirs).abs().max() < 2e-4 * theirs.abs().max()
    assert torch.equal(own.argmax(-1), theirs.argmax(-1))


def layers(loaded: LoadedModel, kind: type[nn.Module] = QuantizedLayer) -> list[Any]:
    return [each for each in loaded.model.modules() if isinstance(each, kind)]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_the_model_is_the_expanded_one(tmp_path: Path, architecture: str, tied: bool) -> None:
    file = write_quantized_gguf(tmp_path / "m.gguf", architecture, tied)
    kept, expanded = load(file), load(file, keep=False)
    same(kept, expanded)
    assert len(layers(kept, QuantizedLinear)) >= MATRICES - LAYERS + 1
    assert (kept.stored is None, expanded.stored is None, layers(expanded)) == (False, True, [])
    assert kept.format == "Q4_K_M"
    assert (kept.eos_ids, kept.context, kept.vocab_size) == (
        expanded.eos_ids,
        expanded.context,
        expanded.vocab_size,
    )
    tokenizers = kept.tokenizer, expanded.tokenizer
    own, theirs = (json.loads(each.backend_tokenizer.to_str()) for each in tokenizers)
    parts = ("normalizer", "pre_tokenizer", "decoder", "model", "added_tokens")
    assert {part: own[part] for part in parts} == {part: theirs[part] for part in parts}
    own, theirs = (each("<|im_start|>zz qq abc")["input_ids"] for each in tokenizers)
    assert own == theirs
    assert kept.tokenizer.chat_template == expanded.tokenizer.chat_template


@pytest.mark.parametrize("kind", sorted(SUPPORTED - module.PLAIN), ids=lambda kind: kind.name)
def test_every_kind_of_block(tmp_path: Path, kind: Kind) -> None:
    names = ("token_embd", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    file = write_quantized_gguf(tmp_path / "m.gguf", tied=True, **dict.fromkeys(names, kind))
    kept = load(file)
    same(kept, load(file, keep=False))
    assert {layer.matrix.kind for layer in layers(kept)} == {kind}
    assert len(layers(kept, QuantizedLinear)) == MATRICES + 1
    assert len(layers(kept, QuantizedEmbedding)) == 1


def test_no_weights_are_written(file: Path, empty_cache: Path) -> None:
    before = {empty_cache, *file.parent.iterdir()}
    load(file)
    assert {*file.parent.iterdir()} == before
    assert_nothing_converted(empty_cache)


def assert_nothing_converted(cache: Path) -> None:
    """Of models there is what was read of their small files, and nothing else."""
    assert [path.name for path in (cache / "models").iterdir()] == ["read"]


def test_blocks_are_mapped_from_the_file(tmp_path: Path) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not tell what is mapped")
    file = write_quantized_gguf(tmp_path / "m.gguf", "qwen2")
    kept = load(file)
    lines = [line for line in maps.read_text().splitlines() if line.endswith(str(file.resolve()))]
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    assert layers(kept)
    assert all(any(a <= each.matrix.data.data_ptr() < b for a, b in spans) for each in layers(kept))


def test_files_without_blocks_are_converted(tmp_path: Path, empty_cache: Path) -> None:
    loaded = load(write_gguf(tmp_path / "plain.gguf"))
    assert (loaded.stored, layers(loaded)) == (None, [])
    assert (empty_cache / "models").exists()


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_an_adapter_is_added_to_the_products(tmp_path: Path, architecture: str) -> None:
    base = write_quantized_gguf(tmp_path / "base" / "m.gguf", architecture)
    adapter = save_adapter(tmp_path / "adapter", base, hidden=256, lora_alpha=0.2)
    kept = load(adapter)
    same(kept, load(adapter, keep=False))
    assert not torch.allclose(logits(kept), logits(load(base)), rtol=0.1)


def test_a_preset_with_an_adapter_stays_as_its_wheels_bring_it(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = write_quantized_gguf(tmp_path / "base" / "m.gguf", "qwen2")
    adapter = save_adapter(tmp_path / "adapter", base, hidden=256, lora_alpha=0.2)
    config = adapter / "adapter_config.json"
    named = {**json.loads(config.read_text()), "base_model_name_or_path": "qwen2.5-coder-0.5b"}
    config.write_text(json.dumps(named))
    medium = find_preset("medium")
    assert medium is not None
    monkeypatch.setattr(presets, "PRESETS", (replace(medium, adapter=str(adapter)), presets.CODER_0_5B))
    monkeypatch.setattr(registry, "wheel_model", lambda **_: base.parent)
    kept = load(Path("medium"))
    assert (kept.format, kept.sampling) == ("Q4_K_M", medium.sampling)
    assert_nothing_converted(empty_cache)
    expanded = load(Path("medium"), keep=False)
    same(kept, expanded)
    assert (kept.context, kept.eos_ids) == (expanded.context, expanded.eos_ids)
    assert not torch.allclose(logits(kept), logits(load(Path("qwen2.5-coder-0.5b"))), rtol=0.1)


def test_an_adapter_of_another_model(tmp_path: Path, file: Path) -> None:
    with pytest.raises(ModelError, match="not this adapter's base"):
        load(save_adapter(tmp_path / "adapter", file))


def test_kinds_without_a_kernel_are_expanded(tmp_path: Path) -> None:
    notes: list[str] = []
    file = write_quantized_gguf(tmp_path / "m.gguf", attn_q=Kind.Q2_K)
    loaded = load(file, note=notes.append)
    assert (loaded.stored, layers(loaded)) == (None, [])
    (note,) = notes
    assert note == (
        "m.gguf is expanded, which takes more memory and time: "
        "weights in Q2_K (blk.0.attn_q.weight and 1 more) have no kernel; "
        "those in Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0 have"
    )


@pytest.mark.parametrize("keep", [True, False])
def test_an_unknown_type_is_one_line_and_allocates_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    name = b"blk.0.attn_q.weight"
    damaged, written = tmp_path / "odd.gguf", bytearray(file.read_bytes())
    at = written.index(name) + len(name) + 4 + 2 * 8  # behind it: the number of dimensions, and both
    written[at : at + 4] = (77).to_bytes(4, "little")
    damaged.write_bytes(written)
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", lambda *_, **__: pytest.fail("allocated"))
    with pytest.raises(ModelError) as caught:
        load(damaged, keep=keep)
    assert "blk.0.attn_q.weight is of quantization type 77, which is unknown here" in str(caught.value)
    assert "Q4_K_M" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_kernel_weights_are_expanded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(placement, "obstacle", lambda: "no C compiler")
    loaded = load(file, note=notes.append)
    assert (loaded.stored, layers(loaded)) == (None, [])
    assert notes == ["tiny.gguf is expanded, which takes more memory and time: no C compiler"]


def test_a_truncated_file_allocates_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:-64])
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", lambda *_, **__: pytest.fail("allocated"))
    with pytest.raises(ModelError, match=r"cut\.gguf cannot be loaded: .* ends beyond the end of the file"):
        load(cut)


def test_tensors_that_do_not_fit_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support import tiny_models

    real = tiny_models._quantized_shapes

    def narrow(*given: Any) -> dict[str, tuple[int, ...]]:
        return {**real(*given), "blk.1.ffn_up.weight": (512, 512)}

    monkeypatch.setattr(tiny_models, "_quantized_shapes", narrow)
    with pytest.raises(
        ModelError, match=r"up_proj.weight has the shape \(512, 512\) in the file, and \(512, 256\)"
    ):
        load(write_quantized_gguf(tmp_path / "m.gguf"))


def test_a_missing_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support import tiny_models

    real = tiny_models._quantized_shapes

    def fewer(*given: Any) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, shape in real(*given).items() if name != "blk.1.ffn_up.weight"}

    monkeypatch.setattr(tiny_models, "_quantized_shapes", fewer)
    with pytest.raises(ModelError, match=r"its weights lack model\.layers\.1\.mlp\.up_proj\.weight"):
        load(write_quantized_gguf(tmp_path / "m.gguf"))


def test_fingerprints(tmp_path: Path, file: Path) -> None:
    def of(loaded: LoadedModel) -> bytes:
        return fingerprint(loaded.model, loaded.tokenizer)

    other, data = tmp_path / "other.gguf", bytearray(file.read_bytes())
    matrix = next(each for each in read_header(file).tensors if each.name == "blk.0.attn_v.weight")
    data[matrix.offset] ^= 1  # a single weight is another
    other.write_bytes(data)
    adapter = save_adapter(tmp_path / "adapter", file, hidden=256, lora_alpha=0.2)
    assert of(load(file)) == of(load(file))
    found = [of(load(file)), of(load(file, keep=False)), of(load(other)), of(load(adapter))]
    assert len(set(found)) == len(found)


def test_their_bytes_are_those_of_the_file(file: Path) -> None:
    kept = load(file)
    found = stored_weights(resolve(str(file)), OnCpu())
    assert found == kept.stored
    assert found is not None
    blocks = sum(layer.matrix.data.nbytes for layer in layers(kept))
    numbers = sum(weight.nbytes for weight in kept.model.parameters())
    assert found.bytes == blocks + numbers
    assert found.bytes < sum(weight.nbytes for weight in load(file, keep=False).model.parameters()) / 2


def test_an_adapter_s_bytes_count_too(tmp_path: Path, file: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter", file, hidden=256)
    kept, bare = load(adapter), load(file)
    assert kept.stored is not None
    assert bare.stored is not None
    beside = sum(
        each.up.nbytes + each.down.nbytes for each in layers(kept, QuantizedLinear) if each.up is not None
    )
    assert kept.stored == bare.stored.with_adapter(beside)
    assert beside > 0


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_reads_one_row_of_an_embedding_of_its_own(tmp_path: Path, tied: bool) -> None:
    file = write_quantized_gguf(tmp_path / "m.gguf", tied=tied)
    (embedding,) = layers(load(file), QuantizedEmbedding)
    found = stored_weights(resolve(str(file)), OnCpu())
    assert found is not None
    assert found.bytes - found.step_bytes == (0 if tied else embedding.matrix.data.nbytes)


def test_a_draft_built_on_quantized_weights(tmp_path: Path) -> None:
    """It gets the rows of the embedding and of the output matrix that the expanded target has."""
    file, known = write_quantized_gguf(tmp_path / "m.gguf"), torch.arange(5, 50)
    kept, expanded = load(file), load(file, keep=False)
    folder = save_head_draft(tmp_path / "draft", expanded.model, expanded.tokenizer, known)
    made = []
    for target in (kept, expanded):
        draft = load(folder, tokenizer=target.tokenizer)
        check_draft(target, draft)
        assert draft.head is not None
        share_matrices(draft, draft.head, target, SINGLE)
        ends = draft.model.get_input_embeddings(), draft.model.get_output_embeddings()
        made.append([layer.weight for layer in ends])
    torch.testing.assert_close(*made)
