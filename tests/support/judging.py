"""Decodes by an engine and judges the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from triforce_chat.engine.engine import Request
from triforce_chat.engine.exactness import Judgement, SamplingTest, judge, tokens_of
from triforce_chat.engine.protocol import EngineProtocol


def greedy_test(engine: EngineProtocol, request: Request) -> Judgement:
    """Decode speculatively and plainly, and compare."""
    return judge(engine, request, tokens_of(engine, request), tokens_of(engine, request, plain=True))


def sampling_test(
    engine: EngineProtocol, request: Request, seeds: Sequence[int], enough: float = math.inf
) -> SamplingTest:
    """Sample one answer per seed, until there are ``enough`` tokens, and test all tokens together."""
    test = SamplingTest()
    for seed in seeds:
        if len(test.transformed) >= enough:
            break
        sampled = replace(request, sampling=replace(request.sampling, seed=seed))
        test.add(engine, sampled, tokens_of(engine, sampled))
    return test
