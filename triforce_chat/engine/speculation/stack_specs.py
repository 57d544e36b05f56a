"""The named stacks of levels: the one table that settings, help texts and the memory plan derive from.

``stacks.Builder`` builds them. Nothing here needs torch, so that the command line can list them at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Tokens that are drafted at most per verification by the target, whose cache has room for their rest behind its end,
# and per step of the middle level.
MAX_GAMMA, MAX_DRAFT_GAMMA = 63, 32
TREES = ("chain", "auto", "sequoia", "specinfer")  # the first drafts no trees
MAX_DEPTH = 32  # tokens on a tree's longest path
MAX_TREE = 512  # tokens of a tree
# The largest that is planned where weights are streamed: a larger one takes GPU memory that more layers' weights could
# have, and makes few more tokens.
LARGEST_STREAMED = 256
LONGEST_BRANCH = 32  # looked-up tokens that join one


@dataclass(frozen=True, slots=True)
class StackSpec:
    """A stack's levels in one line, and the caches that it needs beside the target's full cache."""

    summary: str
    retrieval_caches: int = 0  # of the target; the streaming stack's holds the latest tokens only
    draft_caches: int = 0  # streaming caches of the draft model, if there is one
    needs_draft: bool = False  # cannot be built without a draft model
    quantized_copies: int = 0  # of the target's full cache, in 4 bits


STACKS: Mapping[str, StackSpec] = MappingProxyType(
    {
        "auto": StackSpec("whatever pays: triforce, naive, lookup or no drafts", 1, 2),
        "triforce": StackSpec("draft model and lookup -> target over a retrieval cache -> target", 1, 1),
        "triforce-int4": StackSpec(
            "the middle level of triforce -> target over a 4-bit copy of the full cache -> target",
            1,
            1,
            quantized_copies=1,
        ),
        "retrieval": StackSpec("target over a retrieval cache -> target", 1),
        "streaming": StackSpec("draft model and lookup -> target over the latest tokens -> target", 1, 1),
        "naive": StackSpec("draft model -> target", draft_caches=1, needs_draft=True),
        "lookup": StackSpec("n-gram lookup -> target"),
        "autoregressive": StackSpec("target alone, one token at a time"),
    }
)
