"""The frequencies of rotary embeddings, as transformers computes them, without its modules.

Its functions are imported with what all its models need, which takes longer than a whole start may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

FAST, SLOW = 32, 1  # rotations within the original context between which YaRN blends, by its authors
SINGULAR = 0.001  # instead of a ramp of no width


def frequencies_of(config: Any) -> tuple[Tensor, float]:
    """The frequency of each pair of dimensions [D/2], and the factor of cos and sin."""
    rope: Mapping[str, Any] = config.rope_parameters
    return KINDS[rope["rope_type"]](rope, head_dim_of(config), config)


def head_dim_of(config: Any) -> int:
    """The dimensions of one head; the configuration may leave them to be derived."""
    declared: int | None = getattr(config, "head_dim", None)
    return declared or int(config.hidden_size // config.num_attention_heads)


def _default(rope: Mapping[str, Any], dim: int, _config: Any) -> tuple[Tensor, float]:
    return 1.0 / _wavelengths(rope, dim), 1.0


def _linear(rope: Mapping[str, Any], dim: int, _config: Any) -> tuple[Tensor, float]:
    return 1.0 / _wavelengths(rope, _rotated(rope, dim)) / rope["factor"], 1.0


def _llama3(rope: Mapping[str, Any], dim: int, _config: Any) -> tuple[Tensor, float]:
    """Long waves are stretched, short ones are not, and those between them are blended (Llama 3.1)."""
    own = 1.0 / _wavelengths(rope, _rotated(rope, dim))
    factor, low, high = (rope[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original = rope["original_max_position_embeddings"]
    waves = 2 * math.pi / own
    is_long, is_short = waves > original / low, waves < original / high
    stretched = torch.where(is_long, own / factor, own)
    share = (original / waves - low) / (high - low)
    blended = (1 - share) * stretched / factor + share * stretched
    return torch.where(~is_long & ~is_short, blended, stretched), 1.0


def _yarn(rope: Mapping[str, Any], dim: int, config: Any) -> tuple[Tensor, float]:
    """Peng et al., arXiv 2309.00071."""
    dim = _rotated(rope, dim)
    original = rope["original_max_position_embeddings"]
    factor = rope["factor"]
    if factor is None:
        factor = config.max_position_embeddings / original
    waves = _wavelengths(rope, dim)
    low, high = _blended_pairs(rope, dim, original)
    ramp = torch.arange(dim // 2, dtype=torch.float32)
    own = 1 - ((ramp - low) / (high - low)).clamp(0, 1)
    return 1.0 / (factor * waves) * (1 - own) + 1.0 / waves * own, _yarn_attention(rope, factor)


def _blended_pairs(rope: Mapping[str, Any], dim: int, original: int) -> tuple[float, float]:
    """The first and the last pair of dimensions between the stretched ones and those that stay."""
    base = rope["rope_theta"]
    low, high = (
        dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))
        for rotations in (rope.get("beta_fast") or FAST, rope.get("beta_slow") or SLOW)
    )
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + SINGULAR if low == high else high


def _yarn_attention(rope: Mapping[str, Any], factor: float) -> float:
    """The factor of cos and sin."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    declared: float | None = rope.get("attention_factor")
    if declared is not None:
        return declared
    one, all_dims = rope.get("mscale"), rope.get("mscale_all_dim")
    return float(scale(one) / scale(all_dims)) if one and all_dims else scale(1)


def _rotated(rope: Mapping[str, Any], dim: int) -> int:
    return int(dim * rope.get("partial_rotary_factor", 1.0))


def _wavelengths(rope: Mapping[str, Any], dim: int) -> Tensor:
    """The inverse frequency of each pair of dimensions: [dim/2]."""
    steps = torch.arange(0, dim, 2, dtype=torch.float) / dim
    waves: Tensor = rope["rope_theta"] ** steps
    return waves


Kind = Callable[[Mapping[str, Any], int, Any], tuple[Tensor, float]]
KINDS: Mapping[str, Kind] = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
