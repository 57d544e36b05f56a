"""Triton's interpreter made good, and quicker.

NumPy 2.4 turns no array of one element into an index, products of bfloat16 were those of its bits, casts to it and to
8 bits cut instead of rounding, and there was no PTX. Every call of a function within a kernel replaced the whole
language once more, which took half of the time: here a launch does it once, for kernels and for Triton's own functions.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from support import emulated_ptx

TALL = 64  # rows of a program of a product
EXPANDED = 256  # rows of a program that expands weights


def take_tall_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and expansions of weights by few large programs: here one runs after the other, whatever its size."""
    from triforce_chat.engine.kernels import blocking, expanding

    tall = tuple(case._replace(shape=case.shape._replace(rows=TALL)) for case in blocking.FEW)
    monkeypatch.setattr(blocking, "FEW", tall)
    monkeypatch.setattr(expanding, "ROWS", EXPANDED)


def patch() -> None:
    """Repair it for this process."""
    import triton.language as tl
    from triton.runtime import interpreter

    held = {tl.bfloat16: np.uint16, tl.float16: np.float16, tl.int32: np.int32}
    plain_tensor = interpreter._patch_lang_tensor
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    plain_cast, plain_dot = builder.cast_impl, builder.create_dot
    plain_language = interpreter._patch_lang
    everywhere = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})

    def tensor_patched(tensor: Any, scope: Any) -> None:
        plain_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def widened(each: Any) -> Any:
        if each.dtype.scalar == tl.bfloat16:
            return handle((each.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
        if each.dtype.scalar == tl.float8e4nv:
            narrow = torch.from_numpy(np.array(each.data, np.uint8)).view(torch.float8_e4m3fn)
            return handle(narrow.float().numpy(), tl.float32)
        return each

    def cast(self: Any, source: Any, kind: Any, *_: Any) -> Any:
        source = widened(source)
        if kind.scalar not in (tl.bfloat16, tl.float8e4nv):
            return plain_cast(self, source, kind)
        wide = torch.from_numpy(np.array(source.data, np.float32))
        if kind.scalar == tl.bfloat16:
            return handle(wide.bfloat16().view(torch.int16).numpy().view(np.uint16), tl.bfloat16)
        return handle(wide.to(torch.float8_e4m3fn).view(torch.uint8).numpy(), tl.float8e4nv)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain_dot(self, widened(a), widened(b), *rest)

    def create_inline_asm(
        _: Any, text: str, constraints: str, values: list[Any], kinds: list[Any], __: bool, pack: int
    ) -> Any:
        source = values[0]
        words = [np.ascontiguousarray(each.data).reshape(-1).view(np.uint32) for each in values]
        registers = emulated_ptx.run(text, constraints.count("="), words)
        each = len(registers) // len(kinds)  # registers of a result; those of one call lie side by side
        made = [np.stack(registers[at : at + each], 1) for at in range(0, len(registers), each)]
        results = [
            handle(part.reshape(-1).view(held[kind.scalar]).reshape(source.data.shape), kind.scalar)
            for part, kind in zip(made, kinds, strict=True)
        ]
        assert pack * source.data.itemsize == words[0].itemsize
        return SimpleNamespace(get_result=results.__getitem__)

    interpreter._patch_lang_tensor = tensor_patched
    interpreter._patch_lang = lambda _: plain_language(everywhere)
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **kwargs: self.rewrite()(*args, **kwargs)
    builder.create_inline_asm = create_inline_asm
    builder.cast_impl = builder.create_fp_to_fp = cast
    builder.create_dot = dot
