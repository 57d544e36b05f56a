"""Ten clients with three questions each, while another one sends 20,001 messages: everybody is answered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import Any

import pytest
from support.serving import save_chat_model, serving

from triforce_chat.chat.session import ChatSession
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.serve.adapter import SessionAdapter
from triforce_chat.serve.app import ServedModel
from triforce_chat.settings.settings import Settings

MESSAGES, CLIENTS, QUESTIONS = 20_001, 10, 3
CONTEXT = 32_768  # tokens, more than the messages have
TERSE = (
    "{% for message in messages %}{{ message.content }}{% endfor %}<|im_start|>"  # a token for each message
)
SECONDS = 120.0  # until the test fails


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> SessionAdapter:
    folder = save_chat_model(tmp_path_factory.mktemp("model"), CONTEXT)
    (folder / "chat_template.jinja").write_text(TERSE)
    settings = Settings(model=str(folder), device="cpu", draft="none", max_tokens=4)
    return SessionAdapter(ChatSession(*load_engine(EngineSpec(settings)), settings, ""))


def test_everybody_is_answered(adapter: SessionAdapter) -> None:
    roles = islice(cycle(("user", "assistant")), MESSAGES)
    long: list[Any] = [{"role": role, "content": "x"} for role in roles]

    def tokens_read(key: str, messages: list[Any]) -> int:
        client = server.client(key, timeout=SECONDS)
        made = client.chat.completions.create(model="default", messages=messages)
        assert made.usage
        assert made.usage.completion_tokens == 4
        return made.usage.prompt_tokens

    def ask(client: int) -> list[int]:
        questions = [[{"role": "user", "content": f"Question {n}?"}] for n in range(QUESTIONS)]
        return [tokens_read(f"client {client}", question) for question in questions]

    with (
        serving(adapter.answer, ServedModel("tiny", CONTEXT)) as server,
        ThreadPoolExecutor(CLIENTS + 1) as pool,
    ):
        big = pool.submit(tokens_read, "big", long)
        few = [*pool.map(ask, range(CLIENTS))]
        assert big.result(SECONDS) == MESSAGES + 1
    assert few == [[len("Question 0?") + 1] * QUESTIONS] * CLIENTS
    assert len(server.jobs) == CLIENTS * QUESTIONS + 1
