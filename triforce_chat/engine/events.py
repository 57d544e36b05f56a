"""What an answer emits while it is made; the panel, --json and the statistics all fold these same values.

Each event has a ``kind``, the name under which ``--jsonl`` prints it; it stays when a class is renamed.
Nothing here knows tensors or terminals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

FinishReason = Literal["stop", "length", "interrupted", "repetition"]
RebuildReason = Literal["first", "stride", "acceptance", "rewind"]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Progress of a prefill; the last one has ``done == total``."""

    kind: ClassVar[str] = "prefilled"
    done: int  # prompt tokens in the cache, the reused ones included
    total: int  # prompt tokens in all
    cached: int  # of these, found in the cache from earlier turns
    seconds: float  # since this prefill began
    recalled: int = 0  # of the cached ones, those that came from a disk this time


@dataclass(frozen=True, slots=True)
class Forgot:
    """The cache of an endless conversation has evicted tokens, or had done so before this answer."""

    kind: ClassVar[str] = "forgot"
    tokens: int  # that it does not hold any more
    total: int  # that it has been fed


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Progress of measuring this machine before an answer that is to be repeatable; the last has ``done == total``."""

    kind: ClassVar[str] = "calibrated"
    done: int  # tokens that were decoded for it, and are discarded
    total: int  # tokens that it takes at most


@dataclass(frozen=True, slots=True)
class Verified:
    """One verification at one level: ``accepted`` of ``proposed`` drafted tokens passed, one more was sampled."""

    kind: ClassVar[str] = "verified"
    # "target" (full cache), "int4" (target weights, a 4-bit copy of it) or "retrieval" (target weights, small cache)
    level: str
    proposed: int
    accepted: int
    drafter: str = field(default="", compare=False)  # who proposed: "draft", "lookup", or the level below
    # What a token without drafts takes now, in milliseconds; 0: unknown. It is measured where tokens were decoded so,
    # and otherwise derived from the times of verifications.
    plain_ms: float = field(default=0.0, compare=False)
    plain_measured: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The retrieval cache selected its chunks again."""

    kind: ClassVar[str] = "rebuilt"
    at: int  # committed tokens at that moment
    reason: RebuildReason
    seconds: float


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens that were committed, and the characters they complete (may be empty inside a character)."""

    kind: ClassVar[str] = "text"
    token_ids: tuple[int, ...]
    text: str  # of the answer
    thought: str = ""  # of the thought before it
    thought_tokens: int = 0  # how many of the tokens belong to the thought, its markers included


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer."""

    kind: ClassVar[str] = "finished"
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_s: float
    first_token_s: float  # from the request to the first token
    decode_s: float  # after the prefill


@dataclass(frozen=True, slots=True)
class Retraced:
    """Progress of looking for the sources of a finished answer."""

    kind: ClassVar[str] = "retraced"
    done: int  # tokens of the answer that were fed again
    total: int


Event = Prefilled | Forgot | Calibrated | Verified | Rebuilt | Text | Finished | Retraced
