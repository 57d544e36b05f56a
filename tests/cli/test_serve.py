"""``triforce-chat serve`` as a process: refused settings, its address, and its end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from support.serving import PATIENCE, save_chat_model
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.errors import UsageError
from triforce_chat.serve import listen_address
from triforce_chat.serve.listen_address import ListenAddress, is_loopback, url
from triforce_chat.serve.server import stopped_by_signals

PAGE_LINE = r"chat with it in a browser: http://127\.0\.0\.1:\d+/\n"
LONG_ENOUGH = 60_000  # tokens: minutes of work even for a tiny model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = save_chat_model(tmp_path_factory.mktemp("model"), 65_536)
    (made / "book.txt").write_text("The keeper lit the lamp. ")
    return made


@contextmanager
def process(folder: Path, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    place = ("--model", str(folder), "--device", "cpu", "--draft", "none", "--no-cache", "--port", "0")
    begun = subprocess.Popen(
        [sys.executable, "-m", "triforce_chat", "serve", str(folder / "book.txt"), *place, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell may ignore it
    )
    with begun:
        try:
            yield begun
        finally:
            begun.kill()


def client_of(running: subprocess.Popen[str], key: str) -> openai.OpenAI:
    assert running.stdout is not None
    printed = running.stdout.readline()
    where = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+/v1)\n", printed)
    assert where, (printed, running.stderr.read() if running.stderr else "")
    http = openai.DefaultHttpxClient(trust_env=False, verify=False)
    return openai.OpenAI(base_url=where[1], api_key=key, max_retries=0, timeout=PATIENCE, http_client=http)


def ask(client: openai.OpenAI, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": "Who?"}]
    return client.chat.completions.create(model="default", messages=messages, **options)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_process_serves_until_a_signal(folder: Path, ending: signal.Signals) -> None:
    with process(folder, TRIFORCE_CHAT_TOKEN="secret") as running, client_of(running, "secret") as client:
        assert [model.model_dump()["documents"] for model in client.models.list()] == [["book"]]
        assert ask(client, max_tokens=4).usage.prompt_tokens_details.cached_tokens > 20
        with pytest.raises(openai.AuthenticationError):
            ask(client.with_options(api_key="guess"))
        stream = ask(client, max_tokens=LONG_ENOUGH, stream=True)
        next(stream)
        running.send_signal(ending)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        rest, stderr = running.communicate(timeout=PATIENCE)
    assert (running.returncode, rest) == (0, "")
    line = r"\d\d:\d\d:\d\d · "  # figures, nothing of the content
    stopped = r"stopped at the limit of 4 tokens.*\n" + line + r"stopped · .* tokens? read: .*\n"
    assert re.fullmatch(PAGE_LINE + line + stopped, stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_and_is_no_failure(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stopped_by_signals():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


# Errors before anything is loaded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 lets other machines in; set --token or TRIFORCE_CHAT_TOKEN"),
        (["--host", "::"], "--host :: lets other machines in"),
        (["--host", ""], "--host '' lets other machines in"),
        (["--host", "example.org"], "lets other machines in"),
        (["--token", ""], "the token must not be empty"),
        (["--token", "two words"], "the token must not be empty or contain spaces"),
        (["--token", "schlüssel"], "the token must be printable ASCII"),
        (["--json"], "--json and --jsonl are for ask and summarize"),
        (["--host", "192.0.2.1", "--token", "x"], "cannot listen on 192.0.2.1:8000: "),
    ],
)
def test_usage(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["serve", *arguments, "--model", "no such model"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}" if message.startswith(("--", "cannot")) else "error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["serve", "--port", str(number), "--model", "no such model"])
    assert (done.exit_code, done.stderr) == (
        2,
        f"error: cannot listen on 127.0.0.1:{number}: Address already in use\n",
    )


def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_address, "find_spec", lambda name: None if name == "uvicorn" else object())
    done = CliRunner().invoke(app, ["serve", "--model", "no such model"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("pip install starlette uvicorn\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_hosts_that_need_no_token(host: str) -> None:
    assert is_loopback(host)
    assert ListenAddress(host, 0).token is None


def test_any_host_with_a_token() -> None:
    with ListenAddress("0.0.0.0", 0, "secret").bind() as bound:
        assert url(bound).startswith("http://0.0.0.0:")
    with pytest.raises(UsageError):
        ListenAddress("0.0.0.0", 0)


def test_the_address_of_version_six() -> None:
    try:
        bound = ListenAddress("::1", 0).bind()
    except UsageError:
        pytest.skip("no IPv6 on this machine")
    with bound:
        assert re.fullmatch(r"http://\[::1\]:\d+/v1", url(bound))


def test_a_process_answers_several_at_once(folder: Path) -> None:
    with process(folder, "--parallel", "2") as running, client_of(running, "any") as client:
        long = ask(client, max_tokens=LONG_ENOUGH, stream=True)
        next(long)
        assert ask(client, max_tokens=4).usage.completion_tokens == 4
        assert next(long).choices
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 0


def test_at_least_one_at_a_time() -> None:
    done = CliRunner().invoke(app, ["serve", "--parallel", "0"])
    assert done.exit_code == 2
