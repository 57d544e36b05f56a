"""Settings as lines of TOML: a new file that explains itself, and what is in effect."""

from __future__ import annotations

import json
import re
from typing import Any

from triforce_chat.settings.layers import Key, Layer, keys

# Values to begin with, for keys that are not set unless the user does it.
EXAMPLES: dict[str, Any] = {
    "budget": 4096,
    "gamma": 8,
    "draft_gamma": 2,
    "context": 32768,
    "temperature": 0.7,
    "top_p": 0.9,
    "repetition_penalty": 1.1,
    "seed": 1,
    "system": "Answer in one sentence.",
    "cache_size": 20.0,
}
ANY: dict[type, Any] = {str: "", int: 1, float: 1.0, bool: False}

HEAD = """\
# Settings of triforce-chat. A line counts once the '#' before its name is removed.
# Flags win over the environment (TRIFORCE_CHAT_MODEL and so on), the environment over this file.
# 'triforce-chat config show --origin' says what is in effect, and why.
"""


def template() -> str:
    """A file in which every key is explained and commented out."""
    return HEAD + "".join(f"\n# {key.about}\n# {key.name} = {_example(key)}\n" for key in keys().values())


def lines(layer: Layer, origins: bool) -> list[str]:
    """One line of TOML per key, with its origin behind it; a key without a value is a comment."""
    return [_line(key, layer, origins) for key in keys().values()]


def toml(value: str | float | bool) -> str:
    """A value as TOML writes it, in one line."""
    if not isinstance(value, str):
        return json.dumps(value) if isinstance(value, bool) else repr(value)
    return re.sub(r"[\x7f-\x9f]", _escaped, json.dumps(value, ensure_ascii=False))


def _escaped(control: re.Match[str]) -> str:
    return f"\\u{ord(control[0]):04x}"


def _line(key: Key, layer: Layer, origins: bool) -> str:
    value = layer.values[key.field]
    told = f"# {key.name} is not set" if value is None else f"{key.name} = {toml(value)}"
    return f"{told}  # {layer.origins[key.field]}" if origins else told


def _example(key: Key) -> str:
    value = EXAMPLES.get(key.field, ANY[key.kind]) if key.default is None else key.default
    return toml(value)
