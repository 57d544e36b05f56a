"""Triton's interpreter made good, and quicker.

NumPy 2.4 turns no array of one element into an index, products of bfloat16 were those of its bits, casts to it and to
8 bits cut instead of rounding, and there was no PTX. Every call of a function within a kernel replaced the whole
language once more, which took half of the time: here a launch does it once, for kernels and for Triton's own functions.
Most of the rest went into types: each operation on integers was followed by six that looked for an overflow which is
only reported when debugging, and every type of a block was made, checked and compared anew.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
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


@cache
def patch() -> None:
    """Repair it for this process, however many test files ask for it."""
    repair()
    share_types()


def share_types() -> None:
    """Leave out checks whose results nobody reads; look types up by their names, and shapes by their sizes."""
    from triton.language import core
    from triton.runtime import interpreter

    builder, semantic = interpreter.interpreter_builder, type(interpreter.interpreter_semantic)
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)
    plain_block, plain_dtype = core.block_type.__init__, interpreter._get_np_dtype
    plain_broadcast = semantic.broadcast_impl_value
    blocks: dict[Any, Any] = {}
    shapes: dict[Any, Any] = {}  # shared, so that equal ones are the same object
    axes: dict[Any, Any] = {}
    dtypes: dict[str, np.dtype[Any]] = {}

    def block_of(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(each.value if isinstance(each, core.constexpr) else each for each in shape)
        found = blocks.get((element_ty.name, sizes))
        if not found:
            plain_block(self, element_ty, shape)
            same = shapes.setdefault(sizes, self.shape)
            found = blocks[element_ty.name, sizes] = same, self.numel, self.name
        self.element_ty = element_ty
        self.shape, self.numel, self.name = found

    def tensor_of(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape) if type.is_block() else ()
        found = axes.get(sizes)
        if not found:
            found = axes[sizes] = core.constexpr(prod(sizes)), core.tuple([core.constexpr(n) for n in sizes])
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = found

    def same_type(self: Any, other: Any) -> bool:
        other = other.value if isinstance(other, core.constexpr) else other
        return self is other or (isinstance(other, core.dtype) and self.name == other.name)

    def broadcast(self: Any, left: Any, right: Any) -> Any:
        if left.type.is_block() and right.type.is_block() and left.type.shape is right.type.shape:
            return left, right
        return plain_broadcast(self, left, right)

    def dtype_of(kind: Any) -> np.dtype[Any]:
        found = dtypes.get(kind.name)
        if found is None:
            found = dtypes[kind.name] = plain_dtype(kind)
        return found

    core.block_type.__init__, core.tensor.__init__, core.dtype.__eq__ = block_of, tensor_of, same_type
    semantic.broadcast_impl_value, interpreter._get_np_dtype = broadcast, dtype_of


def repair() -> None:
    """Give it the numbers and the speed that it lacks."""
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
