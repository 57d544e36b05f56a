"""Counters of the server in Prometheus' text format."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from triforce_chat.engine.events import Prefilled

if TYPE_CHECKING:
    from triforce_chat.serve.worker import Job

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "triforce_chat_"
HELP = {  # counters; a name in the order of their display
    "requests_total": "Requests that were answered, by how the answer ended.",
    "requests_rejected_total": "Requests that were refused because the queue was full.",
    "prompt_tokens_total": "Tokens of prompts, or those read of prompts whose answers were stopped before.",
    "cached_prompt_tokens_total": "Tokens of prompts that were not computed again.",
    "completion_tokens_total": "Tokens of answers.",
    "drafted_tokens_total": "Drafted tokens that the target tested.",
    "accepted_tokens_total": "Drafted tokens that the target accepted.",
    "queued_seconds_total": "Time that requests waited.",
    "prefill_seconds_total": "Time of reading prompts.",
    "decode_seconds_total": "Time of decoding.",
}


class Metrics:
    """Counts answers as they end; any thread may add or read."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()  # by name and labels
        self._lock = threading.Lock()

    def rejected(self) -> None:
        """Count a request that found the queue full."""
        with self._lock:
            self._counts["requests_rejected_total", ""] += 1

    def ended(self, job: Job) -> None:
        """Count an answer that has ended, however it did."""
        tally, done = job.tally, job.tally.finished
        read = tally.prefill or Prefilled(0, 0, 0, 0.0)  # so far, if it was stopped
        how = done.reason if done else "stopped" if job.cancelled else "error"
        target = tally.levels.get(tally.top)
        values: dict[str, float] = {
            "completion_tokens_total": len(tally.token_ids),
            "drafted_tokens_total": target.tested if target else 0,
            "accepted_tokens_total": target.accepted if target else 0,
            "queued_seconds_total": job.queued_s,
            "prompt_tokens_total": done.prompt_tokens if done else read.done,
            "cached_prompt_tokens_total": done.cached_tokens if done else read.cached,
            "prefill_seconds_total": done.prefill_s if done else read.seconds,
            "decode_seconds_total": done.decode_s if done else job.decoding_s,
        }
        with self._lock:
            self._counts["requests_total", f'{{end="{how}"}}'] += 1
            for name, value in values.items():
                self._counts[name, ""] += value  # type: ignore[assignment]

    def text(self, waiting: int, running: int) -> str:
        """All counters, and the state of the queue, as Prometheus reads them."""
        with self._lock:
            counts = dict(self._counts)
        return "\n".join([*_counters(counts), *_gauges(waiting, running)]) + "\n"


def _counters(counts: dict[tuple[str, str], int]) -> Iterator[str]:
    for name, about in HELP.items():
        yield from (f"# HELP {PREFIX}{name} {about}", f"# TYPE {PREFIX}{name} counter")
        found = {labels: value for (counter, labels), value in counts.items() if counter == name}
        for labels, value in sorted(found.items()) or [("", 0)]:
            yield f"{PREFIX}{name}{labels} {value}"


def _gauges(waiting: int, running: int) -> Iterator[str]:
    for name, about, value in (
        ("requests_waiting", "Requests in the queue.", waiting),
        ("requests_running", "Requests that are being answered.", running),
        ("busy", "1 while a request is being answered.", int(running > 0)),
    ):
        yield from (
            f"# HELP {PREFIX}{name} {about}",
            f"# TYPE {PREFIX}{name} gauge",
            f"{PREFIX}{name} {value}",
        )
