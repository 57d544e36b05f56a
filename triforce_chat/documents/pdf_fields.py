"""What was typed into a PDF page: the values of its form fields, and text that stands on it as an annotation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

MOST = 5_000  # annotations of a page that are looked at
DEEPEST = 16  # fields within fields


def typed_in(page: Any) -> str:
    """A line for each filled field of a pypdf page, and the texts of its FreeText annotations."""
    return "".join(f"{line}\n" for line in _lines(page) if line)


def _lines(page: Any) -> Iterator[str]:
    for reference in islice(page.annotations or (), MOST):
        annotation = reference.get_object()
        match annotation.get("/Subtype"):
            case "/FreeText":
                yield _text(annotation.get("/Contents"))
            case "/Widget":
                yield _field(annotation)


def _field(widget: Any) -> str:
    """``label: value``; the label alone for a box that is ticked, nothing for an empty field."""
    label = _text(_inherited(widget, "/TU") or _inherited(widget, "/T"))
    if _inherited(widget, "/FT") == "/Btn":
        return f"[x] {label}" if widget.get("/AS", "/Off") != "/Off" else ""
    value = _inherited(widget, "/V")
    values = value if isinstance(value, list) else [value]
    told = ", ".join(filter(None, map(_text, values)))
    return f"{label}: {told}" if label and told else told


def _inherited(field: Any, name: str) -> Any:
    """An entry of a field or of the nearest field that contains it."""
    for _ in range(DEEPEST):
        if name in field:
            return field[name]
        if "/Parent" not in field:
            return None
        field = field["/Parent"]
    return None


def _text(value: Any) -> str:
    return "\n".join(str(value).split("\r")).strip() if isinstance(value, str) else ""
