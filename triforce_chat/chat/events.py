"""What a conversation adds to the engine's events: sources of an answer, and values folded from events.

The panel, ``--json``, stored sessions and the benchmark all fold the same events into a ``Tally``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal

from triforce_chat.engine.events import Event, Finished, Forgot, Prefilled, Rebuilt, Text, Verified

Side = Literal["speculative", "autoregressive"]
ALARM = 1e-4  # a p-value below this is a failure


@dataclass(frozen=True, slots=True)
class Place:
    """A page of a document."""

    document: str  # its title
    unit: str  # "page" or "section"
    page: int
    # Its chapter and lines; empty where the page's number tells the place.
    where: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Source(Place):
    """A page that an answer's tokens attended to."""

    share: float  # of the attention that the documents got
    sentence: str  # the one that got the most on this page


@dataclass(frozen=True, slots=True)
class Citation:
    """Pages that an answer names, with the words that it quotes from them."""

    unit: str
    page: int
    last_page: int
    quote: str | None  # None: the pages are only named
    holds: bool  # the pages exist and hold the words
    found_on: tuple[Place, ...] = ()  # where the words are instead
    exists: bool = True


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Words with the pages on which they stand; no page if they stand nowhere."""

    words: str
    found_on: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Sourced:
    """Where a finished answer came from; follows ``Finished`` where there are documents."""

    kind: ClassVar[str] = "sourced"
    sources: tuple[Source, ...]  # the pages that were read most, first
    citations: tuple[Citation, ...]
    seconds: float  # what it took to find out
    quotes: tuple[LookedUp, ...] = ()  # sentences that the answer quotes without naming a page
    standing: tuple[LookedUp, ...] = ()  # words of a question whose answer denies; it has no sources


ChatEvent = Event | Sourced


@dataclass(slots=True)
class LevelTally:
    """Counts of one level; acceptance is per tested token, as TriForce's alpha and beta."""

    proposed: int = 0
    accepted: int = 0
    tested: int = 0  # accepted plus rejected: tokens after a rejection were never judged
    rounds: int = 0

    def add(self, event: Verified) -> None:
        self.rounds += 1
        self.proposed += event.proposed
        self.accepted += event.accepted
        self.tested += min(event.accepted + 1, event.proposed)

    def join(self, other: LevelTally) -> None:
        """Count another answer's as well."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.tested if self.tested else None


@dataclass(slots=True)
class Tally:
    """A fold of the events of one answer."""

    top: str = "target"
    levels: dict[str, LevelTally] = field(default_factory=dict)
    rebuilds: list[Rebuilt] = field(default_factory=list)
    prefill: Prefilled | None = None
    forgot: Forgot | None = None
    finished: Finished | None = None
    sourced: Sourced | None = None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    thought: str = ""  # what the model thought before it answered
    thought_tokens: int = 0  # the first of the tokens, which belong to the thought
    accepted: list[int] = field(
        default_factory=list
    )  # drafted tokens that passed in each round of the top level
    rebuilt_in: list[int] = field(default_factory=list)  # the rounds, from 0, in which the cache was rebuilt
    # What plain decoding would have taken for the tokens of those rounds in which that was known, in milliseconds, and
    # how many these are.
    plain_ms: float = field(default=0.0, compare=False)
    plain_tokens: int = field(default=0, compare=False)
    latest: dict[str, Verified] = field(default_factory=dict, compare=False)  # of each level, for the panel
    # Tokens of the top level's rounds by who drafted in them; see ``Verified``
    drafters: dict[str, int] = field(default_factory=dict, compare=False)

    def add(self, event: ChatEvent) -> None:
        match event:
            case Prefilled():
                self.prefill = event
            case Forgot():
                self.forgot = event
            case Verified():
                self._level(event.level).add(event)
                self.latest[event.level] = event
                if event.level == self.top:
                    self.accepted.append(event.accepted)
                    made = self.drafters.get(event.drafter, 0) + 1 + event.accepted
                    self.drafters[event.drafter] = made
                    if event.plain_ms:  # known
                        self.plain_ms += event.plain_ms * (1 + event.accepted)
                        self.plain_tokens += 1 + event.accepted
            case Rebuilt():
                self.rebuilds.append(event)
                self.rebuilt_in.append(len(self.accepted))
            case Text():
                self.token_ids.extend(event.token_ids)
                self.text += event.text
                self.thought += event.thought
                self.thought_tokens += event.thought_tokens
            case Finished():
                self.finished = event
            case Sourced():
                self.sourced = event

    def _level(self, name: str) -> LevelTally:
        """The counts of one level; the top level comes last, though it may be the first to report."""
        if name not in self.levels:
            self.levels[name] = LevelTally()
            if self.top in self.levels:
                self.levels[self.top] = self.levels.pop(self.top)
        return self.levels[name]

    @property
    def unread(self) -> bool:
        """Whether a part of the prompt has yet to be read."""
        read = self.prefill
        return not self.token_ids and (read is None or read.done < read.total)

    @property
    def rounds(self) -> int:
        """Rounds of the top level, that is forwards over the full cache."""
        return self.levels[self.top].rounds if self.top in self.levels else 0

    @property
    def tokens_per_round(self) -> float:
        return len(self.token_ids) / self.rounds if self.rounds else 0.0

    @property
    def ms_per_token(self) -> float:
        """Decoding time per token, prefill left out (reported beside it)."""
        done = self.finished
        return 1000 * done.decode_s / done.completion_tokens if done and done.completion_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same prefilled context answered twice, each run alone on the machine."""

    speculative: Tally
    autoregressive: Tally
    identical: bool  # the two token sequences are the same
    ties: int | None  # tokens within rounding of plain decoding's choice; None: sampled, not greedy
    mismatches: int = 0  # greedy tokens that are neither its choice nor a tie: a defect

    @property
    def decode_speedup(self) -> float:
        fast = self.speculative.ms_per_token
        return self.autoregressive.ms_per_token / fast if fast else 0.0

    @property
    def end_to_end_speedup(self) -> float:
        """The same prefill counted on both sides, decoding per token of equal length."""
        done = self.speculative.finished
        if done is None or not done.completion_tokens:
            return 0.0
        tokens = done.completion_tokens
        plain = done.prefill_s + tokens * self.autoregressive.ms_per_token / 1000
        return plain / (done.prefill_s + done.decode_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one stack showed in the exactness self-test."""

    kind: ClassVar[str] = "outcome"
    stack: str
    greedy_tokens: int
    identical: bool
    ties: int
    mismatches: int
    sampled_tokens: int
    sampled_ties: int
    p_value: float

    @property
    def passed(self) -> bool:
        return self.mismatches == 0 and self.p_value >= ALARM

    def record(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "passed": self.passed}
