"""Code that must not wait for a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_waits() -> Iterator[None]:
    """Every wait that torch knows of raises RuntimeError; one for an event is none to it."""
    _mode("error")
    try:
        yield
    finally:
        _mode("default")


def _mode(name: str) -> None:
    with warnings.catch_warnings():
        # torch warns that this is a prototype: as an error that would leave the mode switched on for all tests.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(name)
