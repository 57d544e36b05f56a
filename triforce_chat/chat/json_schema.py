"""Answers in JSON of a given schema, by the grammars of llguidance."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from triforce_chat.errors import UsageError

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Free whitespace between the parts of an object would let an answer go on for ever.
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammars:
    """Makes constraints for a model's tokens; the tables of a vocabulary take a second and are made once."""

    def __init__(self, tokenizer: Any, width: int, eos_ids: Collection[int]) -> None:
        """``width``: of the model's logits. Raises UsageError if llguidance is missing or cannot read the tokenizer."""
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise UsageError(
                "answers of a JSON schema need llguidance; install it: pip install llguidance"
            ) from None
        self._ends = sorted(number for number in eos_ids if number >= 0)
        if not self._ends:
            raise UsageError("the model has no token that ends an answer, so none can be of a JSON schema")
        try:
            backend = tokenizer.backend_tokenizer.to_str()
            self._tokens = LLTokenizer(backend, n_vocab=width, eos_token=self._ends)
        except ValueError as error:
            raise UsageError(f"the model's tokenizer does not work with JSON schemas: {error}") from None

    def of_schema(self, schema: dict[str, Any]) -> JsonConstraint:
        """The constraint of one answer. Raises UsageError for a schema that is malformed or not supported."""
        from llguidance import LLMatcher

        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=LAYOUT)  # type: ignore[arg-type]
        matcher = LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            raise UsageError(f"the JSON schema cannot be followed: {_reason(matcher.get_error())}")
        return JsonConstraint(matcher, self._ends)


def _reason(error: str) -> str:
    """What llguidance says of a schema, on one line: without the carets that point at a place in it."""
    lines = [line.strip() for line in error.splitlines()]
    return " ".join(line for line in lines if line.strip("^ ")) or "not supported"


class JsonConstraint:
    """Implements ``engine.sampling.constraint.Constraint`` over a grammar."""

    def __init__(self, matcher: LLMatcher, ends: Collection[int]) -> None:
        """``ends``: tokens that end an answer."""
        self._matcher, self._ends = matcher, ends

    def allowed(self, drafted: Sequence[int], vocabulary: int) -> Tensor:
        masks = np.ones((len(drafted) + 1, vocabulary), dtype=bool)
        consumed = 0
        for row in range(len(drafted) + 1):
            masks[row] = self._mask(vocabulary)
            # Nothing follows an end token, so the rows after it are not used; it could not be rolled back.
            if row == len(drafted) or drafted[row] in self._ends or not masks[row, drafted[row]]:
                break
            self._matcher.consume_token(drafted[row])
            consumed += 1
        self._matcher.rollback(consumed)
        return torch.from_numpy(masks)

    def _mask(self, vocabulary: int) -> Any:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        found = np.unpackbits(bits, count=min(vocabulary, 8 * len(bits)), bitorder="little")
        return np.pad(found.astype(bool), (0, vocabulary - len(found)))

    def forced(self, most: int) -> Sequence[int]:
        return [] if self._matcher.is_stopped() else self._matcher.compute_ff_tokens()[:most]

    def advance(self, ids: Sequence[int]) -> None:
        for token in ids:
            if self._matcher.is_stopped():  # the answer ended at the token before
                return
            self._matcher.consume_token(token)
