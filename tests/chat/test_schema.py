"""The schemas say exactly what the program prints: no event without a schema, no field without a word."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator
from support.fakes import answer_events, tally_of
from support.sample_events import EVENTS, RUN_INFO
from support.schemas import schema_errors, schema_validator
from support.serving import save_chat_model
from typer.testing import CliRunner

from triforce_chat.chat.events import (
    ChatEvent,
    Citation,
    Comparison,
    Outcome,
    Place,
    Side,
    Source,
    Sourced,
    Tally,
)
from triforce_chat.chat.records import (
    SCHEMA,
    answer_object,
    comparison_object,
    event_object,
    outcome_object,
    speculation_object,
    timing_object,
)
from triforce_chat.chat.schema import Kind, load_schema
from triforce_chat.cli.app import app
from triforce_chat.engine.events import Calibrated, Forgot, Retraced

ENVELOPE = {"schema", "event", "side"}
PARTS = {"looked_up", "side", "place", "source", "citation"}  # of events
LATER: list[ChatEvent] = [
    Calibrated(3, 48),
    Forgot(320, 410),
    Retraced(3, 7),
    Sourced(
        (Source("A book", "page", 12, 0.4, "She paid."),),
        (
            Citation("page", 3, 3, None, True),
            Citation("page", 9, 10, "she paid", False, (Place("A book", "page", 12),)),
            Citation("page", 90, 90, None, False, exists=False),
        ),
        0.1,
    ),
]
OUTCOME = Outcome("triforce", 10, True, 0, 0, 20, 0, 0.5)


def described(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property with its path."""
    for name, found in schema.get("properties", {}).items():
        yield f"{path}/{name}", found
        yield from described(found, f"{path}/{name}")
    for name, found in schema.get("$defs", {}).items():
        yield from described(found, f"{path}/{name}")


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_schema_is_one(kind: Kind) -> None:
    schema = load_schema(kind)
    Draft202012Validator.check_schema(schema)
    assert schema["title"].endswith(f"version {SCHEMA}")
    bare = [path for path, found in described(schema) if not found.keys() & {"description", "$ref", "const"}]
    assert set(bare) <= {"/finish_reason", "/rebuild/reason", "/speculation/rebuilds", "/speculation/levels"}


@pytest.mark.parametrize("event", [*get_args(ChatEvent), Outcome], ids=lambda event: event.kind)
def test_every_event_has_a_schema(event: type[Any]) -> None:
    name = event.kind
    schema = load_schema("events")
    assert name in schema["$defs"], f"document the event {name} in triforce_chat/schema/events-{SCHEMA}.json"
    assert {"$ref": f"#/$defs/{name}"} in schema["oneOf"]
    own, fields = schema["$defs"][name], {field.name for field in dataclasses.fields(event)}
    more = {"schema", "event", "passed"} if event is Outcome else ENVELOPE
    assert set(own["properties"]) - {"question"} == fields | more  # that one comes with --questions only
    assert set(own["required"]) == fields | more
    assert own["additionalProperties"] is False


def test_no_schema_without_an_event() -> None:
    kinds = {event.kind for event in (*get_args(ChatEvent), Outcome)}
    assert set(load_schema("events")["$defs"]) == kinds | PARTS | {"question", "failed"}


@pytest.mark.parametrize("side", get_args(Side))
@pytest.mark.parametrize("event", [*EVENTS, *LATER], ids=lambda event: event.kind)
def test_lines_are_valid(event: ChatEvent, side: Side) -> None:
    assert schema_errors("events", event_object(event, side)) == []


def test_the_line_of_a_self_test_is_valid() -> None:
    assert schema_errors("events", outcome_object(OUTCOME)) == []


@pytest.mark.parametrize("event", EVENTS[:1] + EVENTS[2:4] + EVENTS[5:6] + EVENTS[-1:] + LATER, ids=repr)
def test_lines_that_are_not(event: ChatEvent) -> None:
    line = event_object(event)
    for name in line:
        assert schema_errors("events", {key: value for key, value in line.items() if key != name})
        assert schema_errors("events", {**line, name: None})
    assert schema_errors("events", {**line, "news": 1})
    assert schema_errors("events", {**line, "schema": SCHEMA + 1})


@pytest.mark.parametrize(
    "events", [[], EVENTS[:6], EVENTS, [*EVENTS, *LATER], answer_events("a b c", level=False)]
)
def test_objects_are_valid(events: list[ChatEvent]) -> None:
    tally = tally_of(events)
    assert schema_errors("answer", answer_object(tally, RUN_INFO)) == []
    for ties in (None, 1):
        result = Comparison(tally, Tally(), identical=False, ties=ties)
        assert schema_errors("answer", comparison_object(result, RUN_INFO)) == []
    assert schema_validator("answer", "timing").is_valid(timing_object(tally))
    assert schema_validator("answer", "speculation").is_valid(speculation_object(tally))


def test_objects_that_are_not() -> None:
    told = comparison_object(Comparison(tally_of(EVENTS), Tally(), True, 0), RUN_INFO)
    assert schema_errors("answer", told) == []
    for name in told:
        assert schema_errors("answer", {key: value for key, value in told.items() if key != name}), name
    assert schema_errors("answer", {**told, "news": 1})
    assert schema_errors("answer", {**told, "timing": {**told["timing"], "news": 1}})


# Real runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("talker"))


def printed(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    place = ("--model", str(folder), "--device", "cpu", "--draft", "none", "--budget", "128", "--no-cache")
    done = CliRunner().invoke(app, [*arguments, *place])
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_real_run(folder: Path) -> None:
    ask = ("ask", "Why? " * 100, "--max-tokens", "8", "--stack", "retrieval", "--compare-autoregressive")
    *lines, told = printed(folder, *ask, "--jsonl", "--json")
    assert [schema_errors("events", line) for line in lines] == [[]] * len(lines)
    assert {line["event"] for line in lines} == {"prefilled", "verified", "rebuilt", "text", "finished"}
    assert {line["side"] for line in lines} == set(get_args(Side))
    assert schema_errors("answer", told) == []


def test_a_real_self_test(folder: Path) -> None:
    lines = printed(folder, "verify", "--tokens", "8", "--stack", "lookup", "--jsonl")
    assert [line["event"] for line in lines] == ["outcome"]
    assert schema_errors("events", lines[0]) == []


@pytest.mark.parametrize("flags", [(), ("--device-memory", "24GB", "--host-memory", "64GB")])
@pytest.mark.parametrize("model", ["small", "llama-3.1-8b", "qwen3-0.6b"])
def test_a_plan(model: str, flags: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["plan", "--model", model, "--draft", "none", "--json", *flags])
    assert done.exit_code in (0, 6), done.stderr
    told = json.loads(done.stdout)
    assert schema_errors("plan", told) == []
    for name in {*told} - {
        "gpu_layers",
        "pass_ms",
        "copied",
    }:  # of what is in host memory, where something is
        assert schema_errors("plan", {key: value for key, value in told.items() if key != name}), name
    for name in ("bytes", "available", "would_fit"):
        assert schema_errors("plan", {**told, name: {**told[name], "news": 1}})


@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_command_prints_the_schema(kind: Kind) -> None:
    done = CliRunner().invoke(app, ["schema", kind])
    assert (done.exit_code, json.loads(done.stdout)) == (0, load_schema(kind))
    assert CliRunner().invoke(app, ["schema", "everything"]).exit_code == 2
