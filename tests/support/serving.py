"""A server in a thread of the test, its clients, and a small model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import torch

from support.byte_tokenizer import BYTE_VOCABULARY, CHATML
from support.tiny_models import SPECIAL, save_model, save_tokenizer
from triforce_chat.chat.events import ChatEvent
from triforce_chat.serve.app import ServedModel, build_app
from triforce_chat.serve.chat_request import ChatCompletionRequest
from triforce_chat.serve.engines import Lender
from triforce_chat.serve.listen_address import ListenAddress, url
from triforce_chat.serve.server import Server
from triforce_chat.serve.worker import Job, Worker

CONTEXT = 4096
PATIENCE = 60.0  # seconds until a test fails; other work may hold the machine


def save_chat_model(folder: Path, context: int = CONTEXT, padding: int = 0) -> Path:
    """Save a random model with a chat template, whose answers end only by their length.

    ``padding``: rows of its vocabulary beyond those of the tokenizer, which are never the likeliest.
    """
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer, decoders

    torch.manual_seed(5)
    save_model(
        folder,
        vocab_size=len(BYTE_VOCABULARY) + padding,
        max_position_embeddings=context,
        initializer_range=0.3,
    )
    save_tokenizer(folder, BYTE_VOCABULARY)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][: len(SPECIAL)] = 0
    weights["lm_head.weight"][len(BYTE_VOCABULARY) :] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "chat_template.jinja").write_text(CHATML)
    return folder


class Running:
    """A running server with clients, and the jobs that it has logged."""

    def __init__(self, base_url: str, worker: Worker, jobs: list[Job]) -> None:
        self.base_url, self.worker, self.jobs = base_url, worker, jobs
        # No proxy, and no certificates, which take long to load.
        self.http = openai.DefaultHttpxClient(
            base_url=base_url, trust_env=False, verify=False, timeout=PATIENCE
        )
        self.openai = openai.OpenAI(
            base_url=base_url, api_key="any", max_retries=0, timeout=PATIENCE, http_client=self.http
        )

    def client(self, key: str = "any", **options: Any) -> openai.OpenAI:
        """A client without retries."""
        return self.openai.with_options(api_key=key, **options)

    def send_question(self, question: str) -> HTTPConnection:
        """Send a question and return the open connection."""
        where = urlsplit(self.base_url)
        connection = HTTPConnection(where.hostname or "", where.port)
        wanted = {"model": "default", "messages": [{"role": "user", "content": question}], "max_tokens": 2000}
        head = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(wanted), head)
        return connection

    def serves(self, question: str) -> bool:
        """True while the engine answers this question."""
        return any(job.request.question == question for job in [*self.worker.running.values()])


@contextmanager
def serving(
    answer: Callable[[ChatCompletionRequest], Generator[ChatEvent, None, None]],
    served: ServedModel,
    token: str | None = None,
    origins: Sequence[str] = (),
    engines: Lender | None = None,
) -> Iterator[Running]:
    """A server that answers with ``answer``, as many requests at once as ``engines`` lends engines."""
    jobs: list[Job] = []
    several = (engines.width, engines.gathered) if engines else ()
    worker = Worker(answer, jobs.append, *several)
    listener = ListenAddress("127.0.0.1", 0).bind()
    listener.listen()
    server = Server(build_app(worker, served, token, origins), worker)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    running = Running(url(listener), worker, jobs)
    thread.start()
    try:
        yield running
    finally:
        running.openai.close()
        server.should_exit = True
        worker.stop()
        thread.join(PATIENCE)
        listener.close()
        worker.thread.join(PATIENCE)
        assert not thread.is_alive()
        assert not worker.thread.is_alive()


def until(holds: Callable[[], object]) -> None:
    """Wait until a condition holds; fails after ``PATIENCE``."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)
