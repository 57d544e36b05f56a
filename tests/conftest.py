"""Fixtures that more than one test file uses."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import torch
import typer.main
import typer.testing

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported

import support.documents  # noqa: F401 (keeps the original of what a fixture here replaces)
from support.labs import ARCHITECTURES, Lab
from support.places import TESTS

from triforce_chat.cache_folder import CACHE_VARIABLE, cache_folder
from triforce_chat.documents import apart, child
from triforce_chat.engine.cpu_kernels import compiled
from triforce_chat.errors import ModelError
from triforce_chat.loading import device
from triforce_chat.models.packed import SMOLLM2_135M
from triforce_chat.models.registry import resolve

# Programs that tests start import the same helpers.
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session", params=ARCHITECTURES)
def any_lab(request: pytest.FixtureRequest) -> Lab:
    return Lab.of(request.param)


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab.of("llama", seed=1)


@pytest.fixture(scope="session", autouse=True)
def pretended_chip() -> Iterator[None]:
    """With PRETENDED_SHARED_MEMORY=101376 a GPU gets the tiles of chips that have no more bytes of it for a program."""
    with pytest.MonkeyPatch.context() as patch:
        if size := os.environ.get("PRETENDED_SHARED_MEMORY"):
            from triforce_chat.engine.kernels import chip

            patch.setattr(chip, "shared_memory", lambda: int(size))
        yield


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, which does not exist yet."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session", autouse=True)
def own_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither tests nor programs that they start leave anything in the user's cache but what takes long to make."""
    users, own = cache_folder(), tmp_path_factory.mktemp("cache")
    if any(item.get_closest_marker("model") for item in request.session.items):
        with suppress(ModelError):  # the tests will say so
            resolve("small")
    (users / "kernels").mkdir(parents=True, exist_ok=True)
    for name in ("kernels", f"models/{SMOLLM2_135M.model}"):
        if (users / name).is_dir():
            (own / name).parent.mkdir(exist_ok=True)
            (own / name).symlink_to(users / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(own))
        yield


@pytest.fixture
def kernels() -> None:
    """The CPU kernels, from the cache folder of all tests; to be named before ``empty_cache``."""
    compiled.library()


NO_GPU = "no CUDA device"


def pytest_sessionstart() -> None:
    gc.disable()  # while tests are imported: it would walk over what they import again and again


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # libraries complain of objects that outlive the interpreter


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip(NO_GPU)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # From the reports, because with several workers the tests are skipped in other processes.
    skipped = sum(NO_GPU in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if skipped:
        terminalreporter.section("GPU", yellow=True)
        terminalreporter.line(f"{skipped} GPU tests did NOT run: {NO_GPU} on this machine")


@pytest.fixture(scope="session", autouse=True)
def parsed_here() -> Iterator[None]:
    """Documents are parsed in the tests' own process, which is faster by a tenth of a second for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apart, "parse_apart", lambda *given: apart.parsed(child.answer(apart.request(*given))))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_program() -> Iterator[None]:
    """The tree of commands is built once, as in a program's own process, not for each command that is called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def signals_of_a_terminal() -> None:
    """Ctrl-C and a closed window reach the programs that tests start, even where this one ignores them.

    A shell without job control has what it starts in the background ignore SIGINT, and so has nohup SIGHUP; a
    program that is started hands that on.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and shared machines lose by them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def built_in_settings() -> Iterator[None]:
    """Whoever runs the tests may keep settings of their own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("TRIFORCE_CHAT_") and name != "TRIFORCE_CHAT_CACHE":
                patch.delenv(name)
        patch.setenv("TRIFORCE_CHAT_CONFIG", os.devnull)
        patch.setenv("TRIFORCE_CHAT_MODEL", "small")  # the same on every machine, and quick
        patch.setenv("TRIFORCE_CHAT_DTYPE", "float32")  # likewise, for programs that tests start
        patch.setattr(device, "bfloat16_pays", lambda: False)
        yield
