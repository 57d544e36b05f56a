"""The benchmark: which cases it makes, on which prompts, and how runs become rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SMALL_BUDGET, Lab
from tiny_models import save_model
from typer.testing import CliRunner

from triforce_chat.bench import measure
from triforce_chat.bench.measure import Bench, Case, Run, cases, prompts_of
from triforce_chat.bench.table import table
from triforce_chat.cli import app
from triforce_chat.config import Settings
from triforce_chat.documents import Document, Page
from triforce_chat.engine.engine import Request
from triforce_chat.engine.events import Finished, Tally, Verified
from triforce_chat.engine.stacks import StackOptions
from triforce_chat.errors import DoesNotFit, UsageError
from triforce_chat.models.load import LoadedModel, load_model

LOADED: Any = SimpleNamespace(context=400, sampling={})


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


@pytest.mark.parametrize("vary", ["budget", "budget=", "model=a", "budget=many", "chunk=0", ""])
def test_what_cannot_be_varied(vary: str) -> None:
    with pytest.raises(UsageError):
        cases(Settings(), ["triforce"], [], [vary])


def test_a_setting_is_varied_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        cases(Settings(), ["triforce"], [], ["gamma=4", "gamma=8"])


def test_what_is_measured_is_what_its_name_says() -> None:
    with pytest.raises(UsageError, match="drafts by lookup alone"):
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
    prompts = prompts_of(loaded, texts, 800, 5)
    assert [len(prompt) for prompt in prompts] == [800] * 5
    a, b, c = (loaded.tokenizer(letter)["input_ids"][0] for letter in "abc")
    start = prompts[0].index(a)
    assert [prompt[start] for prompt in prompts] == [a, b, c, a, b]
    assert prompts[0][start : start + 500] == [a] * 500
    assert prompts[3][start : start + 99] == [a] * 99  # 800 tokens further inside
    assert prompts[3][start + 110 : start + 500] == [b] * 390


def test_documents_that_are_used_up(loaded: LoadedModel) -> None:
    with pytest.raises(DoesNotFit, match="a context of 800"):
        prompts_of(loaded, [document("a", 900)], 800, 2)


def ended(ms: float, tokens: int = 10, accepted: int = 3) -> Tally:
    tally = Tally(token_ids=list(range(tokens)))
    tally.add(Verified("target", 4, accepted))
    tally.add(Finished("length", 5, 0, tokens, 1.0, 1.0, ms * tokens / 1000))
    return tally


class Scripted(Bench):
    """Prefills and answers by a script of milliseconds per token."""

    def __init__(self, script: dict[tuple[int, str], list[float]], repeats: int) -> None:
        super().__init__(None, LOADED, 10, repeats)  # type: ignore[arg-type]
        self.script = {key: [*values] for key, values in script.items()}

    def _prefill(self, ids: Sequence[int]) -> float:
        return 100.0 * len(ids) + ids[0]

    def _decode(self, ids: Sequence[int], settings: Settings) -> Run:
        ms = self.script[ids[0], settings.stack].pop(0)
        return Run(ended(ms), ms + 1 if settings.stack == "lookup" else None)


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
    assert fast.speedup_error == 1.0  # 2 and 4: a deviation of the square root of 2, over that of two prompts
    assert fast.acceptance == {"target": 0.75}
    assert fast.prefill_tokens_per_s == 301.5
    assert fast.tokens == 20
    assert (plain.predicted_ms_per_token, fast.predicted_ms_per_token) == (None, 11.125)
    assert not any(bench.script.values())


def test_acceptance_is_pooled_over_runs() -> None:
    assert measure._acceptance([ended(1.0, accepted=3), ended(1.0, accepted=0)]) == {"target": 3 / 5}


def test_one_prompt_has_no_error_and_chance_no_verdict() -> None:
    script = {(1, "autoregressive"): [20.0], (1, "lookup"): [10.0]}
    made = cases(Settings(temperature=0.7), ["autoregressive", "lookup"], [], [])
    _, fast = Scripted(script, repeats=1).rows([[1]], made)
    assert (fast.speedup, fast.speedup_error, fast.same_tokens) == (2.0, None, None)
    assert fast.temperature == 0.7


def test_a_long_prefill_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Scripted({(1, "lookup"): [10.0] * 3}, repeats=3)
    calls: list[int] = []
    monkeypatch.setattr(bench, "_prefill", lambda ids: calls.append(len(ids)) or 1.0)
    monkeypatch.setattr(measure, "PATIENCE", 2.0)
    list(bench.rows([[1] * 100], cases(Settings(), ["lookup"], [], [])))
    assert calls == [100]


def test_on_a_real_engine(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        measure,
        "stack_of",
        lambda settings, _: StackOptions(settings.stack, 4, 2, "mean", SMALL_BUDGET),
    )
    bench = Bench(lab.engine(), LOADED, 20, 2)
    prompts = [lab.text(90), lab.text(90, seed=4)]
    rows = list(bench.rows(prompts, cases(Settings(), ["autoregressive", "triforce", "naive"], [0], [])))
    assert [row.same_tokens for row in rows] == [True] * 3
    assert all(row.tokens == 40 and row.prompts == 2 and row.speedup for row in rows)
    assert rows[0].tokens_per_round == 1.0 < rows[1].tokens_per_round
    assert {*rows[1].acceptance} == {"target", "retrieval"}


def test_the_planner_says_what_it_expects(lab: Lab) -> None:
    engine = lab.engine("auto")
    assert engine.predicted_ms is None
    seen = []
    for event in engine.answer(Request(lab.text(90), 60)):
        seen += [engine.predicted_ms] if isinstance(event, Verified) and engine.predicted_ms else []
    assert len(seen) > 5
    assert lab.engine("triforce").predicted_ms is None


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
    shown = CliRunner().invoke(app, [*command, *flags, "--vary", "gamma=2"])
    assert "retrieval gamma=2" in shown.stdout
    wrong = CliRunner().invoke(app, [*command, "--vary", "speed=1"])
    assert wrong.exit_code == 2


def test_the_table_shows_what_was_varied() -> None:
    script = {(1, "autoregressive"): [20.0], (1, "lookup"): [10.0, 5.0]}
    made = cases(Settings(), ["autoregressive", "lookup"], [], ["chunk=4,8"])
    columns = table(list(Scripted(script, repeats=1).rows([[1]], made))).columns
    assert [*columns[1].cells] == ["autoregressive", "lookup chunk=4", "lookup chunk=8"]
    assert [*columns[5].cells] == ["1.00x", "2.00x", "4.00x"]
