"""A user's own defaults: a TOML file and environment variables, and where each value in effect comes from.

Flags override the environment, the environment overrides the file, and the file overrides the built-in defaults.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from triforce_chat.cache_folder import CACHE_VARIABLE
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import OPTIONS
from triforce_chat.settings.paths import CONFIG_VARIABLE, config_file
from triforce_chat.settings.settings import SPECIFICATIONS, Settings
from triforce_chat.settings.sizes import GIGABYTE
from triforce_chat.settings.specification import PREFIX, TYPES, SettingSpec
from triforce_chat.suggestions import did_you_mean

OTHER_VARIABLES = (CONFIG_VARIABLE, CACHE_VARIABLE, "TRIFORCE_CHAT_TOKEN")  # recognized, but not settings
MAX_FILE = 1 << 20  # bytes
DEFAULT = "default"  # origin of a value that the user has not set
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Layer:
    """Values by field name, the place where each was set, and one line for each mistake."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def over(self, below: Layer) -> Layer:
        """Both layers together; this one's values override those below."""
        return Layer(
            {**below.values, **self.values},
            {**below.origins, **self.origins},
            [*below.problems, *self.problems],
        )


@cache
def persistent() -> dict[str, SettingSpec]:
    """The settings that may stand in the file and in the environment, by key."""
    return {spec.key: spec for spec in OPTIONS if spec.details.persistent}


def user_values() -> dict[str, Any]:
    """The values set in the file and in the environment, by field of Options.

    Raises UsageError for the first mistake in either.
    """
    layer = user_layer()
    if layer.problems:
        raise UsageError(layer.problems[0])
    return layer.values


def effective() -> Layer:
    """The value of every setting when no flags are given; mistakes are listed and otherwise ignored."""
    defaults = {spec.name: spec.default for spec in persistent().values()}
    return user_layer().over(Layer(defaults, dict.fromkeys(defaults, DEFAULT)))


def user_layer() -> Layer:
    """The environment over the file."""
    below = from_file(config_file())
    return from_environment(os.environ, below.values).over(below)


def cache_limit() -> float | None:
    """Bytes that the document cache may take by the user's ``cache-size``; None if that is not set."""
    size = effective().values["cache_size"]
    return None if size is None else size * GIGABYTE


def from_file(path: Path) -> Layer:
    """The values set in a TOML file; every mistake in it becomes a problem."""
    layer = Layer()
    try:
        table = _read_table(path)
    except UsageError as error:
        layer.problems.append(f"{path}: {error}")
        return layer
    for key, value in table.items():
        try:
            spec = _find(key)
            layer.values[spec.name] = typed_value(spec, value)
            layer.origins[spec.name] = str(path)
        except UsageError as error:
            layer.problems.append(f"{path}: {error}")
    _check_together(layer, {}, str(path))
    return layer


def _read_table(path: Path) -> dict[str, Any]:
    """The parsed file; empty if there is none, unless the user named it. Raises UsageError."""
    try:
        return tomllib.loads(_bounded(path).decode("utf-8-sig"))
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


def _bounded(path: Path) -> bytes:
    """The bytes of a file that ends. Raises UsageError for one that may not, such as a device or a pipe."""
    reading = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
    )  # so that a pipe without a writer opens
    with open(reading, "rb") as file:
        if stat.S_ISFIFO(os.fstat(reading).st_mode):
            raise UsageError("a pipe, not a file")
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise UsageError(f"longer than the {MAX_FILE:,} bytes that settings may take")
    return data


def from_environment(environment: Mapping[str, str], below: Mapping[str, Any]) -> Layer:
    """The values set by variables; an empty variable counts as unset.

    ``below`` holds the file's values, with which these must agree.
    """
    layer = Layer()
    for spec in persistent().values():
        text = environment.get(spec.variable, "")
        if not text:
            continue
        try:
            layer.values[spec.name] = _parse(spec, text)
            layer.origins[spec.name] = spec.variable
        except UsageError as error:
            layer.problems.append(f"{spec.variable}: {error}")
    _check_together(layer, below, ", ".join(layer.origins.values()))
    return layer


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """One line for each variable with the program's prefix that is no setting, with a likely correction."""
    known = [spec.variable for spec in persistent().values()] + [*OTHER_VARIABLES]
    unknown = [name for name in environment if name.startswith(PREFIX) and name not in known]
    return [f"no variable '{name}'{did_you_mean(name, known)}" for name in sorted(unknown)]


def _find(key: str) -> SettingSpec:
    if key not in persistent():
        raise UsageError(f"no key '{key}'{did_you_mean(key, persistent())}")
    return persistent()[key]


def typed_value(spec: SettingSpec, value: Any) -> Any:
    """A stored value in the setting's type. Raises UsageError if it has another one."""
    if spec.type is float and type(value) is int:
        return float(value)
    if type(value) is not spec.type:
        raise UsageError(f"{spec.key} takes {TYPES[spec.type]}, not {_as_written(value)}")
    return value


def _as_written(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _parse(spec: SettingSpec, text: str) -> Any:
    """A variable's text in the setting's type. Raises UsageError."""
    if spec.type is bool and text.lower() in (*TRUE, *FALSE):
        return text.lower() in TRUE
    try:
        if spec.type is not bool:
            return spec.type(text)
    except ValueError:
        pass
    raise UsageError(f"takes {TYPES[spec.type]}, not {text!r}")


def _check_together(layer: Layer, below: Mapping[str, Any], place: str) -> None:
    """Add a problem for values that Settings refuses, such as an unknown stack."""
    if layer.problems or not layer.values:
        return
    values = {**below, **layer.values}
    names = {spec.name for spec in SPECIFICATIONS} & values.keys()
    try:
        Settings(**{name: values[name] for name in names})
    except UsageError as error:
        layer.problems.append(f"{place}: {error}")
