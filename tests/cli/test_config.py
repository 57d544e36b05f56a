"""``config`` and ``paths`` as a user meets them, also with a file that is broken."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.settings.layers import persistent

BROKEN = 'modle = "x"\nchunk = "x"\nseed = 3\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the settings would lie; there is no file yet."""
    monkeypatch.delenv("TRIFORCE_CHAT_CONFIG")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "of the user"))
    return tmp_path / "of the user" / "triforce-chat" / "config.toml"


@pytest.fixture
def broken(file: Path) -> Path:
    file.parent.mkdir(parents=True)
    file.write_text(BROKEN)
    return file


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make an editor that appends a text, or ends with a code."""

    def make(text: str = "", code: int = 0, variable: str = "EDITOR") -> None:
        script = tmp_path / f"an {variable}.py"
        body = f"import sys\nopen(sys.argv[-1], 'a').write({text!r})\nassert sys.argv[1] == '--wait'\n"
        script.write_text(f"{body}sys.exit({code})\n")
        monkeypatch.setenv(variable, f"'{sys.executable}' '{script}' --wait")

    return make


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def refusal(done: Any) -> str:
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return str(done.stderr)


def test_show_prints_toml_that_says_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORCE_CHAT_SYSTEM", 'in "French" [bold]\n\x1b[31m')
    shown = run("config", "show").stdout
    values = tomllib.loads(shown)
    assert values["system"] == 'in "French" [bold]\n\x1b[31m'
    assert (values["chunk"], values["min-p"], values["quiet"]) == (8, 0.0, False)
    assert "# seed is not set: the program chooses\n" in shown
    assert len(shown.splitlines()) == len(persistent())
    file.parent.mkdir(parents=True)
    file.write_text(shown)
    monkeypatch.delenv("TRIFORCE_CHAT_SYSTEM")
    assert run("config", "show").stdout == shown


def test_show_tells_where_values_come_from(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("chunk = 4\nseed = 3\n")
    monkeypatch.setenv("TRIFORCE_CHAT_SEED", "4")
    shown = run("config", "show", "--origin").stdout
    assert f"\nchunk = 4  # {file}\n" in shown
    assert "\nseed = 4  # TRIFORCE_CHAT_SEED\n" in shown
    assert '\nstack = "auto"  # default\n' in shown
    assert "\n# gamma is not set: the program chooses  # default\n" in shown
    assert tomllib.loads(shown)["seed"] == 4
    told = json.loads(run("config", "show", "--origin", "--json").stdout)
    assert (told["schema"], told["problems"]) == (1, [])
    assert (told["settings"]["chunk"], told["origins"]["chunk"]) == (4, str(file))
    assert (told["settings"]["gamma"], told["origins"]["gamma"]) == (None, "default")
    assert list(told["settings"]) == list(told["origins"]) == list(persistent())
    assert "origins" not in json.loads(run("config", "show", "--json").stdout)


def test_a_broken_file_stops_only_what_needs_it(broken: Path) -> None:
    assert f"{broken}: no key 'modle'" in refusal(run("ask", "Why?"))
    assert "Ask a question" in run("ask", "--help").stdout
    shown = run("config", "show", "--origin")
    assert shown.exit_code == 0
    assert f"seed = 3  # {broken}\n" in shown.stdout
    assert shown.stderr.splitlines() == [
        f"warning: {broken}: no key 'modle'; did you mean 'model'?",
        f"warning: {broken}: chunk takes a whole number, not 'x'",
    ]
    assert len(json.loads(run("config", "show", "--json").stdout)["problems"]) == 2
    assert f"config: {broken}\n" in run("paths").stdout
    assert run("cache", "ls").exit_code == 0


@pytest.mark.parametrize(
    "command",
    ["summarize x", "chat", "verify", "bench x", *(f"evaluate {kind} x" for kind in ("perplexity", "facts"))],
)
def test_every_command_with_flags_reads_the_file(broken: Path, command: str) -> None:
    assert str(broken) in refusal(run(*command.split()))


def test_edit_makes_a_file_that_explains_itself(file: Path, editor: Callable[..., None]) -> None:
    editor("chunk = 4\n")
    done = run("config", "edit")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert file.read_text().startswith("# Settings of triforce-chat.")
    assert "chunk = 4" in run("config", "show").stdout
    editor("seed = 5\n", variable="VISUAL")
    assert run("config", "edit").exit_code == 0
    assert file.read_text().endswith("\nchunk = 4\nseed = 5\n")


def test_edit_says_what_is_wrong_afterwards(broken: Path, editor: Callable[..., None]) -> None:
    editor("# and no better\n")
    assert "no key 'modle'; did you mean 'model'?" in refusal(run("config", "edit"))
    assert broken.read_text() == f"{BROKEN}# and no better\n"


def test_editors_that_do_not_work(
    broken: Path, editor: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(code=3)
    assert "the editor failed with code 3" in refusal(run("config", "edit"))
    for absent in ("an-editor-that-is-not-there", "'"):
        monkeypatch.setenv("EDITOR", absent)
        assert f"edit {broken} yourself" in refusal(run("config", "edit"))
    monkeypatch.delenv("EDITOR")
    monkeypatch.setenv("PATH", "")
    assert "set EDITOR" in refusal(run("config", "edit"))


def test_edit_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORCE_CHAT_CONFIG", "/dev/null/config.toml")
    told = refusal(run("config", "edit"))
    assert "/dev/null/config.toml: cannot be written (" in told
    assert "TRIFORCE_CHAT_CONFIG names another file" in told


def test_paths(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    for kind in ("DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    told = json.loads(run("paths", "--json").stdout)
    assert told.pop("schema") == 1
    assert run("paths").stdout == "".join(f"{name}: {path}\n" for name, path in told.items())
    assert Path(told.pop("hub")).name == "hub"
    assert told == {
        "config": str(file),
        "data": str(tmp_path / "DATA" / "triforce-chat"),
        "state": str(tmp_path / "STATE" / "triforce-chat"),
        "history": str(tmp_path / "STATE" / "triforce-chat" / "history"),
        "sessions": str(tmp_path / "STATE" / "triforce-chat" / "sessions.db"),
        "cache": str(tmp_path / "cache"),
        "models": str(tmp_path / "cache" / "models"),
        "kv": str(tmp_path / "cache" / "kv"),
    }
    assert list(tmp_path.iterdir()) == []


def test_a_real_process_finds_its_file(tmp_path: Path) -> None:
    """Under a home of its own; only a flag's problem is told before the file's."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("XDG", "TRIFORCE"))}
    folder = tmp_path / ".config" / "triforce-chat"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("max-tokens = 7\n")

    def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "triforce_chat", *arguments],
            capture_output=True,
            text=True,
            timeout=180,
            env={**own, "HOME": str(tmp_path), **environment},
        )

    shown = process("config", "show", "--origin", TRIFORCE_CHAT_STACK="lookup")
    assert f"max-tokens = 7  # {folder / 'config.toml'}\n" in shown.stdout
    assert 'stack = "lookup"  # TRIFORCE_CHAT_STACK\n' in shown.stdout
    refused = process("ask", "Why?", TRIFORCE_CHAT_STACK="turbo")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: TRIFORCE_CHAT_STACK: no stack 'turbo'; choose one of auto")
