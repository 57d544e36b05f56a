"""Writes a small model into the dimensions of a big one, so that the big one computes the small one's function.

This allows measuring speed at a big model's shape, on text that a trained model generates, without the big model's
weights. The result is no smarter than the small model and has its vocabulary.

All added weights are random, because zeros run faster on real hardware, but their contributions cancel:

* Channels of the residual stream. Embeddings and real heads write zeros there, so matrices may have any
  weights for them. The mean of squares runs over more channels, N for n; with r = n/N,
  w sqrt(r) x / sqrt(r mean(x^2) + r eps) = w x / sqrt(mean(x^2) + eps).
* Values and neurons come in pairs of twins: neighbours with equal input weights and opposite output weights, whose
  products cancel within one sum.
* Layers of twins only add nothing to the stream.
* Pairs of dimensions that RoPE rotates. The small head's pairs go to pairs of the same frequency; in the others
  the real queries are zero and the keys random. Queries are scaled because softmax divides by sqrt(head_dim).
* Biases of queries, keys and values (Qwen2) are treated like one more column of their matrices.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from triforce_chat.engine.forward.frequencies import head_dim_of
from triforce_chat.errors import ModelError
from triforce_chat.models.assemble import empty_model
from triforce_chat.models.failures import convert_errors
from triforce_chat.models.load import LoadedModel, Settle
from triforce_chat.models.shapes import BigShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HeadSlot(NamedTuple):
    """The slot of one query head of the small model, and the KV head that it reads."""

    kv: int  # KV head of the big model
    slot: int  # among the query heads that share this KV head
    source: int  # KV head of the small model


def resize_loaded(loaded: LoadedModel, shape: BigShape, settle: Settle | None = None) -> LoadedModel:
    """Resize a loaded model on its device, from where ``settle`` moves each layer. Raises ModelError or OutOfMemory."""
    device, dtype = loaded.model.device, loaded.model.dtype
    name = f"{loaded.name} inflated to {shape.name}"
    with convert_errors(name, str(device)):
        model = resize(loaded.model, shape, dtype=dtype, device=device, settle=settle)
    return dataclasses.replace(loaded, name=name, model=model)


@torch.no_grad()
def resize(
    model: PreTrainedModel,
    shape: BigShape,
    *,
    seed: int = 0,
    dtype: torch.dtype,
    device: torch.device | str,
    settle: Settle | None = None,
) -> Any:
    """A model of ``shape`` and of the same family whose logits are those of ``model`` up to rounding.

    Memory holds it only once: its matrices are allocated on ``device``, filled with random numbers of the small
    matrices' standard deviation, and partly overwritten. ``settle`` gets the number of each layer and the layer as soon
    as it is complete, and may move it elsewhere. Raises ModelError if ``model`` is no Llama or Qwen2 that fits.
    """
    _check(model.config, shape)
    big = _allocated(model, shape, dtype, device)
    random = torch.Generator(device).manual_seed(seed)
    known = model.model.layers
    slots = head_slots(model.config, shape)
    for i, layer in enumerate(big.model.layers):
        like = known[i % len(known)]
        layer.to_empty(device=device)
        _draw(layer, like, random)
        _cancel(layer)
        _write_norm(layer.input_layernorm, like.input_layernorm)
        _write_norm(layer.post_attention_layernorm, like.post_attention_layernorm)
        if i < len(known):
            _write_attention(layer.self_attn, like.self_attn, slots, model.config, shape)
            _write_mlp(layer.mlp, like.mlp)
        if settle:
            settle(i, layer)
    _write_norm(big.model.norm, model.model.norm)
    _write_embeddings(big, model, random)
    return big


def head_slots(config: Any, shape: BigShape) -> list[HeadSlot]:
    """A slot for each query head of the small model, if possible beside the heads that read the same keys.

    If the big shape has fewer query heads per KV head, the small model's KV heads are copied.
    """
    group, big_group = config.num_attention_heads // config.num_key_value_heads, shape.heads // shape.kv_heads
    copies = -(-group // big_group)
    found = []
    for head in range(config.num_attention_heads):
        source, member = divmod(head, group)
        turn, slot = divmod(member, big_group)
        found.append(HeadSlot(source * copies + turn, slot, source))
    return found


def rotated_dims(head_dim: int, shape: BigShape) -> Tensor:
    """The dimension of a big head with the same RoPE frequency as each dimension of a small head: [head_dim].

    RoPE rotates dimension i together with i + half; the small head's frequencies are evenly spaced among the big
    head's.
    """
    slots = torch.arange(head_dim // 2) * shape.head_dim // head_dim
    return torch.cat([slots, slots + shape.head_dim // 2])


def _check(config: Any, shape: BigShape) -> None:
    llama = config.model_type == "llama" and not (config.attention_bias or config.mlp_bias)
    if not llama and config.model_type != "qwen2":
        raise ModelError(
            f"only a Llama without biases or a Qwen2 can be inflated; this is {config.model_type!r}"
        )
    sizes = (
        ("channels", config.hidden_size, shape.hidden),
        ("layers", config.num_hidden_layers, shape.layers),
        ("dimensions per head", head_dim_of(config), shape.head_dim),
        ("neurons", config.intermediate_size, shape.mlp),
        ("KV heads", max(head.kv for head in head_slots(config, shape)) + 1, shape.kv_heads),
    )
    for what, needed, available in sizes:
        if needed > available:
            raise ModelError(f"{shape.name} has {available:,} {what}; the model needs {needed:,}")
    if config.intermediate_size % 2 or shape.mlp % 2:
        raise ModelError("an odd number of neurons cannot be paired")


def _allocated(model: Any, shape: BigShape, dtype: torch.dtype, device: torch.device | str) -> Any:
    """A model of that shape with the right rotary embeddings and uninitialised weights, but none in its layers yet."""
    small = model.config
    config = copy.deepcopy(small)
    config.update({**shape.fields, "rms_norm_eps": small.rms_norm_eps * small.hidden_size / shape.hidden})
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * shape.layers
    big = empty_model(config, small._attn_implementation, dtype, torch.device(device))
    for part in (big.model.embed_tokens, big.model.norm, big.lm_head):
        part.to_empty(device=device)
    big.model.rotary_emb = _rotary(model.model.rotary_emb, config, shape).to(device)
    big.generation_config = copy.deepcopy(model.generation_config)
    return big.requires_grad_(False).eval()


def _rotary(small: Any, config: Any, shape: BigShape) -> Any:
    """Rotary embeddings with exactly the small model's frequencies at its dimensions.

    They are copied, not computed, because YaRN blends them by the index of a pair, and rounds.
    """
    rotary = type(small)(config=config)
    dims = rotated_dims(2 * len(small.inv_freq), shape)
    slots = dims[: len(small.inv_freq)]
    for frequencies in (rotary.inv_freq, rotary.original_inv_freq):
        frequencies[slots] = small.inv_freq.cpu()
    rotary.attention_scaling = small.attention_scaling
    return rotary


def _draw(layer: nn.Module, like: nn.Module, random: torch.Generator) -> None:
    """Fill the matrices and biases of a layer with random numbers of the standard deviation in ``like``."""
    for name, weight in layer.named_parameters():
        if weight.dim() == 2 or name.endswith("bias"):
            spread = like.get_parameter(name).float().std().item()
            weight.normal_(0, spread, generator=random)


def _cancel(layer: Any) -> None:
    """Make twins of all values and all neurons, so that the layer's output is zero."""
    attention, mlp = layer.self_attn, layer.mlp
    for part in (attention.v_proj, mlp.gate_proj, mlp.up_proj):
        for rows in part.parameters():
            rows[1::2] = rows[::2]
    for columns in (attention.o_proj.weight, mlp.down_proj.weight):
        columns[:, 1::2] = -columns[:, ::2]


def _write_attention(big: Any, small: Any, slots: list[HeadSlot], config: Any, shape: BigShape) -> None:
    """Write the real heads into their slots among the random ones."""
    channels, dim = config.hidden_size, head_dim_of(config)
    dims = rotated_dims(dim, shape).to(big.q_proj.weight.device)
    out = big.o_proj.weight.unflatten(1, (shape.kv_heads, -1, shape.head_dim))  # [channels, Hkv, G, D]
    o = small.o_proj.weight.unflatten(1, (-1, dim))
    inputs: list[tuple[str, Any]] = [("weight", slice(channels))]
    if small.q_proj.bias is not None:
        inputs.append(("bias", ...))
    for name, columns in inputs:  # of each row, those that the small model has
        keys, values = (
            getattr(part, name).unflatten(0, (-1, shape.head_dim)) for part in (big.k_proj, big.v_proj)
        )
        queries = getattr(big.q_proj, name).unflatten(
            0, (shape.kv_heads, -1, shape.head_dim)
        )  # [Hkv, G, D, ..]
        q, k, v = (
            getattr(part, name).unflatten(0, (-1, dim)) for part in (small.q_proj, small.k_proj, small.v_proj)
        )
        for number, head in enumerate(slots):
            if head.slot == 0:
                keys[head.kv, dims, columns] = k[head.source].to(keys)
                values[head.kv, :dim, columns] = v[head.source].to(values)
                queries[head.kv, :, :, columns] = 0
            # Into spare slots, too: random queries would influence which keys the group retrieves.
            scaled = _scaled(q[number], shape.head_dim / dim).to(queries)
            queries[head.kv, head.slot :, dims, columns] = scaled
    for number, head in enumerate(slots):
        if head.slot == 0:
            out[:, head.kv, :, :dim] = 0  # real values have no twins
        out[:channels, head.kv, head.slot, :dim] = o[:, number].to(out)


def _write_mlp(big: Any, small: Any) -> None:
    neurons, channels = small.gate_proj.weight.shape
    big.gate_proj.weight[:neurons, :channels] = small.gate_proj.weight
    big.up_proj.weight[:neurons, :channels] = small.up_proj.weight
    big.down_proj.weight[:, :neurons] = 0
    big.down_proj.weight[:channels, :neurons] = small.down_proj.weight


def _write_norm(big: Any, small: Any) -> None:
    known = len(small.weight)
    weight = _scaled(small.weight, known / len(big.weight))
    big.weight[:known] = weight
    big.weight[known:] = weight.mean()  # for channels that are always zero


def _write_embeddings(big: Any, small: Any, random: torch.Generator) -> None:
    into, out = big.model.embed_tokens.weight, big.lm_head.weight
    channels = small.config.hidden_size
    into.zero_()
    into[:, :channels] = small.model.embed_tokens.weight
    out.normal_(0, small.lm_head.weight.float().std().item(), generator=random)
    out[:, :channels] = small.lm_head.weight


def _scaled(weight: Tensor, square: float) -> Tensor:
    """weight times sqrt(square), in fp32."""
    return weight.float() * math.sqrt(square)
