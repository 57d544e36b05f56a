"""A file of requests whose bodies the ``openai`` package wrote, and its output read by that package's types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletion
from support.commands import run
from support.places import SUPPORT
from support.serving import save_chat_model

# By BatchJobManager of openbatch and by BatchRequestBuilder of batch-openai, two packages that prepare batches.
WRITTEN = sorted((SUPPORT / "batch_files").glob("*.jsonl"))
URL = "/v1/chat/completions"


def body(**wanted: Any) -> Any:
    """What the package would send for a call."""
    bodies: list[Any] = []

    def keep(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == URL
        bodies.append(json.loads(request.content))
        return httpx2.Response(404)  # it is not sent

    client = openai.OpenAI(
        base_url="http://nowhere/v1",
        api_key="any",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(keep)),
    )
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**wanted)
    return bodies[0]


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    model = save_chat_model(tmp_path_factory.mktemp("model"))
    return ("--model", model, "--device", "cpu", "--draft", "none", "--no-cache", "--stack", "lookup")


def records(path: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {record["custom_id"]: record for record in found}


def test_requests_of_the_package_are_answered_in_its_types(tmp_path: Path, flags: tuple[Any, ...]) -> None:
    talk: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Who?"}]},
        {"role": "assistant", "content": "The keeper."},
        {"role": "user", "content": "Why?"},
    ]
    calls: dict[str, dict[str, Any]] = {
        "plain": {"messages": talk[1:2], "max_completion_tokens": 5},
        "talk": {
            "messages": talk,
            "max_tokens": 4,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 7,
            "stop": ["~"],
        },
        "refused": {"messages": talk[1:2], "n": 3},
    }
    lines = [
        {"custom_id": name, "method": "POST", "url": URL, "body": body(model="default", **call)}
        for name, call in calls.items()
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ("--requests", tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl")
    assert run("batch", *files, *flags).code == 9
    found = records(tmp_path / "out.jsonl")
    for name, tokens in (("plain", 5), ("talk", 4)):
        answer = ChatCompletion.model_validate(found[name]["response"]["body"], strict=True)
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == tokens
        assert found[name]["error"] is None
    refused = found["refused"]["response"]
    assert refused["status_code"] == 400
    assert refused["body"]["error"]["param"] == "n"


@pytest.mark.parametrize("written", WRITTEN, ids=lambda path: path.stem)
def test_files_that_other_software_wrote(written: Path, tmp_path: Path, flags: tuple[Any, ...]) -> None:
    out = tmp_path / "out.jsonl"
    assert run("batch", "--requests", written, "--out", out, *flags).code == 0
    asked = [json.loads(line) for line in written.read_text().splitlines()]
    found = records(out)
    assert list(found) == [line["custom_id"] for line in asked]
    for line in asked:
        record = found[line["custom_id"]]
        assert (record["error"], record["response"]["status_code"]) == (None, 200)
        answer = ChatCompletion.model_validate(record["response"]["body"], strict=True)
        assert answer.choices[0].message.content
        wanted = line["body"].get("max_tokens") or line["body"]["max_completion_tokens"]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == wanted
