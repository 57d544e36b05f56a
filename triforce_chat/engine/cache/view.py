"""What the attention of one layer reads: keys and values where they lie."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from triforce_chat.engine.cache.allocation import rounded_up
from triforce_chat.engine.cache.chunk_mass import ChunkMass
from triforce_chat.engine.cache.quantization import GROUP, QuantizedTokens, group_start


class KVView(NamedTuple):
    """What one layer's attention reads: the stored tokens, the newest last, then finite padding."""

    keys: Tensor  # [1, Hkv, S, D]
    values: Tensor  # [1, Hkv, S, D]
    length: int  # tokens; S is the next multiple of GRAIN, or more
    shared: SharedView | None = None  # what comes before, and where these lie among other sequences'
    slots: Tensor | None = None  # [Hkv, length], int32: where the tokens lie; None: in the first slots
    masses: tuple[ChunkMass, ...] = ()  # where attention adds what it pays to chunks of the tokens
    # [n, t], which of the last t each new token sees, as in a tree; None: causal
    visible: Tensor | None = None
    before: QuantizedTokens | None = None  # what comes before them, quantized
    # Of the quantized tokens, how many of the last ones are among the others, too: groups that the new tokens fill.
    repeated: int = 0

    @property
    def gathered(self) -> KVView:
        """A view with the tokens in the first slots: itself, or a copy of those that lie elsewhere."""
        if self.slots is None:
            return self
        places = pad(self.slots, (0, rounded_up(self.length) - self.length))
        keys, values = (
            torch.stack([part.index_select(0, at) for part, at in zip(each[0], places, strict=True)])[None]
            for each in (self.keys, self.values)
        )
        return self._replace(keys=keys, values=values, slots=None)

    @property
    def total(self) -> int:
        """Keys that attention reads, without a shared prefix: quantized ones come first."""
        return self.length + (self.before.tokens if self.before else 0)

    @property
    def end(self) -> int:
        """Tokens in all, a shared prefix included."""
        return self.total - self.repeated + (self.shared.prefix.end if self.shared else 0)

    def of_head(self, head: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The keys and values of one KV head that attention reads, then padding: [S, D] each, in ``dtype``."""
        own = self.keys[0, head].to(dtype), self.values[0, head].to(dtype)
        if self.before is None or not self.before.tokens:
            return own
        before = self.before.of_head(head, dtype)
        return torch.cat([before[0], own[0]]), torch.cat([before[1], own[1]])

    @property
    def whole(self) -> tuple[Tensor, Tensor]:
        """All keys and all values, a prefix included, without padding: [1, Hkv, end, D] each; copies two parts."""
        keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        if self.before is not None:
            quantized = self.before._replace(tokens=self.before.tokens - self.repeated)
            return KVView(keys, values, self.length, before=quantized).all_heads(keys.dtype)
        if self.shared is None:
            return keys, values
        before = self.shared.prefix.whole
        return torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)

    def all_heads(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The keys and values that attention reads, without padding: [1, Hkv, total, D] each, in ``dtype``."""
        keys, values = self.keys[:, :, : self.length].to(dtype), self.values[:, :, : self.length].to(dtype)
        if self.before is None:
            return keys, values
        all_keys, all_values = (part[None] for part in self.before.all_heads(dtype, self.length))
        all_keys[:, :, self.before.tokens :], all_values[:, :, self.before.tokens :] = keys, values
        return all_keys, all_values

    def masked(self, n: int) -> KVView:
        """The view with what its last n tokens see of the groups that they fill, if they fill any; see ``seen_by``."""
        if not self.repeated:
            return self
        return self._replace(visible=seen_by(self.length - n, n).to(self.keys.device))


@lru_cache(maxsize=64)
def seen_by(before: int, n: int) -> Tensor:
    """Which keys n tokens see that follow ``before`` tokens of their group and cross its border: bool [n, t].

    The keys are those of the groups that the tokens fill, quantized, then of all tokens from the first group's start
    on, in 16 bits. A token sees the quantized groups before its own, and its own up to itself.
    """
    position = torch.arange(before, before + n)[:, None]
    start = position // GROUP * GROUP
    quantized, newest = torch.arange(group_start(before + n - 1)), torch.arange(before + n)
    return torch.cat([quantized < start, (newest >= start) & (newest <= position)], 1)


class SharedView(NamedTuple):
    """One layer of several sequences with the same first tokens, the later ones of which lie side by side."""

    prefix: KVView
    keys: Tensor  # [sequences, Hkv, S, D], after the prefix
    values: Tensor  # [sequences, Hkv, S, D]
    place: int  # of the sequence whose view this belongs to
