"""A vocabulary with one token per byte, and a ChatML template for it."""

from __future__ import annotations

from tokenizers.pre_tokenizers import ByteLevel

from support.tiny_models import SPECIAL

BYTE_VOCABULARY = [*SPECIAL, *sorted(ByteLevel.alphabet())]  # one token per byte
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
START, END = SPECIAL.index("<|im_start|>"), SPECIAL.index("<|im_end|>")
