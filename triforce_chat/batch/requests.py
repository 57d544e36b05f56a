"""Requests in the format of OpenAI's Batch API: a line with a body as the server takes it, a line with its response."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triforce_chat.batch.lines import Answered, Each, Line, error_object
from triforce_chat.chat.events import Tally
from triforce_chat.errors import RankLost, UsageError
from triforce_chat.serve.api_error import ApiError, invalid_field, request_too_large, to_api_error
from triforce_chat.serve.chat_request import (
    MAX_BODY_BYTES,
    ChatCompletionRequest,
    names_of,
    parse_fields,
    typed,
)
from triforce_chat.serve.completion import CompletionEncoder

if TYPE_CHECKING:  # requests are found before torch is loaded
    from triforce_chat.serve.adapter import SessionAdapter

KEY, HEAD = "id", b'{"id":"batch_req_'
ID_LENGTH = 24  # hexadecimal digits
FIELDS: Mapping[str, str] = {"method": "POST", "url": "/v1/chat/completions"}  # and their only values
MAX_CUSTOM_ID = 512  # characters


@dataclass(frozen=True, slots=True)
class RequestLine:
    """Where a request stands in its file; with an ``error`` it is none."""

    number: int  # of the line, from 1
    start: int  # bytes before it
    size: int  # bytes
    custom_id: str | None
    error: ApiError | None
    id: str

    @property
    def name(self) -> str:
        return f"line {self.number}" if self.custom_id is None else self.custom_id


@dataclass(slots=True)
class OfflineAnswer:
    """A request that waited for nobody, and the answer to it so far."""

    request: ChatCompletionRequest
    tally: Tally = field(default_factory=Tally)
    queued_s: float = 0.0


def request_lines(path: Path) -> list[RequestLine]:
    """Find the requests of a file; blank lines are none. Only their places are kept. Raises UsageError."""
    found: list[RequestLine] = []
    known: set[str] = set()
    start = 0
    try:
        with open(path, "rb") as file:
            for number, data in enumerate(file, 1):
                if data.strip():
                    found.append(_line(number, start, data, known))
                start += len(data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if not found:
        raise UsageError(f"{path}: no line that is not blank")
    return found


def _line(number: int, start: int, data: bytes, known: set[str]) -> RequestLine:
    """One line; ``known`` holds the ids of the lines before it, and then its own."""
    custom_id, error = None, None
    try:
        custom_id = _custom_id(_object(data))
        if custom_id in known:
            raise invalid_field("custom_id", "an earlier line has the same", "duplicate_custom_id")
        known.add(custom_id)
    except ApiError as refused:
        error = refused
    # A line that is no request is known by its place and its content, so that a corrected one is answered.
    named = (
        custom_id.encode("utf-8", "surrogatepass") if error is None and custom_id else b"%d\n" % number + data
    )
    digest = hashlib.sha256(named).hexdigest()[:ID_LENGTH]
    return RequestLine(number, start, len(data), custom_id, error, f"batch_req_{digest}")


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BODY_BYTES:
        raise request_too_large(MAX_BODY_BYTES)
    try:
        read = json.loads(data)
    except (ValueError, RecursionError):
        raise ApiError(400, "the line is not JSON", "invalid_json") from None
    if not isinstance(read, dict):
        raise ApiError(400, "the line must be a JSON object", "invalid_json")
    return read


def _custom_id(fields: Mapping[str, Any]) -> str:
    given: str | None = typed(fields, "custom_id", str)
    if not given or len(given) > MAX_CUSTOM_ID:
        raise invalid_field("custom_id", f"must be a string of 1 to {MAX_CUSTOM_ID} characters")
    return given


class RequestAnswerer:
    """Answers the requests of a file, whose lines are read again one by one."""

    def __init__(self, path: Path, adapter: SessionAdapter, model: str) -> None:
        self._path, self._adapter, self._model = path, adapter, model

    def answer(self, line: Line, each: Each) -> Answered:
        assert isinstance(line, RequestLine)
        head = {"id": line.id, "custom_id": line.custom_id}
        if line.error is not None:
            return Answered({**head, "response": None, "error": error_object(line.error)})
        try:
            answer = OfflineAnswer(self._request(line))
            with closing(self._adapter.answer(answer.request)) as events:
                for event in events:
                    answer.tally.add(event)
                    each(event)
        except RankLost:
            raise
        except Exception as error:
            refused = to_api_error(error)
            response = _response(refused.status, refused.body)
            return Answered({**head, "response": response, "error": error_object(refused)})
        body = CompletionEncoder(answer, self._model).completion()
        record = {**head, "response": _response(200, body), "error": None}
        return Answered(record, len(answer.tally.token_ids))

    def _request(self, line: RequestLine) -> ChatCompletionRequest:
        """Parse the body. Raises ApiError."""
        with open(self._path, "rb") as file:
            file.seek(line.start)
            fields = _object(file.read(line.size))
        for name, value in FIELDS.items():
            if fields.get(name) != value:
                raise invalid_field(name, f"must be '{value}'")
        for name in sorted(fields.keys() - {"custom_id", "body", *FIELDS}):
            raise invalid_field(name[:80], "unknown field", "unknown_parameter")
        body = fields.get("body")
        request = parse_fields(body, names_of(self._model))
        if not (isinstance(body, dict) and body.get("sources")):
            request = replace(request, sources=False)  # they take time, which a batch has other uses for
        if request.stream:
            raise invalid_field("stream", "a batch does not stream; leave it out", "unsupported_parameter")
        return request


def _response(status: int, body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": f"req_{uuid.uuid4().hex}", "body": body}
