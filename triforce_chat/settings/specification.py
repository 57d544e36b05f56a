"""One description per setting, from which flags, file keys, variables, ``/set`` and request fields are derived."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

PREFIX = "TRIFORCE_CHAT_"
TYPES: Mapping[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
_DETAILS = "setting"  # key in a field's metadata


@dataclass(frozen=True, slots=True)
class Details:
    """What a setting's field says besides its name, type and default."""

    help: str
    flags: tuple[str, ...] = ()  # on the command line; empty: the name after two dashes
    choices: tuple[str, ...] = ()  # the only values allowed; empty: any
    suggestions: tuple[str, ...] = ()  # values that a shell completes where there are others, too
    minimum: int | None = None
    maximum: int | None = None
    flag_minimum: int | None = None  # already enforced by the command line's parser
    persistent: bool = True  # allowed in the file and in the environment
    changeable: bool = False  # by /set in a chat
    sampling: bool = False  # how tokens are drawn; the server's clients may send it with a request
    example: Any = None  # in a new configuration file, where there is no default


@dataclass(frozen=True, slots=True)
class SettingSpec:
    """Everything the program knows about one setting."""

    name: str  # of the field
    type: type  # one of TYPES
    optional: bool  # None is allowed, and means that the program chooses
    default: Any
    details: Details

    @property
    def key(self) -> str:
        """Name in the file, under ``/set``, and of the flag after two dashes."""
        return self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return PREFIX + self.name.upper()

    @property
    def example(self) -> Any:
        """A value to start from: the default, if there is one."""
        return self.details.example if self.default is None else self.default


def setting(default: Any, help_text: str, **details: Any) -> Any:
    """A dataclass field that is a setting; ``details`` are the remaining fields of ``Details``."""
    return dataclasses.field(default=default, metadata={_DETAILS: Details(help_text, **details)})


@cache
def specifications(cls: type) -> tuple[SettingSpec, ...]:
    """The settings that are fields of a dataclass, in the order of their declaration."""
    hints = get_type_hints(cls)
    return tuple(
        SettingSpec(field.name, *_type(hints[field.name]), field.default, field.metadata[_DETAILS])
        for field in dataclasses.fields(cls)
    )


def _type(hint: Any) -> tuple[type, bool]:
    """(type without None, None is allowed)."""
    optional = get_origin(hint) is types.UnionType
    return (get_args(hint)[0] if optional else hint), optional
