"""What importing and loading does to the interpreter."""

from __future__ import annotations

import gc

import pytest

from triforce_chat.loading.garbage import no_garbage_collection


def test_garbage_collection_is_paused_and_goes_on() -> None:
    assert gc.isenabled()
    with no_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyboardInterrupt), no_garbage_collection():
        raise KeyboardInterrupt
    assert gc.isenabled()
