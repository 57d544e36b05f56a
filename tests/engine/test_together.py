"""Several sequences at once: each says what it says alone, whoever joins, leaves or is interrupted."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from greenlet import getcurrent
from support import emulated_graphs
from support.labs import SMALL_BUDGET, Lab, spell
from support.stored_calibrations import Shelf

from triforce_chat.engine import prefix_cache, together
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cuda_graph import Graph, captures_on
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import SLACK, Engine, Request
from triforce_chat.engine.events import Event, Finished, Prefilled, Text, Verified
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.gathered import Gathered
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation import speculative
from triforce_chat.engine.speculation.calibration import bucket_of
from triforce_chat.engine.speculation.stack_specs import MAX_TREE, STACKS
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_plan import TreeOptions
from triforce_chat.engine.together import answer_together, prepare_together, shared_prefix
from triforce_chat.errors import ModelError, TriforceError

BOOK = [int(token) for token in torch.randint(1, 48, (150,), generator=torch.Generator().manual_seed(3))]
SPANS = (DocumentSpan(len(BOOK), "a book"),)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 64)


def engine_of(lab: Lab, stack: str = "triforce", **options: Any) -> Engine:
    made = StackOptions(name=stack, budget=SMALL_BUDGET, **options)
    return Engine(lab.target, 700, TextCodec(spell), lab.draft, made)


def questions(count: int, sampling: Sampling | None = None) -> list[Request]:
    """Requests about one book whose questions and answers have different lengths."""
    generator = torch.Generator().manual_seed(count)
    made = []
    for i in range(count):
        own = torch.randint(1, 48, (5 + 13 * i,), generator=generator).tolist()
        given = sampling or Sampling()
        made.append(Request([*BOOK, *own], 30 + 17 * i, given, spans=SPANS))
    return made


def half(requests: list[Request]) -> list[Request]:
    """The same requests for half as many tokens, still in several rounds of trees, and who ends first makes room."""
    return [replace(request, max_tokens=request.max_tokens // 2) for request in requests]


def answered(engine: EngineProtocol, request: Request) -> Generator[Event, None, None]:
    return engine.answer(request)


def answers(engine: EngineProtocol, requests: list[Request], width: int) -> list[list[int]]:
    """The tokens of each answer; all must have ended."""
    made: list[list[int]] = [[] for _ in requests]
    finished, ended = [], []
    for number, event in answer_together(engine, requests, answered, width):
        assert not torch.is_inference_mode_enabled(), "a sequence switched within it"
        if isinstance(event, Text):
            assert number is not None
            made[number] += event.token_ids
        if isinstance(event, Finished):
            finished.append(number)
        if event is None:
            ended.append(number)
    assert finished == ended
    assert sorted(each for each in ended if each is not None) == list(range(len(requests)))
    return made


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("width", [2, 5])
def test_greedy_answers_are_those_of_each_question_alone(lab: Lab, stack: str, width: int) -> None:
    requests = questions(5)
    alone = [tokens_of(engine_of(lab, stack), request) for request in requests]
    assert answers(engine_of(lab, stack), requests, width) == alone


def apart(requests: list[Request]) -> list[Request]:
    """The same requests without a common text."""
    return [
        replace(request, prompt=[*request.prompt[n + 1 :]], spans=()) for n, request in enumerate(requests)
    ]


def unhurried(stack: str, temperature: float) -> dict[str, Any]:
    """Options under which no clock decides how much is drafted, on which the numbers that are drawn depend."""
    return {} if stack == "naive" else {"gamma": 5, "repeatable": temperature > 0}


@pytest.mark.parametrize(
    ("kind", "temperature"), [("sequoia", 0.0), ("sequoia", 1.0), ("specinfer", 1.0), ("auto", 0.0)]
)
@pytest.mark.parametrize("stack", ["naive", "triforce", "streaming"])
@pytest.mark.parametrize("alike", [True, False])
def test_trees_of_several_sequences_say_what_each_says_alone(
    lab: Lab, stack: str, kind: str, temperature: float, alike: bool
) -> None:
    """After a common text and after different ones; each tree's tokens see their own ancestors."""
    tree, requests = TreeOptions(kind, 8, 3), half(questions(4, Sampling(temperature, seed=5)))
    requests = requests if alike else apart(requests)
    made_of = partial(engine_of, lab, stack, tree=tree, **unhurried(stack, temperature))
    alone = [tokens_of(made_of(), request) for request in requests]
    proposed: list[int] = []
    engine = made_of()
    assert engine.gathered_options(engine.options, 4, 0).tree == tree
    made: list[list[int]] = [[] for _ in requests]
    # Who joins begins with the acceptance that others have learnt, and draws other numbers then.
    for number, event in answer_together(engine, requests, answered, 4 if temperature else 3):
        if isinstance(event, Text):
            assert number is not None
            made[number] += event.token_ids
        if isinstance(event, Verified) and event.level == ("target" if stack == "naive" else "retrieval"):
            proposed.append(event.proposed)
    assert made == alone
    if kind != "auto":
        assert max(proposed) >= 6  # no chain of three levels


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, Runner]:
    """A target and a draft whose forwards are captured; without a GPU each graph is computed anew."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        emulated_graphs.emulate(monkeypatch)
    return emulated_graphs.captured_pair(device, monkeypatch)


def engine_with_graphs(captured: tuple[Runner, Runner], stack: str, **options: Any) -> Engine:
    made = StackOptions(name=stack, budget=SMALL_BUDGET, **options)
    return Engine(captured[0], 700, TextCodec(spell), captured[1], made)


@pytest.mark.parametrize("stack", STACKS)
def test_graphs_of_several_sequences_say_what_each_says_alone(
    captured: tuple[Runner, Runner], stack: str
) -> None:
    requests = questions(4)
    alone = [tokens_of(engine_with_graphs(captured, stack), request) for request in requests]
    engine = engine_with_graphs(captured, stack)
    together = not STACKS[stack].quantized_copies  # otherwise one after the other
    assert (engine.forkable is engine) == together
    assert answers(engine, requests, 3) == alone
    assert (len(captured[0].of_sequences.made) >= 1) == together


# After a common text a small cache selects other tokens than alone, and what is drawn by its drafts goes another way.
OF_TREES = [
    *product(["naive", "triforce", "streaming"], ["sequoia", "auto"], [0.0], [True, False]),
    *product(["naive", "triforce", "streaming"], ["sequoia", "specinfer"], [1.0], [False]),
    *product(["naive"], ["sequoia", "specinfer"], [1.0], [True]),
]


@pytest.mark.parametrize(("stack", "kind", "temperature", "alike"), OF_TREES)
def test_graphs_of_several_sequences_trees_say_what_each_says_alone(
    captured: tuple[Runner, Runner], stack: str, kind: str, temperature: float, alike: bool
) -> None:
    if temperature and captured[0].device.type == "cuda":
        pytest.skip("kernels of one sequence round differently")
    tree = TreeOptions(kind, 6, 3)
    requests = half(questions(4, Sampling(temperature, seed=5, repetition_penalty=1.1)))
    requests = requests if alike else apart(requests)
    made = partial(engine_with_graphs, captured, stack, tree=tree, **unhurried(stack, temperature))
    alone = [tokens_of(made(), request) for request in requests]
    engine, proposed, found = made(), list[int](), [list[int]() for _ in requests]
    for number, event in answer_together(engine, requests, answered, 4 if temperature else 3):
        if isinstance(event, Text) and number is not None:
            found[number] += event.token_ids
        if isinstance(event, Verified) and event.level == ("target" if stack == "naive" else "retrieval"):
            proposed.append(event.proposed)
    assert found == alone
    if kind != "auto":
        assert max(proposed) >= 6  # no chain of three levels
        pools = captured[0].of_sequences.made.values()
        assert any(graph.masks is not None for of_pool in pools for graph in of_pool.values())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_given_texts_come_out_of_several_sequences_trees(
    captured: tuple[Runner, Runner], stack: str, temperature: float
) -> None:
    """Each sequence's own, however many of its drafted tokens pass; the target's own drafts all do."""
    requests = [replace(each, max_tokens=60) for each in questions(3, Sampling(temperature, seed=5))]
    texts = [tokens_of(engine_with_graphs(captured, "autoregressive"), request) for request in requests]
    asked = [replace(each, forced=text) for each, text in zip(requests, texts, strict=True)]
    options: dict[str, Any] = {"tree": TreeOptions("sequoia", 6, 3), "gamma": 5, "budget": Budget(tokens=640)}
    engine = Engine(captured[0], 700, TextCodec(spell), captured[1], StackOptions(stack, **options))
    assert answers(engine, asked, 3) == texts
    same = Engine(captured[0], 700, TextCodec(spell), captured[0], StackOptions(stack, **options))
    rounds = [each for _, each in answer_together(same, asked, answered, 3) if isinstance(each, Verified)]
    level = "target" if stack == "naive" else "retrieval"
    assert {each.accepted for each in rounds if each.level == level and each.proposed} == {3}


def check_paths(lowest: Sequence[Verified], rounds: int, longest: int, nodes: int) -> None:
    """In more than so many ``rounds`` a path of the ``longest`` length passed, of a tree of so many ``nodes``."""
    assert len(lowest) > rounds
    assert {each.accepted for each in lowest} == {longest}
    assert {each.proposed for each in lowest} == {nodes}


@pytest.mark.parametrize("stack", ["naive", "triforce"])
@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
@pytest.mark.parametrize("alike", [True, False])
def test_trees_of_the_target_itself_pass_whole_in_all_sequences(
    captured: tuple[Runner, Runner], stack: str, kind: str, alike: bool
) -> None:
    """Every slot, position and distribution is where it belongs, so of each tree a longest path passes."""
    requests = questions(4) if alike else apart(questions(4))
    check_paths(rounds_of_trees(captured[0], stack, TreeOptions(kind, 6, 3), requests), 30, 3, 6)


@pytest.mark.parametrize(("stack", "alike"), [("naive", False), ("triforce", False), ("triforce", True)])
@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
def test_trees_of_more_than_64_tokens_pass_whole_in_both_sequences(
    captured: tuple[Runner, Runner], stack: str, kind: str, alike: bool
) -> None:
    """What their nodes see is several words, in drafts and in verifications."""
    requests = questions(2) if alike else apart(questions(2))
    check_paths(rounds_of_trees(captured[0], stack, TreeOptions(kind, 90, 9), requests), 4, 9, 90)


def test_large_trees_share_the_rows_of_a_forward_with_those_of_others(
    captured: tuple[Runner, Runner],
) -> None:
    tree = TreeOptions("sequoia", MAX_TREE, 3)
    for count, shared, most in ((2, 0, 95), (4, 0, 47), (4, 150, 15)):
        engine = engine_with_graphs(captured, "naive", tree=tree)
        requests = questions(count) if shared else apart(questions(count))
        proposed = [
            event.proposed
            for _, event in answer_together(engine, requests, answered, count)
            if isinstance(event, Verified)
        ]
        assert max(proposed) == most


def test_caches_of_several_sequences_have_room_for_no_larger_trees(captured: tuple[Runner, Runner]) -> None:
    """Nor do those of another stack that takes the first one's place."""
    engine = engine_with_graphs(captured, "naive", tree=TreeOptions("sequoia", MAX_TREE))
    place = together.Places.of(engine, questions(4), 4, shared=0).take(0)
    forked = engine.fork(0, 300, Gathered(), place)
    assert engine.pools["full"].capacity == 300 + SLACK
    for _ in range(2):
        assert engine.pools[" small 1"].capacity == engine.options.beside(4).window < engine.options.window
        place.begin("")
        forked.restack(engine.options)


def test_what_is_measured_of_large_trees_alone_serves_several_sequences(
    captured: tuple[Runner, Runner],
) -> None:
    engine = engine_with_graphs(captured, "naive", tree=TreeOptions("sequoia", MAX_TREE))
    places = together.Places.of(engine, questions(4), 4, shared=0)
    forked = engine.fork(0, 300, Gathered(), places.take(0))
    assert forked.calibrator.options == engine.calibrator.options


def rounds_of_trees(model: Runner, stack: str, tree: TreeOptions, requests: list[Request]) -> list[Verified]:
    """Those of all answers in which the model's own trees were verified."""
    options = StackOptions(stack, budget=Budget(tokens=640), tree=tree, gamma=4)
    engine = Engine(model, 700, TextCodec(spell), model, options)
    together = answer_together(engine, requests, answered, len(requests))
    rounds = [each for _, each in together if isinstance(each, Verified)]
    level = "target" if stack == "naive" else "retrieval"
    return [each for each in rounds if each.level == level and each.proposed]  # one last token comes alone


@pytest.mark.parametrize("stack", ["retrieval", "triforce"])
@pytest.mark.parametrize("alike", [True, False])
def test_what_a_cache_of_all_tokens_proposes_is_accepted(
    captured: tuple[Runner, Runner], stack: str, alike: bool
) -> None:
    """The middle level sees all that the target sees, so a token at a wrong place would show."""
    everything = StackOptions(name=stack, budget=Budget(tokens=640), gamma=4, draft_gamma=2)
    engine = Engine(captured[0], 700, TextCodec(spell), captured[1], everything)
    requests = questions(4) if alike else [Request([5 + i, *range(1, 26 + 7 * i)], 50) for i in range(4)]
    drafted: list[tuple[int, int]] = []
    for _, event in answer_together(engine, requests, answered, 3):
        if isinstance(event, Verified) and event.level == "target":
            drafted.append((event.proposed, event.accepted))
    assert len(drafted) > 20
    assert all(accepted == count for count, accepted in drafted)
    assert sum(count for count, _ in drafted) > 2 * len(drafted)


@pytest.mark.parametrize("stack", ["triforce", "naive", "autoregressive"])
def test_graphs_of_sequences_without_a_common_document(captured: tuple[Runner, Runner], stack: str) -> None:
    requests = [Request([7, 3 + i, 11, *range(1, 40 - 9 * i), *BOOK[: 90 * i]], 40) for i in range(3)]
    alone = [tokens_of(engine_with_graphs(captured, stack), request) for request in requests]
    engine = engine_with_graphs(captured, stack)
    assert shared_prefix(engine, requests) == 0
    assert answers(engine, requests, 3) == alone


@pytest.mark.parametrize("stack", ["triforce", "naive", "lookup", "autoregressive"])
def test_sampled_answers_are_those_of_each_question_alone(lab: Lab, stack: str) -> None:
    """With fixed draft lengths the random numbers of an answer are used as they are alone."""
    sampling = Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=5)
    requests, made = questions(4, sampling), partial(engine_of, lab, stack, gamma=5, draft_gamma=2)
    alone = [tokens_of(made(), request) for request in requests]
    assert answers(made(), requests, 3) == alone


def test_every_architecture_and_no_document(any_lab: Lab) -> None:
    requests = [Request([7, 3 + i, 11, *range(1, 20 + 9 * i)], 40) for i in range(3)]
    alone = [tokens_of(engine_of(any_lab), request) for request in requests]
    origin = engine_of(any_lab)
    assert shared_prefix(origin, requests) == 0
    assert answers(origin, requests, 3) == alone


def test_the_book_is_read_once_and_kept_once(lab: Lab) -> None:
    requests, origin = questions(3), engine_of(lab)
    assert shared_prefix(origin, requests) == len(BOOK)
    fed: list[int] = []
    prefill = Runner.prefill

    def counted(self: Runner, ids: torch.Tensor, cache: Any) -> None:
        fed.append(len(ids))
        prefill(self, ids, cache)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "prefill", counted)
        answers(origin, requests, 3)
    assert sum(fed) == len(BOOK) + sum(len(request.prompt) - 1 - len(BOOK) for request in requests)
    places = together.Places.of(origin, requests, 2)
    forked = [origin.fork(len(BOOK), 300, Gathered(), places.take(number)) for number in range(2)]
    assert [each.cached for each in forked] == [BOOK, BOOK]
    views = [each.full.storage.view(1, len(BOOK) + 1).shared for each in forked]
    prefixes = {view.prefix.keys.data_ptr() for view in views if view}
    assert prefixes == {origin.full.storage.view(1, 1).keys.data_ptr()}


def test_auto_decodes_plainly_and_others_as_they_are(lab: Lab) -> None:
    for stack in STACKS:
        wanted = "autoregressive" if stack == "auto" else stack
        places = together.Places.of(engine_of(lab, stack), questions(2), 2, shared=0)
        forked = engine_of(lab, stack).fork(0, 300, Gathered(), places.take(0))
        assert forked.options.name == wanted


def test_auto_drafts_on_a_gpu_where_there_is_room_for_more_than_a_token(
    captured: tuple[Runner, Runner],
) -> None:
    engine = engine_with_graphs(captured, "auto")
    cases = {(8, 150): "auto", (21, 150): "auto", (22, 150): "autoregressive", (32, 0): "auto"}
    made = {case: engine.gathered_options(engine.options, *case).name for case in cases}
    assert made == cases
    assert engine.gathered_options(StackOptions("naive"), 32, 150).name == "naive"
    treed = StackOptions("naive", tree=TreeOptions("sequoia"))
    assert engine.gathered_options(treed, 8, 150) == treed


def test_a_sequence_that_joins_begins_with_what_others_have_learnt(lab: Lab) -> None:
    shelf, options = Shelf(), StackOptions(name="lookup", budget=SMALL_BUDGET)
    engine = Engine(lab.target, 700, TextCodec(spell), lab.draft, options, calibrations=shelf)
    bucket, began = bucket_of(len(BOOK)), []

    def noted(sequence: EngineProtocol, request: Request) -> Generator[Event, None, None]:
        assert isinstance(sequence, Engine)
        began.append(sequence.calibration)
        yield from sequence.answer(request)

    requests = questions(3)
    for _ in answer_together(engine, requests, noted, width=2):
        pass
    assert [bool(each.learnt.get(bucket)) for each in began] == [False, False, True]
    assert began[2].acceptance
    assert shelf.texts == {}


def test_prompts_that_share_less_than_a_chunk_share_nothing(lab: Lab) -> None:
    origin = engine_of(lab)
    same = [Request([*BOOK[:63], i, 5, 6], 5) for i in range(2)]
    more = [Request([*BOOK[:64], i, 5, 6], 5) for i in range(2)]
    assert [shared_prefix(origin, requests) for requests in (same, more)] == [0, 64]
    # A prompt that ends there keeps a token of its own, from which the first forward starts.
    assert shared_prefix(origin, [Request(BOOK[:65], 5), Request(BOOK[:64], 5)]) == 0


def test_verifications_run_together(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    together_now: list[tuple[bool, int]] = []
    compute = Runner.compute

    def counted(self: Runner, feeds: Any) -> Any:
        together_now.append((feeds[0].cache.verifies, len(feeds)))
        return compute(self, feeds)

    monkeypatch.setattr(Runner, "compute", counted)
    requests = [Request(request.prompt, 60, spans=SPANS) for request in questions(4)]
    answers(engine_of(lab, **unhurried("triforce", 1.0)), requests, 4)
    sizes = [size for verifies, size in together_now if verifies]
    # Of four: the first ones to begin and the last ones to end verify with fewer.
    assert sum(sizes) / len(sizes) > 3


def test_a_retrieval_cache_is_chosen_for_each_sequence(lab: Lab) -> None:
    requests = questions(3)
    accepted: dict[int | None, int] = {}
    for number, event in answer_together(engine_of(lab), requests, answered, 3):
        if isinstance(event, Verified) and event.level == "retrieval":
            accepted[number] = accepted.get(number, 0) + 1
    assert set(accepted) == {0, 1, 2}


def test_closing_keeps_the_others_engine_usable(lab: Lab) -> None:
    origin, requests = engine_of(lab), questions(4)
    expected = tokens_of(engine_of(lab), requests[1])
    for count in (1, 8, 25, 60):
        with closing(answer_together(origin, requests, answered, 4)) as events:  # type: ignore[type-var]
            for _ in range(count):
                next(events)
        assert tokens_of(origin, requests[1]) == expected


def test_an_error_ends_all_and_is_raised_where_they_are_run(lab: Lab) -> None:
    closed: list[int] = []

    def failing(engine: EngineProtocol, request: Request) -> Generator[Event, None, None]:
        try:
            for event in engine.answer(request):
                yield event
                if isinstance(event, Text) and len(request.prompt) == len(BOOK) + 18:
                    raise OSError("a broken disk")
        finally:
            closed.append(len(request.prompt))

    with pytest.raises(OSError, match="a broken disk"):
        list(answer_together(engine_of(lab), questions(3), failing, 3))
    assert sorted(closed) == sorted(len(request.prompt) for request in questions(3))


def test_an_interrupt_within_a_sequence_reaches_whoever_runs_them(lab: Lab) -> None:
    main = getcurrent()

    def interrupted(engine: EngineProtocol, request: Request) -> Generator[Event, None, None]:
        for event in engine.answer(request):
            yield event
            if isinstance(event, Text):
                assert getcurrent() is not main
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(answer_together(engine_of(lab), questions(3), interrupted, 3))


def test_reading_is_reported(lab: Lab) -> None:
    first = next(iter(answer_together(engine_of(lab), questions(2), answered, 2)))
    assert first[0] is None
    assert isinstance(first[1], Prefilled)
    assert first[1].total == len(BOOK)


def test_what_cannot_run_together_runs_one_after_the_other(lab: Lab) -> None:
    requests = questions(2)
    alone = [tokens_of(engine_of(lab), request) for request in requests]
    options = StackOptions(name="triforce", budget=SMALL_BUDGET)
    streamed = Engine(lab.target, 700, TextCodec(spell), lab.draft, options, storage=OffloadedKV)
    assert streamed.forkable is None
    assert answers(streamed, requests, 2) == alone


def outcomes(items: Any) -> tuple[dict[int, list[int]], dict[int, str]]:
    """(the tokens of each request, the errors of those that have one); every request must have ended."""
    made: dict[int, list[int]] = {}
    errors: dict[int, str] = {}
    ended = []
    for number, event in items:
        if isinstance(event, Text):
            made.setdefault(number, []).extend(event.token_ids)
        elif isinstance(event, TriforceError):
            errors[number] = str(event)
        elif event is None:
            ended.append(number)
    assert sorted(ended) == list(range(len(ended)))
    return made, errors


def test_an_error_of_one_request_concerns_it_alone(lab: Lab) -> None:
    requests = questions(4)

    def failing(engine: EngineProtocol, request: Request) -> Generator[Event, None, None]:
        for event in engine.answer(request):
            yield event
            if isinstance(event, Text) and request is requests[1]:
                raise ModelError("no distribution")

    made, errors = outcomes(answer_together(engine_of(lab), requests, failing, 2))
    assert errors == {1: "no distribution"}
    for number in (0, 2, 3):
        assert made[number] == tokens_of(engine_of(lab), requests[number])


def test_a_forward_that_fails_for_one_runs_for_the_others(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, compute, sizes = questions(3), Runner.compute, []
    poisoned: list[Any] = []

    def failing(self: Runner, feeds: Any) -> Any:
        sizes.append(len(feeds))
        for feed in feeds:
            if not poisoned and feed.cache.length == len(requests[1].prompt) - 1:
                poisoned.append(feed.cache)
        if any(feed.cache in poisoned for feed in feeds):
            raise ModelError("no memory for this forward")
        return compute(self, feeds)

    expected = [tokens_of(engine_of(lab, "autoregressive"), request) for request in requests]
    monkeypatch.setattr(Runner, "compute", failing)
    made, errors = outcomes(answer_together(engine_of(lab, "autoregressive"), requests, answered, 3))
    assert errors == {1: "no memory for this forward"}
    assert [made[0], made[2]] == [expected[0], expected[2]]
    assert 2 in sizes


def test_prompts_are_read_in_turn_and_nobody_waits_for_more_than_one_chunk(lab: Lab) -> None:
    """Two long prompts of their own and a short one: the short one's tokens come between their chunks."""
    generator = torch.Generator().manual_seed(8)
    long = [torch.randint(1, 48, (400,), generator=generator).tolist() for _ in range(2)]
    requests = [Request([1, 2, 3], 30), *(Request(prompt, 5) for prompt in long)]
    seen: list[int] = []
    for number, event in answer_together(engine_of(lab, "autoregressive"), requests, answered, 3):
        if number is not None and isinstance(event, Prefilled | Text):
            seen.append(number)
    reading = [number for number in seen[: len(seen) // 2] if number]
    assert reading[:8] == [1, 2, 1, 2, 1, 2, 1, 2]
    between = "".join(map(str, seen)).split("0")
    assert max(map(len, between[1:8])) <= 2


def test_a_piece_of_a_prompt_is_smaller_for_a_longer_context(lab: Lab) -> None:
    sizes = [prefix_cache.piece_of(lab.target, 10**digits) for digits in range(3, 10)]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size & (size - 1) == 0 for size in sizes)
    assert (sizes[0], sizes[-1]) == (prefix_cache.PREFILL_CHUNK, prefix_cache.SMALLEST_PIECE)


@pytest.mark.parametrize("stack", ["naive", "auto"])
def test_graphs_of_sequences_are_captured_before_they_answer(
    captured: tuple[Runner, Runner], stack: str
) -> None:
    engine, captures = engine_with_graphs(captured, stack), captures_on(captured[0].device)
    requests = questions(3)
    started, read = captures.count, 0
    for number, event in answer_together(engine, requests, answered, 3):
        if number is None and isinstance(event, Prefilled):
            read = captures.count - started
    assert read > 0  # while the book was read
    engine = engine_with_graphs(captured, stack)
    for _ in engine.prefill(BOOK, SPANS):
        pass
    prepare_together(engine, requests, 3)
    before = captures.count
    answers(engine, requests, 3)
    assert captures.count - before <= 4  # lengths of drafts that only two or one are left for


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("tree", [None, TreeOptions("sequoia", 6, 3), TreeOptions("auto")])
def test_rounds_of_the_middle_level_are_planned_for_all_sequences_at_once(
    captured: tuple[Runner, Runner],
    monkeypatch: pytest.MonkeyPatch,
    seed: int | None,
    tree: TreeOptions | None,
) -> None:
    planned: list[int] = []
    name = "rounds_together" if tree is None else "mean_rounds"
    plan = getattr(speculative, name)

    def counted(wishes: Any) -> Any:
        planned.append(len(wishes))
        return plan(wishes)

    monkeypatch.setattr(speculative, name, counted)
    repeatable = {"repeatable": True} if seed else {}
    requests = questions(3, Sampling(0.8, seed=seed))
    answers(engine_with_graphs(captured, "triforce", tree=tree, **repeatable), requests, 3)
    assert max(planned, default=0) == (0 if seed else 3)


@pytest.mark.parametrize("stack", ["triforce", "retrieval", "naive", "autoregressive"])
def test_four_sequences_take_hardly_more_graphs_than_two(
    captured: tuple[Runner, Runner], stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays, replay = 0, Graph.__call__

    def counted(self: Graph[Any], work: Any) -> Any:
        nonlocal replays
        replays += 1
        return replay(self, work)

    monkeypatch.setattr(Graph, "__call__", counted)

    def per_round(count: int) -> float:
        """Replays while the sequence with most rounds has one."""
        engine = engine_with_graphs(captured, stack, gamma=6, draft_gamma=3)
        requests = [Request([5 + i, *range(1, 46)], 60, past_end=True) for i in range(count)]
        before, rounds = replays, dict.fromkeys(range(count), 0)
        for number, event in answer_together(engine, requests, answered, count):
            if number is not None and isinstance(event, Verified) and event.level == "target":
                rounds[number] += 1
        return (replays - before) / max(rounds.values())

    assert per_round(4) < 1.35 * per_round(2)
