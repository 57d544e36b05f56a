"""The middle level on a device with a queue: several rounds in a row that nobody on the host waits for.

Whoever waits for a verdict leaves the device idle while the host reads it, plans the next round and launches it: up to
half as long as the round takes. Here all that depends on verdicts stays on the device. Where the history ends is a
number there, forwards find their slots and positions by it, the last words are looked up there, and the level above
is told how many of the proposals count in the same way. The host hears of the rounds with that level's own verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import fitting
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.events import Event, Verified
from triforce_chat.engine.forward.runner import Forward, Sends
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.host_copy import Message
from triforce_chat.engine.sampling.sampler import Sampler, one_hot
from triforce_chat.engine.speculation.acceptance import Survival
from triforce_chat.engine.speculation.chain import Chains, Made
from triforce_chat.engine.speculation.lookup import ORDERS, Found, Trust, found
from triforce_chat.engine.speculation.planner import FORGET, sizes
from triforce_chat.engine.speculation.step_times import FIRST, ROW_PRIOR, Average, Clock, StepTimes
from triforce_chat.engine.speculation.verify import verify

MARGIN = 8  # slots that a forward of fixed size may touch behind its last token
MOST = 64  # tokens that the rounds of one proposal may make: the draft's window has room for them
NEVER = ORDERS + 1  # a match that no place has


class Plan(NamedTuple):
    """What the next rounds do."""

    rounds: int
    n: int  # tokens drafted in each
    least: int  # match from which on what is looked up replaces what the draft model says


class Told(NamedTuple):
    """What the device says of one round."""

    accepted: int
    match: int  # of what was looked up
    foretold: int  # of its first tokens, how many came


class Relay:
    """Tokens of ``model`` over a small cache, verified in rounds; drafts come from a small model, lookup, or both.

    ``gamma`` is how many tokens a round drafts, or may draft where that is ``planned``. Where the draft model and
    lookup both speak, each round takes what was looked up if its match is as long as pays better.
    """

    def __init__(
        self,
        name: str,
        model: Forward,
        cache: RetrievalCache,
        draft: tuple[Sends, StreamingCache] | None,
        gamma: int,
        emit: Callable[[Event], None],
        clock: Clock,
        group: RankGroup = SINGLE,
        *,
        lookup: bool = True,
        planned: bool = True,
    ) -> None:
        self.name, self.model, self.cache, self.draft = name, model, cache, draft
        self.chains = Chains(*draft, sizes(1, gamma) if planned else []) if draft else None
        self.gamma, self.emit, self.clock, self.group = gamma, emit, clock, group
        self.looks_up, self.planned = lookup, planned
        self.nothing = Draft.empty(model.vocabulary, model.device)
        self.times, self.drafting = StepTimes(), Average(FORGET)  # seconds; of the latter per drafted token
        self.survival, self.trust = Survival(), Trust()
        self.alone = Survival()  # of what the draft model says without lookup
        self.plan = Plan(0, 0, NEVER)  # of the last proposal
        self.message: Message | None = None  # about it
        self.marks: list[tuple[Any, Any, Any]] = []  # around the draft and the verification of its rounds

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:
        """About n tokens; how many they are is known to the device."""
        self.message, plan = None, self._planned(n, len(tokens))
        width = plan.n + 1
        room = plan.rounds * width
        if not room or not self.cache.ready(room + MARGIN):
            return self.nothing
        self.plan, self.marks = plan, []
        behind = self.cache.pending(tokens)[:-1]
        if len(behind):
            self.model(behind, self.cache, 1)
        rounds = Rounds(self, tokens, room, sampler)
        told = [rounds.next(first=not i) for i in range(plan.rounds)]
        self.message = Message(torch.cat(told))
        # What is made beyond expectation is cut where the verification would have to read more rows for it.
        most = min(room, (fitting(n + 1 + plan.n // 2) or n + 1) - 1)
        made = rounds.history[len(tokens) : len(tokens) + most]
        return Draft(made, rounds.probs[:most], rounds.made.clamp_max(most))

    def _planned(self, n: int, length: int) -> Plan:
        """The same on all ranks, whose clocks differ."""
        drafted = min(self.gamma, length - 1) if self.draft or self.looks_up else 0
        if self.planned and drafted:
            hopes = [0.0, *accumulate(self.survival.chances(drafted))]
            first, more = self.times.line if self.times.known else (1.0, ROW_PRIOR)
            each = more + self.drafting.mean
            drafted = max(sizes(1, drafted), key=lambda g: (1 + hopes[g]) / (first + each * g))
        # What was asked for does not depend on what was learnt: the same random numbers go into it every time.
        chances = (self.survival if self.planned else Survival()).chances(drafted)
        rounds = min(round(n / (1 + sum(chances))) or min(n, 1), MOST // (drafted + 1))
        return Plan._make(self.group.broadcast_ints((rounds, drafted, self._least(drafted))))

    def _least(self, n: int) -> int:
        """The match from which on n tokens of lookup promise more than those of the draft model."""
        if not self.looks_up:
            return NEVER
        if self.draft is None:
            return 0
        kept = sum(self.alone.chances(n))
        return next((match for match in range(1, NEVER) if sum(self.trust.survival(match, n)) > kept), NEVER)

    def rollback(self, length: int) -> None:
        self.cache.truncate(length)
        if self.draft:
            self.draft[1].truncate(length)

    def hear(self, length: int, ids: Sequence[int]) -> None:
        pass

    def judged(self, proposed: int, accepted: int) -> None:
        self.cache.judged(proposed, accepted)
        if self.message is None:
            return
        numbers = self.message.read()
        for i, marks in enumerate(self.marks):
            told = Told._make(numbers[len(Told._fields) * i :][: len(Told._fields)])
            self._learn(told, *marks)
            self.emit(Verified(self.name, self.plan.n, told.accepted))

    def _learn(self, told: Told, began: Any, drafted: Any, verified: Any) -> None:
        n = self.plan.n
        self.times.add(1 + n, self.clock.between(drafted, verified))
        if not n:
            return
        each, usual = self.clock.between(began, drafted) / n, self.drafting.mean
        # The first ones may have prepared something; later ones, too.
        self.drafting.add(min(each, 3 * usual) if usual else each, 1.0 if usual else FIRST)
        self.survival.learn(n, told.accepted)
        if told.match < self.plan.least:
            self.alone.learn(n, told.accepted)
        if self.looks_up and told.match:
            tested = min(n, told.accepted + 1)
            self.trust.learn(told.match, (i < told.foretold for i in range(tested)))


class Rounds:
    """The rounds of one proposal behind ``tokens`` [m]: ``made`` [] tokens so far, with their laws in ``probs``."""

    def __init__(self, relay: Relay, tokens: Tensor, room: int, sampler: Sampler) -> None:
        self.relay, self.sampler, self.length = relay, sampler, len(tokens)
        self.n, self.room = relay.plan.n, room
        self.history = torch.cat([tokens, tokens.new_zeros(room)])
        self.made = tokens.new_zeros(())
        self.steps = torch.arange(-self.n - 1, self.n + 1, device=tokens.device)
        self.probs = relay.nothing.probs  # [room, V] as soon as their dtype is known

    def next(self, first: bool) -> Tensor:
        """One more: [3], what is ``Told`` of it."""
        relay, n = self.relay, self.n
        mark = relay.clock.mark
        began, end = mark(), self.made + self.length
        looked_up = found(self.history, end, n) if relay.looks_up and n else None
        draft = self._draft(first, end, looked_up)
        drafted = mark()
        self.history[self._behind(end, 0, n)] = draft.tokens
        ids = self.history[self._behind(end, -1, n)]
        # The cache lacks the last word.
        logits = relay.model(ids, relay.cache, n + 1, self.made)
        # All of the history in every round, whose room decides which captured work serves.
        drawn = self.sampler.judge(verify, draft, logits, self.history, self.room - self.made - n)
        word = relay.group.broadcast(drawn.word)
        relay.marks.append((began, drafted, mark()))
        if not len(self.probs):
            self.probs = drawn.probs.new_zeros(self.room, drawn.probs.shape[1])
        came = word[1 : n + 2]
        self.history[self._behind(end, 0, n + 1)] = came
        self.probs[self._behind(self.made, 0, n + 1)] = drawn.probs[: n + 1]  # a desk may have room for more
        self.made = self.made + word[0] + 1
        if looked_up is None:
            return torch.cat([word[:1], word.new_zeros(2)])
        right = (looked_up.tokens == came[:n]).cumprod(0).sum()
        return torch.stack([word[0], looked_up.match, right])

    def _draft(self, first: bool, end: Tensor, looked_up: Found | None) -> Draft:
        relay, vocabulary = self.relay, self.relay.model.vocabulary
        if relay.chains is not None and self.n:
            made = self.drafted(relay.chains, first, end)
            if looked_up is None:
                return Draft(relay.group.broadcast_tokens(made.tokens), made.probs)
            sure = looked_up.match >= relay.plan.least
            tokens = torch.where(sure, looked_up.tokens, made.tokens)
            certain = one_hot(looked_up.tokens, vocabulary, made.probs.dtype)
            return Draft(relay.group.broadcast_tokens(tokens), torch.where(sure, certain, made.probs))
        if looked_up is None:
            return relay.nothing
        return Draft(looked_up.tokens, one_hot(looked_up.tokens, vocabulary))

    def drafted(self, chains: Chains, first: bool, end: Tensor) -> Made:
        """What the draft model says."""
        if first:
            # The longest chain may be captured there, and touches what it feeds and what it drafts.
            more = max(self.room, 2 * self.relay.gamma + 1) + MARGIN
            chains.model(chains.cache.pending(self.history[: self.length], more), chains.cache, 1)
        fed = self.history[self._behind(end, -self.n - 1, 0)]
        beyond, spare = self.made - (self.n + 1), self.room - self.made
        return chains.draft(self.n, fed, beyond, self.history, spare, self.sampler)

    def _behind(self, end: Tensor, first: int, last: int) -> Tensor:
        """Indices from ``first`` to ``last`` - 1, counted from ``end`` []."""
        return end + self.steps[self.n + 1 + first : self.n + 1 + last]
