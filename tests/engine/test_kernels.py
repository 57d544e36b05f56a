"""Every kernel against plain arithmetic in float64: by Triton's interpreter, or on the GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable

import interpreted
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from triforce_chat.engine import kernels
from triforce_chat.engine.kernels.decoding import Tiling, splits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    interpreted.patch()

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel leaves unwritten is NaN."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, spoiling(getattr(owner, name)))


def spoiling(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def spoiled(*args: object, **kwargs: object) -> Tensor:
        made = make(*args, **kwargs)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    return spoiled


def noise(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(size) + seed)
    return torch.randn(size, generator=generator).to(DEVICE, dtype)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether both are equal up to what the dtype rounds away."""
    tolerance = TOLERANCE[dtype or found.dtype]
    return torch.allclose(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 48, 128, 577])
def test_rms_norm(width: int, dtype: torch.dtype) -> None:
    x, weight = noise(3, width + 5, dtype=dtype)[:, :width], noise(width, dtype=dtype)
    normal = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    assert close(kernels.rms_norm(x, weight, 1e-5), normal * weight.double())


def test_rms_norm_of_heads_inside_one_buffer() -> None:
    buffer, weight = noise(3, 5 * 16), noise(16)
    heads = buffer.view(3, 5, 16)[:, 1:4]
    normal = heads.double() * (heads.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    found = kernels.rms_norm(heads, weight, 1e-6)
    assert found.shape == heads.shape
    assert close(found, normal * weight.double())


def test_rms_norm_rounds_as_transformers_does() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = LlamaRMSNorm(192, 1e-5).to(DEVICE, torch.bfloat16)
    norm.weight.data.copy_(noise(192))
    x = noise(7, 192, dtype=torch.bfloat16, seed=1)
    different = (kernels.rms_norm(x, norm.weight, 1e-5) != norm(x)).double().mean()
    assert different < 0.01  # rsqrt may differ in its last bit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "query_heads", "kv_heads", "dim"), [(1, 3, 1, 8), (5, 4, 2, 24), (3, 2, 2, 16)]
)
def test_rotate_and_store(n: int, query_heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    buffer = noise(n, (query_heads + 2 * kv_heads) * dim, dtype=dtype)
    q, k, v = buffer.view(n, -1, dim).split([query_heads, kv_heads, kv_heads], 1)
    angles = noise(n, dim, seed=2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    turned = apply_rotary_pos_emb(
        *(part.double().transpose(0, 1)[None] for part in (q, k)), cos.double()[None], sin.double()[None]
    )
    expected_q, expected_k = (part[0].transpose(0, 1) for part in turned)
    expected_v = v.clone()
    slab = torch.full((2, kv_heads, 12, dim), -7.0, dtype=dtype, device=DEVICE)
    kernels.rotate_and_store(q, k, v, cos, sin, slab[0], slab[1], torch.tensor([4], device=DEVICE))
    assert close(q, expected_q)
    assert close(k, expected_k)
    assert torch.equal(v, expected_v)
    new = slice(4, 4 + n)
    assert torch.equal(slab[0, :, new], k.transpose(0, 1))
    assert torch.equal(slab[1, :, new], v.transpose(0, 1))
    assert (slab[:, :, :4] == -7).all()
    assert (slab[:, :, 4 + n :] == -7).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("half", [3, 1024, 1500])
def test_silu_mul(half: int, dtype: torch.dtype) -> None:
    both = noise(2, 2 * half + 1, dtype=dtype)[:, : 2 * half]
    gate, up = both.double().chunk(2, -1)
    assert close(kernels.silu_mul(both), torch.nn.functional.silu(gate) * up)


def attention(q: Tensor, keys: Tensor, values: Tensor, at: int, scale: float) -> Tensor:
    """By the definition, in float64."""
    n, heads, _ = q.shape
    group = heads // len(keys)
    keys, values = (part[:, : at + n].double().repeat_interleave(group, 0) for part in (keys, values))
    scores = torch.einsum("nhd,hsd->hns", q.double(), keys) * scale
    seen = torch.arange(at + n, device=q.device) <= at + torch.arange(n, device=q.device)[:, None]
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    return torch.einsum("hns,hsd->nhd", weights, values)


def case(
    n: int, group: int, heads: int, dim: int, at: int, dtype: torch.dtype, size: int = 256
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries inside a wider buffer, and a slab in which every slot that no row sees is NaN."""
    q = noise(n, (group + 2) * heads, dim, dtype=dtype)[:, : group * heads]
    slab = noise(2, heads, size, dim, dtype=dtype)
    slab[:, :, at + n :] = float("nan")
    return q, slab[0], slab[1], torch.tensor([at], device=DEVICE, dtype=torch.int32)


ATTENTIONS = [  # new tokens, group, KV heads, head dimension, at
    (1, 1, 2, 16, 0),
    (1, 1, 1, 64, 127),
    (1, 4, 2, 64, 128),
    (2, 3, 3, 64, 62),
    (17, 1, 2, 128, 63),
    (17, 1, 1, 64, 200),
    (17, 4, 1, 64, 111),
    (40, 3, 1, 16, 0),
    (6, 1, 2, 128, 122),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "group", "heads", "dim", "at"), ATTENTIONS)
def test_decode_attention(n: int, group: int, heads: int, dim: int, at: int, dtype: torch.dtype) -> None:
    q, keys, values, place = case(n, group, heads, dim, at, dtype)
    found = kernels.decode_attention(q, keys, values, place, 0.3, at + n)
    assert found.shape == q.shape
    assert close(found, attention(q, keys, values, at, 0.3))


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("at", [0, 13, 14, 15, 16, 45, 93, 126])
def test_any_number_of_splits_serves_any_length(at: int, parts: int) -> None:
    q, keys, values, place = case(3, 2, 1, 16, at, torch.float32, 136)
    found = kernels.decode_attention(q, keys, values, place, 0.25, 136, Tiling(16, 16), parts)
    assert close(found, attention(q, keys, values, at, 0.25))


@pytest.mark.parametrize("rows", [16, 32, 64])
def test_any_tile_serves_any_number_of_rows(rows: int) -> None:
    q, keys, values, place = case(25, 3, 1, 32, 90, torch.bfloat16)
    found = kernels.decode_attention(q, keys, values, place, 0.25, 120, Tiling(rows, 32), 3)
    assert close(found, attention(q, keys, values, 90, 0.25))


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    q, keys, values, place = case(2, 1, 1, 16, 150, torch.float32)
    keys[:, :100] *= 300
    found = kernels.decode_attention(q, keys, values, place, 1.0, 152, Tiling(16, 16), 4)
    assert close(found, attention(q, keys, values, 150, 1.0))


@pytest.mark.parametrize(("heads", "row_tiles"), [(32, 1), (8, 1), (8, 2), (3, 1), (3, 2), (40, 1), (4, 1)])
def test_programs_fill_the_processors(heads: int, row_tiles: int) -> None:
    programs = heads * row_tiles * splits(heads, row_tiles, 124_928)
    waves = -(-programs // 264)
    assert programs / (264 * waves) > 0.9
    assert waves <= 2


@pytest.mark.parametrize("most", [1, 128, 129, 4_100])
def test_short_views_are_not_split_into_crumbs(most: int) -> None:
    assert 1 <= splits(1, 1, most) <= -(-most // 128)
    assert splits(1_000, 4, most) == 1
