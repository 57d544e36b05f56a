"""Short everyday questions and requests without a document: a trained model must still answer them as before.

An instruction-tuned model that makes up its own user questions (``selfchat``) hardly ever asks one this short.
None of the questions that ``evaluation`` asks is among them, but some have the same form with another word.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from triforce_chat.lab.tasks.text_data import read_rows, read_word_lists

WORDS = read_word_lists("everyday/words")
SUMS_SHARE, TRANSLATIONS_SHARE = 0.12, 0.08
SUMS = ("What is {} + {}?", "What is {} plus {}?", "What is {} times {}?", "How much is {} and {}?")


def _forms() -> Iterator[tuple[str, tuple[str, ...]]]:
    for form, lists in read_rows("everyday/forms"):
        yield form, tuple(word for name in lists.split(", ") for word in WORDS[name])


FORMS = tuple(_forms())


def everyday(rng: random.Random) -> str:
    """A random short question or request."""
    draw = rng.random()
    if draw < SUMS_SHARE:
        return rng.choice(SUMS).format(rng.randint(1, 9), rng.randint(11, 30))
    if draw < SUMS_SHARE + TRANSLATIONS_SHARE:
        return f"How do you say {rng.choice(WORDS['nouns'])} in {rng.choice(WORDS['languages'])}?"
    form, words = rng.choice(FORMS)
    return form.format(rng.choice(words))
