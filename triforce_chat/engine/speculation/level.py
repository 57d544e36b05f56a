"""Levels: whatever proposes tokens together with the distributions they were drawn from.

TriForce's hierarchy is plain recursion: a level that verifies its drafter's tokens emits tokens that follow
its own distribution, which makes it a legal drafter for the level above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from triforce_chat.engine.cache.storage import KVCache
from triforce_chat.engine.draft import Draft, Verdict
from triforce_chat.engine.events import Event, Verified
from triforce_chat.engine.forward.runner import Forward
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.verify import verify


class Level(Protocol):
    """A source of proposals. ``tokens`` [m] is always the full history, the pending proposals included."""

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:
        """About n tokens that follow ``tokens``; fewer, even none, where the level has nothing to say."""
        ...

    def rollback(self, length: int) -> None:
        """Only the first ``length`` tokens of the history stand."""
        ...

    def hear(self, length: int, ids: Sequence[int]) -> None:
        """``ids`` stand behind the first ``length`` tokens, which need not be asked of the device any more."""
        ...

    def judged(self, proposed: int, accepted: int) -> None:
        """How the last proposal fared one level up."""
        ...


class Top(Protocol):
    """What an engine decodes with: the level whose tokens are the answer."""

    drafter: Level

    def rounds(self, tokens: Tensor, sampler: Sampler, most: int) -> Iterator[list[int]]:
        """The ``most`` tokens behind ``tokens`` [m], round by round; the last round may bring more."""
        ...

    def rollback(self, length: int) -> None:
        """Only the first ``length`` tokens of the history stand."""
        ...


class Silent:
    """Proposes nothing: the level above it decodes plainly."""

    def __init__(self, model: Forward) -> None:
        self.nothing = Draft.empty(model.vocabulary, model.device)

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:  # noqa: ARG002
        return self.nothing

    def rollback(self, length: int) -> None:
        pass

    def hear(self, length: int, ids: Sequence[int]) -> None:
        pass

    def judged(self, proposed: int, accepted: int) -> None:
        pass


class Autoregressive:
    """A small model that drafts token by token."""

    def __init__(self, model: Forward, cache: KVCache, group: RankGroup = SINGLE) -> None:
        self.model, self.cache, self.group = model, cache, group

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:
        rows = Draft.empty(self.model.vocabulary, self.model.device).probs
        history = torch.cat([tokens, tokens.new_zeros(n)])
        for i, end in enumerate(range(len(tokens), len(history))):
            known = history[:end]
            drawn = sampler.next(self.model(self.cache.pending(known), self.cache, 1), known)
            if i == 0:  # now their dtype is known
                rows = drawn.probs.new_empty(n, self.model.vocabulary)
            rows[i] = drawn.probs[0]
            history[end : end + 1] = drawn.word[:1]
        return Draft(self.group.broadcast_tokens(history[len(tokens) :]), rows)

    def rollback(self, length: int) -> None:
        self.cache.truncate(length)

    def hear(self, length: int, ids: Sequence[int]) -> None:
        pass

    def judged(self, proposed: int, accepted: int) -> None:
        pass


class Speculative:
    """Verifies a drafter's tokens with one forward of ``model`` over ``cache`` (TriForce, Alg. 1).

    ``gamma`` is how many tokens it asks of its drafter for one verification.
    """

    def __init__(
        self,
        name: str,
        model: Forward,
        cache: KVCache,
        drafter: Level,
        gamma: int,
        emit: Callable[[Event], None],
        group: RankGroup = SINGLE,
    ) -> None:
        self.name, self.model, self.cache = name, model, cache
        self.drafter, self.gamma, self.emit = drafter, gamma, emit
        self.group = group

    def rounds(self, tokens: Tensor, sampler: Sampler, most: int) -> Iterator[list[int]]:
        """What each round commits, until there are ``most`` tokens; may be closed behind any round."""
        end = len(tokens) + most
        while len(tokens) < end:
            made = self.step(tokens, sampler, end - len(tokens) - 1)
            tokens = torch.cat([tokens, made.tokens])
            yield made.ids

    def step(self, tokens: Tensor, sampler: Sampler, most: int) -> Verdict:
        """One round: draft up to ``most`` tokens, verify, commit; returns the k+1 tokens that follow."""
        draft = self.drafter.propose(tokens, min(self.gamma, most), sampler)
        extended = torch.cat([tokens, draft.tokens])
        logits = self.model(self.cache.pending(extended), self.cache, len(draft) + 1)
        verdict = self._judge(draft, logits, extended, sampler)
        accepted = len(verdict) - 1
        self.rollback(len(tokens) + accepted)
        self.drafter.hear(len(tokens), verdict.ids)
        self.drafter.judged(verdict.drafted, accepted)
        self.emit(Verified(self.name, verdict.drafted, accepted))
        return verdict

    def _judge(self, draft: Draft, logits: Tensor, extended: Tensor, sampler: Sampler) -> Verdict:
        """By the nuclei that rank 0 found whole; the only time that the host waits for the device."""
        while True:
            drawn = sampler.judge(verify, draft, logits, extended)
            word = self.group.broadcast(drawn.word)
            told = word if draft.count is None else torch.cat([draft.count[None], word])
            heard = sampler.hear(sampler.tell(told))
            if not sampler.widened():
                break
        drafted = len(draft) if draft.count is None else heard.pop(0)
        accepted, *ids = heard
        made = accepted + 1
        return Verdict(word[1 : 1 + made], drawn.probs[:made], ids=ids[:made], drafted=drafted)

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:
        """At least n tokens by whole rounds, so that no verified token goes to waste."""
        rounds = [Draft.empty(self.model.vocabulary, self.model.device)]
        made = 0 if self.cache.ready(n + self.gamma + 1) else n
        while made < n:
            rounds.append(self.step(tokens, sampler, self.gamma).copy())
            made += len(rounds[-1])
            tokens = torch.cat([tokens, rounds[-1].tokens])
        return Draft.join(rounds)

    def rollback(self, length: int) -> None:
        self.cache.truncate(length)
        self.drafter.rollback(length)

    def hear(self, length: int, ids: Sequence[int]) -> None:
        self.drafter.hear(length, ids)

    def judged(self, proposed: int, accepted: int) -> None:
        self.cache.judged(proposed, accepted)
