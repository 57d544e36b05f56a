"""Attention and rotary position embeddings by the compiled library."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce_chat.engine.cpu_kernels import compiled
from triforce_chat.engine.cpu_kernels.few_rows import Norm

DIMS = range(16, 257, 16)  # of heads
# Codes of keys and of values, their scales, and how many tokens of them are read: the fields of ``QuantizedTokens``.
Quantized = tuple[Tensor, Tensor, Tensor, Tensor, int]
NOTHING = (None, None, None, None, 0, 0, 0, 0, 0)  # in place of quantized tokens


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    length: int,
    scale: float,
    slots: Tensor | None = None,
    visible: Tensor | None = None,
    before: Quantized | None = None,
    mass: tuple[Tensor, int] | None = None,
) -> Tensor:
    """Attention of the last n of ``length`` tokens: query [1, Hq, n, D] -> [n, Hq * D].

    Causal unless ``visible`` [n, t], bool, says which of the last t tokens each of them sees.

    keys and values: [1, Hkv, S, D] with the same strides, in fp32 or fp16; the rest is in fp32. A row of the result is
    the same bit by bit whatever other queries are there. The tokens lie in the ``slots`` [Hkv, length] (int32), or in
    the first ones, or after quantized ones, of which ``before`` has whole groups unless there are no others. What all
    queries pay to each chunk is added to ``mass``: sums [Hkv, C], and the tokens of a chunk.
    """
    _, heads, n, dim = query.shape
    out = torch.empty(n, heads * dim)
    visible = None if visible is None else visible.contiguous()
    sums, chunk = mass or (None, 0)
    quantized = before[-1] if before else 0
    compiled.loaded().attend(
        compiled.instructions(),
        query.data_ptr(),
        query.stride(1),
        query.stride(2),
        keys.data_ptr(),
        values.data_ptr(),
        keys.element_size(),
        keys.stride(1),
        keys.stride(2),
        *(arguments_of(before) if before else NOTHING),
        None if slots is None else slots.data_ptr(),
        0 if slots is None else slots.stride(0),
        keys.shape[1],
        heads // keys.shape[1],
        n,
        length + quantized,
        dim,
        scale,
        None if visible is None else visible.data_ptr(),
        0 if visible is None else visible.shape[1],
        out.data_ptr(),
        None if sums is None else sums.data_ptr(),
        0 if sums is None else sums.stride(0),
        chunk,
        torch.get_num_threads(),
    )
    return out


def arguments_of(before: Quantized) -> tuple[int, ...]:
    """Quantized tokens as the library takes them: addresses, strides from head to head, how many, and their bits."""
    *parts, count = before
    return (
        *(each.data_ptr() for each in parts),
        *(each.stride(0) for each in parts[1:]),
        count,
        8 if parts[-1].shape[-1] == 1 else 4,
    )


def rotate(
    x: Tensor,
    heads: tuple[int, int],
    dim: int,
    norms: tuple[Norm | None, Norm | None],
    cos: Tensor,
    sin: Tensor,
) -> None:
    """Rotate the query heads and the key heads, which begin the rows x [n, ...], in place; after their norms, if any.

    cos and sin: [n, dim].
    """
    query_norm, key_norm = norms
    compiled.loaded().rotate(
        x.data_ptr(),
        len(x),
        x.stride(0),
        *heads,
        dim,
        query_norm and query_norm.weight.data_ptr(),
        key_norm and key_norm.weight.data_ptr(),
        query_norm.eps if query_norm else 0.0,
        cos.data_ptr(),
        sin.data_ptr(),
        torch.get_num_threads(),
    )
