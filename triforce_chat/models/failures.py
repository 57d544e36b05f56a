"""What libraries raise while they read a model, as one line for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from triforce_chat.errors import ModelError, OutOfMemory, TriforceError

ALLOCATION_FAILED = ("can't allocate memory", "not enough memory", "out of memory")


@contextmanager
def explained(name: str, device: str) -> Iterator[None]:
    """Whatever a library raises while it reads a model becomes one line about that model."""
    try:
        yield
    except TriforceError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(
                f"{name} does not fit into the memory of {device}; take a smaller model"
            ) from error
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise ModelError(f"{name} cannot be loaded: {first or type(error).__name__}") from error


@contextmanager
def memory_watched() -> Iterator[None]:
    """Memory that runs out in the middle of the work becomes one line."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise ran_out() from error
        raise


def ran_out() -> OutOfMemory:
    return OutOfMemory("out of memory; choose a smaller --context, fewer pages or a smaller model")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a library's error means that memory ran out, whatever class it has."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in ALLOCATION_FAILED)
