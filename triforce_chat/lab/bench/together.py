"""Many questions about one text, answered at once, beside one of them alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from triforce_chat.chat.events import Tally
from triforce_chat.engine.engine import Request
from triforce_chat.engine.events import Event
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.engine.together import answer_together, prepare_together
from triforce_chat.errors import TriforceError
from triforce_chat.lab.bench.cases import Case
from triforce_chat.lab.bench.row import fresh
from triforce_chat.lab.machine import finish
from triforce_chat.models.load import LoadedModel
from triforce_chat.settings.engine_options import sampling_of, stack_for

QUESTIONS = (
    *(
        "Who tells this story?",
        "Where does it take place?",
        "What happens first?",
        "Who is the main character?",
    ),
    *(
        "What do the people want?",
        "Describe a house.",
        "What is said about money?",
        "How does the passage end?",
    ),
)
MOST_ALONE = 4  # questions that are answered alone, for the time of one


@dataclass(frozen=True, slots=True)
class Together:
    """One stack at one context length; seconds from the end of reading the text to the last token of all answers."""

    contender: str
    context: int  # tokens of the text
    temperature: float
    sequences: int
    tokens: int  # of all answers
    one_s: float  # one answer alone: the mean over several questions
    together_s: float  # all at once: the median of several runs
    spread_s: tuple[float, float]  # of these runs
    times_one: float  # together_s over one_s
    ms_per_token: float  # of all answers at once
    tokens_per_round: float  # of each sequence
    fresh: float | None  # share of the answers' runs of four tokens that had not come before in them


def measure_together(
    engine: EngineProtocol,
    loaded: LoadedModel,
    text: Sequence[int],
    cases: Sequence[Case],
    sequences: int,
    repeats: int,
    warmup: int,
    past_end: bool,
) -> Iterator[Together]:
    """Every case on ``sequences`` questions about a text in tokens, which is read once for all."""
    for case in cases:
        engine.restack(stack_for(case.settings, loaded))
        sampling = sampling_of(case.settings, loaded)

        def asked(tokens: int, sampling: Any = sampling) -> list[Request]:
            spans = (DocumentSpan(len(text)),)
            return [
                Request([*text, *ids], tokens, sampling, spans=spans, past_end=past_end)
                for ids in questions(loaded.tokenizer.encode, sequences)
            ]

        prepare_together(engine, asked(case.settings.max_tokens), sequences)
        if warmup:
            _timed(engine, asked(warmup), 1)
            _timed(engine, asked(warmup), sequences)
        requests = asked(case.settings.max_tokens)
        alone = [_timed(engine, [request], 1)[0] for request in requests[:MOST_ALONE]]
        runs = [_timed(engine, requests, sequences) for _ in range(repeats)]
        seconds, tallies = [spent for spent, _ in runs], runs[-1][1]
        tokens, one = sum(len(each.token_ids) for each in tallies), statistics.mean(alone)
        yield Together(
            contender=case.settings.stack,
            context=len(text),
            temperature=sampling.temperature,
            sequences=sequences,
            tokens=tokens,
            one_s=one,
            together_s=statistics.median(seconds),
            spread_s=(min(seconds), max(seconds)),
            times_one=statistics.median(seconds) / one,
            ms_per_token=1000 * statistics.median(seconds) / max(1, tokens),
            tokens_per_round=tokens / max(1, sum(each.rounds for each in tallies)),
            fresh=fresh([each.token_ids for each in tallies]),
        )


def questions(encode: Callable[..., list[int]], count: int) -> list[list[int]]:
    """So many questions in tokens, all different."""
    texts = (f"\n\n{i + 1}. {QUESTIONS[i % len(QUESTIONS)]}\n\n" for i in range(count))
    return [encode(text, add_special_tokens=False) for text in texts]


def _timed(engine: EngineProtocol, requests: Sequence[Request], width: int) -> tuple[float, list[Tally]]:
    """Seconds from the end of reading the text that all begin with, and what was answered."""
    for _ in engine.prefill(requests[0].prompt[: requests[0].spans[0].end], requests[0].spans):
        pass
    finish(engine.target.device)
    tallies, started = [Tally() for _ in requests], time.perf_counter()
    for number, event in answer_together(engine, requests, _answer, width):
        if isinstance(event, TriforceError):
            raise event
        if number is not None and event is not None:
            tallies[number].add(event)
    finish(engine.target.device)
    return time.perf_counter() - started, tallies


def _answer(engine: EngineProtocol, request: Request) -> Generator[Event, None, None]:
    return engine.answer(request)
