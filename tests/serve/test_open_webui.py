"""The requests of Open WebUI, which lists the models, streams answers and then asks for titles, tags and follow-ups."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.chat_sessions import book
from support.serving import CONTEXT, Running, save_chat_model, serving

from triforce_chat.chat.session import ChatSession
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.serve.adapter import SessionAdapter
from triforce_chat.serve.app import ServedModel
from triforce_chat.settings.settings import Settings

Messages = list[dict[str, Any]]
TOKENS = 12  # of an answer without a limit
HEADERS = {  # as its backend sends them, with the names of users forwarded
    "Authorization": "Bearer sk-none",
    "Content-Type": "application/json",
    "User-Agent": "Python/3.11 aiohttp/3.12",
    "Accept": "*/*",
    "X-OpenWebUI-User-Name": "Anna",
    "X-OpenWebUI-User-Id": "8a1f",
    "X-OpenWebUI-User-Email": "anna@example.org",
    "X-OpenWebUI-User-Role": "user",
    "X-OpenWebUI-Chat-Id": "5d27",
}
KNOWN = {  # what the page tells its backend, and a page that calls a server directly tells the server
    "session_id": "VqKp",
    "chat_id": "5d27",
    "id": "f00d",
    "parent_id": None,
    "parent_message": {"id": "beef", "role": "user", "content": "Who paid?", "childrenIds": ["f00d"]},
    "model_item": {"id": "tiny", "object": "model", "owned_by": "openai", "name": "tiny", "urlIdx": 0},
    "features": {"image_generation": False, "code_interpreter": False, "web_search": False, "memory": False},
    "variables": {"{{USER_NAME}}": "Anna", "{{CURRENT_DATE}}": "2026-11-25"},
    "files": [{"type": "file", "id": "c0de", "name": "notes.txt"}],
    "filter_ids": [],
    "tool_ids": ["weather"],
    "tool_servers": [],
    "background_tasks": {"title_generation": True, "tags_generation": True, "follow_up_generation": True},
    "metadata": {"user_id": "8a1f", "chat_id": "5d27", "message_id": "f00d", "session_id": "VqKp"},
}
TASKS = {
    "title": '### Task:\nGenerate a 3-5 word title.\n### Output:\nJSON format: { "title": "..." }',
    "tags": '### Task:\nGenerate 1-3 broad tags.\n### Output:\nJSON format: { "tags": ["tag1", "tag2"] }',
    "follow-ups": '### Task:\nSuggest 3-5 follow-up questions.\n### Output:\nJSON format: { "follow_ups": ["..."] }',
    "queries": '### Task:\nGenerate 1-3 search queries.\n### Output:\nJSON format: { "queries": ["..."] }',
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = save_chat_model(tmp_path_factory.mktemp("model"))
    settings = Settings(model=str(folder), device="cpu", draft="none", max_tokens=TOKENS)
    session = ChatSession(*load_engine(EngineSpec(settings)), settings, "")
    session.add(book("The book", "The keeper paid for the lamp. " * 20))
    with serving(SessionAdapter(session).answer, ServedModel("tiny", CONTEXT, ("The book",))) as running:
        yield running


def model_of(server: Running) -> str:
    """The model's name, as the page takes it from the list."""
    listed = server.http.get("models", headers=HEADERS).json()
    (model,) = listed["data"]
    assert (listed["object"], model["object"]) == ("list", "model")
    return str(model["id"])


def test_a_model_is_looked_up_by_its_name(server: Running) -> None:
    assert server.http.get("models/tiny").json()["id"] == "tiny"
    missing = server.http.get("models/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def task(server: Running, prompt: str, **more: Any) -> Any:
    """One of the small answers that it asks for beside the chat, without a stream."""
    body = {"model": model_of(server), "messages": [{"role": "user", "content": prompt}], "stream": False}
    told = {"task": "title_generation", "task_body": {"chat_id": "5d27"}, "chat_id": "5d27"}
    reply = server.http.post("chat/completions", headers=HEADERS, json={**body, "metadata": told, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(server: Running, messages: Messages, **more: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed answer, which end with ``[DONE]``."""
    body = {"model": model_of(server), "messages": messages, "stream": True, **more}
    chunks = []
    with server.http.stream("POST", "chat/completions", headers=HEADERS, json=body) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "data: [DONE]"
    chunks += [json.loads(line.removeprefix("data: ")) for line in lines]
    return chunks


def text_of(chunks: list[dict[str, Any]]) -> str:
    parts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    return "".join(parts)


def usage_of(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return dict(usage)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_chat_goes_on_and_its_chunks_are_in_order(server: Running) -> None:
    options = {"stream_options": {"include_usage": True}, "temperature": 0, "params": {}, **KNOWN}
    first = streamed(server, [user("Who paid?")], **options)
    assert first[0]["choices"][0]["delta"]["role"] == "assistant"
    ends = [choice["finish_reason"] for chunk in first for choice in chunk["choices"]]
    assert [*filter(None, ends)] == ["length"]
    assert ends.index("length") == len(ends) - 1
    assert first[-1]["choices"] == []
    assert usage_of(first)["completion_tokens"] == TOKENS

    answer = {"role": "assistant", "content": text_of(first)}
    second = streamed(server, [user("Who paid?"), answer, user("And why?")], **options)
    read = usage_of(second)
    assert read["prompt_tokens"] > usage_of(first)["prompt_tokens"]
    assert read["prompt_tokens_details"]["cached_tokens"] >= usage_of(first)["prompt_tokens"]


def test_a_system_prompt_parts_of_text_stop_strings_and_parameters(server: Running) -> None:
    parts = [{"type": "text", "text": "Who "}, {"type": "text", "text": "paid?"}]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief, Anna."},
        {"role": "user", "content": parts},
    ]
    numbers = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 1, "max_tokens": 5}
    neutral = {"frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}}
    chunks = streamed(server, messages, stop=["\nUser:", "</s>"], **numbers, **neutral)
    assert text_of(chunks)
    same = streamed(server, [messages[0], user("Who paid?")], stop=["\nUser:", "</s>"], **numbers)
    assert text_of(chunks) == text_of(same)


def test_a_question_after_one_whose_answer_failed(server: Running) -> None:
    """It leaves out answers without a text, and then two of the user's messages follow each other."""
    chunks = streamed(server, [user("Who paid?"), user("Are you there?")], temperature=0)
    assert text_of(chunks) == text_of(streamed(server, [user("Who paid?\n\nAre you there?")], temperature=0))


@pytest.mark.parametrize("name", TASKS)
def test_titles_and_the_like(server: Running, name: str) -> None:
    history = "\n### Chat History:\n<chat_history>\nUSER: Who paid?\nASSISTANT: The keeper.\n</chat_history>"
    made = task(server, TASKS[name] + history, **({"max_completion_tokens": 30} if name == "title" else {}))
    (choice,) = made["choices"]
    assert (choice["message"]["role"], isinstance(choice["message"]["content"], str)) == ("assistant", True)
    assert made["usage"]["completion_tokens"] == (30 if name == "title" else TOKENS)


def test_all_that_it_asks_for_at_once_is_answered(server: Running) -> None:
    with ThreadPoolExecutor(len(TASKS) + 1) as pool:
        chat = pool.submit(streamed, server, [user("What did the keeper pay?")], temperature=0, **KNOWN)
        made = [*pool.map(lambda prompt: task(server, prompt), TASKS.values())]
    assert text_of(chat.result())
    assert all(each["choices"][0]["message"]["content"] for each in made)
