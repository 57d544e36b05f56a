"""JSON records for other programs: one object per answer (``--json``) or one line per event (``--jsonl``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from triforce_chat.chat.events import ChatEvent, Comparison, Outcome, Sourced, Tally
from triforce_chat.errors import TriforceError

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The model and stack that answer."""

    model: str
    draft: str | None
    stack: str
    load_s: float  # seconds it took to load the model
    automatic: bool = False  # the model was chosen for this machine, not named
    weights: str = ""  # format of quantized weights that stay as they are, such as Q4_K_M
    kv: str = ""  # format of keys and values, if another one than the weights'
    endless: str = ""  # how an endless conversation forgets
    keep: int = 0  # tokens that it holds; 0: it does not forget
    calibration: str = ""  # names the measured figures that a seeded answer was planned by


def answer_object(tally: Tally, run_info: RunInfo, error: TriforceError | None = None) -> dict[str, Any]:
    """One answer with all its measurements, or what there is of it after an error."""
    turn = turn_object(tally)
    if error is not None:
        turn = {**turn, "finish_reason": "error", "error": error_object(error)}
    return {
        "schema": SCHEMA,
        "model": run_info.model,
        **({"automatic": True} if run_info.automatic else {}),
        **({"weights": run_info.weights} if run_info.weights else {}),
        **({"kv": run_info.kv} if run_info.kv else {}),
        **({"endless": run_info.endless, "keep": run_info.keep} if run_info.keep else {}),
        "draft": run_info.draft,
        "stack": run_info.stack,
        **({"calibration": run_info.calibration} if run_info.calibration else {}),
        **turn,
        "timing": {"load_s": run_info.load_s, **turn["timing"]},
    }


def turn_object(tally: Tally) -> dict[str, Any]:
    """An answer with its measurements, but without the model that made it."""
    done = tally.finished
    return {
        **text_object(tally),
        "finish_reason": done.reason if done else "interrupted",
        "usage": {
            "prompt_tokens": done.prompt_tokens if done else 0,
            "cached_tokens": done.cached_tokens if done else 0,
            "completion_tokens": len(tally.token_ids),
        },
        "timing": timing_object(tally),
        "speculation": speculation_object(tally),
        **({"forgotten": asdict(tally.forgot)} if tally.forgot else {}),
        **(sources_object(tally.sourced) if tally.sourced else {}),
    }


def text_object(tally: Tally) -> dict[str, Any]:
    """The text of an answer, with its thought if there is one, and its tokens."""
    thought = {"thought": tally.thought, "thought_tokens": tally.thought_tokens}
    return {"text": tally.text, **(thought if tally.thought_tokens else {}), "token_ids": tally.token_ids}


def sources_object(found: Sourced) -> dict[str, Any]:
    """The pages that an answer came from, and the pages that it cites."""
    return {
        "sources": [asdict(source) for source in found.sources],
        "citations": [asdict(citation) for citation in found.citations],
        **({"quotes": [asdict(quote) for quote in found.quotes]} if found.quotes else {}),
        **({"standing": [asdict(each) for each in found.standing]} if found.standing else {}),
    }


def timing_object(tally: Tally) -> dict[str, float]:
    """Seconds of each phase; the rates cover decoding only."""
    done = tally.finished
    each = tally.ms_per_token
    return {
        "prefill_s": done.prefill_s if done else 0.0,
        "first_token_s": done.first_token_s if done else 0.0,
        "decode_s": done.decode_s if done else 0.0,
        "tokens_per_s": 1000 / each if each else 0.0,
        "ms_per_token": each,
    }


def speculation_object(tally: Tally) -> dict[str, Any]:
    """Rounds of the top level and the counts of each level; acceptance is per tested token."""
    return {
        "rounds": tally.rounds,
        "tokens_per_round": tally.tokens_per_round,
        "rebuilds": [asdict(rebuilt) for rebuilt in tally.rebuilds],
        "levels": [
            {
                "name": name,
                "proposed": level.proposed,
                "accepted": level.accepted,
                "tested": level.tested,
                "acceptance": level.acceptance,
            }
            for name, level in tally.levels.items()
        ],
    }


def comparison_object(result: Comparison, run_info: RunInfo) -> dict[str, Any]:
    """The speculative answer, with the plain one and the speedups."""
    plain = result.autoregressive
    return {
        **answer_object(result.speculative, run_info),
        "autoregressive": {"timing": timing_object(plain), **text_object(plain)},
        "decode_speedup": result.decode_speedup,
        "end_to_end_speedup": result.end_to_end_speedup,
        "identical": result.identical,
        "ties": result.ties,
        "mismatches": result.mismatches,
    }


def event_object(event: ChatEvent, side: str = "speculative") -> dict[str, Any]:
    """One event as a line of ``--jsonl``: its kind and its fields."""
    return {"schema": SCHEMA, "event": event.kind, "side": side, **asdict(event)}


def error_object(error: TriforceError) -> dict[str, str]:
    """An error for programs and for people."""
    return {"code": error.code, "message": str(error)}


def failure_object(error: TriforceError, side: str = "speculative") -> dict[str, Any]:
    """A question that cannot be answered, as a line of ``--jsonl``."""
    return {"schema": SCHEMA, "event": "failed", "side": side, "error": error_object(error)}


def outcome_object(outcome: Outcome) -> dict[str, Any]:
    """The result of one stack in the self-test, as a line of ``verify --jsonl``."""
    return {"schema": SCHEMA, "event": outcome.kind, **outcome.record()}
