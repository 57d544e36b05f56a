"""The named stacks of levels: the one table that settings, documentation and the memory plan derive from.

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
    """A stack's levels in one line of the documentation, and the caches it needs beside the target's full cache."""

    summary: str
    retrieval_caches: int = 0  # of the target; the streaming stack's holds the latest tokens only
    draft_caches: int = 0  # streaming caches of the draft model, if there is one
    needs_draft: bool = False  # cannot be built without a draft model
    quantized_copies: int = 0  # of the target's full cache, in 4 bits


STACKS: Mapping[str, StackSpec] = MappingProxyType(
    {
        "auto": StackSpec(
            "the default: whatever pays, chosen every round from measured step times and recent acceptance",
            1,
            2,
        ),
        "triforce": StackSpec(
            "draft model or lookup → target over a retrieval cache → target over its full cache", 1, 1
        ),
        "triforce-int4": StackSpec(
            "like `triforce`, with a level of the target over a 4-bit copy of its full cache before the last one",
            1,
            1,
            quantized_copies=1,
        ),
        "retrieval": StackSpec("target over a retrieval cache → target over its full cache", 1),
        "streaming": StackSpec(
            "like `triforce`, but the middle level's cache keeps only attention sinks and recent tokens", 1, 1
        ),
        "naive": StackSpec("draft model → target over its full cache", draft_caches=1, needs_draft=True),
        "lookup": StackSpec("n-gram lookup in the document and the answer → target over its full cache"),
        "autoregressive": StackSpec("plain decoding, without drafts"),
    }
)
