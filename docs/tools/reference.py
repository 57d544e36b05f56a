"""Reference pages and tables, from the code: commands, settings, JSON Schemas, exit codes, stacks."""

from __future__ import annotations

import html
import subprocess
import sys
from collections.abc import Iterator

from records import ROOT, Json, table

from triforce_chat import errors
from triforce_chat.chat.schema import Kind, load_schema
from triforce_chat.engine.speculation.stack_specs import STACKS, StackSpec
from triforce_chat.settings.layers import persistent

NOTE = "<!-- Written by docs/build from the code; change it there. -->\n\n"
SCHEMAS: dict[Kind, str] = {
    "answer": "The object that `ask --json` and `summarize --json` print",
    "events": "A line of `--jsonl`",
    "batch": "A line that `batch` writes about a book",
    "plan": "The object that `plan --json` prints",
    "bench": "The object that `bench --json` prints",
}
KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def cli() -> str:
    """All commands, as Typer describes them."""
    command = [sys.executable, "-m", "typer", "triforce_chat.cli.app", "utils", "docs"]
    arguments = ["--name", "triforce-chat", "--title", "Command line"]
    made = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return NOTE + made.replace("# `Command line`", "# Command line").rstrip() + "\n"


def settings() -> str:
    """All settings that can be kept."""
    header = ("key of `config.toml`", "flag", "environment variable", "value", "default", "")
    lines = [
        (
            f"`{spec.key}`",
            f"`{spec.details.flags[0] if spec.details.flags else '--' + spec.key}`",
            f"`{spec.variable}`",
            KINDS[spec.type],
            ""
            if spec.default is None
            else f"`{str(spec.default).lower() if spec.type is bool else spec.default}`",
            spec.details.help,
        )
        for spec in persistent().values()
    ]
    intro = (
        "# Settings\n\n"
        "A flag wins over the environment, the environment over the file, the file over the default. "
        "See [the guide](../guide/settings.md). An empty default means that the model's preset or the memory plan "
        "decides.\n\n"
    )
    others = (
        "\nThree variables are not settings: `TRIFORCE_CHAT_CONFIG` names another `config.toml` (`/dev/null` for "
        "none), `TRIFORCE_CHAT_CACHE` moves the folder of downloaded models, and `TRIFORCE_CHAT_TOKEN` is the token of "
        "`serve`.\n"
    )
    return NOTE + intro + table(header, lines) + others


def exit_codes() -> str:
    """The exit code of every error."""
    classes = sorted(
        (
            each
            for each in vars(errors).values()
            if isinstance(each, type) and issubclass(each, errors.TriforceError)
        ),
        key=lambda each: each.exit_code,
    )
    lines = [("0", "", "Success.")]
    for each in classes:
        unexpected = each is errors.TriforceError
        about = "A bug in this program." if unexpected else (each.__doc__ or "").split("\n")[0]
        lines.append((str(each.exit_code), "" if unexpected else f"`{each.__name__}`", about))
    intro = (
        "# Exit codes\n\nEvery error that a user can act on is one line on standard error and one of these codes; "
        "`--debug` adds the traceback.\n\n"
    )
    return NOTE + intro + table(("code", "error", "meaning"), lines)


def schemas() -> str:
    """Fields of all JSON output."""
    intro = (
        "# JSON output\n\n`triforce-chat schema [events|answer|batch|plan|bench]` prints these schemas (JSON Schema "
        "2020-12). All are versioned by their field `schema`: within a version fields and events are added, never "
        "removed or changed.\n\n"
    )
    parts = [f"## {about}\n\n{_object(load_schema(kind))}" for kind, about in SCHEMAS.items()]
    return NOTE + intro + "\n".join(parts)


def _object(schema: Json) -> str:
    made = f"{_plain(schema.get('description', ''))}\n\n"
    if "properties" in schema:
        made += _fields(schema)
    for name, part in schema.get("$defs", {}).items():
        if "properties" in part and not name.startswith("_"):
            title = f"{schema['title'].split()[1]}: `{name}`"
            made += f"\n### {title}\n\n{_plain(part.get('description', ''))}\n\n{_fields(part)}"
    return made


def _fields(schema: Json) -> str:
    required = set(schema.get("required", ()))
    return table(("field", "type", "", ""), (_field(*each, required) for each in _properties(schema)))


def _properties(schema: Json, prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Fields, those of nested objects with dots."""
    for name, part in schema["properties"].items():
        yield prefix + name, part
        if "properties" in part:
            yield from _properties(part, f"{prefix}{name}.")


def _field(name: str, part: Json, required: set[str]) -> tuple[str, ...]:
    needed = "" if "." in name or name in required else "optional"
    return f"`{name}`", _type(part), needed, _plain(part.get("description", ""))


def _type(part: Json) -> str:
    if "const" in part:
        return f"`{part['const']}`"
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "$ref" in part:
        return f"see `{part['$ref'].rsplit('/', 1)[-1]}`"
    kind = part.get("type", "")
    kinds = " or ".join(kind) if isinstance(kind, list) else kind
    if "items" in part:
        kinds += f" of {_type(part['items'])}"
    return kinds


def _plain(text: str) -> str:
    """Text that is safe inside a table."""
    return html.escape(text, quote=False).replace("|", "\\|")


def stacks() -> str:
    """Every stack in one line."""
    return table(
        ("`--stack`", "who drafts for whom"), ((f"`{name}`", each.summary) for name, each in STACKS.items())
    )


def stack_caches() -> str:
    """Every stack with its caches beside the target's full one."""
    return table(
        ("stack", "who drafts for whom", "caches beside the target's full one"),
        ((f"`{name}`", each.summary, _caches(each)) for name, each in STACKS.items()),
    )


def _caches(stack: StackSpec) -> str:
    drafts = stack.draft_caches
    parts = (
        "4-bit copy" if stack.quantized_copies else None,
        "retrieval cache" if stack.retrieval_caches else None,
        f"{drafts} streaming cache{'s' * (drafts > 1)} of the draft model" if drafts else None,
    )
    return ", ".join(filter(None, parts)) or "none"


TABLES = {"stack-list": stacks, "stack-caches": stack_caches}
PAGES = {"cli": cli, "settings": settings, "exit-codes": exit_codes, "json": schemas}
