"""The compiled library, on every instruction path."""

from __future__ import annotations

import pytest

from triforce_chat.engine.cpu_kernels import compiled
from triforce_chat.engine.cpu_kernels.compiled import Instructions


@pytest.fixture
def library() -> None:
    """From the cache folder of all tests, where it bears the name of its sources: one compilation for all sessions."""
    reason = compiled.library().reason
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(params=list(Instructions), ids=lambda chosen: chosen.name)
def path(
    library: None,  # noqa: ARG001
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Instructions:
    """Has the library take this path."""
    chosen: Instructions = request.param
    if chosen > compiled.instructions():
        pytest.skip(f"this processor has no {chosen.name}")
    monkeypatch.setattr(compiled, "instructions", lambda: chosen)
    return chosen
