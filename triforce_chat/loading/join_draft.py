"""The forwards of a target and its draft, of which the draft may be built on the target."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from triforce_chat.engine.forward.attention_backend import AttentionBackend
from triforce_chat.engine.forward.cpu_layer import keep_in_16_bits
from triforce_chat.engine.forward.quantized import QuantizedLayer
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.forward.shards import Embedding, local_shard
from triforce_chat.engine.forward.target_state import StateReader, TargetState
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.models.draft_head import DraftHead
from triforce_chat.models.load import LoadedModel


def runners(
    target: LoadedModel, draft: LoadedModel | None, group: RankGroup = SINGLE
) -> tuple[Runner, Runner | None]:
    """The target's forward and its draft's, if there is one. Ranks that share the target call this together.

    A draft that is built on the target gets its embedding and output matrix, and reads the target's state.
    """
    backend = AttentionBackend(*target.attention)
    if draft is None or draft.head is None:
        runner = Runner(target.model, group=group, kv=target.kv, backend=backend, streamed=target.streamed)
        return runner, draft_runner(draft, target) if draft else None
    model = target.model
    state = TargetState(model.config.hidden_size, model.dtype, model.device)
    share_matrices(draft, draft.head, target, group)  # before the target's runner repacks them
    runner = Runner(model, group=group, state=state, kv=target.kv, backend=backend, streamed=target.streamed)
    return runner, draft_runner(draft, target, state)


def draft_runner(draft: LoadedModel, target: LoadedModel, state: TargetState | None = None) -> Runner:
    """The draft's forward, with logits as wide as the target's; ``state``: the target's, if the draft reads it."""
    known, head, reader = draft.draft_vocabulary, draft.head, None
    if head is not None and state is not None:
        reader = StateReader(state, head.state.to(state.hidden), head.ages.to(state.hidden))
    ids = known.target_ids if known else None
    backend = AttentionBackend(*target.attention)
    keep_in_16_bits(draft.model)
    return Runner(draft.model, target.vocab_size, target_ids=ids, reader=reader, backend=backend)


def share_matrices(draft: LoadedModel, head: DraftHead, target: LoadedModel, group: RankGroup) -> None:
    """Give a draft the embedding and the output matrix that it makes of its target's."""
    assert draft.draft_vocabulary
    known = draft.draft_vocabulary.target_ids.to(target.model.device)
    every = torch.arange(len(known), device=known.device)

    def rows(layer: torch.nn.Module) -> Tensor:
        """The rows of the known tokens: [n, H]; the ranks hold some each."""
        if isinstance(layer, QuantizedLayer):
            return layer.matrix.rows(known)
        return Embedding(local_shard(layer.weight), target.vocab_size, group)(known)

    with torch.no_grad():
        embedding = head.embedding(rows(target.model.get_input_embeddings()), every)
        output = head.output_matrix(rows(target.model.get_output_embeddings()), every)
    draft.model.get_input_embeddings().weight = Parameter(embedding, requires_grad=False)
    draft.model.get_output_embeddings().weight = Parameter(output, requires_grad=False)
