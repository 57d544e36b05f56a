"""A verifying level: its round, and two ways to run rounds one after another.

In a round, a level drafts n tokens, verifies them with one forward of its model, and commits those that pass and one
more (TriForce, Alg. 1). Its output is distributed exactly as that of its own model over its own cache, so a level is
itself a valid drafter for the level above it: the hierarchy is plain recursion.

The top level waits for each verdict, because its committed tokens are the answer. If the forwards of a lower level are
CUDA graphs, it runs a planned number of rounds without waiting, so that the device never idles while the host reads,
plans and launches. Otherwise waiting costs nothing, and it plans every round separately.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import cached_property, partial
from weakref import proxy

import torch
from torch import Tensor

from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cuda_graph import (
    MARGIN,
    SIZES,
    TREE_SIZES,
    USUAL,
    Preparation,
    captures_on,
    fitting,
)
from triforce_chat.engine.draft import Draft, TokenBuffer, Verdict
from triforce_chat.engine.events import Event, Verified
from triforce_chat.engine.forward.forward import Forward
from triforce_chat.engine.forward.runner import feed
from triforce_chat.engine.gathered import rows_each
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.host_copy import HostCopy
from triforce_chat.engine.sampling.constraint import Constraint
from triforce_chat.engine.sampling.executor import SamplerInputs, empty_trees
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.cost_model import Clock, clock_of
from triforce_chat.engine.speculation.lookup import LookedUp, Match
from triforce_chat.engine.speculation.plan import NEVER, Plan
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.round import Outcome, Round
from triforce_chat.engine.speculation.rounds_ahead import (
    RoundsRequest,
    agreed,
    agreed_on_trees,
    intended,
    mean_rounds,
    rounds_together,
    several,
)
from triforce_chat.engine.speculation.stack_specs import MAX_TREE
from triforce_chat.engine.speculation.tree_draft import grafted
from triforce_chat.engine.speculation.tree_plan import TreePlan
from triforce_chat.engine.tree import Parents, depth_of, verified

MOST_FORCED = 16  # tokens in a draft of what the form of an answer prescribes


class Speculative:
    """A level of a stack: ``model`` over ``cache``, with the drafters of ``planner``.

    ``overlap``: while nothing is drafted, launch the next forward before the host reads the last token.
    """

    def __init__(
        self,
        name: str,
        model: Forward,
        cache: KVCache,
        planner: Planner,
        emit: Callable[[Event], None],
        group: RankGroup = SINGLE,
        overlap: bool = False,
    ) -> None:
        self.name, self.model, self.cache, self.planner = name, model, cache, planner
        self.emit, self.group, self.overlap = emit, group, overlap
        planner.overlaps = overlap
        self.clock: Clock = clock_of(model.device)
        self.captures = captures_on(model.device)
        self.nothing = Draft.empty(model.vocabulary, model.device)
        # Whether rounds may be launched without waiting for the previous one.
        self.unwaited = model.places_on_device and all(arm.drafter.device_side for arm in planner.arms)
        self.device_side = False
        self.constraint: Constraint | None = None  # of the answer that this level, as the top one, decodes
        self.found: Match | None = None  # of the known tokens
        # Launched rounds whose outcomes were not read yet, and the tokens before them.
        self.unread: tuple[Plan, list[Round], int] | None = None
        self.ended: float | None = None  # time at which the last round ended; None after a rollback

    # One round, for every level on every device

    def round(self, seq: TokenBuffer, plan: Plan, match: LookedUp | None, sampler: Sampler) -> Round:
        """Draft, verify and commit at the end of ``seq`` without waiting; ``match`` is what lookup found there."""
        captured = self.captures.count
        began, before = self.clock.now(), self.clock.mark() if plan.arm or seq.slack else None
        draft = self._draft(seq, plan, match, sampler)
        marks = None if before is None else (before, self.clock.mark())
        made = Round(plan, draft, self._forward(seq, draft), match, marks, began, captured)
        self._verify(seq, made, sampler)
        made.timed = self.captures.count == captured
        return made

    def _draft(self, seq: TokenBuffer, plan: Plan, match: LookedUp | None, sampler: Sampler) -> Draft:
        n, vocabulary = plan.n, self.model.vocabulary
        if not n:
            return self.nothing
        if plan.forced:
            return Draft.one_hot(seq.ids.new_tensor([plan.forced]), vocabulary)
        if plan.arm is None:
            return self.nothing if match is None else Draft.one_hot(match.tokens[:, :n], vocabulary)
        if plan.parents and self.planner.trees is not None:
            tree = self.planner.trees.draft(seq, plan.parents, sampler)
            # Along a given text, tokens of a depth are all the same.
            grafts = match is not None and plan.branch and seq.forced is None
            return grafted(tree, match.tokens[0, : plan.branch]) if match is not None and grafts else tree
        # Whole rounds of a level below may make more than was asked for.
        draft = plan.arm.drafter.propose(seq, n, sampler).first(self.cache.limit - seq.known)
        if match is None or match.length is None or plan.threshold == NEVER:
            return draft
        certain = Draft.one_hot(match.tokens[:, :n], vocabulary, draft.probs.dtype)
        sure = (match.length >= plan.threshold)[:, None]
        tokens = torch.where(sure, certain.tokens, draft.tokens)
        return Draft(tokens, torch.where(sure[..., None], certain.probs, draft.probs))

    def _forward(self, seq: TokenBuffer, draft: Draft) -> Tensor:
        """Logits [B, n+1, V] after the last committed token and after each of n drafted ones."""
        n = len(draft)
        if n:
            seq.write(draft.tokens)
        if not seq.slack:
            fed = self.cache.pending(seq.ids[0, : seq.known + n])
            if draft.count is not None:
                self.cache.drafted(len(fed) - n, draft.count)
            if draft.parents is None:
                return self.model(fed[None], self.cache, n + 1)
            if self.model.places_on_device:  # whose graphs of trees take the tree alone
                feed(self.model, self.cache, fed[: -n - 1])
                fed = fed[-n - 1 :]
            return self.model(fed[None], self.cache, n + 1, tree=verified(draft.parents, len(fed) - n))
        # The cache counts the tokens that the host knows, without the last one.
        offset = seq.length - (self.cache.length + 1)
        tree = None if draft.parents is None else verified(draft.parents, 1)
        return self.model(seq.read(-1, n + 1), self.cache, n + 1, offset, tree)

    def _verify(self, seq: TokenBuffer, made: Round, sampler: Sampler) -> None:
        """Commit what passes and start copying the outcome to the host."""
        n = len(made.draft)
        before = seq.length
        probs, packed, rows = sampler.verify(made.draft, made.logits, seq, self.constraint)
        packed = self.group.broadcast(packed)
        last = packed[:, 0]  # row of the logits, counted from 1, that gave the last token
        if rows is not None and made.draft.parents is not None:
            n = depth_of(made.draft.parents)
            made.path, last = rows[0, 1 : n + 1] - 1, rows[0, -1:] + 1
            probs = probs[:, rows[0, : n + 1]]
        made.verdict = Verdict(packed[:, 0], packed[:, 1 : n + 2], probs[:, : n + 1])
        seq.commit(made.verdict.tokens, made.verdict.count)
        self.model.committed(last, seq.length)
        if seq.slack:  # others are looked up by the host, once it knows their tokens
            made.following = self._find(seq)
        if made.following is not None and made.match is not None and made.match.length is not None:
            packed = torch.cat([packed, made.match.tokens, made.match.length[:, None]], -1)
        made.outcome = HostCopy(packed)
        if seq.slack and made.path is not None:
            self.cache.keep_beyond(before - self.cache.length, made.path)
        if seq.slack:
            made.verified = self.clock.mark()

    def _find(self, seq: TokenBuffer) -> LookedUp | None:
        lookup, width = self.planner.lookup, self.planner.most
        return lookup.find(seq, width) if lookup is not None and width else None

    # Rounds that are waited for

    def decode(
        self, seq: TokenBuffer, sampler: Sampler, most: int, constraint: Constraint | None = None
    ) -> Generator[list[int], None, None]:
        """Yield the ids that each round commits, until there are ``most``; may be closed after any round."""
        end = seq.known + most
        self.constraint = constraint
        try:
            self.planner.investment.begin(most)
            self.model.forget_state()  # it belongs to another answer
            self._watch(seq, sampler)
            while seq.known < end:
                self.planner.renew(end - seq.known)
                plan = self._plan(seq, end)
                if plan.plain and self.overlap and constraint is None:  # whose mask depends on the last token
                    yield from self._overlapped(seq, plan, sampler, end)
                    continue
                ids = self._waited(seq, plan, sampler)[1].checked().ids
                if constraint is not None:
                    constraint.advance(ids)
                yield ids
        finally:
            self.constraint = None

    def _forced(self, most: int) -> Plan | None:
        """A plan to draft what the form of the answer prescribes; None if that is nothing.

        Where forwards are captured, each length of a draft would need a graph of its own.
        """
        if self.constraint is None or self.model.captures or not self.planner.most:
            return None
        forced = self.constraint.forced(min(most, MOST_FORCED))
        return Plan(len(forced), forced=forced) if forced else None

    def step(self, seq: TokenBuffer, sampler: Sampler, most: int) -> tuple[Round, Outcome]:
        """Run one round of at most ``most`` drafted tokens and wait for its outcome."""
        return self._waited(seq, self._plan(seq, seq.known + most + 1), sampler)

    def _plan(self, seq: TokenBuffer, end: int) -> Plan:
        """Plan the next round of an answer that may grow to ``end`` tokens."""
        end = min(end, self.cache.limit + 1)
        if (forced := self._forced(end - seq.known - 1)) is not None:
            return forced
        plan = self._choose(seq, end, self._match(seq).length)
        # A captured tree is whole: a token comes alone where the cache forgets within it.
        return plan if plan.n <= self.cache.limit - seq.known else Plan(0)

    def _choose(self, seq: TokenBuffer, end: int, match: int) -> Plan:
        self.planner.sequences = self.model.sequences
        if self.planner.trees is not None:
            self.planner.room = self._room(seq.known)
        needed = end - seq.known - 1
        # Where drafts are captured they may be longer than the rest of an answer, which is cut: shorter ones at its end
        # would lack graphs of their own.
        reach = self.cache.limit - seq.known if self.model.places_on_device else needed
        most = min(self._most(self.model.sequences), reach)
        return self.planner.choose(seq.known - self.cache.forgotten, most, match, needed)

    def _room(self, known: int) -> int:
        """Tokens of a captured tree after so many that the cache has slots for."""
        slot = self.cache.write_slot() if self.model.places_on_device else None
        return MAX_TREE if slot is None else slot.room - (known - self.cache.length)

    def _most(self, sequences: int) -> int:
        """Tokens that a round may draft where forwards of so many sequences run together."""
        if sequences == 1:
            return self.planner.widest
        slot = self.cache.write_slot() if self.model.places_on_device else None
        apart = slot is not None and slot.prefix is None
        return min(self.planner.widest, rows_each(sequences, apart) - 1)

    def _match(self, seq: TokenBuffer) -> Match:
        """The match that lookup finds after the known tokens; one of length 0 without lookup."""
        if self.found is None or self.found.end != seq.known:
            lookup = self.planner.lookup if self.planner.most else None
            self.found = lookup.match(seq.host[: seq.known]) if lookup else Match(seq.known, 0, 0)
        return self.found

    def _waited(self, seq: TokenBuffer, plan: Plan, sampler: Sampler) -> tuple[Round, Outcome]:
        if self.ended is not None:
            self.planner.times.add_gap(self.clock.now() - self.ended)
        if plan.arm and plan.trial:
            plan.arm.tried()
        match, looked_up = self._match(seq), None
        if match.length and (plan.branch if plan.arm else plan.n):
            looked_up = LookedUp(match.continued(seq.ids, plan.branch or plan.n))
        made = self.round(seq, plan, looked_up, sampler)
        self.model.before_waiting()
        outcome = made.read()
        while not outcome.complete:  # sample again from the same logits
            sampler.widen()
            seq.settle(seq.known)
            seq.write(made.draft.tokens)
            self._verify(seq, made, sampler)
            outcome = made.read()
        self._commit(seq, made, outcome)
        self._learn_match(seq, match)
        drafting = self.clock.between(*made.marks) if made.marks else 0.0
        self.ended = self.clock.now()
        verifying = self.ended - made.began - drafting
        timed = self.captures.count == made.captures
        seconds = drafting, verifying
        came = match.length, outcome.drafted, outcome.accepted
        self.planner.learn(plan, *came, *seconds, timed, outcome.path)
        self._report(plan, outcome)
        return made, outcome

    def _commit(self, seq: TokenBuffer, made: Round, outcome: Outcome) -> None:
        """Record what a round committed, and roll all caches back to it."""
        if made.path is not None:
            self.cache.keep(seq.known, made.path[: outcome.accepted])
        seq.reveal(seq.known, outcome.ids)
        seq.known += len(outcome.ids)
        self.rollback(seq.known - 1)

    def _learn_match(self, seq: TokenBuffer, match: Match) -> None:
        """Learn how the match fared that was found before the latest known tokens."""
        if self.planner.lookup is not None and match.length:
            tested = min(self.planner.most, seq.known - match.end)
            self.planner.lookup.learn(match.length, match.right(seq.host, tested), tested)

    def _overlapped(self, seq: TokenBuffer, plan: Plan, sampler: Sampler, end: int) -> Iterator[list[int]]:
        """Decode token by token for as long as nothing better is planned.

        Each token goes to the next forward without leaving the device; the host reads it while that forward runs. If
        the answer ends early there was one forward too many, which the final rollback discards.
        """
        before, self.ended, self.planner.times.in_a_row = self.clock.now(), None, 0
        # What a cache evicts before a forward would be lost to a token that is drawn again.
        last = min(end, self.cache.limit + 1)
        captured, match = self.captures.count, self._match(seq)
        coming = self.round(seq, plan, None, sampler)
        while True:
            start, state = seq.known, sampler.state
            seq.known += 1  # without a draft that much is certain
            following = None
            self.planner.renew(end - seq.known)
            if seq.known < last and self._choose(seq, last, match.length).plain:
                following = self.round(seq, plan, None, sampler)
            self.model.before_waiting()
            outcome = coming.read()
            if not outcome.complete:  # this token and the following one came from truncated distributions
                sampler.widen()
                sampler.state = state
                seq.settle(start)
                self.rollback(start - 1)
                coming = self.round(seq, plan, None, sampler)
                continue
            seq.reveal(start, outcome.ids)
            now = self.clock.now()
            # The last of several tokens says no more than the first, which waited for its launch.
            timed = captured == self.captures.count and following is not None
            self.planner.learn_plain(now - before, timed)
            before, captured = now, self.captures.count
            self._learn_match(seq, match)
            match = self._match(seq)
            self._report(coming.plan, outcome)
            yield outcome.checked().ids
            if following is None:
                return
            coming = following

    # As a drafter of the level above

    def propose(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        """Draft about n tokens by whole rounds; their exact number may be known to the device alone."""
        self.unread = None
        self._watch(seq, sampler)
        return (self._several if self.unwaited else self._one_by_one)(seq, n, sampler)

    def _one_by_one(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        """Draft at least n tokens by rounds that are waited for."""
        if not n or not self.cache.ready(n + self.planner.widest + 1):
            return self.nothing
        ahead, tokens, probs = seq.fork(), [], []
        while ahead.known - seq.known < n:
            made, outcome = self.step(ahead, sampler, self.planner.widest)
            kept = len(outcome.ids)
            tokens.append(made.verdict.tokens[:, :kept].clone())
            probs.append(made.verdict.probs[:, :kept].clone())
        return Draft(torch.cat(tokens, 1), torch.cat(probs, 1))

    def _several(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        """Draft by a planned number of rounds, none of which waits for the previous one."""
        plan = self._several_rounds(n, seq.known)
        room = plan.rounds * plan.longest
        surplus = plan.n + 1 - plan.longest  # what the last round writes of a tree and cannot commit
        padding = (fitting(plan.n + 1, TREE_SIZES) or 0) - (plan.n + 1) if plan.parents else 0
        if not room or not self.cache.ready(room + surplus + max(MARGIN, padding)):
            return self.nothing
        feed(self.model, self.cache, self.cache.pending(seq.tokens)[:-1])
        ahead, match, rounds, probs = seq.fork(room), self._find(seq), [], self.nothing.probs
        for _ in range(plan.rounds):
            at = ahead.length - seq.length
            made = self.round(ahead, plan, match, sampler)
            rounds.append(made)
            match = made.following
            if not probs.shape[1]:
                probs = made.verdict.probs.new_zeros(len(seq.ids), room, self.model.vocabulary)
            put(probs, at[:, None] + seq.steps(0, plan.longest), made.verdict.probs)
        self.unread = plan, rounds, seq.known
        most = remaining(plan, n)
        count = (ahead.length - seq.length).clamp_max(most)
        beyond = seq.steps(0, most) >= count[:, None]
        tokens = ahead.ids[:, seq.known : seq.known + most].masked_fill(beyond, 0)
        return Draft(tokens, probs[:, :most], count)

    def _several_rounds(self, n: int, length: int) -> Plan:
        """The rounds of a proposal: the same for all sequences that propose at the same time."""
        if self.model.captures or not self.planner.plans_together:
            return several(self.planner, n, length)
        if self.planner.trees is not None:
            plan = several(self.planner, n, length)
            agreed_rounds = self.model.together(self.cache, "trees", mean_rounds, plan.rounds)
            return agreed_on_trees(self.planner, plan, *agreed_rounds)
        request = RoundsRequest(self.planner, n, length)
        return agreed(self.planner, *self.model.together(self.cache, "rounds", rounds_together, request))

    def judged(self, proposed: int, accepted: int) -> None:
        """Learn how the last proposal fared one level up; by then the outcomes of its rounds can be read."""
        self.cache.judged(proposed, accepted)
        if self.unread is None:
            return
        (plan, rounds, before), self.unread = self.unread, None
        # The last proposed token was only drawn.
        self.cache.confirmed(before + min(accepted, proposed - 1))
        for made in rounds:
            outcome = made.read()
            assert made.marks
            drafting = self.clock.between(*made.marks)
            verifying = self.clock.between(made.marks[1], made.verified)
            seconds = drafting, verifying
            self.planner.learn_unwaited(
                plan, outcome.match, outcome.accepted, *seconds, made.timed, outcome.path
            )
            if self.planner.lookup is not None and made.match is not None and outcome.match:
                tested = min(made.match.tokens.shape[1], len(outcome.ids))
                self.planner.lookup.learn(outcome.match, outcome.right, tested)
            self._report(plan, outcome)

    def _report(self, plan: Plan, outcome: Outcome) -> None:
        planner, drafter = self.planner, ""
        if outcome.drafted:
            drafter = plan.arm.drafter.name if plan.arm else "schema" if plan.forced else "lookup"
        plain = planner.current_plain
        plain_ms = 1000 * plain.seconds(planner.times)
        self.emit(Verified(self.name, outcome.drafted, outcome.accepted, drafter, plain_ms, plain.measured))

    # What is captured ahead

    def longest(self, length: int, n: int) -> int:
        return remaining(intended(self.planner, n, length), n) if self.unwaited else n

    @property
    def surplus(self) -> int:
        """The most tokens of a draft beyond those that were asked for, whatever is planned; see ``remaining``."""
        planner, trees = self.planner, self.planner.trees
        if not self.unwaited:
            return planner.widest
        chain = planner.most if trees is None or trees.optional else 0
        return max(chain, trees.options.deepest if trees else 0) // 2

    def unprepared(self, length: int, n: int, sampler: Sampler) -> list[Preparation]:
        plan = intended(self.planner, n, length)
        drafter = self.planner.trees if plan.parents else plan.arm
        return self._lacked(length, drafter, plan.n, sampler) if n else []

    def preparations(self, length: int, sampler: Sampler) -> Iterator[Preparation]:
        if not self.model.places_on_device:
            return
        slot = self.cache.write_slot()
        pool = slot and slot.storage.pool
        yield from self.cache.preparations()
        if slot and slot.prefix is not None:  # by these, questions after a common prefix are read
            yield from self._feeding()
        if self.unwaited and self.planner.lookup is not None:  # the first call of a kernel loads it
            yield partial(self._find, TokenBuffer.of([0], length, self.model.device))
        held = self.cache.kept(length)
        expected = self.planner.expected_rounds(held, self._most(pool.count if pool else 1))
        for drafter, n in expected:
            # What a drafter intends depends on its rank's clock, and all ranks must capture in the same order.
            yield from self._lacked(length, drafter if self.group.size == 1 else None, n, sampler)
        if self.planner.trees is not None:
            yield from self._preparations_of_trees(length, self.planner.trees, sampler)
        for drafter, n in expected:
            if isinstance(drafter, Arm):
                yield from self._verifying(length, n + 1, n + 1 + drafter.surplus, sampler)
        for arm in self.planner.arms:
            if held >= arm.worth_above:
                yield from arm.drafter.preparations(length, sampler)

    def _feeding(self) -> Iterator[Preparation]:
        for rows in reversed([size for size in SIZES if size <= USUAL]):
            yield from self.model.unprepared(self.cache, rows)

    def _watch(self, seq: TokenBuffer, sampler: Sampler) -> None:
        """Tell the planner what its rounds at the end of ``seq`` lack."""
        if self.model.places_on_device:
            # A cycle would keep a replaced stack, with its caches and graphs, until garbage is collected.
            level = proxy(self)
            self.planner.lacking = lambda arm, n: len(level._lacked(seq.known, arm, n, sampler))

    def _lacked(self, length: int, by: Arm | TreePlan | None, n: int, sampler: Sampler) -> list[Preparation]:
        """What is to be captured before a round after ``length`` tokens that drafts about n more, and ``by`` whom."""
        if isinstance(by, TreePlan):
            return self._lacked_by_tree(length, by, self.planner.next_tree, sampler) if n else []
        drafter = by.drafter if by and n else None
        rows = 1 + (drafter.longest(length, n) if drafter else n)
        own = self._verifying(length, rows, rows, sampler)
        return [*own, *drafter.unprepared(length, n, sampler)] if drafter else own

    def _verifying(self, length: int, least: int, most: int, sampler: Sampler) -> list[Preparation]:
        """What is to be captured before verifications of ``least`` to ``most`` rows, the largest first."""
        sizes = sorted({fitting(rows) or rows for rows in range(least, most + 1)}, reverse=True)
        return [
            prepare
            for rows in sizes
            for prepare in (
                *self.model.unprepared(self.cache, rows),
                *sampler.unprepared(self._like, length, rows),
            )
        ]

    def _preparations_of_trees(self, length: int, trees: TreePlan, sampler: Sampler) -> Iterator[Preparation]:
        for parents in trees.usual_shapes():
            yield from self._lacked_by_tree(length, trees, parents, sampler)
        for parents in trees.usual_depths():
            yield from trees.unprepared(length, parents, sampler)

    def _lacked_by_tree(
        self, length: int, trees: TreePlan, parents: Parents, sampler: Sampler
    ) -> list[Preparation]:
        """``_lacked`` where a tree of that shape is drafted."""
        rows = 1 + len(parents)
        empty = replace(
            self.nothing, shape=empty_trees(1, 0, self.model.device), independent=trees.independent
        )
        like = self._like._replace(draft=empty)
        own = [*self.model.unprepared(self.cache, rows, True), *sampler.unprepared(like, length, rows)]
        return [*own, *trees.unprepared(length, parents, sampler)]

    @cached_property
    def _like(self) -> SamplerInputs:
        """The inputs of a verification of no rows."""
        model = self.model
        logits = torch.empty(1, 0, model.vocabulary, dtype=model.dtype, device=model.device)
        return SamplerInputs(logits, self.nothing, None)

    def rollback(self, length: int) -> None:
        """Discard all but the first ``length`` tokens of the history, in all caches below."""
        self.cache.truncate(length)
        for arm in self.planner.arms:
            arm.drafter.rollback(length)
        self.ended = None
        if self.found and self.found.end > length:
            self.found = None


def remaining(plan: Plan, n: int) -> int:
    """The most tokens that remain of several planned rounds where n are wanted.

    Surplus tokens are cut if the verification would need a larger graph for them.
    """
    return min(plan.rounds * plan.longest, (fitting(n + 1 + (plan.longest - 1) // 2) or n + 1) - 1)


def put(out: Tensor, index: Tensor, rows: Tensor) -> None:
    """Write rows [B, n, V] into out [B, m, V] at index [B, n]."""
    for mine, places, new in zip(out, index, rows, strict=True):
        mine.index_copy_(0, places, new)
