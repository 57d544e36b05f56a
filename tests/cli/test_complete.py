"""What a shell gets when the user presses Tab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.models.presets import PRESETS
from triforce_chat.settings.settings import DTYPES, POLICIES, STACKS

PROGRAM = "triforce-chat"
VARIABLE = "_TRIFORCE_CHAT_COMPLETE"
PRESET_NAMES = [preset.name for preset in PRESETS]


def ask(environment: dict[str, str]) -> str:
    done = CliRunner().invoke(app, [], prog_name=PROGRAM, env=environment)
    assert done.exit_code == 0, done.stderr
    return done.stdout.rstrip("\n")


def in_bash(line: str) -> list[str]:
    """What is offered for the last word of a line."""
    words = line.split(" ")
    count = str(len(words))
    asked = {VARIABLE: "complete_bash", "COMP_WORDS": f"{PROGRAM} {line}", "COMP_CWORD": count}
    return ask(asked).splitlines()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ask --model ", ["auto", *PRESET_NAMES]),
        ("ask --model qwen3", ["qwen3-8b", "qwen3-8b-128k", "qwen3-0.6b"]),
        ("chat book.pdf --draft ", ["auto", "none", *PRESET_NAMES]),
        ("chat --draft llama-6", ["llama-68m"]),
        ("summarize --stack ", [*STACKS]),
        ("summarize --stack l", ["lookup"]),
        ("bench --policy ", [*POLICIES]),
        ("verify --dtype ", [*DTYPES]),
        ("evaluate facts --device c", ["cpu", "cuda"]),
        ("models show smol", ["smollm2-135m"]),
        ("models pull sm", ["small", "smollm2-135m"]),
        ("models rm mistral", ["mistral-7b"]),
        ("train context --model smol", ["smollm2-135m"]),
        ("train draft --model smol", ["smollm2-135m"]),
        ("config ", ["show", "edit"]),
        ("doc", ["doctor"]),
        ("ask --mod", ["--model"]),
    ],
)
def test_names(line: str, offered: list[str]) -> None:
    assert in_bash(line) == offered


@pytest.mark.parametrize(
    "line", ["ask ", "summarize book", "chat ./bo", "ask --model ./my", "train draft --data n"]
)
def test_files_are_left_to_the_shell(line: str) -> None:
    """Every shell's script falls back to files where the program offers nothing."""
    assert in_bash(line) == []
    assert ask({VARIABLE: "complete_zsh", "_TYPER_COMPLETE_ARGS": f"{PROGRAM} {line}"}) == "_files"
    asked = {VARIABLE: "complete_fish", "_TYPER_COMPLETE_ARGS": f"{PROGRAM} {line}"}
    done = CliRunner().invoke(
        app, [], prog_name=PROGRAM, env={**asked, "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    )
    assert done.exit_code == 1
    assert "-o default" in ask({VARIABLE: "source_bash"})


def test_the_same_in_zsh_and_fish() -> None:
    line = {"_TYPER_COMPLETE_ARGS": f"{PROGRAM} summarize --stack l"}
    assert ask({VARIABLE: "complete_zsh", **line}) == "_arguments '*: :((\"lookup\"))'"
    asked = {VARIABLE: "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args", **line}
    assert ask(asked) == "lookup"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_name_the_program_and_the_variable(shell: str) -> None:
    script = ask({VARIABLE: f"source_{shell}"})
    assert f"{VARIABLE}=complete_{shell}" in script
    assert PROGRAM in script


def test_completion_is_not_touched_by_broken_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("what is this")
    monkeypatch.setenv("TRIFORCE_CHAT_CONFIG", str(tmp_path / "config.toml"))
    assert in_bash("summarize --stack l") == ["lookup"]


def test_a_real_bash_completes_without_torch(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    program = tmp_path / PROGRAM
    code = "from triforce_chat.cli.app import main; main()"
    program.write_text(
        f"#!{sys.executable}\nimport sys, atexit\n"
        f"atexit.register(lambda: print('torch' in sys.modules, file=open({str(tmp_path / 'loaded')!r}, 'w')))\n"
        f"sys.argv[0] = '{PROGRAM}'\n{code}\n"
    )
    program.chmod(0o700)
    script = (
        f'eval "$({VARIABLE}=source_bash {PROGRAM})"\n'
        f"COMP_WORDS=({PROGRAM} ask --model qwen2); COMP_CWORD=3\n"
        f'_triforce_chat_completion {PROGRAM}; echo "${{COMPREPLY[*]}}"\n'
        f"{PROGRAM} --install-completion > /dev/null; source ~/.bashrc; complete -p {PROGRAM}\n"
    )
    done = subprocess.run(
        [bash, "--norc", "-c", script],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
    )
    offered, installed = done.stdout.splitlines()
    assert offered == "qwen2.5-coder-0.5b qwen2.5-coder-1.5b qwen2.5-7b-1m qwen2.5-0.5b"
    assert installed == f"complete -o default -F _triforce_chat_completion {PROGRAM}"
    assert done.stderr == ""
    assert (tmp_path / "loaded").read_text() == "False\n"
