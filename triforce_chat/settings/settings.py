"""The settings of a model and its answers: declared once, checked once, in one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from triforce_chat.engine.cache.eviction import EVICTIONS, Eviction
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation import stack_specs
from triforce_chat.errors import UsageError
from triforce_chat.settings.specification import SettingSpec, setting, specifications
from triforce_chat.suggestions import did_you_mean

AUTO = "auto"  # the model that suits this machine
OFF = "off"
STACKS = tuple(stack_specs.STACKS)
TREES, MAX_TREE = stack_specs.TREES, stack_specs.MAX_TREE
POLICIES = ("mean", "minmax", "attention", "h2o", "streaming-h2o")
MIDDLES = ("auto", "full", "int8")
STORED = "stored"  # the dtype that keeps quantized weights wherever that is possible
THINK = ("auto", "on", "off")
DTYPES = ("auto", "float32", "float16", "bfloat16", STORED)
QUANTIZED = ("int8", "int4")  # formats of keys and values in the target's own cache
FLOAT8 = "fp8"  # the same in floating-point numbers, one by one
KVS = ("auto", "float32", "float16", FLOAT8, *QUANTIZED)
ATTENTIONS = ("auto", "triton", "flash-attn", "sdpa")
MAX_CHUNK = 1024  # tokens
MAX_PASSAGES = 64
KEPT_TOKENS = 96  # of a budget: the smallest one holds them and one chunk


@dataclass(frozen=True, slots=True)
class Parameters:
    """The declarations that ``Settings`` and the command line's ``Options`` share; unchecked.

    None leaves the choice to the model's preset, or to the program.
    """

    model: str = setting(
        AUTO,
        "Preset, folder (safetensors or GGUF), .gguf file or hub id; auto picks one that suits this machine.",
    )
    draft: str = setting(
        "auto",
        "Draft model with the same vocabulary; auto picks a known one, none uses n-gram lookup instead.",
    )
    stack: str = setting("auto", f"Speculation stack: {', '.join(STACKS)}.", choices=STACKS, changeable=True)
    budget: int | None = setting(
        None, "Size of the retrieval cache, in tokens.", minimum=1, changeable=True, example=4096
    )
    chunk: int = setting(
        8,
        "Size of the chunks that the retrieval cache selects, in tokens.",
        minimum=1,
        maximum=MAX_CHUNK,
        changeable=True,
    )
    policy: str = setting(
        "mean", f"How chunks are scored: {', '.join(POLICIES)}.", choices=POLICIES, changeable=True
    )
    middle: str = setting(
        "auto",
        f"Weights of the middle level on a GPU: {', '.join(MIDDLES)}.",
        choices=MIDDLES,
        changeable=True,
    )
    gamma: int | None = setting(
        None,
        "Tokens drafted per verification (--stack auto: at most this many); chosen automatically by default.",
        minimum=1,
        maximum=stack_specs.MAX_GAMMA,
        changeable=True,
        example=8,
    )
    draft_gamma: int | None = setting(
        None,
        "Tokens drafted per round of the middle level; chosen automatically by default.",
        minimum=1,
        maximum=stack_specs.MAX_DRAFT_GAMMA,
        changeable=True,
        example=2,
    )
    tree: str = setting(
        "chain",
        f"Shape of the drafts in the stacks naive, triforce and streaming: {', '.join(TREES)}. "
        "sequoia drafts a tree of the best expected shape, specinfer independent sequences; auto also chooses the "
        "tree's size, or a chain where that should be faster.",
        choices=TREES,
        changeable=True,
    )
    tree_size: int | None = setting(
        None, "Size of a tree, in tokens.", minimum=1, maximum=MAX_TREE, changeable=True, example=16
    )
    tree_depth: int | None = setting(
        None,
        "Depth of a tree, in tokens; chosen automatically by default.",
        minimum=1,
        maximum=stack_specs.MAX_DEPTH,
        changeable=True,
        example=6,
    )
    context: int | None = setting(None, "Context length to allocate, in tokens.", minimum=1, example=32768)
    endless: str = setting(
        OFF,
        f"Conversations without a length limit: old keys and values are evicted by {', '.join(EVICTIONS)} (chat, ask, "
        "summarize, plan). Lossy: answers are exact only relative to what is kept.",
        choices=(OFF, *EVICTIONS),
        persistent=False,
    )
    keep: int = setting(8192, "Tokens that --endless keeps; replaces --context.", minimum=1, persistent=False)
    offload: bool = setting(
        False,
        "Keep all keys and values in host memory (default: only those of the layers that do not fit on a GPU).",
        flags=("--offload",),
    )
    gpu_layers: int | None = setting(
        None,
        "Number of layers whose weights stay on the GPU; the others are kept in host memory and copied for every "
        "forward pass (default: as many as fit).",
        minimum=0,
        example=20,
    )
    device: str = setting("auto", "Device: auto, cpu or cuda.", suggestions=("auto", "cpu", "cuda"))
    tp: int = setting(
        1,
        "Number of processes to split the model over (tensor parallelism), one GPU each.",
        minimum=1,
        flag_minimum=1,
    )
    dtype: str = setting(
        "auto",
        "Data type: auto, float32, float16, bfloat16 or stored. Quantized GGUF weights stay quantized with auto on a "
        "CPU, and on a GPU where expanded ones would not fit; with stored always; the others expand them.",
        choices=DTYPES,
    )
    kv: str = setting(
        "auto",
        "Format of keys and values. auto: that of the weights, or float16 with quantized weights on a CPU. float16 "
        "takes half of float32, int8 and the less exact fp8 half of that, int4 about half of that again; answers are "
        "exact relative to the chosen format.",
        choices=KVS,
    )
    attention: str = setting(
        "auto",
        "Attention kernels on a GPU: triton (torch's own for the prefill), flash-attn (needs that extra) or "
        "sdpa (torch's own throughout, without CUDA graphs); auto picks the fastest on this GPU.",
        choices=ATTENTIONS,
    )
    temperature: float | None = setting(
        None, "Sampling temperature; 0 is greedy.", changeable=True, sampling=True, example=0.7
    )
    top_p: float | None = setting(
        None,
        "Keep the likeliest tokens up to this total probability (nucleus sampling).",
        changeable=True,
        sampling=True,
        example=0.9,
    )
    top_k: int = setting(
        0, "Sample from this many of the likeliest tokens; 0 for all.", changeable=True, sampling=True
    )
    min_p: float = setting(
        0.0,
        "Drop tokens less likely than this fraction of the likeliest one.",
        changeable=True,
        sampling=True,
    )
    repetition_penalty: float | None = setting(
        None,
        "Penalty on tokens that the answer already contains; 1 is off.",
        changeable=True,
        sampling=True,
        example=1.1,
    )
    seed: int | None = setting(
        None,
        "Make sampling repeatable; --stack auto then plans from stored timings.",
        changeable=True,
        sampling=True,
        example=1,
    )
    max_tokens: int = setting(512, "Maximum length of an answer, in tokens.", minimum=1, changeable=True)
    think: str = setting(
        "auto",
        "Whether a reasoning model thinks before it answers: on, off or auto (the model decides).",
        choices=THINK,
        changeable=True,
    )
    loop_guard: int = setting(
        3,
        "Stop an answer that repeats a passage this many times word for word; 0 turns this off.",
        minimum=0,
        changeable=True,
    )
    passages: int = setting(
        6,
        "Passages of long documents that match the question's words, to quote again before it; 0 for none.",
        minimum=0,
        maximum=MAX_PASSAGES,
        changeable=True,
    )


@dataclass(frozen=True, slots=True)
class Settings(Parameters):
    """Checked settings of a run. Raises UsageError for values that make no sense."""

    def __post_init__(self) -> None:
        for spec in SPECIFICATIONS:
            _check_value(spec, getattr(self, spec.name))
        smallest = KEPT_TOKENS + self.chunk
        if self.budget is not None and self.budget < smallest:
            raise UsageError(f"budget must be at least {smallest} tokens for chunks of {self.chunk}")
        Sampling(**{name: getattr(self, name) for name in SAMPLED if getattr(self, name) is not None})
        if self.eviction and self.tp > 1:
            raise UsageError(f"--endless {self.endless} runs in one process, so far: leave out --tp")
        if self.eviction and self.kv == FLOAT8:
            raise UsageError(
                f"--endless {self.endless} moves keys, and --kv {self.kv} would round them once more each time"
            )
        if self.gpu_layers is not None and self.tp > 1:
            raise UsageError(f"--gpu-layers is for one process: leave out --tp {self.tp}")
        if self.eviction and self.kv in QUANTIZED:
            raise UsageError(
                f"--endless {self.endless} moves tokens one by one, and --kv {self.kv} keeps groups of them"
            )

    @property
    def eviction(self) -> Eviction | None:
        """How the target's own cache forgets; None: it does not. Raises UsageError for a cache that is too small."""
        return None if self.endless == OFF else Eviction.of(self.endless, self.keep)

    @property
    def drafts_trees(self) -> bool:
        """Whether the draft model is to draft trees instead of chains."""
        chain, *_ = TREES
        return self.tree != chain

    @property
    def room(self) -> int | None:
        """Tokens of keys and values to allocate; None leaves that to the model."""
        return self.context if self.endless == OFF else self.keep

    def with_text(self, name: str, text: str) -> Settings:
        """Change one setting as a user typed it; "default", or "auto" where that is no choice, restores the default.

        Raises UsageError.
        """
        spec = CHANGEABLE.get(name.replace("-", "_"))
        if spec is None:
            known = ", ".join(spec.key for spec in CHANGEABLE.values())
            hint = did_you_mean(name, (spec.key for spec in CHANGEABLE.values()))
            raise UsageError(f"no setting '{name}'; there are {known}{hint}")
        restore = text == "default" or (text == "auto" and text not in spec.details.choices)
        return replace(self, **{spec.name: spec.default if restore else _parse(spec, name, text)})


SPECIFICATIONS = specifications(Parameters)
CHANGEABLE: Mapping[str, SettingSpec] = {
    spec.name: spec for spec in SPECIFICATIONS if spec.details.changeable
}
SAMPLED = tuple(spec.name for spec in SPECIFICATIONS if spec.details.sampling)


def request_parameters() -> dict[str, type]:
    """The settings that a client of the server may send with a request: name -> int or float."""
    return {spec.name: spec.type for spec in SPECIFICATIONS if spec.details.sampling}


def _check_value(spec: SettingSpec, value: Any) -> None:
    rules = spec.details
    if value is None:
        return
    if rules.choices and value not in rules.choices:
        hint = did_you_mean(value, rules.choices)
        raise UsageError(f"no {spec.key} '{value}'; choose one of {', '.join(rules.choices)}{hint}")
    if rules.minimum is not None and value < rules.minimum:
        raise UsageError(f"{spec.key} must be at least {rules.minimum}, not {value}")
    if rules.maximum is not None and value > rules.maximum:
        raise UsageError(f"{spec.key} must be at most {rules.maximum}, not {value}")


def _parse(spec: SettingSpec, name: str, text: str) -> Any:
    try:
        return spec.type(text)
    except ValueError:
        wanted = "a number or auto" if spec.optional else "a number"
        raise UsageError(f"{name} takes {wanted}, not '{text}'") from None
