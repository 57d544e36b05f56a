"""A user's own defaults: a TOML file and environment variables, and where each value in effect comes from.

Flags win over the environment, the environment over the file, the file over what is built in.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from triforce_chat.cli.options import Options
from triforce_chat.errors import UsageError
from triforce_chat.settings.paths import CONFIG_VARIABLE, config_file
from triforce_chat.settings.settings import Settings

PREFIX = "TRIFORCE_CHAT_"
RESERVED = (CONFIG_VARIABLE, "TRIFORCE_CHAT_CACHE", "TRIFORCE_CHAT_TOKEN")  # variables that are no settings
UNKEPT = frozenset({"pages", "password", "json", "jsonl", "debug"})  # of one document, or of one run
DEFAULT = "default"
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
KINDS: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Key:
    """A setting that can be kept."""

    field: str  # of Options
    kind: type  # one of KINDS
    default: Any
    about: str

    @property
    def name(self) -> str:
        """In the file, and as a flag behind two dashes."""
        return self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.field.upper()


@dataclass(frozen=True, slots=True)
class Layer:
    """What one place says: values by field, where each of them stands, and one line for each mistake."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def over(self, below: Layer) -> Layer:
        return Layer(
            {**below.values, **self.values},
            {**below.origins, **self.origins},
            [*below.problems, *self.problems],
        )


@cache
def keys() -> dict[str, Key]:
    """All settings that can be kept, by name."""
    hints = get_type_hints(Options, include_extras=True)
    found = []
    for flag in dataclasses.fields(Options):
        hint, info = get_args(hints[flag.name])
        kind = get_args(hint)[0] if get_origin(hint) is types.UnionType else hint
        if kind in KINDS and flag.name not in UNKEPT:
            found.append(Key(flag.name, kind, flag.default, info.help))
    return {key.name: key for key in found}


def kept() -> dict[str, Any]:
    """What the user set in the file and in the environment, by field of Options.

    Raises UsageError for the first mistake in either.
    """
    layer = from_places()
    if layer.problems:
        raise UsageError(layer.problems[0])
    return layer.values


def in_effect() -> Layer:
    """The value of every key when no flags are given; mistakes are noted and passed over."""
    built_in = {key.field: key.default for key in keys().values()}
    return from_places().over(Layer(built_in, dict.fromkeys(built_in, DEFAULT)))


def from_places() -> Layer:
    """The environment over the file."""
    below = from_file(config_file())
    return from_environment(os.environ, below.values).over(below)


def from_file(path: Path) -> Layer:
    """What the file says."""
    layer = Layer()
    try:
        table = _table(path)
    except UsageError as error:
        layer.problems.append(f"{path}: {error}")
        return layer
    for name, value in table.items():
        try:
            key = _key(name)
            layer.values[key.field] = _checked(key, value)
            layer.origins[key.field] = str(path)
        except UsageError as error:
            layer.problems.append(f"{path}: {error}")
    _check_together(layer, {}, str(path))
    return layer


def _table(path: Path) -> dict[str, Any]:
    """The file as TOML; empty without a file, unless the user named it. Raises UsageError."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        if os.environ.get(CONFIG_VARIABLE):
            raise UsageError(f"no such file; {CONFIG_VARIABLE} names it") from None
        return {}
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise UsageError("not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not TOML: {error}") from None


def from_environment(environment: Mapping[str, str], below: Mapping[str, Any]) -> Layer:
    """What the variables say; an empty one says nothing. ``below`` is what they are put over."""
    layer = Layer()
    for key in keys().values():
        text = environment.get(key.variable, "")
        if not text:
            continue
        try:
            layer.values[key.field] = _parsed(key, text)
            layer.origins[key.field] = key.variable
        except UsageError as error:
            layer.problems.append(f"{key.variable}: {error}")
    _check_together(layer, below, ", ".join(layer.origins.values()))
    return layer


def strangers(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none, each with the name that may be meant."""
    known = [key.variable for key in keys().values()] + [*RESERVED]
    unknown = [name for name in environment if name.startswith(PREFIX) and name not in known]
    return [f"no variable '{name}'{_meant(name, known)}" for name in sorted(unknown)]


def _key(name: str) -> Key:
    if name not in keys():
        raise UsageError(f"no key '{name}'{_meant(name, list(keys()))}")
    return keys()[name]


def _meant(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _checked(key: Key, value: Any) -> Any:
    """A value of the file in the key's type. Raises UsageError for another one."""
    if key.kind is float and type(value) is int:
        return float(value)
    if type(value) is not key.kind:
        raise UsageError(f"{key.name} takes {KINDS[key.kind]}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """As it stands in the file."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _parsed(key: Key, text: str) -> Any:
    if key.kind is bool and text.lower() in (*TRUE, *FALSE):
        return text.lower() in TRUE
    try:
        if key.kind is not bool:
            return key.kind(text)
    except ValueError:
        pass
    raise UsageError(f"takes {KINDS[key.kind]}, not {text!r}")


def _check_together(layer: Layer, below: Mapping[str, Any], where: str) -> None:
    """Note what the settings themselves refuse, such as an unknown stack."""
    if layer.problems or not layer.values:
        return
    names = {flag.name for flag in dataclasses.fields(Settings)}
    try:
        Settings(**{name: value for name, value in {**below, **layer.values}.items() if name in names})
    except UsageError as error:
        layer.problems.append(f"{where}: {error}")
