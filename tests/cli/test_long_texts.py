"""Texts that no context holds are refused before the model is loaded, with what would fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import run
from support.serving import CONTEXT, save_chat_model

from triforce_chat.chat.context_check import QUESTION_ROOM

ANSWER = 100  # tokens
FREE = CONTEXT - QUESTION_ROOM - ANSWER
CHAPTER = "The ship lay at the quay. " * 60  # fits once, with a byte for each token
COMMANDS = {"ask": ("ask", "Why?"), "summarize": ("summarize",), "chat": ("chat",)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without weights, which nothing may ask for."""
    folder = save_chat_model(tmp_path_factory.mktemp("model"))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def refused(command: str, path: Path, model: Path, told: str) -> str:
    name, *question = COMMANDS[command]
    done = run(
        name, path, *question, "--model", model, "--draft", "none", "--max-tokens", ANSWER, stdin="Why?\n"
    )
    done.is_refusal(4, told)
    assert f"{FREE:,} of the context's {CONTEXT:,} are free" in done.err
    return done.err


ADVICE = (
    "--pages 1-2 would fit (2 of 2,000 sections), or choose a longer --context or a model that has one; in chat, ask "
    "and summarize --endless streaming reads all of it but remembers only the end (lossy)"
)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_chapters_that_would_fit_are_named(command: str, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "book.md"
    path.write_text("".join(f"# Chapter {n}\n\n{CHAPTER}\n\n" for n in range(1, 2001)))
    told = refused(command, path, model, ADVICE)
    assert f"about {path.stat().st_size:,} tokens do not fit" in told


@pytest.mark.parametrize("command", COMMANDS)
def test_a_text_without_chapters_is_told_how_much_of_it_would_fit(
    command: str, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("The ship lay at the quay. " * 1_200_000)  # 30 MB in one line
    told = f"its first section alone does not fit, only about {FREE:,} characters of it do: shorten it"
    assert f"about {path.stat().st_size:,} tokens do not fit" in refused(command, path, model, told)
