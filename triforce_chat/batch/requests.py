"""Requests in the format of OpenAI's Batch API: a line with a body as the server takes it, a line with its response."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triforce_chat.batch import heap
from triforce_chat.batch.fingerprint import DIGITS, Fingerprint, Maker
from triforce_chat.batch.lines import Answered, Answering, Line, error_object
from triforce_chat.chat.events import ChatEvent, Tally
from triforce_chat.errors import DocumentError, RankLost, TimeLimit, UsageError
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
DOCUMENTS = "documents"  # a field of the body that the server does not have


@dataclass(frozen=True, slots=True)
class RequestLine:
    """Where a request stands in its file; with an ``error`` it is none."""

    number: int  # of the line, from 1
    start: int  # bytes before it
    size: int  # bytes
    custom_id: str | None
    error: ApiError | None
    id: str
    documents: tuple[str, ...] = ()  # paths
    digest: str = ""  # of the body

    @property
    def name(self) -> str:
        return f"line {self.number}" if self.custom_id is None else self.custom_id

    @property
    def group(self) -> str:
        return "\0".join(self.documents) or self.id

    def answered(self, response: dict[str, Any], fingerprint: Fingerprint) -> dict[str, Any]:
        """The record of this line with a response without an error."""
        made_of = {**fingerprint, "request": self.digest}
        head = {"id": self.id, "custom_id": self.custom_id, "response": response}
        return {**head, "fingerprint": made_of, "error": None}

    def refused(self, error: dict[str, str], response: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"id": self.id, "custom_id": self.custom_id, "response": response, "error": error}


@dataclass(slots=True)
class OfflineAnswer:
    """A request that is being answered, and its answer so far."""

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
    documents: tuple[str, ...] = ()
    digest = ""
    try:
        fields = _object(data)
        custom_id = _custom_id(fields)
        if custom_id in known:
            raise invalid_field("custom_id", "an earlier line has the same", "duplicate_custom_id")
        known.add(custom_id)
        documents, digest = _documents(fields.get("body")), _digest(fields)
    except ApiError as refused:
        error = refused
    # A line that is no request is known by its place and its content, so that a corrected one is answered.
    named = (
        custom_id.encode("utf-8", "surrogatepass") if error is None and custom_id else b"%d\n" % number + data
    )
    identifier = f"batch_req_{hashlib.sha256(named).hexdigest()[:ID_LENGTH]}"
    return RequestLine(number, start, len(data), custom_id, error, identifier, documents, digest)


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


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _documents(body: object) -> tuple[str, ...]:
    """The paths that a body names. Raises ApiError."""
    given = body.get(DOCUMENTS) if isinstance(body, dict) else None
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(path, str) and path for path in given):
        raise invalid_field(DOCUMENTS, "must be a list of paths")
    if "-" in given:
        raise invalid_field(DOCUMENTS, "a batch reads files, not standard input")
    return tuple(given)


class RequestAnswerer:
    """Answers the requests of a file, whose lines are read again one by one.

    ``begin`` makes an adapter for the documents of a request, and ``maker`` says what the answers were made of.
    """

    width = 1  # requests have sampling settings and stacks of their own

    def __init__(
        self, path: Path, begin: Callable[[Sequence[str]], SessionAdapter], model: str, maker: Maker
    ) -> None:
        self._path, self._begin, self._model, self._maker = path, begin, model, maker
        self._opened: tuple[tuple[str, ...], SessionAdapter, Fingerprint] | None = None  # the last documents

    def answer(self, lines: Sequence[Line]) -> Answering:
        for line in lines:
            assert isinstance(line, RequestLine)
            yield (yield from self._answer(line))

    def _answer(self, line: RequestLine) -> Generator[ChatEvent, None, Answered]:
        if line.error is not None:
            return Answered(line.id, line.refused(error_object(line.error)))
        try:
            answer = OfflineAnswer(self._request(line))
            adapter, fingerprint = self._adapter(line.documents)
            with closing(adapter.answer(answer.request)) as events:
                for event in events:
                    answer.tally.add(event)
                    yield event
        except (RankLost, TimeLimit) as error:
            return Answered(line.id, line.refused(error_object(error)))
        except Exception as error:
            refused = as_api_error(error)
            response = _response(refused.status, refused.body)
            return Answered(line.id, line.refused(error_object(refused), response))
        body = CompletionEncoder(answer, self._model).completion()
        record = line.answered(_response(200, body), fingerprint)
        return Answered(line.id, record, len(answer.tally.token_ids))

    def _adapter(self, documents: tuple[str, ...]) -> tuple[SessionAdapter, Fingerprint]:
        """The adapter for requests about these documents. Raises DocumentError, DoesNotFit and OSError."""
        if self._opened is None or self._opened[0] != documents:
            self._opened = None  # documents that cannot be read leave none open
            heap.trim()
            adapter = self._begin(documents)
            self._opened = documents, adapter, self._maker.fingerprint(documents)
        return self._opened[1:]

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
        own = body
        if isinstance(body, dict):
            own = {name: value for name, value in body.items() if name != DOCUMENTS}
        request = parse_fields(own, names_of(self._model))
        if not (isinstance(body, dict) and body.get("sources")):
            request = replace(request, sources=False)  # they take time, which a batch has other uses for
        if request.stream:
            raise invalid_field("stream", "a batch does not stream; leave it out", "unsupported_parameter")
        return request


def as_api_error(error: Exception) -> ApiError:
    """Like the server's, which reads no documents for its clients."""
    if isinstance(error, DocumentError):
        return ApiError(400, str(error), error.code, DOCUMENTS)
    return to_api_error(error)


def _response(status: int, body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": f"req_{uuid.uuid4().hex}", "body": body}
