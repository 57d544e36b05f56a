"""From roles and contents to token ids, by the model's own chat template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any

from triforce_chat.errors import ModelError
from triforce_chat.models.ends import END_MARKERS

_MARK = "\ue000{}\ue001"  # private-use characters stand for contents while the template is rendered
_MARKS = re.compile("\ue000([0-9]+)\ue001")
_PLAIN = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{{ message.role }}:{{ '' if message.role == 'assistant' else ' ' }}{{ message.content }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
PLAIN_STOP = "\nuser:"


@dataclass(frozen=True, slots=True)
class Message:
    """One message; its content is tokenized already."""

    role: str  # "system", "user" or "assistant"
    content: Sequence[int]


@dataclass(slots=True)
class ChatFormat:
    """Joins tokenized contents with the tokens that a chat template puts between them.

    The template is rendered around marks, and only its own text may become special tokens: a document that
    holds ``<|im_end|>`` stays a document. What was tokenized once is never tokenized again, so the ids of a
    longer conversation begin with the ids of a shorter one and the cache stays valid.
    """

    tokenizer: Any
    _known: dict[str, list[int]] = field(default_factory=dict)
    _structural: dict[str, int] | None = None

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end an answer because the format has no token for it."""
        return () if self.tokenizer.chat_template else (PLAIN_STOP,)

    def text(self, text: str) -> list[int]:
        """Tokenize foreign text; nothing in it is special. Bytes that were no text become question marks."""
        text = text.encode("utf-8", "replace").decode()
        ids: list[int] = self._encode(text, split_special_tokens=True)
        return self._taken_apart(text) if self.structural & set(ids) else ids

    def said(self, ids: Sequence[int]) -> list[int]:
        """What a model said, for the next prompt: its special tokens are left out, so that it opens no turn."""
        return [token for token in ids if token not in self.structural]

    @property
    def structural(self) -> frozenset[int]:
        """Ids that only the template may put into a prompt."""
        return frozenset(self._structure().values())

    def ends(self, text: str) -> list[int]:
        """Where each token of ``self.text(text)`` ends in it, in characters."""
        text = text.encode("utf-8", "replace").decode()
        ids = self._encode(text, split_special_tokens=True)
        pieces = self._cut(text) if self.structural & set(ids) else [text]
        starts = accumulate(map(len, pieces), initial=0)
        return [end for start, piece in zip(starts, pieces, strict=False) for end in self._ends(start, piece)]

    def _ends(self, start: int, piece: str) -> Iterator[int]:
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        found = self.tokenizer(piece, return_offsets_mapping=True, **options)
        for token, (_, end) in zip(found["input_ids"], found["offset_mapping"], strict=True):
            if token not in self.structural:
                yield start + end

    def render(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a whole conversation, ready for the next answer."""
        ids: list[int] = []
        for i, piece in enumerate(_MARKS.split(self._template(messages))):
            ids += messages[int(piece)].content if i % 2 else self._own(piece)
        return ids

    def _template(self, messages: Sequence[Message]) -> str:
        """The rendered template; one that knows no system role gets its text in front of the first question."""
        marked = [{"role": m.role, "content": _MARK.format(i)} for i, m in enumerate(messages)]
        rendered = self._rendered(marked)
        if rendered is None and len(marked) > 1 and marked[0]["role"] == "system":
            system, first, *rest = marked
            both = f"{system['content']}\n\n{first['content']}"
            rendered = self._rendered([{"role": "user", "content": both}, *rest])
        if rendered is None:
            raise ModelError("the model's chat template cannot render this conversation")
        return rendered

    def _rendered(self, marked: list[dict[str, str]]) -> str | None:
        """None where the template complains or leaves a message out."""
        from jinja2 import TemplateError

        try:
            rendered: str = self.tokenizer.apply_chat_template(
                marked,
                chat_template=self.tokenizer.chat_template or _PLAIN,
                tokenize=False,
                add_generation_prompt=True,
            )
        except TemplateError:
            return None
        whole = all(message["content"] in rendered for message in marked)
        return rendered if whole else None

    def _structure(self) -> dict[str, int]:
        """Special tokens, and marks of turns and of their ends, which some tokenizers do not declare special.

        The token for what is unknown stands for text.
        """
        if self._structural is None:
            tokenizer = self.tokenizer
            every = tokenizer.added_tokens_decoder.items()
            special = {token.content: number for number, token in every if token.special}
            own = self._template_ids()
            named = tokenizer.get_added_vocab().items()
            added = {token: n for token, n in named if n in own or token in END_MARKERS}
            special.pop(tokenizer.unk_token, None)
            self._structural = special | added
        return self._structural

    def _template_ids(self) -> set[int]:
        """Ids that the template writes around the messages of a conversation."""
        roles = [Message(role, []) for role in ("system", "user", "assistant", "user")]
        try:
            pieces = _MARKS.split(self._template(roles))[::2]
        except ModelError:  # said when a conversation is to be rendered
            return set()
        return {token for piece in pieces for token in self._own(piece)}

    def _taken_apart(self, text: str) -> list[int]:
        """Encode a text in pieces, none of which holds a structural token whole."""
        return self.said([*chain.from_iterable(self._encode(self._cut(text), split_special_tokens=True))])

    def _cut(self, text: str) -> list[str]:
        marks = "|".join(map(re.escape, sorted(self._structure(), key=len, reverse=True)))
        cuts = [found.start() + 1 for found in re.finditer(marks, text)]
        return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]

    def _own(self, piece: str) -> list[int]:
        if piece not in self._known:
            self._known[piece] = self._encode(piece) if piece else []
        return self._known[piece]

    def _encode(self, text: Any, **options: bool) -> Any:
        """Ids of a text; of several texts, a list of such lists."""
        return self.tokenizer(text, add_special_tokens=False, verbose=False, **options)["input_ids"]
