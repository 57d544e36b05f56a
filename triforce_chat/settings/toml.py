"""Settings as lines of TOML: a new configuration file that explains itself, and the settings in effect."""

from __future__ import annotations

import json
import re

from triforce_chat.settings.layers import Layer, persistent
from triforce_chat.settings.specification import SettingSpec

HEADER = """\
# Settings of triforce-chat. Remove the '#' before a name to set it.
# Flags override the environment (TRIFORCE_CHAT_MODEL and so on), and the environment overrides this file.
# 'triforce-chat config show --origin' shows the settings in effect and where each was set.
"""


def template() -> str:
    """A file in which every key is explained and commented out."""
    return HEADER + "".join(
        f"\n# {spec.details.help}\n# {spec.key} = {toml(spec.example)}\n" for spec in persistent().values()
    )


def lines(layer: Layer, origins: bool) -> list[str]:
    """One line of TOML per setting, followed by its origin on request; a setting without a value is a comment."""
    return [_line(spec, layer, origins) for spec in persistent().values()]


def toml(value: str | float | bool) -> str:
    """A value in TOML, on one line."""
    if not isinstance(value, str):
        return json.dumps(value) if isinstance(value, bool) else repr(value)
    return re.sub(r"[\x7f-\x9f]", _escaped, json.dumps(value, ensure_ascii=False))


def _escaped(control: re.Match[str]) -> str:
    return f"\\u{ord(control[0]):04x}"


def _line(spec: SettingSpec, layer: Layer, origins: bool) -> str:
    value = layer.values[spec.name]
    line = f"# {spec.key} is not set: the program chooses" if value is None else f"{spec.key} = {toml(value)}"
    return f"{line}  # {layer.origins[spec.name]}" if origins else line
