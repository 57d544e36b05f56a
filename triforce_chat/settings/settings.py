"""Everything a user can set, in one frozen value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation import stack_specs
from triforce_chat.errors import UsageError

STACKS = tuple(stack_specs.STACKS)
POLICIES = ("mean", "minmax")
MIDDLES = ("auto", "full", "int8")
SAMPLED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
DTYPES = ("auto", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults of a run. None means: what the model's preset recommends, or what the context suggests."""

    model: str = "default"
    draft: str = "auto"  # or "none", or the name of a model
    stack: str = "auto"
    policy: str = "mean"
    middle: str = "auto"  # weights of the middle level
    budget: int | None = None  # tokens
    chunk: int = 8  # tokens
    gamma: int | None = None  # tokens asked of the level below the target; None: planned
    draft_gamma: int | None = None  # tokens asked of the middle level's drafter; None: planned
    temperature: float | None = None
    top_k: int = 0
    top_p: float | None = None
    min_p: float = 0.0
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int = 512
    context: int | None = None  # tokens
    offload: bool = False  # all keys and values lie in host memory
    tp: int = 1  # processes that share the target
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        _one_of("stack", self.stack, STACKS)
        _one_of("policy", self.policy, POLICIES)
        _one_of("middle", self.middle, MIDDLES)
        _one_of("dtype", self.dtype, DTYPES)
        for name in ("budget", "chunk", "gamma", "draft_gamma", "max_tokens", "context", "tp"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name.replace('_', '-')} must be at least 1, not {value}")
        self._check_budget()
        Sampling(**{name: getattr(self, name) for name in SAMPLED if getattr(self, name) is not None})

    def _check_budget(self) -> None:
        if self.chunk > 1024:
            raise UsageError(f"chunk must be at most 1024 tokens, not {self.chunk}")
        if self.budget is not None and self.budget < 96 + self.chunk:
            raise UsageError(f"budget must be at least {96 + self.chunk} tokens for chunks of {self.chunk}")
        for name in ("gamma", "draft_gamma"):
            if (getattr(self, name) or 0) > 32:
                raise UsageError(f"{name.replace('_', '-')} must be at most 32")

    def with_text(self, name: str, text: str) -> Settings:
        """Change one setting as a user typed it; "auto" or "default" restores the default."""
        key = name.replace("-", "_")
        if key not in CHANGEABLE:
            known = ", ".join(name.replace("_", "-") for name in CHANGEABLE)
            raise UsageError(f"no setting '{name}'; there are {known}")
        default: Any = next(field.default for field in fields(Settings) if field.name == key)
        restore = text == "default" or (text == "auto" and key != "stack")
        return replace(self, **{key: default if restore else _parse(name, text, CHANGEABLE[key])})


CHANGEABLE: dict[str, Callable[[str], Any]] = {
    "stack": str,
    "policy": str,
    "middle": str,
    "budget": int,
    "chunk": int,
    "gamma": int,
    "draft_gamma": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "seed": int,
    "max_tokens": int,
}


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"no {name} '{value}'; choose one of {', '.join(choices)}")


def _parse(name: str, text: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{name} takes a number, not '{text}'") from None
