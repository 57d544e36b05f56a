"""From messages to token ids with the model's own chat template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any

from triforce_chat.chat.thinking import MARKERS, SWITCHES
from triforce_chat.chat.time_limit import TimeOver, time_limited
from triforce_chat.engine.detokenizer import Thinking
from triforce_chat.errors import ModelError
from triforce_chat.models.end_tokens import END_MARKERS
from triforce_chat.models.failures import one_line_of

_PLACEHOLDER = "\ue000{}\ue001"  # private-use characters stand for contents while the template is rendered
_PLACEHOLDERS = re.compile("\ue000([0-9]{1,9})\ue001")
_PLAIN = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{{ message.role }}:{{ '' if message.role == 'assistant' else ' ' }}{{ message.content }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
PLAIN_STOP = "\nuser:"
ENDLESS = "the model's chat template does not end"
TEXTS = 256  # whose tokens' ends are remembered: the pages that answers come from are few
# Of processor time, beyond which a template is taken to run for ever: for any conversation, and for each message.
RENDER_SECONDS, RENDER_SECONDS_PER_MESSAGE = 5.0, 0.01


@dataclass(frozen=True, slots=True)
class Message:
    """One message whose content is tokenized already."""

    role: str  # "system", "user" or "assistant"
    content: Sequence[int]
    thought: Sequence[int] = ()  # before an answer; the template says whether it is repeated


@dataclass
class ChatFormat:
    """Joins tokenized contents with the tokens that a chat template puts between them.

    The template is rendered around placeholders, and only the template's own text may become special tokens: a
    document that holds ``<|im_end|>`` stays a document. Contents are never tokenized again, so the ids of a longer
    conversation begin with those of a shorter one, and the cache stays valid.
    """

    tokenizer: Any
    _known: dict[str, list[int]] = field(default_factory=dict)  # ids of pieces of the template
    _structural: dict[str, int] | None = None
    _problem: str = ""  # why the template failed last
    _endless: bool = False

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end an answer because the format has no token for it."""
        return () if self.tokenizer.chat_template else (PLAIN_STOP,)

    def encode(self, text: str) -> list[int]:
        """Tokenize a content, in which nothing is special. Lone surrogates become question marks."""
        return self.encode_each([text])[0]

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize several contents, on all cores."""
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        every: list[list[int]] = self._tokenize(texts, split_special_tokens=True) if texts else []
        return [
            self._encode_in_pieces(text) if self.structural & set(ids) else ids
            for text, ids in zip(texts, every, strict=True)
        ]

    def without_structural(self, ids: Sequence[int]) -> list[int]:
        """The ids without structural ones, so that an answer opens no turn in the next prompt."""
        structural = self.structural
        return [token for token in ids if token not in structural]

    @property
    def structural(self) -> frozenset[int]:
        """Ids that only the template may put into a prompt."""
        return frozenset(self._structural_tokens().values())

    def token_ends(self, text: str) -> Sequence[int]:
        """The end of each token of ``encode(text)`` in the text, in characters.

        Those of the latest texts are remembered.
        """
        return self._remembered_ends(text)

    @cached_property
    def _remembered_ends(self) -> Callable[[str], Sequence[int]]:
        return lru_cache(TEXTS)(self._token_ends)

    def _token_ends(self, text: str) -> Sequence[int]:
        text = text.encode("utf-8", "replace").decode()
        ids = self._tokenize(text, split_special_tokens=True)
        pieces = self._cut(text) if self.structural & set(ids) else [text]
        starts = accumulate(map(len, pieces), initial=0)
        return [
            end
            for start, piece in zip(starts, pieces, strict=False)
            for end in self._piece_token_ends(start, piece)
        ]

    def _piece_token_ends(self, start: int, piece: str) -> Iterator[int]:
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        found = self.tokenizer(piece, return_offsets_mapping=True, **options)
        structural = self.structural
        for token, (_, end) in zip(found["input_ids"], found["offset_mapping"], strict=True):
            if token not in structural:
                yield start + end

    def render(self, messages: Sequence[Message], think: bool | None = None) -> list[int]:
        """The ids of a conversation up to the beginning of the next answer.

        ``think``: switches thoughts on or off where the template can; None leaves that to the template. Raises
        ModelError if the template cannot render it.
        """
        ids: list[int] = []
        contents = [*(each.content for each in messages), *(each.thought for each in messages)]
        for i, piece in enumerate(_PLACEHOLDERS.split(self._render_template(messages, think))):
            ids += contents[int(piece)] if i % 2 else self._encode_template_text(piece)
        return ids

    @cached_property
    def thought_marks(self) -> Thinking | None:
        """The tokens around a thought; None for a model whose template knows of no thoughts."""
        if not any(name in (self.tokenizer.chat_template or "") for name in (*SWITCHES, MARKERS[1])):
            return None
        begin, end = (self._tokenize(marker) for marker in MARKERS)
        return Thinking(begin[0], end[0]) if len(begin) == len(end) == 1 else None

    @cached_property
    def can_switch_thoughts(self) -> bool:
        """Whether the template renders another prompt where thoughts are off."""
        asked = [Message("user", [])]
        return self._render_template(asked, True) != self._render_template(asked, False)

    def thinking_after(self, prompt: Sequence[int]) -> Thinking | None:
        """How an answer to the prompt marks its thought, which the prompt's last tokens may begin."""
        marks = self.thought_marks
        if marks is None:
            return None
        last = next((token for token in reversed(prompt) if token in (marks.begin, marks.end)), marks.end)
        return replace(marks, opened=last == marks.begin)

    def _render_template(self, messages: Sequence[Message], think: bool | None = None) -> str:
        """The template with placeholders; without a system role, that text precedes the first question."""
        marked = [_marked(each, i, len(messages) + i) for i, each in enumerate(messages)]
        switches = {} if think is None else dict.fromkeys(SWITCHES, think)
        rendered = self._try_template(marked, switches)
        if rendered is None and len(marked) > 1 and marked[0]["role"] == "system":
            system, first, *rest = marked
            both = f"{system['content']}\n\n{first['content']}"
            rendered = self._try_template([{"role": "user", "content": both}, *rest], switches)
        if rendered is None:
            reason = f": {self._problem}" if self._problem else ""
            raise ModelError(f"the model's chat template cannot render this conversation{reason}")
        return rendered

    def _try_template(self, marked: list[dict[str, str]], switches: Mapping[str, bool]) -> str | None:
        """The rendered template; None if it fails, leaves a message out or repeats a question.

        Raises ModelError if it does not end.
        """
        if self._endless:
            raise ModelError(ENDLESS)
        self._problem = ""
        try:
            with time_limited(RENDER_SECONDS + RENDER_SECONDS_PER_MESSAGE * len(marked)):
                rendered: str = self.tokenizer.apply_chat_template(
                    marked,
                    chat_template=self.tokenizer.chat_template or _PLAIN,
                    tokenize=False,
                    add_generation_prompt=True,
                    **switches,
                )
        except MemoryError:
            raise
        except TimeOver:
            self._endless = True
            raise ModelError(ENDLESS) from None
        except Exception as error:  # a template is a program of the model's authors, and may fail in any way
            self._problem = one_line_of(error)
        else:
            return rendered if _is_whole(rendered, marked) else None
        return None

    def _structural_tokens(self) -> dict[str, int]:
        """Special tokens, and markers of turns and their ends, which some tokenizers do not declare special.

        The unknown token is not structural, because it stands for text.
        """
        if self._structural is None:
            tokenizer = self.tokenizer
            every = tokenizer.added_tokens_decoder.items()
            special = {token.content: number for number, token in every if token.special}
            in_template = self._template_ids()
            named = tokenizer.get_added_vocab().items()
            added = {token: n for token, n in named if n in in_template or token in END_MARKERS}
            special.pop(tokenizer.unk_token, None)
            thoughts = MARKERS if self.thought_marks else ()
            self._structural = special | added | {each: self._tokenize(each)[0] for each in thoughts}
        return self._structural

    def _template_ids(self) -> set[int]:
        """Ids that the template writes around the messages of a conversation."""
        roles = [Message(role, []) for role in ("system", "user", "assistant", "user")]
        try:
            pieces = _PLACEHOLDERS.split(self._render_template(roles))[::2]
        except ModelError:  # raised again when a conversation is rendered
            return set()
        return {token for piece in pieces for token in self._encode_template_text(piece)}

    def _encode_in_pieces(self, text: str) -> list[int]:
        """Tokenize a text in pieces, none of which holds a structural token whole."""
        ids = chain.from_iterable(self._tokenize(self._cut(text), split_special_tokens=True))
        return self.without_structural([*ids])

    def _cut(self, text: str) -> list[str]:
        """Cut a text after the first character of each structural token."""
        markers = "|".join(map(re.escape, sorted(self._structural_tokens(), key=len, reverse=True)))
        cuts = [found.start() + 1 for found in re.finditer(markers, text)]
        return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]

    def _encode_template_text(self, piece: str) -> list[int]:
        if piece not in self._known:
            self._known[piece] = self._tokenize(piece) if piece else []
        return self._known[piece]

    def _tokenize(self, text: Any, **options: bool) -> Any:
        """Ids of a text; of several texts, a list of such lists."""
        return self.tokenizer(text, add_special_tokens=False, verbose=False, **options)["input_ids"]


def _marked(message: Message, content: int, thought: int) -> dict[str, str]:
    """A message with placeholders of these numbers, under the names that templates know."""
    thoughts = {"reasoning_content": _PLACEHOLDER.format(thought)} if message.thought else {}
    return {"role": message.role, "content": _PLACEHOLDER.format(content), **thoughts}


def _is_whole(rendered: str, marked: Sequence[dict[str, str]]) -> bool:
    """Whether each message stands in the rendered text, and documents and questions, which are the user's, once."""
    thoughts = {
        found for each in marked for found in _PLACEHOLDERS.findall(each.get("reasoning_content", ""))
    }
    placed = Counter(int(found) for found in _PLACEHOLDERS.findall(rendered) if found not in thoughts)
    of = [(each["role"], int(n)) for each in marked for n in _PLACEHOLDERS.findall(each["content"])]
    counted = all(placed[n] == 1 if role == "user" else placed[n] for role, n in of)
    return counted and len(placed) == len(of)
