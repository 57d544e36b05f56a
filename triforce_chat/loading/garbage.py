"""What importing and loading does to the interpreter."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, and exempt what is created meanwhile from it permanently.

    It would walk over the objects that imports make again and again, which takes a sixth of a start, and once more in
    the middle of an answer, which then stands still for a quarter of a second.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries complain of objects that outlive the interpreter
        gc.enable()
