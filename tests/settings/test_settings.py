"""Settings: what a flag or /set may say, and that the two say the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from triforce_chat.errors import UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import CHANGEABLE, DTYPES, POLICIES, STACKS, TREES, Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("stack", stack) for stack in STACKS],
        *[("policy", policy) for policy in POLICIES],
        *[("dtype", dtype) for dtype in DTYPES],
        *[("tree", tree) for tree in TREES],
        ("budget", 104),
        ("chunk", 1),
        ("chunk", 1024),
        ("gamma", 1),
        ("gamma", 63),
        ("draft_gamma", 32),
        ("max_tokens", 1),
        ("context", 1),
        ("endless", "streaming"),
        ("keep", 293),
    ],
)
def test_accepted(name: str, value: Any) -> None:
    assert getattr(Settings(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"stack": "turbo"}, "no stack 'turbo'; choose one of auto, triforce"),
        ({"policy": "max"}, "no policy 'max'; choose one of mean, minmax"),
        ({"stack": "triforc"}, r"no stack 'triforc'; choose one of .*; did you mean 'triforce'\?"),
        ({"policy": "minmx"}, r"no policy 'minmx'; choose one of .*; did you mean 'minmax'\?"),
        ({"tree": "sequoi"}, r"no tree 'sequoi'; choose one of .*; did you mean 'sequoia'\?"),
        ({"dtype": "int8"}, "no dtype 'int8'; choose one of auto, float32"),
        ({"chunk": 0}, "chunk must be at least 1, not 0"),
        ({"draft_gamma": 0}, "draft-gamma must be at least 1, not 0"),
        ({"max_tokens": -5}, "max-tokens must be at least 1, not -5"),
        ({"context": 0}, "context must be at least 1, not 0"),
        ({"budget": 103}, "budget must be at least 104 tokens for chunks of 8"),
        ({"budget": 111, "chunk": 16}, "budget must be at least 112 tokens for chunks of 16"),
        ({"chunk": 1025}, "chunk must be at most 1024, not 1025"),
        ({"gamma": 64}, "gamma must be at most 63, not 64"),
        ({"tree": "bush"}, "no tree 'bush'; choose one of chain, auto"),
        ({"tree_size": 513}, "tree-size must be at most 512, not 513"),
        ({"tree_depth": 33}, "tree-depth must be at most 32, not 33"),
        ({"draft_gamma": 33}, "draft-gamma must be at most 32, not 33"),
        ({"endless": "rot"}, "no endless 'rot'; choose one of off, streaming, h2o"),
        (
            {"endless": "h2o", "keep": 200},
            "--keep 200 is too small: 16 sinks, .* take 281",
        ),
        ({"endless": "h2o", "tp": 2}, "--endless h2o runs in one process"),
        (
            {"endless": "streaming", "kv": "int4"},
            "--endless streaming moves tokens one by one, and --kv int4",
        ),
    ],
)
def test_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as refusal:
        Settings(**values)
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("stack", "lookup", "lookup"),
        ("stack", "auto", "auto"),
        ("tree", "auto", "auto"),
        ("tree-size", "8", 8),
        ("budget", "2048", 2048),
        ("max-tokens", "7", 7),
        ("max_tokens", "7", 7),
        ("temperature", "0.7", 0.7),
        ("top-k", "40", 40),
        ("seed", "3", 3),
        ("repetition-penalty", "1e0", 1.0),
    ],
)
def test_a_typed_setting(name: str, text: str, value: Any) -> None:
    key = name.replace("-", "_")
    assert getattr(Settings().with_text(name, text), key) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for name in CHANGEABLE for text in ("auto", "default") if (name, text) != ("tree", "auto")],
)
def test_defaults_come_back(name: str, text: str) -> None:
    changed = Settings(
        stack="lookup",
        policy="minmax",
        budget=2048,
        chunk=4,
        gamma=3,
        draft_gamma=2,
        tree="sequoia",
        tree_size=8,
        temperature=0.5,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        repetition_penalty=1.2,
        seed=1,
        max_tokens=9,
    )
    restored = changed.with_text(name, text)
    assert getattr(restored, name) == getattr(Settings(), name)
    assert dataclasses.replace(restored, **{name: getattr(changed, name)}) == changed  # nothing else moved


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("model", "other", "no setting 'model'; there are stack, budget"),
        ("temprature", "1", r"no setting 'temprature'; there are .*; did you mean 'temperature'\?"),
        ("", "1", "no setting ''"),
        ("temperature", "warm", "temperature takes a number or auto, not 'warm'"),
        ("temperature", "nan", "temperature must be 0 or more"),
        ("top-p", "inf", "top-p must be above 0"),
        ("gamma", "2.5", "gamma takes a number or auto, not '2.5'"),
        ("budget", "", "budget takes a number or auto"),
        ("top-k", "most", "top-k takes a number, not 'most'"),
        ("stack", "turbo", "no stack 'turbo'"),
        ("chunk", "0", "chunk must be at least 1"),
        ("budget", "64", "budget must be at least 104"),
    ],
)
def test_a_typing_error(name: str, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Settings().with_text(name, text)


def test_flags_and_settings_agree() -> None:
    flags = {field.name: field.default for field in dataclasses.fields(Options)}
    settings = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert {name: flags[name] for name in settings} == settings
    assert Options().settings == Settings()


def test_settings_reach_the_engine_as_they_were_given() -> None:
    given: dict[str, Any] = {
        "gamma": 3,
        "budget": 300,
        "top_k": 4,
        "seed": 9,
        "model": "m",
        "dtype": "float16",
    }
    assert Options(**given).settings == Settings(**given)


def test_what_can_be_changed_exists() -> None:
    assert set(CHANGEABLE) < {field.name for field in dataclasses.fields(Settings)}


def test_settings_do_not_change_in_place() -> None:
    settings = Settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.gamma = 4  # type: ignore[misc]
    settings.with_text("gamma", "4")
    assert settings.gamma is None
