"""Converts the errors of libraries into one line for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from triforce_chat.errors import ModelError, OutOfMemory, TriforceError, reason_of

ALLOCATION_FAILED = ("can't allocate memory", "not enough memory", "out of memory")


@contextmanager
def convert_errors(name: str, device: str) -> Iterator[None]:
    """Convert any error within the block into a ModelError or OutOfMemory about the model ``name``."""
    try:
        yield
    except TriforceError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(
                f"{name} does not fit into the memory of {device}; use a smaller model"
            ) from error
        raise ModelError(f"{name} cannot be loaded: {one_line_of(error)}") from error


def one_line_of(error: Exception) -> str:
    """The first line of a library's error that says something, else the name of its class."""
    if isinstance(error, OSError) and error.filename:
        return reason_of(error)
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def convert_out_of_memory() -> Iterator[None]:
    """Convert a library's out-of-memory error within the block into OutOfMemory."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise out_of_memory_error() from error
        raise


def out_of_memory_error() -> OutOfMemory:
    return OutOfMemory("out of memory; choose a smaller --context, fewer pages or a smaller model")


def is_out_of_memory(error: BaseException) -> bool:
    """True if a library's error means that memory ran out, whatever its class."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in ALLOCATION_FAILED)
