"""The labels of the engine's panel, and what each figure means, for ``/help panel``."""

from __future__ import annotations

DRAFTING, ACCEPTED, SPEED, CACHE = "drafting", "drafts accepted", "speed", "retrieval cache"
ROUNDS, FORGOTTEN = "tokens per round", "forgotten"

PANEL = "panel"  # the topic of /help

EXPLAINED = (
    (
        DRAFTING,
        "Who proposes tokens now, and who checks them on the way up; the target's tokens are the answer.",
    ),
    (
        ACCEPTED,
        "Share of the tested tokens that a level accepted. Tokens after a rejected one are not tested. "
        "The answer is the same whatever the share is; a low one only costs time.",
    ),
    ("tokens/s", "Tokens of this answer per second of decoding; reading is not counted."),
    ("ms/token", "The same in milliseconds per token."),
    (
        "x plain decoding",
        "How many times faster than one token per forward of the target. Measured: such forwards were "
        "timed here. Expected: their time follows from the forwards that verify drafts.",
    ),
    (
        ROUNDS,
        "Tokens of the answer for each verification by the target, over the full cache: the accepted ones and "
        "one more.",
    ),
    (
        CACHE,
        "How often the part of the context that drafts are made from was selected, how long ago, and why.",
    ),
    (
        FORGOTTEN,
        "With --endless: tokens that the model no longer sees, out of all that it has read and written.",
    ),
    (
        "bars",
        "Drafts accepted in each of the last rounds; ^ marks the rounds in which the retrieval cache was built.",
    ),
    ("tokens of the limit", "Tokens of the answer so far, out of its limit (/set max-tokens)."),
    ("context", "Tokens of documents, questions and answers, out of the most that the model can read."),
)
