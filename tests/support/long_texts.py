"""Books of random words, a tokenizer trained on them, and the prompts of a session."""

from __future__ import annotations

import random
import re
from typing import Any

from support.byte_tokenizer import CHATML
from support.tiny_models import SPECIAL
from triforce_chat.chat.events import Tally
from triforce_chat.chat.template import ChatFormat
from triforce_chat.chat.transcript import Transcript
from triforce_chat.documents import Document, Page
from triforce_chat.engine.events import Text
from triforce_chat.lab.tasks.books import Book
from triforce_chat.lab.tasks.conversations import ExampleBuilder

WORDS = "The harbour of a small town opens to north which is wrong way for any boat, and every winter swell comes in"
LONGEST = 60  # words of a paragraph


def prose(seed: int, count: int) -> str:
    """Paragraphs of words in random order, some of them headings, some with lines and with spaces at the end."""
    rng = random.Random(seed)
    return "\n\n".join(paragraph(rng, i) for i in range(count))


def paragraph(rng: random.Random, number: int) -> str:
    if number % 9 == 0:
        return f"CHAPTER {number}"
    words = rng.choices(WORDS.split(), k=rng.randint(8, LONGEST))
    return " ".join(words[:7]) + "\n" + " ".join(words[7:]) + "." + " " * (number % 5 == 0)


def trained_tokenizer() -> Any:
    """Merges of several letters, as real vocabularies have: a gap's tokens depend on what surrounds it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    texts = [prose(seed, 40) + "\n\n\n\n " for seed in range(3)]
    backend.train_from_iterator(texts + [text.replace("\n", "\n\n") for text in texts], trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    made.chat_template = CHATML
    return made


def three_books() -> ExampleBuilder:
    tokenizer = trained_tokenizer()
    form = ChatFormat(tokenizer)
    return ExampleBuilder(tokenizer, [Book.of(f"Book {i}", prose(i, 60), form.encode) for i in range(3)])


def spelled(form: ChatFormat, ids: list[int]) -> str:
    text: str = form.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    return text


def messages(text: str) -> list[tuple[str, str]]:
    found = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", text, re.DOTALL)
    assert "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in found) == text
    return found


def sent(form: ChatFormat, spoken: list[tuple[str, str]]) -> list[int]:
    """The prompt for the last question of a conversation whose first question follows a document."""
    system = spoken.pop(0)[1] if spoken[0][0] == "system" else ""
    transcript = Transcript(form, {form.tokenizer.eos_token_id}, form.tokenizer.decode, system)
    heading, rest = spoken[0][1].split("\n\n", 1)
    text, first = rest.rsplit("\n\n", 1)
    transcript.add(Document(heading.removeprefix("# "), "", (Page(1, text),)))
    questions = [first, *(said for _, said in spoken[2::2])]
    for question, (_, said) in zip(questions, spoken[1::2], strict=False):
        tally = Tally()
        tally.add(Text(tuple(form.encode(said)), said))
        transcript.append(question, transcript.format.encode(question), tally)
    with transcript.last_reopened("") as last:
        return transcript.prompt(last.question).ids
