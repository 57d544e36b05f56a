"""Answers for programs: every field, and what it is when nothing was measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from support.fakes import answer_events, tally_of
from support.sample_events import EVENTS, RUN_INFO

from triforce_chat.chat.events import ChatEvent, Comparison, Outcome, Tally
from triforce_chat.chat.records import answer_object, comparison_object, event_object
from triforce_chat.engine.events import Finished, Text, Verified


def round_trip(value: dict[str, Any]) -> dict[str, Any]:
    """As a program reads it; fails on what JSON does not know, such as infinity."""
    read: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    return read


def tally(*events: ChatEvent) -> Tally:
    return tally_of(events)


def test_an_answer() -> None:
    assert round_trip(answer_object(tally(*EVENTS), RUN_INFO)) == {
        "schema": 1,
        "model": "a model",
        "draft": "a draft",
        "stack": "triforce",
        "text": "Hé\x1b «llo»",
        "token_ids": [1, 2, 3, 4, 5, 6, 7],
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 101, "cached_tokens": 10, "completion_tokens": 7},
        "timing": {
            "load_s": 1.5,
            "prefill_s": 2.0,
            "first_token_s": 2.1,
            "decode_s": 0.7,
            "tokens_per_s": pytest.approx(10),
            "ms_per_token": pytest.approx(100),
        },
        "speculation": {
            "rounds": 2,
            "tokens_per_round": 3.5,
            "rebuilds": [
                {"at": 101, "reason": "first", "seconds": 0.01},
                {"at": 105, "reason": "acceptance", "seconds": 0.02},
            ],
            "levels": [
                {
                    "name": "retrieval",
                    "proposed": 8,
                    "accepted": 7,
                    "tested": 8,
                    "acceptance": pytest.approx(7 / 8),
                },
                {
                    "name": "target",
                    "proposed": 9,
                    "accepted": 5,
                    "tested": 6,
                    "acceptance": pytest.approx(5 / 6),
                },
            ],
        },
    }


@pytest.mark.parametrize("events", [[], EVENTS[:1], EVENTS[:2], EVENTS[:6]])
def test_an_answer_without_an_end(events: Sequence[ChatEvent]) -> None:
    told = round_trip(answer_object(tally(*events), RUN_INFO))
    assert told["finish_reason"] == "interrupted"
    assert told["usage"]["completion_tokens"] == len(told["token_ids"])
    assert told["timing"]["tokens_per_s"] == told["timing"]["ms_per_token"] == 0


def test_plain_decoding_has_no_acceptance() -> None:
    told = answer_object(tally(Verified("target", 0, 0), Text((1,), "a")), RUN_INFO)
    assert told["speculation"]["rounds"] == told["speculation"]["tokens_per_round"] == 1
    assert round_trip(told)["speculation"]["levels"] == [
        {"name": "target", "proposed": 0, "accepted": 0, "tested": 0, "acceptance": None}
    ]


def test_an_answer_without_tokens() -> None:
    told = round_trip(answer_object(tally(Finished("length", 9, 8, 0, 0.0, 0.0, 0.0)), RUN_INFO))
    assert (told["text"], told["token_ids"], told["finish_reason"]) == ("", [], "length")
    assert told["timing"]["tokens_per_s"] == 0
    assert told["speculation"] == {"rounds": 0, "tokens_per_round": 0, "rebuilds": [], "levels": []}


def test_a_comparison() -> None:
    plain = tally(*answer_events("the same words", prompt=101, level=False))
    result = Comparison(tally(*EVENTS), plain, identical=False, ties=2, mismatches=1)
    told = round_trip(comparison_object(result, RUN_INFO))
    assert {name: told[name] for name in answer_object(result.speculative, RUN_INFO)} == round_trip(
        answer_object(result.speculative, RUN_INFO)
    )
    assert set(told) - set(answer_object(result.speculative, RUN_INFO)) == {
        *("autoregressive", "decode_speedup", "end_to_end_speedup", "identical", "ties", "mismatches")
    }
    assert told["autoregressive"]["token_ids"] == plain.token_ids
    assert told["autoregressive"]["timing"]["ms_per_token"] == pytest.approx(plain.ms_per_token)
    assert told["decode_speedup"] == pytest.approx(plain.ms_per_token / 100)
    assert told["end_to_end_speedup"] == pytest.approx((2.0 + 7 * plain.ms_per_token / 1000) / 2.7)
    assert (told["identical"], told["ties"], told["mismatches"]) == (False, 2, 1)


def test_a_sampled_comparison_has_no_ties() -> None:
    result = Comparison(tally(*EVENTS), tally(*EVENTS), identical=True, ties=None)
    told = round_trip(comparison_object(result, RUN_INFO))
    assert told["ties"] is None
    assert told["decode_speedup"] == 1


def test_a_comparison_of_nothing() -> None:
    told = round_trip(comparison_object(Comparison(Tally(), Tally(), True, 0), RUN_INFO))
    assert told["decode_speedup"] == told["end_to_end_speedup"] == 0


def test_the_kinds_of_events_are_a_promise_to_programs() -> None:
    """A class may be renamed; the names in ``--jsonl`` stay."""
    assert {event.kind for event in get_args(ChatEvent)} == {
        *(
            "prefilled",
            "forgot",
            "calibrated",
            "verified",
            "rebuilt",
            "text",
            "finished",
            "retraced",
            "sourced",
        )
    }
    assert Outcome.kind == "outcome"


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_events(event: ChatEvent) -> None:
    told = round_trip(event_object(event, "autoregressive"))
    assert told.pop("schema") == 1
    assert told.pop("event") == event.kind
    assert told.pop("side") == "autoregressive"
    expected = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    assert told == round_trip(expected)
