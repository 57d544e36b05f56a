"""Answers for programs: one JSON object (``--json``) or one line per event (``--jsonl``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from triforce_chat.engine.events import Comparison, Event, Outcome, Sourced, Tally

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """What made an answer."""

    model: str
    draft: str | None
    stack: str
    load_s: float


def answer_object(tally: Tally, origin: Origin) -> dict[str, Any]:
    """One answer with everything that was measured."""
    made = said_object(tally)
    return {
        "schema": SCHEMA,
        "model": origin.model,
        "draft": origin.draft,
        "stack": origin.stack,
        **made,
        "timing": {"load_s": origin.load_s, **made["timing"]},
    }


def said_object(tally: Tally) -> dict[str, Any]:
    """What was answered, and what it took."""
    done = tally.finished
    return {
        "text": tally.text,
        "token_ids": tally.token_ids,
        "finish_reason": done.reason if done else "interrupted",
        "usage": {
            "prompt_tokens": done.prompt_tokens if done else 0,
            "cached_tokens": done.cached_tokens if done else 0,
            "completion_tokens": len(tally.token_ids),
        },
        "timing": timing(tally),
        "speculation": speculation(tally),
        **(sourced(tally.sourced) if tally.sourced else {}),
    }


def sourced(found: Sourced) -> dict[str, Any]:
    """The pages that an answer came from, and the pages that it names."""
    return {
        "sources": [asdict(source) for source in found.sources],
        "citations": [asdict(citation) for citation in found.citations],
    }


def timing(tally: Tally) -> dict[str, float]:
    """Seconds of the phases; the rates are of decoding alone."""
    done = tally.finished
    each = tally.ms_per_token
    return {
        "prefill_s": done.prefill_s if done else 0.0,
        "first_token_s": done.first_token_s if done else 0.0,
        "decode_s": done.decode_s if done else 0.0,
        "tokens_per_s": 1000 / each if each else 0.0,
        "ms_per_token": each,
    }


def speculation(tally: Tally) -> dict[str, Any]:
    """Rounds of the top level, and each level's counts; acceptance is per tested token."""
    return {
        "rounds": tally.rounds,
        "tokens_per_round": tally.tokens_per_round,
        "rebuilds": [asdict(rebuilt) for rebuilt in tally.rebuilds],
        "levels": [
            {
                "name": name,
                "proposed": level.proposed,
                "accepted": level.accepted,
                "acceptance": level.acceptance,
            }
            for name, level in tally.levels.items()
        ],
    }


def comparison_object(result: Comparison, origin: Origin) -> dict[str, Any]:
    """The hierarchical answer, with the plain one and the factors between them."""
    plain = result.autoregressive
    return {
        **answer_object(result.speculative, origin),
        "autoregressive": {"timing": timing(plain), "text": plain.text, "token_ids": plain.token_ids},
        "decode_speedup": result.decode_speedup,
        "end_to_end_speedup": result.end_to_end_speedup,
        "identical": result.identical,
        "ties": result.ties,
        "mismatches": result.mismatches,
    }


def event_object(event: Event, side: str = "speculative") -> dict[str, Any]:
    """One event as a line of ``--jsonl``: its kind and its fields."""
    return {"schema": SCHEMA, "event": event.kind, "side": side, **asdict(event)}


def outcome_object(outcome: Outcome) -> dict[str, Any]:
    """What one stack showed in the self-test, as a line of ``verify --jsonl``."""
    return {"schema": SCHEMA, "event": outcome.kind, **outcome.record()}
