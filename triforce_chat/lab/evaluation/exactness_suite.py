"""The exactness self-test behind ``triforce-chat verify``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from triforce_chat.chat.events import Outcome
from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.engine.engine import Request
from triforce_chat.engine.exactness import SamplingTest, judge, tokens_of
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.errors import DoesNotFit
from triforce_chat.models.load import LoadedModel

SAMPLING = Sampling(temperature=1.0, top_p=0.95)
PLACES = 8  # of the text, after each of which the same number of tokens is decoded


def verify_stacks(
    engine: EngineProtocol,
    loaded: LoadedModel,
    text: str,
    options: StackOptions,
    names: list[str],
    tokens: int,
) -> Iterator[Outcome]:
    """Test each stack: ``tokens`` greedy tokens against plain decoding, as many sampled ones by their distribution.

    They follow several places of the second half of the text, as what a model makes after one place soon repeats
    itself; tokens that would end an answer do not.
    """
    form = ChatFormat(loaded.tokenizer)
    ids = form.encode(text)
    each = -(-tokens // PLACES)
    prompts = [form.render([Message("user", ids[:end])]) for end in ends(len(ids))]
    if len(prompts[-1]) + each > engine.context:
        raise DoesNotFit(
            f"the text has {len(prompts[-1]):,} tokens and {each:,} are to be decoded after it, but the context "
            f"holds {engine.context:,}; choose a shorter text or --tokens"
        )
    greedy = [Request(prompt, each, Sampling(), past_end=True) for prompt in prompts]
    plain = [tokens_of(engine, request, plain=True) for request in greedy]
    for name in names:
        engine.restack(replace(options, name=name))
        judged = [
            judge(engine, request, tokens_of(engine, request), expected)
            for request, expected in zip(greedy, plain, strict=True)
        ]
        sampled = SamplingTest()
        for seed, prompt in enumerate(prompts):
            request = Request(prompt, each, replace(SAMPLING, seed=seed), past_end=True)
            sampled.add(engine, request, tokens_of(engine, request))
        yield Outcome(
            stack=name,
            greedy_tokens=sum(one.tokens for one in judged),
            identical=all(one.identical for one in judged),
            ties=sum(one.ties or 0 for one in judged),
            mismatches=sum(one.mismatches for one in judged),
            sampled_tokens=len(sampled.transformed),
            sampled_ties=sampled.ties,
            p_value=sampled.p_value,
        )


def ends(tokens: int) -> list[int]:
    """The places in the second half of a text of so many tokens, the last one at its end."""
    return [tokens - tokens * i // (2 * PLACES) for i in reversed(range(PLACES))]
