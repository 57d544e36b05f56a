"""Flags: those that commands share, and dataclasses whose fields become flags."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from functools import partial, wraps
from itertools import chain
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from triforce_chat.cli.complete import among, answering, drafts
from triforce_chat.cli.engines import follows_rank_zero
from triforce_chat.cli.failures import failures
from triforce_chat.errors import UsageError
from triforce_chat.settings.options import OPTIONS, Options
from triforce_chat.settings.settings import OFF
from triforce_chat.settings.specification import SettingSpec

# The values of other settings are in their specifications.
COMPLETIONS = {"model": answering, "draft": drafts}
Run = Callable[..., None]
UNLIMITED = 10_000  # characters


class WholeSentence:
    """Its line in a list of commands is the whole first sentence about it; Typer would cut that."""

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002
        text: str = super().get_short_help_str(UNLIMITED)  # type: ignore[misc]
        return text


class HelpThatFails:
    """Help that cannot be printed is an error of one line."""

    def make_context(self, *args: Any, **details: Any) -> Any:
        with failures(debug=False):
            return super().make_context(*args, **details)  # type: ignore[misc]


class Command(WholeSentence, HelpThatFails, TyperCommand):
    """A command whose usage line names its arguments as their metavars do; Typer adds brackets and dots to them."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [each for each in self.get_params(ctx) if isinstance(each, TyperArgument)]
        names = [[each.metavar] if each.metavar else each.get_usage_pieces(ctx) for each in arguments]
        return [self.options_metavar or "", *chain.from_iterable(names)]


class Group(WholeSentence, HelpThatFails, TyperGroup):
    """Commands under one name."""


class App(typer.Typer):
    """Makes a group of commands of functions."""

    def __init__(self, **details: Any) -> None:
        super().__init__(cls=Group, **details)

    def command(self, *args: Any, **details: Any) -> Callable[[Any], Any]:
        return super().command(*args, cls=Command, **details)


Documents = Annotated[
    list[str],
    typer.Argument(
        metavar="DOC...",
        help="PDF, EPUB, HTML, Markdown, office files or text; folders, patterns and URLs; - is standard input.",
    ),
]
Parallel = Annotated[
    int, typer.Option(min=1, help="Number of questions about the same documents to answer at once.")
]
PARALLEL = 8
ENDLESS = ("chat", "ask", "summarize", "plan")  # the commands whose conversations may have no end
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def command(app: typer.Typer) -> Callable[[Run], Run]:
    """Register a command with a parameter ``options: Options``, which file and environment contribute to.

    The fields of every parameter that is a dataclass become flags, those of Options last.
    """
    return partial(_register, app)


def _register(app: typer.Typer, run: Run) -> Run:
    flat = flattened(run)
    parameters = inspect.signature(flat).parameters.values()
    contexts = [p.name for p in parameters if p.annotation is typer.Context]

    def called(invocation: typer.Context, **values: Any) -> None:
        with failures(values["debug"]):
            if values["endless"] != OFF and run.__name__ not in ENDLESS:
                raise UsageError(f"--endless is for {', '.join(ENDLESS)}")
            values |= _user_values(invocation) | dict.fromkeys(contexts, invocation)
            if not follows_rank_zero(values["tp"]):
                flat(**values)

    context = inspect.Parameter("invocation", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    others = [p for p in parameters if p.name not in contexts]  # Typer hands over one context only
    return app.command()(_with_signature(called, run, [context, *others]))


def flattened(run: Run) -> Run:
    """A function whose parameters are those of ``run``, with dataclasses replaced by their fields."""
    own = sorted(inspect.signature(run, eval_str=True).parameters.values(), key=_is_options)
    groups: dict[str, Any] = {p.name: p.annotation for p in own if dataclasses.is_dataclass(p.annotation)}

    def called(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(
                **{field.name: values.pop(field.name) for field in dataclasses.fields(group)}
            )
        run(**values)

    parameters = [each for p in own for each in (_flags(p.annotation) if p.name in groups else (p,))]
    return _with_signature(called, run, parameters)


def _is_options(parameter: inspect.Parameter) -> bool:
    return parameter.annotation is Options


def _flags(group: type) -> Iterable[inspect.Parameter]:
    if group is Options:
        return map(_flag, OPTIONS)
    return inspect.signature(group, eval_str=True).parameters.values()


def _flag(spec: SettingSpec) -> inspect.Parameter:
    details = spec.details
    values = details.choices or details.suggestions
    completion = COMPLETIONS.get(spec.name) or (among(values) if values else None)
    option = typer.Option(
        *details.flags, help=details.help, min=details.flag_minimum, autocompletion=completion
    )
    hint = spec.type | None if spec.optional else spec.type
    return inspect.Parameter(
        spec.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=spec.default,
        annotation=Annotated[hint, option],
    )


def _with_signature(function: Run, run: Run, parameters: Iterable[inspect.Parameter]) -> Run:
    """``function`` under the name and the description of ``run``, with these parameters for Typer to read."""
    named = wraps(run)(function)
    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    named.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    named.__annotations__ = {p.name: p.annotation for p in keywords}
    vars(named).pop("__wrapped__")  # or Typer would read the signature of ``run``
    return named


def _user_values(invocation: typer.Context) -> dict[str, Any]:
    """The values set in the file or in the environment, unless a flag overrides them."""
    from triforce_chat.settings.layers import user_values

    flags = given_flags(invocation)
    return {name: value for name, value in user_values().items() if name not in flags}


def given_flags(context: typer.Context) -> set[str]:
    """The options given on the command line, by field of ``Options``."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def parse_list(
    text: str, kind: Callable[[str], Any] = int, minimum: float = 1, repeats: bool = False
) -> list[Any]:
    """The numbers of a list such as "1024,8192", sorted; duplicates are dropped unless ``repeats``.

    Raises UsageError for anything but numbers of at least ``minimum``.
    """
    try:
        numbers = [kind(part) for part in text.split(",")]
        found = sorted(numbers if repeats else set(numbers))
    except ValueError:
        found = []
    if not found or not found[0] >= minimum:
        raise UsageError(
            f"'{text}' is not a list of numbers of at least {minimum:g}; write for example 1024,8192"
        )
    return found
