"""A user's own defaults: what wins over what, for every key, and what a mistake in them says."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from triforce_chat.cli.options import command
from triforce_chat.errors import UsageError
from triforce_chat.settings import layers
from triforce_chat.settings.layers import (
    DEFAULT,
    OTHER_VARIABLES,
    effective,
    from_file,
    persistent,
    user_values,
)
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import Settings
from triforce_chat.settings.specification import TYPES, SettingSpec
from triforce_chat.settings.toml import template, toml

NOT_PERSISTENT = {
    "pages",
    "chapters",
    "until",
    "password",
    "json",
    "jsonl",
    "debug",
    "endless",
    "keep",
}  # of one document, or of one run
# What file, environment and flag say of a key; by kind unless only some values make sense.
SAID: dict[str, tuple[Any, Any, Any]] = {
    "stack": ("lookup", "triforce", "naive"),
    "notify": ("bell", "osc9", "osc777"),
    "policy": ("minmax", "mean", "minmax"),
    "middle": ("full", "int8", "full"),
    "dtype": ("float32", "float16", "bfloat16"),
    "kv": ("float32", "float16", "auto"),
    "attention": ("triton", "sdpa", "flash-attn"),
    "think": ("on", "off", "auto"),
    "tree": ("sequoia", "specinfer", "auto"),
    "budget": (200, 300, 400),
    "repetition_penalty": (1.2, 1.3, 1.4),
}
BY_KIND: dict[type, tuple[Any, Any, Any]] = {
    str: ("one", "two", "three"),
    int: (11, 12, 13),
    float: (0.25, 0.5, 0.75),
    bool: (True, False, True),
}
EVERY_KEY = pytest.mark.parametrize("spec", persistent().values(), ids=lambda spec: spec.key)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIFORCE_CHAT_MODEL")  # set for all tests
    monkeypatch.delenv("TRIFORCE_CHAT_DTYPE")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.touch()
    monkeypatch.setenv("TRIFORCE_CHAT_CONFIG", str(path))
    return path


def received(*flags: str) -> Options:
    """The options that a command receives."""
    app, seen = typer.Typer(), list[Options]()

    @command(app)
    def probe(options: Options) -> None:
        seen.append(options)

    done = CliRunner().invoke(app, flags)
    assert done.exit_code == 0, done.stderr
    return seen[0]


def refused() -> str:
    """What a command says about the settings; it must say it in one line and end with 2."""
    app = typer.Typer()

    @command(app)
    def probe(options: Options) -> None:
        raise AssertionError(options)

    done = CliRunner().invoke(app, [])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@EVERY_KEY
def test_precedence(spec: SettingSpec, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_file, in_environment, as_flag = SAID.get(spec.name, BY_KIND[spec.type])
    flag = [f"--{spec.key}", *([] if spec.type is bool else [str(as_flag)])]

    def now(*flags: str) -> Any:
        options = received(*flags)
        others = dataclasses.replace(options, **{spec.name: spec.default})
        assert others == Options()  # nothing else moved
        return getattr(options, spec.name)

    def origin() -> str:
        return effective().origins[spec.name]

    assert (now(), origin()) == (spec.default, DEFAULT)
    assert now(*flag) == as_flag
    file.write_text(f"{spec.key} = {toml(in_file)}\n")
    assert (now(), origin()) == (in_file, str(file))
    assert type(now()) is spec.type
    assert now(*flag) == as_flag
    monkeypatch.setenv(spec.variable, str(in_environment))
    assert (now(), origin()) == (in_environment, spec.variable)
    assert type(now()) is spec.type
    assert now(*flag) == as_flag
    monkeypatch.setenv(spec.variable, "")
    assert now() == in_file


def test_a_flag_that_says_the_default_wins_as_well(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('stack = "lookup"')
    monkeypatch.setenv("TRIFORCE_CHAT_MAX_TOKENS", "7")
    options = received("--stack", "auto", "--max-tokens", "512")
    assert (options.stack, options.max_tokens) == ("auto", 512)


def test_every_flag_is_a_key_or_is_left_out_on_purpose() -> None:
    assert {spec.name for spec in persistent().values()} | NOT_PERSISTENT == {
        f.name for f in dataclasses.fields(Options)
    }
    settings = {f.name for f in dataclasses.fields(Settings)}
    assert settings - {"endless", "keep"} <= {spec.name for spec in persistent().values()}
    assert {spec.type for spec in persistent().values()} <= set(TYPES)


def test_variables_do_not_collide() -> None:
    variables = [spec.variable for spec in persistent().values()]
    assert len({*variables, *OTHER_VARIABLES}) == len(variables) + len(OTHER_VARIABLES)


def test_secrets_are_not_kept(file: Path) -> None:
    file.write_text('password = "open sesame"')
    assert "no key 'password'" in refused()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('modle = "x"', "no key 'modle'; did you mean 'model'?"),
        ("max_tokens = 3", "no key 'max_tokens'; did you mean 'max-tokens'?"),
        ("xyzzy = 3", "no key 'xyzzy'\n"),
        ('[engine]\nmodel = "x"', "no key 'engine'"),
        ("model = 3", "model takes a text, not 3"),
        ('chunk = "8"', "chunk takes a whole number, not '8'"),
        ("chunk = 8.0", "chunk takes a whole number, not 8.0"),
        ("chunk = true", "chunk takes a whole number, not true"),
        ('temperature = "warm"', "temperature takes a number, not 'warm'"),
        ("temperature = false", "temperature takes a number, not false"),
        ("temperature = nan", "temperature must be 0 or more"),
        ("quiet = 1", "quiet takes true or false, not 1"),
        ("stack = []", "stack takes a text, not a list"),
        ('stack = "turbo"', "no stack 'turbo'; choose one of auto"),
        ("budget = 100", "budget must be at least 104 tokens for chunks of 8"),
        ("gamma = 64", "gamma must be at most 63"),
        ("model = ", "not TOML: "),
        ('model = "a"\nmodel = "b"', "not TOML: "),
    ],
)
def test_a_mistake_in_the_file(file: Path, text: str, complaint: str) -> None:
    file.write_text(text)
    told = refused()
    assert complaint in told
    assert str(file) in told


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        ("CHUNK", "x", "takes a whole number, not 'x'"),
        ("CHUNK", "8.5", "takes a whole number, not '8.5'"),
        ("TOP_P", "most", "takes a number, not 'most'"),
        ("QUIET", "maybe", "takes true or false, not 'maybe'"),
        ("STACK", "turbo", "no stack 'turbo'"),
        ("TEMPERATURE", "-1", "temperature must be 0 or more"),
    ],
)
def test_a_mistake_in_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, complaint: str
) -> None:
    file.write_text("gamma = 3")
    monkeypatch.setenv(f"TRIFORCE_CHAT_{variable}", text)
    told = refused()
    assert told.startswith(f"error: TRIFORCE_CHAT_{variable}: ")
    assert complaint in told


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("off", False), ("FALSE", False)])
def test_switches_in_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: bool
) -> None:
    file.write_text(f"plain = {toml(not value)}")
    monkeypatch.setenv("TRIFORCE_CHAT_PLAIN", text)
    assert user_values() == {"plain": value}


def test_file_and_environment_are_checked_together(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("chunk = 1")
    monkeypatch.setenv("TRIFORCE_CHAT_BUDGET", "100")
    assert user_values() == {"chunk": 1, "budget": 100}
    file.write_text("")
    with pytest.raises(UsageError, match="TRIFORCE_CHAT_BUDGET: budget must be at least 104"):
        user_values()


def test_whole_numbers_are_numbers(file: Path) -> None:
    file.write_text("temperature = 1")
    assert type(user_values()["temperature"]) is float


def test_a_file_with_a_byte_order_mark(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfchunk = 4\r\n")
    assert user_values() == {"chunk": 4}


def test_files_that_cannot_be_read(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in refused()
    monkeypatch.setenv("TRIFORCE_CHAT_CONFIG", str(tmp_path))
    assert "cannot be read (Is a directory)" in refused()
    monkeypatch.setenv("TRIFORCE_CHAT_CONFIG", str(tmp_path / "absent"))
    assert "no such file; TRIFORCE_CHAT_CONFIG names it" in refused()


def test_without_a_file_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIFORCE_CHAT_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert user_values() == {}
    (tmp_path / "triforce-chat").mkdir()
    (tmp_path / "triforce-chat" / "config.toml").write_text("chunk = 4")
    assert user_values() == {"chunk": 4}
    monkeypatch.setenv("TRIFORCE_CHAT_CONFIG", "")
    assert user_values() == {"chunk": 4}


def test_a_mistake_hides_only_itself(file: Path) -> None:
    file.write_text('modle = "x"\nchunk = "x"\nseed = 3\n')
    found = effective()
    assert [problem.removeprefix(f"{file}: ") for problem in found.problems] == [
        "no key 'modle'; did you mean 'model'?",
        "chunk takes a whole number, not 'x'",
    ]
    assert (found.values["seed"], found.values["chunk"]) == (3, 8)


def test_strange_variables() -> None:
    environment = {"TRIFORCE_CHAT_TEMPRATURE": "1", "TRIFORCE_CHAT_CACHE": "/", "TRIFORCE_CHAT_SEED": "1"}
    assert layers.unknown_variables(environment) == [
        "no variable 'TRIFORCE_CHAT_TEMPRATURE'; did you mean 'TRIFORCE_CHAT_TEMPERATURE'?"
    ]


def test_the_template_is_right_in_every_line(file: Path) -> None:
    file.write_text(template())
    assert from_file(file) == layers.Layer()
    settings = [line.removeprefix("# ") for line in template().splitlines() if " = " in line]
    file.write_text("\n".join(settings))
    layer = from_file(file)
    assert layer.problems == []
    assert set(layer.values) == {spec.name for spec in persistent().values()}
    for spec in persistent().values():
        assert layer.values[spec.name] == spec.example
        assert f"# {spec.details.help}\n# {spec.key} = " in template()


@pytest.mark.parametrize(
    "value", [True, False, 0, -3, 1.0, 1e-9, 1e22, "", 'a "b" \\ c', "ünï 🎉", "a\nb\tc\x1b\x7f\x85\x9b"]
)
def test_toml(value: Any) -> None:
    written = toml(value)
    read = tomllib.loads(f"key = {written}")["key"]
    assert (type(read), read) == (type(value), value)
    assert written.isprintable()


def test_a_file_without_end_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    long = tmp_path / "long.toml"
    long.write_bytes(b"#" * (layers.MAX_FILE + 1))
    assert from_file(pipe).problems == [f"{pipe}: a pipe, not a file"]
    for endless in (Path("/dev/zero"), long):
        (problem,) = from_file(endless).problems
        assert problem.startswith(f"{endless}: longer than the 1,048,576 bytes")
    assert from_file(Path(os.devnull)).problems == []
