"""The benchmark: which cases it makes, on which prompts, and how runs become rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.labs import SMALL_BUDGET, Lab
from support.schemas import schema_errors, schema_validator
from support.tiny_models import save_model
from torch import Tensor
from typer.testing import CliRunner

from triforce_chat.chat.events import Tally
from triforce_chat.cli.app import app
from triforce_chat.documents import Document, Page
from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Finished, Verified
from triforce_chat.engine.exactness import Differences, tokens_of
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.errors import DoesNotFit, ModelError, UsageError
from triforce_chat.lab.bench import measure
from triforce_chat.lab.bench.case_calibrations import CaseCalibrations
from triforce_chat.lab.bench.cases import Case, cases, prompts_of, texts_of
from triforce_chat.lab.bench.confidence import interval, percentile
from triforce_chat.lab.bench.measure import Bench, drawing
from triforce_chat.lab.bench.row import (
    Measured,
    Read,
    Run,
    acceptance,
    against,
    drafters,
    fresh,
    row_of,
    tokens_per_verification,
)
from triforce_chat.lab.bench.table import table
from triforce_chat.models.load import LoadedModel, load_model
from triforce_chat.settings.settings import Settings

LOADED: Any = SimpleNamespace(context=400, sampling={}, streamed=None)


def test_every_combination_and_plain_decoding_once_a_temperature() -> None:
    made = cases(
        Settings(), ["autoregressive", "triforce"], [0.0, 0.6], ["budget=512,1024", "draft-gamma=2,4"]
    )
    told = [(case.settings.temperature, case.settings.stack, *case.varied.values()) for case in made]
    for temperature in (0.0, 0.6):
        assert (temperature, "autoregressive") in told
        for budget in ("512", "1024"):
            for gamma in ("2", "4"):
                assert (temperature, "triforce", budget, gamma) in told
    assert len(told) == 10
    last = made[-1].settings
    assert (last.budget, last.draft_gamma, last.temperature) == (1024, 4, 0.6)


def test_without_anything_varied_the_settings_stand() -> None:
    [case] = cases(Settings(temperature=0.3, budget=600), ["lookup"], [], [])
    assert case == Case(Settings(temperature=0.3, budget=600, stack="lookup"), {})


def test_plain_decoding_knows_the_length_of_an_answer_and_nothing_else() -> None:
    vary = ["tokens=64,256", "chunk=4,8"]
    made = cases(Settings(max_tokens=32), ["autoregressive", "triforce"], [0.0], vary)
    told = [(case.settings.stack, case.settings.max_tokens, dict(case.varied)) for case in made]
    assert told[:2] == [("autoregressive", n, {"tokens": str(n)}) for n in (64, 256)]
    assert len(told) == 6
    assert [case.footing for case in made[2:]] == [(0.0, 64)] * 2 + [(0.0, 256)] * 2
    assert made[2].name == "triforce tokens=64 chunk=4"


def test_one_setting_at_a_time() -> None:
    vary = ["tokens=64,256", "chunk=4,8", "policy=minmax"]
    made = cases(Settings(max_tokens=32), ["autoregressive", "triforce"], [0.0, 1.0], vary, one_by_one=True)
    plain, fast = ([case for case in made if case.plain is which] for which in (True, False))
    alone = [{"tokens": "64"}, {"tokens": "256"}, {"chunk": "4"}, {"chunk": "8"}, {"policy": "minmax"}]
    assert [dict(case.varied) for case in fast] == 2 * alone
    assert [case.footing for case in plain] == [(t, n) for t in (0.0, 1.0) for n in (32, 64, 256)]
    assert {case.footing for case in fast} == {case.footing for case in plain}
    again = cases(Settings(max_tokens=64), ["autoregressive", "lookup"], [], vary[:1], one_by_one=True)
    assert [case.footing[1] for case in again] == [64, 256, 64, 256]
    [alone_at_all] = cases(Settings(), ["lookup"], [], [], one_by_one=True)
    assert not alone_at_all.varied


def test_chains_know_no_size_of_trees() -> None:
    vary = ["tree=chain,specinfer", "tree-size=40,64", "gamma=4,8"]
    made = [case.varied for case in cases(Settings(tree_depth=8), ["autoregressive", "naive"], [], vary)]
    sizes = [{"tree-size": "40"}, {"tree-size": "64"}]
    gammas = [{"gamma": "4"}, {"gamma": "8"}]
    trees = [{"tree": "specinfer"} | size | gamma for size in sizes for gamma in gammas]
    assert made == [{}, *({"tree": "chain"} | gamma for gamma in gammas), *trees]


@pytest.mark.parametrize(
    "vary", ["budget", "budget=", "model=a", "budget=many", "chunk=0", "", "tokens=1", "tokens=a"]
)
def test_what_cannot_be_varied(vary: str) -> None:
    with pytest.raises(UsageError):
        cases(Settings(), ["triforce"], [], [vary])


def test_a_setting_is_varied_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        cases(Settings(), ["triforce"], [], ["gamma=4", "gamma=8"])


def test_what_is_measured_is_what_its_name_says() -> None:
    with pytest.raises(UsageError, match="plans with stored step times"):
        cases(Settings(seed=1), ["triforce", "auto"], [], [])


def test_an_unknown_stack() -> None:
    with pytest.raises(UsageError, match="quick"):
        cases(Settings(), ["quick"], [], [])


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_model(tmp_path_factory.mktemp("bench") / "tiny", max_position_embeddings=8192)
    return load_model(str(folder), attention="sdpa")


def document(letter: str, tokens: int) -> Document:
    return Document(letter, letter, (Page(1, letter * (tokens - 1)),))


def test_prompts_begin_in_one_document_after_the_other_and_then_further_inside(loaded: LoadedModel) -> None:
    texts = [document("a", 900), document("b", 900), document("c", 900)]
    prompts = prompts_of(loaded, texts_of(loaded, texts), 800, 5)
    assert [len(prompt) for prompt in prompts] == [800] * 5
    a, b, c = (loaded.tokenizer(letter)["input_ids"][0] for letter in "abc")
    start = prompts[0].index(a)
    assert [prompt[start] for prompt in prompts] == [a, b, c, a, b]
    assert prompts[0][start : start + 500] == [a] * 500
    assert prompts[3][start : start + 99] == [a] * 99  # 800 tokens further inside
    assert prompts[3][start + 110 : start + 500] == [b] * 390


def test_documents_that_are_used_up(loaded: LoadedModel) -> None:
    with pytest.raises(DoesNotFit, match="a context of 800"):
        prompts_of(loaded, texts_of(loaded, [document("a", 900)]), 800, 2)


def ended(ms: float, tokens: int = 10, accepted: int = 3) -> Tally:
    tally = Tally(token_ids=list(range(tokens)))
    tally.add(Verified("target", 4, accepted))
    tally.add(Finished("length", 5, 0, tokens, 1.0, 1.0, ms * tokens / 1000))
    return tally


class Scripted(Bench):
    """Prefills and answers by a script of milliseconds per token; a zero stands for its ``end``."""

    end: KeyboardInterrupt | Exception = KeyboardInterrupt()

    def __init__(self, script: dict[tuple[int, str], list[float]], repeats: int) -> None:
        super().__init__(None, LOADED, repeats, on_run=self.hear)  # type: ignore[arg-type]
        self.script = {key: [*values] for key, values in script.items()}
        self.warmed: list[tuple[int, str]] = []
        self.heard_of: list[tuple[int, int, str, float]] = []

    def hear(self, context: int, prompt: int, case: Case, run: Run) -> None:
        self.heard_of.append((context, prompt, case.name, run.ms_per_token))

    def prefill(self, ids: Sequence[int]) -> float:
        return 100.0 * len(ids) + ids[0]

    def warm(self, ids: Sequence[int], settings: Settings, learns: bool = True) -> None:  # noqa: ARG002
        self.warmed.append((ids[0], settings.stack))

    def answer(
        self,
        ids: Sequence[int],
        settings: Settings,
        tokens: int,  # noqa: ARG002
        run: int | None = None,  # noqa: ARG002
    ) -> Run:
        ms = self.script[ids[0], settings.stack].pop(0)
        if not ms:
            raise self.end
        return Run(ended(ms), ms * 10 / 1000, ms + 1 if settings.stack == "lookup" else None)

    def differences(self, ids: Sequence[int], settings: Settings, run: Run) -> Differences:  # noqa: ARG002
        return Differences(ids[0], 0, ids[0] / 8)


def test_speedups_are_means_over_prompts_of_ratios_of_medians() -> None:
    script = {
        (1, "autoregressive"): [30.0, 10.0, 20.0],
        (2, "autoregressive"): [40.0, 42.0, 41.0],
        (1, "lookup"): [10.0, 90.0, 5.0],
        (2, "lookup"): [10.25, 1.0, 11.0],
    }
    bench = Scripted(script, repeats=3)
    plain, fast = bench.rows([[1, 0, 0], [2, 0, 0]], cases(Settings(), ["autoregressive", "lookup"], [], []))
    assert (plain.speedup, plain.speedup_error, plain.same_tokens) == (1.0, 0.0, True)
    assert (plain.prompts, plain.context, plain.ms_per_token, plain.spread_ms) == (2, 3, 35.0, (10.0, 42.0))
    assert fast.speedup == (20 / 10 + 41 / 10.25) / 2
    assert fast.speedups == [2.0, 4.0]
    assert fast.plain_ms_per_token == 35.0
    assert fast.speedup_interval == pytest.approx((3 - 12.7062, 3 + 12.7062))
    assert fast.speedup_error == 1.0  # 2 and 4: a deviation of the square root of 2, over that of two prompts
    assert fast.acceptance == {"target": 0.75}
    assert fast.prefill_tokens_per_s == 301.5
    assert fast.tokens == 20
    assert (plain.ties, plain.mismatches, fast.ties, fast.mismatches) == (3, 0, 3, 0)
    assert fast.widest_tie == 2 / 8
    assert fast.speedup_together == pytest.approx(2 / (1 / 2 + 1 / 4))
    assert (plain.predicted_ms_per_token, fast.predicted_ms_per_token) == (None, 11.125)
    assert not any(bench.script.values())
    assert bench.warmed == [(n, stack) for n in (1, 2) for stack in ("autoregressive", "lookup")]
    assert bench.heard_of[3] == (3, 0, "lookup", 10.0)
    assert len(bench.heard_of) == 12


def test_every_length_is_held_against_plain_decoding_of_that_length() -> None:
    script = {(1, "autoregressive"): [20.0, 30.0], (1, "lookup"): [10.0, 10.0]}
    made = cases(Settings(), ["autoregressive", "lookup"], [], ["tokens=8,16"])
    rows = list(Scripted(script, repeats=1).rows([[1]], made))
    assert [row.speedup for row in rows] == [1.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("end", [KeyboardInterrupt(), ModelError("llama.cpp failed"), MemoryError()])
def test_an_interrupt_or_an_error_leaves_what_was_measured(end: KeyboardInterrupt | Exception) -> None:
    script = {
        (1, "autoregressive"): [20.0],
        (2, "autoregressive"): [30.0],
        (1, "lookup"): [10.0],
        (2, "lookup"): [0.0],
    }
    bench = Scripted(script, repeats=1)
    bench.end = end
    rows = list(bench.rows([[1], [2], [3]], cases(Settings(), ["autoregressive", "lookup"], [], [])))
    assert bench.ended is end
    assert [(row.contender, row.prompts, row.speedup) for row in rows] == [
        ("autoregressive", 2, 1.0),
        ("lookup", 1, 2.0),
    ]
    nothing = Scripted({(1, "lookup"): [0.0]}, repeats=1)
    nothing.end = end
    assert list(nothing.rows([[1]], cases(Settings(), ["lookup"], [], []))) == []


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.706), (7, 2.365), (15, 2.1314), (29, 2.0452)])
def test_students_percentiles(freedom: int, expected: float) -> None:
    assert percentile(freedom) == pytest.approx(expected, abs=6e-4)


def test_an_interval_needs_two_values() -> None:
    assert interval([2.0]) is None
    low, high = interval([1.0, 2.0, 3.0]) or (0.0, 0.0)
    assert (low + high) / 2 == pytest.approx(2.0)
    assert high - 2 == pytest.approx(4.3027 / 3**0.5)


def test_acceptance_is_pooled_over_runs() -> None:
    tallies = [ended(1.0, accepted=3), ended(1.0, accepted=0)]
    assert acceptance(tallies) == {"target": 3 / 5}
    assert tokens_per_verification(tallies) == {"target": 2.5}
    tallies[1].add(Verified("target", 4, 2, "draft"))
    assert drafters(tallies) == {"": 5 / 8, "draft": 3 / 8}


def test_one_prompt_has_no_error_and_chance_no_verdict() -> None:
    script = {(1, "autoregressive"): [20.0], (1, "lookup"): [10.0]}
    made = cases(Settings(temperature=0.7), ["autoregressive", "lookup"], [], [])
    _, fast = Scripted(script, repeats=1).rows([[1]], made)
    assert (fast.speedup, fast.speedup_error, fast.speedup_interval, fast.same_tokens) == (
        2.0,
        None,
        None,
        None,
    )
    assert fast.temperature == 0.7


def test_a_long_prefill_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Scripted({(1, "lookup"): [10.0] * 3}, repeats=3)
    calls: list[int] = []

    def prefill(ids: Sequence[int]) -> float:
        calls.append(len(ids))
        return 1.0

    monkeypatch.setattr(bench, "prefill", prefill)
    monkeypatch.setattr(measure, "PATIENCE", 2.0)
    list(bench.rows([[1] * 100], cases(Settings(), ["lookup"], [], [])))
    assert calls == [100]


@pytest.fixture
def small_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def stack_for(settings: Settings, _: Any) -> StackOptions:
        return StackOptions(settings.stack, 4, 2, "mean", SMALL_BUDGET)

    monkeypatch.setattr(measure, "stack_for", stack_for)


def tokens_fed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of every forward of a prefill from now on."""
    fed: list[int] = []
    prefill = engine.target.prefill

    def noting(ids: Tensor, cache: KVCache) -> None:
        fed.append(len(ids))
        prefill(ids, cache)

    monkeypatch.setattr(engine.target, "prefill", noting)
    return fed


@pytest.mark.usefixtures("small_stacks")
def test_one_prefill_of_a_prompt_serves_all_cases(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restacked engine reads the prompt's last tokens again, whose queries choose chunks, and no others."""
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 32)
    engine = lab.engine()
    fed = tokens_fed(engine, monkeypatch)
    made = cases(Settings(max_tokens=12), ["autoregressive", "triforce"], [0, 0.7], ["tokens=6,12"])
    list(Bench(engine, LOADED, 2, warmup=5).rows([lab.text(188), lab.text(188, seed=4)], made))
    anew = 2 * [32, 32, 32, 32, 32, 27]
    again = (
        [32, 32, 27] * 8 * 3
    )  # eight cases, each with a warm-up and two runs, from the chunk of the 64th last
    assert sum(fed) == 2 * sum([*anew, *again])


@pytest.mark.usefixtures("small_stacks")
def test_the_warmup_is_not_counted(lab: Lab) -> None:
    on_run: list[int] = []
    bench = Bench(
        lab.engine(), LOADED, 2, 7, on_run=lambda *found: on_run.append(len(found[3].tally.token_ids))
    )
    [row] = bench.rows([lab.text(90)], cases(Settings(max_tokens=9), ["triforce"], [0], []))
    assert (row.warmup, row.tokens, on_run) == (7, 9, [9, 9])


@pytest.mark.usefixtures("small_stacks")
def test_without_a_warmup_each_case_reads_the_prompt_by_itself(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = lab.engine()
    fed = tokens_fed(engine, monkeypatch)
    made = cases(Settings(max_tokens=5), ["autoregressive", "triforce"], [0], [])
    rows = list(Bench(engine, LOADED, 1, warmup=0).rows([lab.text(188)], made))
    assert sum(fed) == 2 * 187
    assert all(row.prefill_tokens_per_s > 0 for row in rows)


@pytest.mark.usefixtures("small_stacks")
def test_plain_decoding_may_stop_early(lab: Lab) -> None:
    on_run: list[int] = []
    bench = Bench(
        lab.engine(),
        LOADED,
        1,
        7,
        past_end=True,
        on_run=lambda *found: on_run.append(len(found[3].tally.token_ids)),
        plain_tokens=12,
    )
    made = cases(Settings(temperature=0), ["autoregressive", "triforce"], [], ["tokens=8,20"])
    rows = list(bench.rows([lab.text(90)], made))
    assert on_run == [row.tokens for row in rows] == [8, 12, 8, 20]
    assert [row.warmup for row in rows] == [3, 3, 7, 7]
    assert [row.same_tokens for row in rows] == [True] * 4
    assert rows[3].speedup == rows[1].ms_per_token / rows[3].ms_per_token


@pytest.mark.usefixtures("small_stacks")
def test_all_stacks_decode_the_same_text(lab: Lab) -> None:
    """One for each prompt and temperature, of the longest length, in whichever order the stacks come."""
    told: dict[tuple[int, float | None], set[tuple[int, ...]]] = {}

    def on_run(_: int, prompt: int, case: Case, run: Run) -> None:
        ids = tuple(run.tally.token_ids)
        assert len(ids) == (12 if case.plain else case.settings.max_tokens)
        told.setdefault((prompt, case.settings.temperature), set()).add(ids)

    bench = Bench(lab.engine(), LOADED, 2, 5, on_run=on_run, plain_tokens=12, same_text=True)
    prompts = [lab.text(90), lab.text(90, seed=4)]
    stacks = ["triforce", "naive", "autoregressive", "lookup"]
    rows = list(bench.rows(prompts, cases(Settings(), stacks, [0, 0.9], ["tokens=20,30"])))
    texts = []
    for found in told.values():
        texts.append(max(found, key=len))
        assert found == {texts[-1][:n] for n in (12, 20, 30)}
    assert len(set(texts)) == 4
    assert texts[0] == tuple(lab.greedy(prompts[0], 30))
    assert all(row.same_text and row.speedup for row in rows)
    assert {(row.same_tokens, row.ties, row.mismatches) for row in rows} == {(None, None, None)}
    fast = [row for row in rows if row.contender != "autoregressive" and row.tokens == 60]
    assert len(fast) == 6
    for temperature in (0.0, 0.9):
        assert len({row.fresh for row in fast if row.temperature == temperature}) == 1


@pytest.mark.usefixtures("small_stacks")
@pytest.mark.parametrize(("warmup", "repeats", "answers"), [(5, 1, 1), (5, 2, 2), (0, 1, 2)])
def test_drawing_a_text_is_the_first_run_of_plain_decoding(
    lab: Lab, warmup: int, repeats: int, answers: int
) -> None:
    """Plain decoding takes longest, so nothing of it is done twice; without a warm-up it is no first answer."""
    engine, timed = lab.engine(), []

    class Counting(Bench):
        def answer(self, ids: Sequence[int], settings: Settings, tokens: int, run: int | None = None) -> Run:
            if settings.stack == "autoregressive" and tokens == 20:
                timed.append(tokens)
            return super().answer(ids, settings, tokens, run)

    bench = Counting(engine, LOADED, repeats, warmup, same_text=True)
    made = cases(Settings(max_tokens=20), ["lookup", "autoregressive"], [0.5], [])
    rows = list(bench.rows([lab.text(90)], made))
    assert len(timed) == answers
    assert [row.tokens for row in rows] == [20, 20]
    assert all(row.ms_per_token > 0 and row.peak_bytes > 0 for row in rows)


@pytest.mark.usefixtures("small_stacks")
def test_where_plain_decoding_takes_long_another_stack_draws_the_text(lab: Lab) -> None:
    engine, drew = lab.engine(), list[str]()

    class Listening(Bench):
        def answer(self, ids: Sequence[int], settings: Settings, tokens: int, run: int | None = None) -> Run:
            if not self.texts and tokens == 20:
                drew.append(settings.stack)
            return super().answer(ids, settings, tokens, run)

    streamed: Any = SimpleNamespace(**vars(LOADED) | {"streamed": SimpleNamespace(resident=1)})
    for loaded, plain_tokens, stack in (
        (LOADED, None, "autoregressive"),
        (LOADED, 8, "triforce"),
        (streamed, 8, "auto"),
    ):
        bench = Listening(engine, loaded, 1, 5, plain_tokens=plain_tokens, same_text=True)
        made = cases(Settings(max_tokens=20), ["autoregressive", "lookup"], [0.5], [])
        rows = list(bench.rows([lab.text(90)], made))
        assert drew.pop() == stack
        assert not drew
        assert [row.tokens for row in rows] == [plain_tokens or 20, 20]


def test_a_text_is_drawn_by_other_random_numbers_than_its_drafts_pass_by() -> None:
    made = cases(Settings(seed=3, max_tokens=9), ["triforce", "lookup"], [0.5, 1.0], ["tokens=9,20"])
    texts = drawing(made)
    assert [(each.stack, each.temperature, each.max_tokens) for each in texts] == [
        ("autoregressive", 0.5, 20),
        ("autoregressive", 1.0, 20),
    ]
    assert all(each.seed not in (3, None) for each in texts)
    assert {each.seed for each in drawing(cases(Settings(), ["triforce"], [], []))} == {None}


@pytest.mark.usefixtures("small_stacks")
def test_a_given_text_goes_past_its_end(lab: Lab) -> None:
    made = lab.greedy(lab.text(90), 20)
    engine = lab.engine(eos_ids=frozenset(made[5:6]))
    bench = Bench(engine, LOADED, 1, same_text=True)
    rows = bench.rows([lab.text(90)], cases(Settings(max_tokens=20), ["autoregressive", "triforce"], [0], []))
    assert [row.tokens for row in rows] == [20, 20]
    assert bench.past_end


@pytest.mark.usefixtures("small_stacks")
def test_every_greedy_token_is_held_against_plain_scores(lab: Lab) -> None:
    bench, ids = Bench(lab.engine(), LOADED, 1, past_end=True, plain_tokens=4), lab.text(90)
    made = cases(Settings(max_tokens=30), ["triforce", "autoregressive"], [0, 0.7], [])
    rows = {(row.contender, row.temperature): (row.ties, row.mismatches) for row in bench.rows([ids], made)}
    nothing = (None, None)
    assert rows == {
        ("triforce", 0.0): (0, 0),
        ("triforce", 0.7): nothing,
        ("autoregressive", 0.0): (0, 0),
        ("autoregressive", 0.7): nothing,
    }
    right = tokens_of(bench.engine, Request(ids, 30, past_end=True))
    wrong = [*right[:20], right[20] + 1, *right[21:]]
    assert bench.differences(ids, made[0].settings, Run(Tally(token_ids=right), 1.0)) == (0, 0, 0.0)
    assert bench.differences(ids, made[0].settings, Run(Tally(token_ids=wrong), 1.0)).mismatches > 0


def test_what_repeats_itself_is_not_fresh() -> None:
    assert fresh([[1, 2, 3, 4, 5, 6]]) == 1
    assert fresh([[1, 2] * 8]) == 2 / 13
    assert fresh([[1, 2] * 8, [1, 2, 3, 4], [7]]) == 3 / 14
    assert fresh([[1, 2, 3]]) is None


def test_where_plain_decoding_stopped_nothing_is_compared() -> None:
    def measured(ids: list[int]) -> Measured:
        return Measured(Case(Settings(), {}), [[Run(Tally(token_ids=ids), 1.0)]])

    plain, long = measured([5, 6, 7]), [5, 6, 7, 8]
    row = row_of(plain, 0.0, Read(4, [1.0]), 0)
    assert against(row, measured(long), plain, 3).same_tokens
    assert not against(row, measured(long), plain).same_tokens
    assert not against(row, measured([5, 9, 7, 8]), plain, 3).same_tokens
    assert not against(row, measured([5, 6]), plain, 3).same_tokens


@pytest.mark.usefixtures("small_stacks")
def test_runs_of_a_stack_are_alike(lab: Lab) -> None:
    """Each is built and read as behind a prefill, whatever ran before it."""
    bench = Bench(lab.engine(), LOADED, 1)
    ids = lab.text(150)
    bench.prefill(ids)
    settings = Settings(stack="triforce", temperature=0)
    bench.warm(ids, settings)
    first, second = (bench.answer(ids, settings, 30).tally for _ in range(2))
    assert (first.token_ids, first.accepted) == (second.token_ids, second.accepted)
    assert [(event.at, event.reason) for event in first.rebuilds] == [
        (event.at, event.reason) for event in second.rebuilds
    ]


def test_an_answer_that_goes_on_past_its_end(lab: Lab) -> None:
    plain = lab.engine("autoregressive")
    made = tokens_of(plain, Request(lab.text(90), 20))
    ends = lab.engine("triforce", eos_ids=frozenset(made[5:6]))
    assert len(tokens_of(ends, Request(lab.text(90), 20))) <= 6
    assert tokens_of(ends, Request(lab.text(90), 20, past_end=True)) == made


@pytest.mark.usefixtures("small_stacks")
def test_on_a_real_engine(lab: Lab) -> None:
    bench = Bench(lab.engine(), LOADED, 2)
    prompts = [lab.text(90), lab.text(90, seed=4)]
    made = cases(Settings(max_tokens=20), ["autoregressive", "triforce", "naive"], [0], [])
    rows = list(bench.rows(prompts, made))
    assert [row.same_tokens for row in rows] == [True] * 3
    assert all(row.tokens == 40 and row.prompts == 2 and row.speedup for row in rows)
    assert rows[0].tokens_per_round == 1.0 < rows[1].tokens_per_round
    assert {*rows[1].acceptance} == {"target", "retrieval"}


def test_the_planner_says_what_it_expects(lab: Lab) -> None:
    engine = lab.engine("auto")
    before = engine.expected
    assert before.since(before) is None
    seen = []
    for event in engine.answer(Request(lab.text(90), 60)):
        seen += [engine.expected.since(before)] if isinstance(event, Verified) else []
    assert sum(ms is not None for ms in seen) > 5
    other = lab.engine("triforce")
    assert not any(other.expected.tokens for _ in other.answer(Request(lab.text(90), 9)))


def test_the_command(tmp_path: Path, loaded: LoadedModel) -> None:
    book = tmp_path / "book.txt"
    book.write_text("the first text " * 400)
    command = ["bench", str(book), "--model", str(loaded.source.folder), "--device", "cpu"]
    flags = ["--contexts", "900", "--stacks", "autoregressive,retrieval", "--tokens", "3", "--repeats", "1"]
    more = ["--prompts", "2", "--temperatures", "0,0.5", "--vary", "budget=200,300", "--json"]
    done = CliRunner().invoke(app, [*command, *flags, *more])
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["contender"], row["temperature"], row["varied"].get("budget")) for row in rows] == [
        ("autoregressive", 0.0, None),
        ("retrieval", 0.0, "200"),
        ("retrieval", 0.0, "300"),
        ("autoregressive", 0.5, None),
        ("retrieval", 0.5, "200"),
        ("retrieval", 0.5, "300"),
    ]
    assert {row["prompts"] for row in rows} == {2}
    assert schema_errors("bench", json.loads(done.stdout)) == []
    assert json.loads(done.stdout)["warmup"] == rows[0]["warmup"] == 32
    short = CliRunner().invoke(app, [*command, *flags, "--plain-tokens", "2", "--past-end", "--json"])
    assert [row["tokens"] for row in json.loads(short.stdout)["rows"]] == [2, 3]
    assert json.loads(short.stdout)["plain_tokens"] == 2
    assert schema_errors("bench", json.loads(short.stdout)) == []
    later = CliRunner().invoke(app, [*command, *flags, "--skip-prompts", "99"])
    assert later.exit_code == 4
    both = ["--vary", "chunk=4", "--vary", "budget=300", "--one-by-one", "--json"]
    rows = json.loads(CliRunner().invoke(app, [*command, *flags, *both]).stdout)["rows"]
    assert [row["varied"] for row in rows] == [{}, {"chunk": "4"}, {"budget": "300"}]
    assert all(row["speedup"] for row in rows)
    shown = CliRunner().invoke(app, [*command, *flags, "--vary", "gamma=2"])
    assert "retrieval gamma=2" in shown.stdout
    wrong = CliRunner().invoke(app, [*command, "--vary", "speed=1"])
    assert wrong.exit_code == 2


def test_runs_are_lines_as_soon_as_they_are_measured(tmp_path: Path, loaded: LoadedModel) -> None:
    book = tmp_path / "book.txt"
    book.write_text("the first text " * 400)
    command = [
        "bench",
        str(book),
        "--model",
        str(loaded.source.folder),
        "--device",
        "cpu",
        "--jsonl",
        "--json",
    ]
    flags = ["--contexts", "400", "--stacks", "autoregressive,lookup", "--tokens", "3", "--repeats", "2"]
    done = CliRunner().invoke(app, [*command, *flags, "--past-end"])
    assert done.exit_code == 0, done.stderr
    *lines, record = map(json.loads, done.stdout.splitlines())
    assert [(line["contender"], line["tokens"]) for line in lines] == [
        (name, 3) for name in ("autoregressive", "lookup") for _ in range(2)
    ]
    assert [len(line["token_ids"]) for line in lines] == [3] * 4
    assert lines[0]["token_ids"] == lines[2]["token_ids"]
    assert [run.message for line in lines for run in schema_validator("bench", "run").iter_errors(line)] == []
    assert schema_errors("bench", record) == []


def test_the_command_with_one_text_for_all(tmp_path: Path, loaded: LoadedModel) -> None:
    book = tmp_path / "book.txt"
    book.write_text("the first text " * 400)
    command = ["bench", str(book), "--model", str(loaded.source.folder), "--device", "cpu", "--same-text"]
    stacks = ["retrieval", "streaming", "triforce", "autoregressive", "lookup", "auto"]
    flags = ["--contexts", "400", "--stacks", ",".join(stacks), "--tokens", "20", "--repeats", "1"]
    done = CliRunner().invoke(app, [*command, *flags, "--temperatures", "0,0.8", "--jsonl", "--json"])
    assert done.exit_code == 0, done.stderr
    *lines, record = map(json.loads, done.stdout.splitlines())
    for temperature in (0.0, 0.8):
        told = [line["token_ids"] for line in lines if line["temperature"] == temperature]
        assert len(told) == len(stacks)
        assert all(ids == told[0] for ids in told)
        fresh = [row["fresh"] for row in record["rows"] if row["temperature"] == temperature]
        assert fresh == [fresh[0]] * len(stacks)
    assert record["same_text"] is record["past_end"] is True
    assert all(row["same_text"] for row in record["rows"])
    assert schema_errors("bench", record) == []
    assert CliRunner().invoke(app, [*command, "--profile"]).exit_code == 2


def test_a_smaller_card_is_for_a_gpu(tmp_path: Path, loaded: LoadedModel) -> None:
    book = tmp_path / "book.txt"
    book.write_text("the first text " * 400)
    command = ["bench", str(book), "--model", str(loaded.source.folder), "--device", "cpu"]
    done = CliRunner().invoke(app, [*command, "--contexts", "400", "--device-memory", "24GB"])
    assert done.exit_code == 2
    assert done.stderr == (
        "error: --device-memory caps the memory used on a GPU; this runs on the CPU, so leave it out\n"
    )


def test_the_table_shows_what_was_varied() -> None:
    script = {(1, "autoregressive"): [20.0], (1, "lookup"): [10.0, 5.0]}
    made = cases(Settings(), ["autoregressive", "lookup"], [], ["chunk=4,8"])
    columns = table(list(Scripted(script, repeats=1).rows([[1]], made))).columns
    assert [*columns[1].cells] == ["autoregressive", "lookup chunk=4", "lookup chunk=8"]
    assert [*columns[6].cells] == ["1.00x", "2.00x", "4.00x"]


@pytest.mark.usefixtures("small_stacks")
@pytest.mark.parametrize("same_text", [False, True])
def test_all_stacks_have_the_same_luck_on_a_prompt(lab: Lab, same_text: bool) -> None:
    """Each run its own. Where stacks decode texts of their own, and while they warm up, nothing is given."""
    engine, asked = lab.engine(), list[tuple[str, int, int | None]]()
    answer = engine.answer

    def listening(request: Request) -> Iterator[Event]:
        asked.append((engine.options.name, request.max_tokens, request.luck))
        return answer(request)

    engine.answer = listening  # type: ignore[method-assign, assignment]
    bench = Bench(engine, LOADED, 2, 5, same_text=same_text)
    made = cases(Settings(max_tokens=20), ["naive", "lookup"], [0.5], [])
    list(bench.rows([lab.text(90), lab.text(80)], made))
    given = {
        stack: [luck for name, n, luck in asked if (name, n) == (stack, 20)] for stack in ("naive", "lookup")
    }
    assert given["naive"] == given["lookup"]
    assert len(given["naive"]) == 4
    assert len(set(given["naive"])) == (4 if same_text else 1)
    assert {luck for _, n, luck in asked if n == 5} == {None}


@pytest.mark.parametrize("warmup", [5, 0])
def test_each_case_goes_on_from_what_it_has_learnt(
    lab: Lab, warmup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from other cases, nor from drawing the text; without a warm-up every answer is a first one."""
    known, engine = CaseCalibrations(), lab.engine()
    engine.calibrations = known
    monkeypatch.setattr(
        measure, "stack_for", lambda settings, _: StackOptions(settings.stack, budget=SMALL_BUDGET)
    )
    began = list[tuple[bool, float | None, bool]]()

    class Listening(Bench):
        def warm(self, ids: Sequence[int], settings: Settings, learns: bool = True) -> None:
            self.learns = learns
            super().warm(ids, settings, learns)

        def answer(self, ids: Sequence[int], settings: Settings, tokens: int, run: int | None = None) -> Run:
            if settings.stack == "triforce" and tokens == (warmup or 20):
                stored = bool(known.read(engine.calibrator.options).learnt)
                began.append((self.learns, settings.temperature, stored))
            return super().answer(ids, settings, tokens, run)

    bench = Listening(engine, LOADED, 1, warmup, plain_tokens=8, same_text=True, calibrations=known)
    made = cases(Settings(max_tokens=20), ["autoregressive", "triforce"], [0.5, 1.0], [])
    list(bench.rows([lab.text(90), lab.text(80)], made))
    assert [stored for learns, _, stored in began if not learns] == 4 * [False]
    goes_on = warmup > 0
    measured = [(temperature, stored) for learns, temperature, stored in began if learns]
    assert measured == [(0.5, False), (1.0, False), (0.5, goes_on), (1.0, goes_on)]
