"""The compiled library, on every instruction path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from triforce_chat.engine.cpu_kernels import compiled
from triforce_chat.engine.cpu_kernels.compiled import Instructions


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One compilation for all tests of a session."""
    compiled.library.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path_factory.mktemp("kernels")))
        reason = compiled.library().reason
    if reason is not None:
        pytest.skip(reason)
    yield
    compiled.library.cache_clear()


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
