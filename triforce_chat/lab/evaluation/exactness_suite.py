"""The exactness self-test behind ``triforce-chat verify``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from triforce_chat.chat.events import Outcome
from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.engine.engine import Request
from triforce_chat.engine.exactness import greedy_test, sampling_test
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.errors import DoesNotFit
from triforce_chat.models.load import LoadedModel

SAMPLING = Sampling(temperature=1.0, top_p=0.95)
SHORT_ANSWERS = 4  # times as many as would do if none ended early


def verify_stacks(
    engine: EngineProtocol,
    loaded: LoadedModel,
    text: str,
    options: StackOptions,
    names: list[str],
    tokens: int,
) -> Iterator[Outcome]:
    """Test each stack with ``tokens`` greedy tokens against plain decoding and as many sampled by their law."""
    form = ChatFormat(loaded.tokenizer)
    prompt = form.render([Message("user", form.encode(text))])
    if len(prompt) + tokens > engine.context:
        raise DoesNotFit(
            f"the text has {len(prompt):,} tokens and {tokens:,} are to be decoded, but the context holds "
            f"{engine.context:,}; choose a shorter text or --tokens"
        )
    each = min(64, tokens)
    for name in names:
        engine.restack(replace(options, name=name))
        greedy = greedy_test(engine, Request(prompt, tokens, Sampling()))
        seeds = range(SHORT_ANSWERS * -(-tokens // each))
        sampled = sampling_test(engine, Request(prompt, each, SAMPLING), seeds, tokens)
        yield Outcome(
            stack=name,
            greedy_tokens=greedy.tokens,
            identical=greedy.identical,
            ties=greedy.ties or 0,
            mismatches=greedy.mismatches,
            sampled_tokens=len(sampled.transformed),
            p_value=sampled.p_value,
        )
