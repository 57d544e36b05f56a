"""llama.cpp in a process of its own, by ``python -m``: a ``Job`` as JSON on stdin, a line of JSON for each answer.

Its threads and memory stay apart from ours. This module imports no torch, so that its memory is llama.cpp's.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from triforce_chat.lab.resident import resident_peak_bytes

VERBOSITY = 1  # errors only
# Tokens of the context beyond prompt and answer: drafts are written there until they are rejected.
SPARE = 256
COMPLETION = "/completion"  # takes and returns token ids, unlike the endpoints that imitate OpenAI's
SLOT = "/slots/0"  # the only sequence's keys and values


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts that llama.cpp is to answer in one mode."""

    model: str  # path of a GGUF file
    draft: str | None  # the same of the draft model, if it drafts by one
    speculation: str  # of llama.cpp's speculative types, in lower case
    threads: int
    tokens: int  # of every answer
    repeats: int  # answers to each prompt, each by a fresh server that has seen no answer before
    prompts: list[list[int]]  # token ids
    states: (
        str  # a folder: the first server that reads a prompt leaves its keys and values there for the others
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer and llama.cpp's own figures of it."""

    prompt: int  # its number
    token_ids: list[int]
    read: int  # tokens of the prompt that were processed
    prefill_s: float  # until the first token
    decode_s: float  # of all tokens but the first
    wall_s: float  # of the whole request, by our clock
    drafted: int
    accepted: int
    peak_bytes: int  # most resident memory of the process so far


def main() -> None:
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # llama.cpp prints there as well
    for answer in answers(Job(**json.load(sys.stdin))):
        lines.write(json.dumps(asdict(answer)) + "\n")


def answers(job: Job) -> Iterator[Answer]:
    """Every answer as soon as it is there."""
    for n, prompt in enumerate(job.prompts):
        for _ in range(job.repeats):
            yield _answer(job, n, prompt)


def _answer(job: Job, n: int, prompt: list[int]) -> Answer:
    own = server(job, len(prompt))
    address, state = own.listening_address, f"prompt-{n}"
    # A draft model's keys and values are not in such a file: a server with one reads the prompt itself.
    known = job.draft is None and os.path.exists(os.path.join(job.states, state))
    if known:
        _post(address, f"{SLOT}?action=restore", {"filename": state})
    started = time.perf_counter()
    found = _complete(address, prompt, job.tokens, known)
    wall, timings = time.perf_counter() - started, found["timings"]
    if not known:
        _post(address, f"{SLOT}?action=save", {"filename": state})
    return Answer(
        prompt=n,
        token_ids=found["tokens"],
        read=timings["prompt_n"],
        prefill_s=timings["prompt_ms"] / 1000,
        decode_s=timings["predicted_ms"] / 1000,
        wall_s=wall,
        drafted=timings.get("draft_n", 0),
        accepted=timings.get("draft_n_accepted", 0),
        peak_bytes=resident_peak_bytes(),
    )


def server(job: Job, context: int) -> Any:
    """llama.cpp's server as it comes, for one request at a time on the CPU; its cache is in 16 bits by default."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = job.model
    params.n_ctx = context + job.tokens + SPARE
    params.n_parallel, params.n_gpu_layers = 1, 0
    params.fit_params = params.ui = False
    params.slot_save_path = os.path.join(job.states, "")
    params.verbosity = VERBOSITY
    speculative = params.speculative
    kinds = xllamacpp.common_speculative_type
    speculative.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{job.speculation.upper()}")]
    if job.draft is not None:
        speculative.draft.mparams.path, speculative.draft.n_gpu_layers = job.draft, 0
    for part in (params, speculative.draft):
        part.cpuparams.n_threads = part.cpuparams_batch.n_threads = job.threads
    return xllamacpp.Server(params)


def _complete(address: str, prompt: list[int], tokens: int, known: bool) -> dict[str, Any]:
    """A greedy answer of exactly ``tokens`` tokens; they cannot be end tokens. A prompt that is known is not read."""
    wanted = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": known,
        "return_tokens": True,
    }
    return _post(address, COMPLETION, wanted)


def _post(address: str, path: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """What the server replies to a request in JSON. Raises RuntimeError with its message if it refuses."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    connection.request("POST", path, json.dumps(wanted), {"Content-Type": "application/json"})
    found: dict[str, Any] = json.load(connection.getresponse())
    if "error" in found:
        raise RuntimeError(found["error"]["message"])
    return found


if __name__ == "__main__":
    main()
