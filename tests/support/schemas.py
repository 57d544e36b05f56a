"""Validates JSON output against the published schemas."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from triforce_chat.chat.schema import Kind, load_schema


def schema_validator(kind: Kind, part: str = "") -> Draft202012Validator:
    """A validator of the whole schema, or of one of its definitions."""
    schema = load_schema(kind)
    return Draft202012Validator({"$defs": schema["$defs"], "$ref": f"#/$defs/{part}"} if part else schema)


def schema_errors(kind: Kind, value: Any) -> list[str]:
    """The messages of all schema violations of ``value`` after a round trip through JSON."""
    return [error.message for error in schema_validator(kind).iter_errors(json.loads(json.dumps(value)))]
