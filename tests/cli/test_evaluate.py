"""``triforce-chat evaluate`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import save_model, write_quantized_gguf
from typer.testing import CliRunner

from triforce_chat import __version__
from triforce_chat.cli.app import app
from triforce_chat.cli.options import parse_list
from triforce_chat.errors import UsageError
from triforce_chat.lab.evaluation import answers, comprehension, logits, perplexity, runs
from triforce_chat.lab.evaluation.questions import QUESTIONS
from triforce_chat.lab.evaluation.runs import remark
from triforce_chat.lab.tasks.book_questions import question_sets

TEXT = "The cat sat on the mat. A dog came by, and both looked at the rain.\n\n"
SHORT = 4  # tokens


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shelf")
    torch.manual_seed(4)
    for name in ("model", "draft"):
        (made / name).mkdir()
        save_model(made / name, max_position_embeddings=8192, initializer_range=0.3)
    (made / "a.txt").write_text(TEXT * 40)
    (made / "b.txt").write_text(TEXT * 60)
    return made


@pytest.fixture
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random models rarely end an answer, and how long it is does not matter."""
    monkeypatch.setattr(answers, "QUESTION_TOKENS", SHORT)
    monkeypatch.setattr(answers, "FACT_TOKENS", SHORT)
    monkeypatch.setattr(comprehension, "ANSWER_TOKENS", SHORT)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments)])


def found(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    assert value["machine"]["triforce_chat"] == __version__
    assert value["settings"]["model"] == str(arguments[arguments.index("--model") + 1])
    return value


def test_perplexity_of_joined_documents(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perplexity, "EDGES", (0, 1000, 2000))
    monkeypatch.setattr(runs, "NEAR", 2000)
    arguments = ("perplexity", shelf / "a.txt", shelf / "b.txt", "--model", shelf / "model")
    value = found(*arguments, "--contexts", "3000", "--reference", shelf / "model")
    a, b = value["documents"]
    assert a["used"] == a["tokens"]
    assert a["used"] + b["used"] == value["tokens"] == 3000
    assert [(row["start"], row["end"], row["tokens"]) for row in value["rows"]] == [
        (0, 1000, 999),
        (1000, 2000, 1000),
        (2000, 3000, 1000),
    ]
    assert [row["ratio"] for row in value["rows"]] == [pytest.approx(1), pytest.approx(1), None]
    assert value["windows"] == []
    shown = run(*arguments, "--contexts", "3000", "--reference", "none").stdout
    assert f"3,000 tokens: a ({a['used']:,} of {a['used']:,}) + b" in shown
    assert f"{value['rows'][2]['perplexity']:.2f}" in shown


def test_a_shorter_text_is_measured_as_far_as_it_goes(shelf: Path) -> None:
    value = found("perplexity", shelf / "a.txt", "--model", shelf / "model", "--reference", "none")
    assert value["tokens"] == value["documents"][0]["tokens"] < 124_928


@pytest.mark.usefixtures("short_answers")
def test_facts_are_planted_at_every_depth(shelf: Path) -> None:
    arguments = (
        "facts",
        shelf / "a.txt",
        shelf / "b.txt",
        "--model",
        shelf / "model",
        "--contexts",
        "5000,6000",
    )
    value = found(*arguments, "--documents", "1")
    assert {(row["context"], row["depth"], row["asked"]) for row in value["rows"]} == {
        (context, depth / 10, 1) for context in (5000, 6000) for depth in range(10)
    }
    assert sum(row["asked"] for row in value["kinds"]) == 26
    assert len(value["wrong"]) == 26 - sum(row["right"] for row in value["kinds"])
    assert (value["settings"]["stack"], value["settings"]["temperature"]) == ("lookup", 0.0)
    shown = run(*arguments, "--documents", "1").stdout
    assert "5,000" in shown
    assert "two-step" in shown


def test_wrong_answers_about_facts_are_kept(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "grade", lambda _said, _expected, kind: kind == "name")
    arguments = (
        "facts",
        shelf / "a.txt",
        "--model",
        shelf / "model",
        "--contexts",
        "5000",
        "--documents",
        "1",
    )
    value = found(*arguments)
    right = {row["kind"]: row["right"] == row["asked"] for row in value["kinds"]}
    assert [kind for kind, all_right in right.items() if all_right] == ["name"]
    assert {each["kind"] for each in value["wrong"]} == set(right) - {"name"}


@pytest.mark.usefixtures("short_answers")
def test_questions_are_put_to_both_models(shelf: Path) -> None:
    value = found("questions", "--model", shelf / "model", "--reference", shelf / "draft")
    assert [row["model"] for row in value["rows"]] == [str(shelf / "model"), str(shelf / "draft")]
    assert len(value["answers"]) == 2 * len(QUESTIONS)
    right = [answer["right"] for answer in value["answers"]]
    assert [row["right"] for row in value["rows"]] == [
        sum(right[: len(QUESTIONS)]),
        sum(right[len(QUESTIONS) :]),
    ]


def test_acceptance_by_kind_temperature_context_and_policy(shelf: Path) -> None:
    arguments = (
        "acceptance",
        shelf / "a.txt",
        shelf / "b.txt",
        "--model",
        shelf / "model",
        "--draft",
        shelf / "draft",
    )
    sizes = (
        "--contexts",
        "300,700",
        "--tokens",
        "12",
        "--samples",
        "2",
        "--temperatures",
        "0,1",
        "--budget",
        "304",
    )
    value = found(*arguments, *sizes)
    assert len(value["rows"]) == 2 * 3 * 2 * 2
    for row in value["rows"]:
        assert row["alpha"]["samples"] == (2 if row["temperature"] == 0 else 4)  # at two places
        if row["context"] == 300:
            assert row["alpha"]["value"] == pytest.approx(1, abs=1e-3)
        assert 0 <= row["beta"]["value"] < 1
    assert [row["context"] for row in value["by"]["context"]] == [300, 300, 700, 700]
    assert len(value["notes"]) == 1
    assert value["draft"] == str(shelf / "draft")
    assert found(*arguments, *sizes)["rows"] == value["rows"]
    shown = run(*arguments, *sizes).stdout
    assert "continuation" in shown
    assert "alpha: middle level under the target" in shown


def test_a_stream_that_is_forgotten(shelf: Path) -> None:
    arguments = ("eviction", shelf / "a.txt", shelf / "b.txt", "--model", shelf / "model")
    value = found(*arguments, "--tokens", "1400", "--keep", "300", "--example", "0")
    assert [row["rule"] for row in value["rows"]] == [*value["rules"]]
    assert value["tokens"] == 1400
    for row in value["rows"]:
        sampled = row["rule"] == "recomputation"  # whose last window may end earlier
        assert sampled or row["parts"][-1]["end"] == 1400
        assert row["perplexity"] > 1
    shown = run(*arguments, "--tokens", "400", "--keep", "300", "--rules", "h2o", "--example", "1500").stdout
    assert "continued, h2o: " in shown


def test_sparsity_by_layer_and_distance(shelf: Path) -> None:
    arguments = ("sparsity", shelf / "a.txt", shelf / "b.txt", "--model", shelf / "model")
    sizes = ("--contexts", "700", "--budgets", "128,512", "--places", "2")
    value = found(*arguments, *sizes)
    layers = {row["layer"] for row in value["layers"]}
    assert len(value["layers"]) == len(layers) * 4 * 2
    assert [row["after"] for row in value["decay"] if (row["policy"], row["budget"]) == ("mean", 512)] == [
        *range(16, 257, 16)
    ]
    assert all(0 < row["recovered"] <= 1 for row in (*value["layers"], *value["decay"]))
    shown = run(*arguments, *sizes).stdout
    assert "700 tokens, exact: layer" in shown
    assert "700 tokens, budget 512: tokens later" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("sparsity", "--policies", "best"), 2, "no policy 'best'"),
        (("sparsity", "--policies", "mean,h2o"), 2, "the policy 'h2o' scores no chunks"),
        (("sparsity", "--policies", "streaming-h2o"), 2, "the policy 'streaming-h2o' scores no chunks"),
        (("sparsity", "--budgets", "64"), 2, "the minimum is 88"),
        (("sparsity", "--contexts", "100000"), 4, "add documents"),
        (("perplexity", "--contexts", "many"), 2, "'many' is not a list of numbers"),
        (("eviction", "--rules", "luck"), 2, "no rule 'luck'; choose from window, streaming"),
        (("eviction", "--keep", "100"), 2, "--keep 100 is too small: 16 sinks, a window of 240"),
        (("eviction", "--tokens", "500", "--keep", "600"), 4, "600 would not be forgotten"),
        (("perplexity", "--contexts", "1"), 2, "2 or more"),
        (("perplexity", "--strides", "8192"), 2, "from 1 to 8191"),
        (("acceptance", "--policies", "best"), 2, "no policy 'best'"),
        (("acceptance", "--temperatures", "inf"), 2, "temperature"),
        (("acceptance", "--contexts", "100000"), 4, "add documents"),
    ],
)
def test_mistakes_are_one_line(shelf: Path, arguments: tuple[str, ...], code: int, told: str) -> None:
    result = run(*arguments, shelf / "a.txt", "--model", shelf / "model")
    assert (result.exit_code, result.stdout) == (code, "")
    assert told in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_lists_of_numbers() -> None:
    assert parse_list("30,4,30") == [4, 30]
    assert parse_list("0.6,0", float, 0) == [0.0, 0.6]
    for wrong in ("", "a", "1,", "-1"):
        with pytest.raises(UsageError, match="not a list"):
            parse_list(wrong)


def test_what_must_be_known_about_the_retrieval_cache() -> None:
    notes = [remark(context, 4096) for context in (4096, 8192, 8193)]
    assert ["holds everything" in (note or "") for note in notes] == [True, False, False]
    assert [note is None for note in notes] == [False, False, True]


def test_sources_of_planted_facts(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triforce_chat.lab.evaluation import sources

    graded = iter([True, False, True, True, True, True])
    monkeypatch.setattr(sources, "grade", lambda *_: next(graded))
    arguments = ("sources", shelf / "a.txt", shelf / "b.txt", "--model", shelf / "model", "--seed", "3")
    plan = ("--contexts", "700", "--documents", "2", "--facts", "3", "--page-tokens", "64")
    value = found(*arguments, *plan)
    assert value["documents"] == ["a", "b"]
    assert value["plan"] == {"lengths": [700], "documents": 2, "facts": 3, "page_tokens": 64, "seed": 3}
    answers = value["answers"]
    assert [each["document"] for each in answers] == ["a"] * 3 + ["b"] * 3
    assert {each["pages"] for each in answers} == {(700 - sources.FRAME) // 64}
    assert all(1 <= each["page"] <= each["pages"] and len(each["named"]) == 5 for each in answers)
    *kinds, overall = value["rows"]
    assert overall["kind"] == "all"
    right = [each for each in answers if each["right"]]
    assert (overall["asked"], overall["right"]) == (6, len(right)) == (6, 5)
    assert overall["named"] == sum(each["page"] in each["named"][:3] for each in right)
    assert overall["first"] == sum(each["page"] == each["named"][0] for each in right)
    assert overall["named_of_right"] == overall["named"] / 5
    assert sum(row["right"] for row in kinds) == 5


def test_sources_need_enough_text(shelf: Path) -> None:
    result = run("sources", shelf / "a.txt", "--model", shelf / "model", "--contexts", "6000")
    assert result.exit_code == 4
    assert "a is too short for 14 pages of 400 tokens" in result.stderr


@pytest.mark.usefixtures("short_answers")
def test_comprehension_by_length_and_from_memory(tmp_path: Path, shelf: Path) -> None:
    emma = next(each for each in question_sets() if each.title == "Emma")
    quotes = [quote for question in emma.questions for quote in question.evidence]
    (tmp_path / "emma.txt").write_text("".join(f"{quote}\n\n{TEXT * 2}" for quote in quotes))
    arguments = (
        "comprehension",
        tmp_path / "emma.txt",
        "--model",
        shelf / "model",
        "--contexts",
        "0,2000,6000",
    )
    value = found(*arguments)
    assert [row["context"] for row in value["rows"]] == [0, 2000, 6000]
    assert all(sum(row["asked"].values()) == len(emma.questions) for row in value["rows"])
    assert len(value["answers"]) == 3 * len(emma.questions)
    assert {each["context"] for each in value["answers"] if each["asked_at"]} == {2000, 6000}
    assert value["books"][0]["missing"] == 0
    right = sum(each["right"] for each in value["answers"])
    assert right == sum(sum(row["right"].values()) for row in value["rows"])
    assert "without the book" in run(*arguments[:-1], "0").stdout


def test_comprehension_of_own_questions(tmp_path: Path, shelf: Path) -> None:
    quotes = [f"Dog number {number} came by at noon." for number in range(4)]
    (tmp_path / "dogs.txt").write_text("".join(f"{quote}\n\n{TEXT}" for quote in quotes))
    (tmp_path / "own").mkdir()
    blocks = [
        f'[[question]]\nkind = "what"\nquestion = "When came dog {i}?"\nevidence = ["{quote}"]\n'
        + ("absent = true\n" if i == 3 else 'answers = ["noon"]\n')
        for i, quote in enumerate(quotes)
    ]
    (tmp_path / "own" / "dogs.toml").write_text('title = "Dogs"\nauthor = "A"\n' + "".join(blocks))
    arguments = ("comprehension", tmp_path / "dogs.txt", "--model", shelf / "model", "--contexts", "2000")
    value = found(*arguments, "--questions", tmp_path / "own")
    asked = [f"When came dog {i}?" for i in range(4)]
    assert [each["question"] for each in value["answers"]] == asked
    assert [each["accepted"] for each in value["answers"]] == [["noon"]] * 3 + [[]]
    assert value["rows"][0]["asked"] == {"one": 3, "two": 0, "absent": 1}
    without = run(*arguments)
    assert without.exit_code == 2
    assert "no questions about dogs; there are some about A Tale" in " ".join(without.stderr.split())
    for folder in (shelf, tmp_path / "nowhere"):
        refused = run(*arguments, "--questions", folder)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "contains no .toml files with questions" in " ".join(refused.stderr.split())


def test_comprehension_needs_a_novel_with_questions(shelf: Path) -> None:
    result = run("comprehension", shelf / "a.txt", "--model", shelf / "model")
    assert result.exit_code == 2
    assert "no questions about a; there are some about A Tale of Two Cities" in " ".join(
        result.stderr.split()
    )


def test_logits_beside_those_of_expanded_weights(shelf: Path, kernels: None, empty_cache: Path) -> None:  # noqa: ARG001
    file = write_quantized_gguf(shelf / "tiny.gguf", context=512)
    asked = (
        "logits",
        shelf / "a.txt",
        "--model",
        file,
        "--device",
        "cpu",
        "--dtype",
        "auto",
        "--tokens",
        "90",
    )
    whole, half = (found(*asked, "--kv", kv) for kv in ("float32", "auto"))
    assert [each["kv"] for each in (whole, half)] == ["float32", "float16"]
    assert (whole["positions"], whole["weights"]) == (90, "Q4_K_M")
    assert whole["largest"] < 1e-4 * whole["scale"] < half["largest"] < 0.02 * half["scale"]
    same = found(
        "logits", shelf / "a.txt", "--model", shelf / "model", "--dtype", "float32", "--tokens", "50"
    )
    assert (same["largest"], same["same_best"], same["widest_swap"]) == (0, 1, 0)


def test_what_is_measured_of_logits() -> None:
    exact = torch.tensor([[0.0, 1.0, -3.0], [2.0, 0.0, 0.0]])
    near = torch.tensor([[1.5, 1.0, -3.0], [2.0, 0.0, 0.25]])
    largest, scale, swap, divergence = logits.measures(near, exact)
    assert (largest.tolist(), scale.tolist(), swap.tolist()) == ([1.5, 0.25], [3.0, 2.0], [1.0, 0.0])
    p, q = exact.softmax(-1), near.softmax(-1)
    torch.testing.assert_close(divergence.float(), (p * (p / q).log()).sum(-1))
