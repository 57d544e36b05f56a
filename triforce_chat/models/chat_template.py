"""Renders chat templates, which are programs of a model's authors, as transformers does: in a sandbox of Jinja's."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

TEMPLATES = 8  # that are kept compiled


class Generation(Extension):
    """``{% generation %}``, by which templates mark answers for training; here its content is just text."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()


class Dict:
    """What templates know as ``dict``, through which they do not get at Python's own."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        return dict.fromkeys(*values)


class GuardedNamespace(Namespace):
    """A namespace of a template's variables, none of which reaches into Python's own attributes."""

    # Any name may be that of a variable, even self.
    def __init__(*given: Any, **named: Any) -> None:
        self, *values = given
        variables = dict(*values, **named)
        for name in variables:
            check_name(name)
        Namespace.__init__(self, variables)

    def __setitem__(self, name: str, value: Any) -> None:
        check_name(name)
        super().__setitem__(name, value)


def check_name(name: str) -> None:
    """Raises SecurityError for a private name."""
    if name.startswith("_"):
        raise SecurityError(f"a chat template cannot store {name!r}")


def refuse(message: str) -> NoReturn:
    """What templates know as ``raise_exception``."""
    raise TemplateError(message)


def as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON whose characters are not escaped for HTML, as Jinja's own filter would."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def now(form: str) -> str:
    """What templates know as ``strftime_now``."""
    return datetime.now().strftime(form)


@lru_cache(maxsize=TEMPLATES)
def compiled(template: str) -> Template:
    """Raises TemplateError."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = as_json
    known = {"raise_exception": refuse, "strftime_now": now, "dict": Dict(), "namespace": GuardedNamespace}
    environment.globals.update(known)
    return environment.from_string(template)


def render(template: str, messages: list[dict[str, str]], add_generation_prompt: bool, **known: Any) -> str:
    """The text of a conversation; ``known``: special tokens and switches by the names that templates know."""
    return compiled(template).render(
        messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt, **known
    )
