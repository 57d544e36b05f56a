"""What whole archives take, from the script that holds the arithmetic."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from records import ROOT


def _script() -> Any:
    spec = spec_from_file_location("capacity", ROOT / "benchmarks" / "capacity.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    sys.modules[spec.name] = script  # where its dataclasses look for their module
    spec.loader.exec_module(script)
    return script


def _table(books: int, days: float) -> str:
    script = _script()
    table: str = script.table(script.Archive(books, questions=8, answer=128, days=days))
    return table


TABLES: dict[str, Callable[[], str]] = {
    "capacity-thousands": lambda: _table(10_000, 7),
    "capacity-millions": lambda: _table(10_000_000, 30),
}
