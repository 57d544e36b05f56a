"""Fused decoder layers of a CPU compute what transformers' own do."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from support.tiny_models import VOCABULARY, save_adapter, save_model, write_quantized_gguf
from torch import Tensor, nn

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cpu_kernels import compiled
from triforce_chat.engine.forward import cpu_layer, runner
from triforce_chat.engine.forward.attention import NAME
from triforce_chat.engine.forward.cpu_layer import FEW, CpuLayer
from triforce_chat.engine.forward.forward import Feed
from triforce_chat.engine.forward.modules import LanguageModel
from triforce_chat.engine.forward.quantized import QuantizedLinear, weight_bytes
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.tree import Parents, paths, verified
from triforce_chat.models.load import load_model

IDS = torch.randint(3, len(VOCABULARY), (1, 130), generator=torch.Generator().manual_seed(0))
FAMILIES = ("llama", "qwen2", "qwen3")

pytestmark = pytest.mark.usefixtures("kernels", "empty_cache")


@pytest.fixture(params=FAMILIES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_quantized_gguf(tmp_path / "tiny.gguf", request.param, context=256)


def loaded(file: Path) -> Runner:
    return Runner(load_model(str(file), attention="sdpa", keep_format=True).model)


def fed(model: Runner, *widths: int) -> Tensor:
    """Logits [1, sum of widths, V] of the first ids, fed so many at a time."""
    cache, parts, at = FullCache(model.shape, 256), [], 0
    for n in widths:
        parts.append(model(IDS[:, at : at + n], cache, n).clone())
        at += n
    return torch.cat(parts, 1)


def test_logits_are_those_of_transformers_layers(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fused = loaded(file)
    assert all(isinstance(layer, CpuLayer) for layer in fused.model.base_model.layers)
    monkeypatch.setattr(runner, "fuse_layers", lambda _: None)
    plain = loaded(file)
    assert not any(isinstance(layer, CpuLayer) for layer in plain.model.base_model.layers)
    for widths in ((1, 1, 1, 8, 11), (130,), (100, 1, 29)):
        own, theirs = fed(fused, *widths), fed(plain, *widths)
        assert (own - theirs).abs().max() < 2e-4 * theirs.abs().max()
        assert theirs.std() > 0.5


@pytest.mark.parametrize("shape", [(-1, -1, 0, 0, 1, 3), (-1, *[0] * 10, *[1] * 9)])
def test_a_tree_s_rows_are_those_of_its_paths(file: Path, shape: Parents) -> None:
    model, given = loaded(file), IDS[0, :20].tolist()
    nodes = IDS[0, 30 : 30 + len(shape)].tolist()
    fed_ids = torch.tensor([[*given, *nodes]])
    tree = verified(shape, len(given))
    logits = model(fed_ids, FullCache(model.shape, 64), len(shape) + 1, tree=tree).clone()[0]
    for node, path in enumerate(paths(shape)):
        ids = torch.tensor([[*given, *(nodes[at] for at in path)]])
        alone = model(ids, FullCache(model.shape, 64), 1)[0, 0]
        torch.testing.assert_close(logits[node + 1], alone, atol=1e-4, rtol=1e-3)


def test_few_tokens_have_the_same_logits_in_any_company(file: Path) -> None:
    model = loaded(file)
    one_by_one = fed(model, *([1] * 30))
    assert torch.equal(fed(model, FEW, 14), one_by_one)
    assert torch.equal(fed(model, 8, 3, FEW, 3), one_by_one)


def test_many_tokens_are_attended_to_by_torch(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(file)
    expected = fed(model, FEW)
    monkeypatch.setattr(cpu_layer, "FEW", FEW - 1)
    found = fed(model, FEW)
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_several_sequences_in_one_forward(file: Path) -> None:
    model = loaded(file)

    def feeds() -> list[Feed]:
        caches = FullCache(model.shape, 64), FullCache(model.shape, 64)
        for cache, n in zip(caches, (20, 9), strict=True):
            model(IDS[:, :n], cache, 1)
        return [Feed(IDS[:, 20:21], caches[0], 1), Feed(IDS[:, 9:12], caches[1], 3)]

    together = [logits for logits, _ in model.compute(feeds())]
    alone = [model(*feed).clone() for feed in feeds()]
    assert all(torch.equal(own, other) for own, other in zip(together, alone, strict=True))


def test_weights_keep_their_names(file: Path) -> None:
    model = load_model(str(file), attention="sdpa", keep_format=True).model
    before = list(dict(model.named_parameters()))
    Runner(model)
    assert list(dict(model.named_parameters())) == before


def test_an_adapter_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_quantized_gguf(tmp_path / "tiny.gguf", context=256)
    adapter = save_adapter(tmp_path / "adapter", base, hidden=256, lora_alpha=0.2)
    fused, bare = fed(loaded(adapter), 8, 122), fed(loaded(base), 8, 122)
    monkeypatch.setattr(runner, "fuse_layers", lambda _: None)
    expected = fed(loaded(adapter), 8, 122)
    assert (fused - expected).abs().max() < 2e-4 * expected.abs().max()
    assert not torch.allclose(fused, bare, rtol=0.1)


def test_dense_weights_are_left_to_transformers_layers(tmp_path: Path) -> None:
    model = load_model(str(save_model(tmp_path / "dense")), attention="sdpa").model
    assert not any(isinstance(layer, CpuLayer) for layer in Runner(model).model.base_model.layers)


# Matrices of 16 bits


def dense(folder: Path, family: str, dtype: torch.dtype) -> LanguageModel:
    """A random model in fp32 whose weights that dtype holds exactly."""
    tied = family == "qwen3"
    save_model(folder, family, hidden_size=64, intermediate_size=96, head_dim=16, tie_word_embeddings=tied)
    model = load_model(str(folder), attention=NAME).model
    assert isinstance(model, LanguageModel)
    for weight in model.parameters():
        weight.copy_(weight.to(dtype))
    return model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_16_bits_hold_takes_no_more_and_says_the_same(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = dense(tmp_path / "dense", family, dtype)
    narrow = deepcopy(model)
    cpu_layer.keep_in_16_bits(narrow)
    expected = weight_bytes(model) - sum(
        module.weight.nbytes // 2 for module in model.modules() if isinstance(module, nn.Linear)
    )
    if model.config.tie_word_embeddings:
        expected += model.lm_head.weight.nbytes  # its embedding stays in fp32
    assert weight_bytes(narrow) == expected
    fused, packed = Runner(narrow), Runner(model)
    assert all(isinstance(layer, CpuLayer) for layer in narrow.base_model.layers)
    for widths in ((1, 1, 8, 11), (130,)):
        own, theirs = fed(fused, *widths), fed(packed, *widths)
        assert (own - theirs).abs().max() < 1e-4 * theirs.abs().max()


def test_numbers_that_16_bits_do_not_hold_stay(tmp_path: Path) -> None:
    model = dense(tmp_path / "dense", "llama", torch.bfloat16)
    model.get_parameter("model.layers.1.mlp.up_proj.weight")[3, 5] += 1e-5
    cpu_layer.keep_in_16_bits(model)
    left = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert left == ["model.layers.1.mlp.up_proj"]
    Runner(model)
    assert [isinstance(layer, CpuLayer) for layer in model.base_model.layers] == [True, False]


def test_without_the_library_all_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dense(tmp_path / "dense", "llama", torch.bfloat16)
    monkeypatch.setattr(compiled, "library", lambda: compiled.Compiled(None, "no compiler"))
    monkeypatch.setattr(compiled, "will_compile", lambda: False)
    cpu_layer.keep_in_16_bits(model)
    assert not any(isinstance(module, QuantizedLinear) for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_that_are_computed_with_in_16_bits_stay(tmp_path: Path, dtype: torch.dtype) -> None:
    model = load_model(str(save_model(tmp_path / "dense")), attention=NAME, dtype=dtype).model
    cpu_layer.keep_in_16_bits(model)
    assert not any(isinstance(module, QuantizedLinear) for module in model.modules())
