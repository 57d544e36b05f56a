"""All checks, one after the other; none of them can stop the next.

Whatever else is kept on the disk adds its check to ``STORES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from triforce_chat.doctor import hardware, software, stores
from triforce_chat.doctor.check_result import Finding, problem
from triforce_chat.errors import ModelError, TriforceError

if TYPE_CHECKING:
    from triforce_chat.ui.terminal import Screen

Check = Callable[[], Iterator[Finding]]

SOFTWARE: tuple[Check, ...] = (
    software.python,
    software.torch,
    software.transformers,
    software.dependencies,
    software.triton,
)
HARDWARE: tuple[Check, ...] = (hardware.gpu, hardware.memory, hardware.disk)
STORES: tuple[Check, ...] = (
    stores.settings,
    stores.default_model,
    stores.chosen_model,
    stores.shipped_weights,
    stores.kept_documents,
    stores.sessions,
)


def examine(screen: Screen) -> Iterator[Finding]:
    """Everything that can be wrong with an installation, as it is found."""
    checks: list[Check] = [*SOFTWARE, *HARDWARE, *STORES, partial(hardware.terminal, screen)]
    for check in checks:
        yield from _guarded(check)


def _guarded(check: Check) -> Iterator[Finding]:
    """What the check finds; whatever it raises becomes a finding."""
    name = getattr(check, "__name__", "terminal").replace("_", " ")
    try:
        yield from check()
    except Exception as error:
        told = f"cannot be checked: {software.first_line(error)} ({type(error).__name__})"
        if isinstance(error, ImportError):
            yield problem(name, told, software.INSTALL, ModelError)
        else:
            yield problem(name, told, "please report this", TriforceError)
