"""Runs all checks, one after the other; a check that fails does not stop the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from triforce_chat.doctor import folders, hardware, software, stores
from triforce_chat.doctor.check_result import CheckResult, problem
from triforce_chat.errors import ModelError, TriforceError

if TYPE_CHECKING:
    from triforce_chat.ui.terminal import Screen

Check = Callable[[], Iterator[CheckResult]]

SOFTWARE: tuple[Check, ...] = (
    software.python,
    software.torch,
    software.transformers,
    software.dependencies,
    software.triton,
    software.cpu_kernels,
)
HARDWARE: tuple[Check, ...] = (hardware.gpu, hardware.memory)
STORES: tuple[Check, ...] = (
    folders.folders,
    stores.settings,
    stores.small_model,
    stores.chosen_model,
    stores.converted_models,
    stores.shipped_weights,
    stores.calibration,
    stores.document_cache,
    stores.sessions,
)


def run_checks(screen: Screen) -> Iterator[CheckResult]:
    """Run every check of the installation and yield each result as soon as it is known."""
    checks: list[Check] = [*SOFTWARE, *HARDWARE, *STORES, partial(hardware.terminal, screen)]
    for check in checks:
        yield from _guarded(check)


def _guarded(check: Check) -> Iterator[CheckResult]:
    """The results of a check; an error in it becomes a result."""
    name = getattr(check, "__name__", "terminal").replace("_", " ")
    try:
        yield from check()
    except Exception as error:
        message = f"cannot be checked: {software.first_line(error)} ({type(error).__name__})"
        if isinstance(error, ImportError):
            yield problem(name, message, software.INSTALL, ModelError)
        else:
            yield problem(name, message, "please report this", TriforceError)
