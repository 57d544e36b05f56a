"""Triton 3.6's interpreter made good.

NumPy 2.4 turns no array of one element into an index, products of bfloat16 were those of its bits, and casts to
it cut instead of rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def patch() -> None:
    """Repair it for this process."""
    import triton.language as tl
    from triton.runtime import interpreter

    plain_tensor = interpreter._patch_lang_tensor
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    plain_cast, plain_dot = builder.cast_impl, builder.create_dot

    def tensor_patched(tensor: Any, scope: Any) -> None:
        plain_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def widened(each: Any) -> Any:
        if each.dtype.scalar != tl.bfloat16:
            return each
        return handle((each.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def cast(self: Any, source: Any, kind: Any) -> Any:
        source = widened(source)
        if kind.scalar != tl.bfloat16:
            return plain_cast(self, source, kind)
        rounded = torch.from_numpy(np.array(source.data, np.float32)).bfloat16()
        return handle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain_dot(self, widened(a), widened(b), *rest)

    interpreter._patch_lang_tensor = tensor_patched
    builder.cast_impl, builder.create_dot = cast, dot
