"""``--endless`` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.commands import Outcome, run
from support.schemas import schema_errors
from support.tiny_models import mute_special_tokens, save_model

from triforce_chat.errors import UsageError
from triforce_chat.loading.device import require_own_memory_if_endless
from triforce_chat.settings.paths import kv_folder
from triforce_chat.settings.settings import Settings

Ask = Callable[..., Outcome]
KEEP = 320


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shelf")
    torch.manual_seed(2)
    save_model(made / "tiny", max_position_embeddings=1024, initializer_range=0.3)
    mute_special_tokens(made / "tiny")
    (made / "long.txt").write_text("a ship came in at night with the tide " * 200)
    (made / "short.txt").write_text("a ship came in")
    return made


@pytest.fixture
def ask(shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    monkeypatch.chdir(shelf)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))

    def called(command: str, *arguments: object, stdin: str | None = None) -> Outcome:
        usual = ("--model", "tiny", "--device", "cpu", "--max-tokens", "12", "--keep", str(KEEP))
        return run(command, *usual, *arguments, stdin=stdin)

    return called


@pytest.mark.parametrize("policy", ["streaming", "h2o", "streaming-h2o"])
def test_an_answer_beyond_the_context(ask: Ask, policy: str) -> None:
    """The document alone is longer than the model's context; nothing of it is kept on the disk."""
    done = ask("ask", "long.txt", "Who?", "--endless", policy, "--json", "--temperature", "0")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert not schema_errors("answer", record)
    assert (record["endless"], record["keep"]) == (policy, KEEP)
    assert record["usage"]["prompt_tokens"] > 1024
    forgotten = record["forgotten"]
    assert forgotten["total"] - forgotten["tokens"] <= KEEP
    assert record["sources"] == []  # what was forgotten has no attention
    assert not kv_folder().exists()
    plain = ask(
        *("ask", "long.txt", "Who?", "--endless", policy, "--json", "--temperature", "0"),
        *("--stack", "autoregressive"),
    )
    assert json.loads(plain.out)["token_ids"] == record["token_ids"]


@pytest.mark.parametrize(("document", "forgets"), [("long.txt", True), ("short.txt", False)])
def test_events_say_what_was_forgotten(ask: Ask, document: str, forgets: bool) -> None:
    done = ask("ask", document, "Who?", "--endless", "streaming", "--jsonl")
    events = [json.loads(line) for line in done.out.splitlines()]
    told = [event["tokens"] for event in events if event["event"] == "forgot"]
    assert bool(told) == forgets
    assert told == sorted(set(told))


def test_a_summary_warns(ask: Ask) -> None:
    assert "the beginning will be forgotten" in ask("summarize", "long.txt", "--endless", "h2o").err.replace(
        "\n", " "
    )
    assert "forgotten" not in ask("summarize", "short.txt", "--endless", "h2o").err


def test_a_stream_of_questions(ask: Ask) -> None:
    lines = "".join(f"the {n} th ship came in at night with the tide\n" for n in range(40))
    done = ask("chat", "-", "--endless", "streaming", stdin=lines)
    assert done.code == 0, done.err
    assert done.out
    assert ask("chat", stdin=lines).code == 4  # the context holds no such conversation


@pytest.mark.parametrize(
    ("command", "arguments", "told"),
    [
        (
            "ask",
            ["a", "--endless", "h2o", "--keep", "280"],
            "--keep 280 is too small: 16 sinks, a window of 240",
        ),
        ("ask", ["a", "--endless", "h2o", "--tp", "2"], "--endless h2o runs in one process"),
        ("ask", ["a", "--endless", "rot"], "no endless 'rot'; choose one of off, streaming"),
        ("verify", ["--endless", "h2o"], "--endless is for chat, ask, summarize"),
        ("chat", ["-"], "chat reads your questions from standard input"),
    ],
)
def test_usage(ask: Ask, command: str, arguments: list[str], told: str) -> None:
    done = ask(command, *arguments)
    assert done.code == 2
    assert told in " ".join(done.err.split())


def test_what_moves_is_in_the_memory_of_the_gpu() -> None:
    settings = Settings(endless="h2o", offload=True)
    with pytest.raises(UsageError, match="--endless h2o moves tokens on the GPU: leave out --offload"):
        require_own_memory_if_endless(settings, "cuda:0")
    require_own_memory_if_endless(settings, "cpu")
    require_own_memory_if_endless(Settings(endless="h2o"), "cuda:0")
    require_own_memory_if_endless(Settings(offload=True), "cuda:0")
