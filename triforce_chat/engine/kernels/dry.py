"""Launches that are only recorded: which variants of the kernels tensors of given shapes and types will need.

Triton compiles a variant for each combination of argument types, constants and divisibilities. The functions that
launch kernels compute all of these from their arguments. Called with tensors on torch's "meta" device, which have no
memory, they need no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

WARP = 32  # threads


class Launch(NamedTuple):
    """A kernel and the arguments of the first launch that needs this variant of it."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]

    def compile(self) -> Any:
        """Compile the variant for the target of ``without_gpu`` and store it on disk, where Triton looks for it."""
        return self.kernel.warmup(*self.arguments, grid=(1,), **self.constants)


class NoGPU:
    """What Triton asks its driver, answered for a GPU that is not touched."""

    def __init__(self, capability: int, shared_memory: int) -> None:
        self.target = GPUTarget("cuda", capability, WARP)
        self.capability, self.shared_memory, self.utils = capability, shared_memory, self

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps one target for each number

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:  # noqa: ARG002
        return {"max_shared_mem": self.shared_memory}


@contextmanager
def without_gpu(capability: int, shared_memory: int) -> Iterator[None]:
    """Compile for GPUs of that compute capability, 90 for 9.0, without a context on one, which takes memory there.

    ``shared_memory``: bytes of it that a program may have on them.
    """
    driver.set_active(NoGPU(capability, shared_memory))
    try:
        yield
    finally:
        with suppress(RuntimeError):  # no GPU here: there is nothing to go back to
            driver.reset_active()


def recorded(work: Callable[[], Any]) -> dict[Any, Launch]:
    """The variants that the launches in ``work`` need, by Triton's own key; nothing is compiled or launched.

    Only under ``without_gpu``.
    """
    found: dict[Any, Launch] = {}
    run, hook = JITFunction.run, knobs.runtime.jit_cache_hook

    def dry(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> None:  # noqa: ARG001
        def note(*, compile: dict[str, Any], **_: Any) -> bool:
            key = kernel.__name__, compile["key"]
            found.setdefault(key, Launch(kernel, arguments, constants))
            return True  # keeps it from compiling

        knobs.runtime.jit_cache_hook = note
        run(kernel, *arguments, grid=grid, warmup=True, **constants)

    JITFunction.run = dry
    try:
        work()
    finally:
        JITFunction.run, knobs.runtime.jit_cache_hook = run, hook
    return found
