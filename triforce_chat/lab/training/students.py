"""What learns to draft: a small Llama that stands alone, or one that is built on its target."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from triforce_chat.errors import UsageError
from triforce_chat.lab.training.dataset import Batch
from triforce_chat.lab.training.segments import LONGEST, even_ages, random_ages
from triforce_chat.models.draft_head import DraftHead, read_draft_head

if TYPE_CHECKING:
    from triforce_chat.lab.training.draft import DraftRecipe

WEIGHTS = "model.safetensors"


class Student(Protocol):
    """A draft in training. Its ids are those of ``Batch.tokens``, the draft's own.

    ``longest``: tokens that it proposes from one state of the target; 1 if it needs none.
    """

    longest: int

    def parameters(self) -> Iterator[nn.Parameter]:
        """All that a resumed training needs."""
        ...

    def ages(self, batch: Batch, even: bool = False) -> Tensor:
        """How many tokens after the latest state each predicting token is, -1 for those that do not count: [m].

        At random, or for segments that are all as long as can be.
        """
        ...

    def hidden(self, batch: Batch, ages: Tensor) -> Tensor:
        """The last hidden states that predict, in the type of the output matrix: [m, D]."""
        ...

    def output_matrix(self) -> Tensor:
        """[n, D], with a gradient."""
        ...

    def begin_with(self, folder: Path) -> None:
        """Take the weights of a trained draft. Raises UsageError for one of another shape, or none."""
        ...

    def save(self, folder: Path) -> None:
        """Write the draft as a transformers folder in bf16."""
        ...


def llama_config(recipe: DraftRecipe, vocabulary: int, **more: Any) -> LlamaConfig:
    """The shape of a recipe, for texts of a streaming cache."""
    heads = recipe.hidden // recipe.head_dim
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.mlp,
        num_hidden_layers=recipe.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        **more,
    )


def leading_directions(weights: Tensor, count: int) -> Tensor:
    """The first ``count`` right singular vectors of a matrix [V, H]: [count, H]."""
    weights = weights.float()
    _, _, directions = torch.linalg.svd(weights.T @ weights)
    found: Tensor = directions[:count]
    return found


def fresh_draft(target: Any, recipe: DraftRecipe, known: Tensor | None = None) -> LlamaForCausalLM:
    """A small Llama whose embedding is the target's, projected on its leading singular directions.

    known: [D], the target's tokens that it knows (None: all); one more embedding stands for the others.
    """
    torch.manual_seed(recipe.seed)
    config = llama_config(
        recipe,
        target.config.vocab_size if known is None else len(known) + 1,
        tie_word_embeddings=True,
        bos_token_id=target.config.bos_token_id if known is None else None,
        eos_token_id=target.config.eos_token_id if known is None else None,
    )
    draft = LlamaForCausalLM(config).to(target.device)
    weights = target.get_input_embeddings().weight.float()
    projected = weights @ leading_directions(weights, recipe.hidden).T
    if known is not None:
        projected = torch.cat([projected[known.to(target.device)], projected.mean(0, keepdim=True)])
    with torch.no_grad():
        draft.get_input_embeddings().weight.copy_(projected)
    return draft


class StandAlone:
    """A draft with an embedding of its own, which is also its output matrix."""

    longest = 1

    def __init__(self, target: Any, recipe: DraftRecipe, known: Tensor | None = None) -> None:
        self.llama = fresh_draft(target, recipe, known)
        self.dtype: torch.dtype = target.dtype

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.llama.parameters()

    def ages(self, batch: Batch, even: bool = False) -> Tensor:  # noqa: ARG002
        return torch.zeros_like(batch.window)

    def hidden(self, batch: Batch, ages: Tensor) -> Tensor:  # noqa: ARG002
        with half_precision(batch.tokens):
            out: Tensor = self.llama.base_model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        return out.to(self.dtype)[batch.window, batch.place]

    def output_matrix(self) -> Tensor:
        weight: Tensor = self.llama.lm_head.weight
        return weight

    def begin_with(self, folder: Path) -> None:
        try:
            stored = load_file(folder / WEIGHTS)
            self.llama.load_state_dict(stored | {"lm_head.weight": stored["model.embed_tokens.weight"]})
        except (RuntimeError, OSError, KeyError, SafetensorError) as error:
            raise unfitting(folder) from error

    def save(self, folder: Path) -> None:
        tensors = self.llama.state_dict()
        del tensors["lm_head.weight"]  # tied to the embedding
        save_llama(folder, self.llama.config, tensors)


class Head(nn.Module):
    """A ``DraftHead`` in training.

    target: the model, of width H. spread: [H], the root mean square of its hidden states in each dimension, as a few
    are tens of times as large as the others. Each matrix is the product of a parameter of the size that is usual in
    Llama's layers and of the unit of what it reads, so that one learning rate suits them all.
    """

    def __init__(self, words: Tensor, heads: Tensor, config: LlamaConfig, spread: Tensor) -> None:
        super().__init__()
        wide, width, usual = words.shape[1], config.hidden_size, config.initializer_range
        directions = leading_directions(words, width)
        turned = nn.init.orthogonal_(torch.empty(width, wide)).to(words.device)
        self.embed = nn.Parameter(usual * wide**0.5 * directions)
        self.state = nn.Parameter(usual * wide**0.5 * turned)
        self.ages = nn.Parameter(torch.zeros(LONGEST, width, device=words.device))
        self.output = nn.Parameter(usual * torch.randn(wide, width).to(words.device))
        projected = (words.float() @ directions.T).std()
        units = (1 / (usual * projected), 1 / (usual * spread), 1 / heads.float().std())
        # Not buffers: an interrupted training keeps parameters.
        self.units = nn.ParameterList([nn.Parameter(unit / wide**0.5, requires_grad=False) for unit in units])

    def joined(self) -> DraftHead:
        """What is saved, with a gradient."""
        embed, state, output = self.units
        return DraftHead(self.embed * embed, self.state * state, self.ages, self.output * output)

    @torch.no_grad()
    def take(self, head: DraftHead) -> None:
        """Go on from a head of the same shape. Raises RuntimeError for another."""
        embed, state, output = self.units
        stored = {
            "embed": head.embed.to(embed) / embed,
            "state": head.state.to(state) / state,
            "ages": head.ages.float(),
            "output": head.output.to(output) / output,
        }
        self.load_state_dict(stored, strict=False)


class BuiltOnTarget:
    """Layers between the target's embedding and its output matrix, both frozen, that also read its hidden states.

    target: its model, of width H. known: [n], the target's tokens that the draft knows. spread: [H], the root mean
    square of the target's hidden states in each dimension (None: 1).
    """

    longest = LONGEST

    def __init__(self, target: Any, recipe: DraftRecipe, known: Tensor, spread: Tensor | None = None) -> None:
        torch.manual_seed(recipe.seed)
        config = llama_config(
            recipe, len(known) + 1, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None
        )
        self.llama = LlamaModel(config).to(target.device)
        self.llama.embed_tokens = nn.Identity()  # made from the target's
        self.known, self.dtype = known.to(target.device), target.dtype
        self.words, self.heads = target.get_input_embeddings().weight.detach(), target.lm_head.weight.detach()
        if spread is None:
            spread = torch.ones(self.words.shape[1], device=target.device)
        self.head = Head(self.words[self.known], self.heads[self.known], config, spread)

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.llama.parameters()
        yield from self.head.parameters()

    def ages(self, batch: Batch, even: bool = False) -> Tensor:
        return even_ages(batch) if even else random_ages(batch)

    def hidden(self, batch: Batch, ages: Tensor) -> Tensor:
        with half_precision(batch.tokens):
            read = self.embedded(batch, ages)
            out: Tensor = self.llama(inputs_embeds=read, use_cache=False).last_hidden_state
        return out.to(self.dtype)[batch.window, batch.place]

    def embedded(self, batch: Batch, ages: Tensor) -> Tensor:
        """What the layers read: every token, with its segment's state and how far behind that it is: [b, n, D]."""
        head = self.head.joined()
        words = nn.functional.embedding(batch.tokens, head.embedding(self.words, self.known)).float()
        begun = (ages >= 0).nonzero()[:, 0]
        own = ages[begun]
        states = (batch.states @ head.state.to(batch.states).T)[begun - own - 1].float()
        added = torch.zeros_like(words)
        added[batch.window[begun], batch.place[begun]] = states + head.ages[own]
        return words + added

    def output_matrix(self) -> Tensor:
        return self.head.joined().output_matrix(self.heads, self.known)

    def begin_with(self, folder: Path) -> None:
        try:
            stored, head = load_file(folder / WEIGHTS), read_draft_head(folder)
            self.llama.load_state_dict({name.removeprefix(PREFIX): value for name, value in stored.items()})
            if head is None:
                raise unfitting(folder)
            self.head.take(head)
        except (RuntimeError, OSError, SafetensorError) as error:
            raise unfitting(folder) from error

    @torch.no_grad()
    def save(self, folder: Path) -> None:
        tensors = {PREFIX + name: value for name, value in self.llama.state_dict().items()}
        save_llama(folder, self.llama.config, tensors)
        self.head.joined().save(folder)


PREFIX = "model."  # of names in a LlamaForCausalLM


def half_precision(like: Tensor) -> torch.autocast:
    """bf16 for matrix products on a GPU."""
    device = like.device.type
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def unfitting(folder: Path) -> UsageError:
    return UsageError(f"--from {folder} contains no draft of this --vocabulary, --hidden and --layers")


def save_llama(folder: Path, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write config and weights as transformers reads them, in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    written = config.to_diff_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n", "utf-8")
    stored = {name: value.bfloat16().cpu().contiguous() for name, value in tensors.items()}
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
