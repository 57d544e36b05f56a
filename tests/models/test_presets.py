"""Every preset as it was published: tiny weights under its own config.json, through the whole program."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors import safe_open
from support.tiny_models import SENTENCEPIECE, VOCABULARY, save_published, save_sentencepiece, save_tokenizer

from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Text
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.models import presets, registry
from triforce_chat.models.adapter import WEIGHTS
from triforce_chat.models.load import LoadedModel, load_model
from triforce_chat.models.packed import PackedModel
from triforce_chat.models.pickles import pull
from triforce_chat.models.presets import PRESETS, find_preset
from triforce_chat.models.progress import ignore_progress
from triforce_chat.settings.settings import Settings

LLAMA2 = len(SENTENCEPIECE)
BPE = len(VOCABULARY)
TINY = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def llama(**fields: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 256,  # heads of 128, as in the large model: the frequencies are the real ones
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": LLAMA2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **TINY,
        **fields,
    }


def yarn_llama() -> dict[str, Any]:
    return llama(
        auto_map={
            "AutoConfig": "configuration_llama.LlamaConfig",
            "AutoModelForCausalLM": "modeling_llama_together_yarn.LlamaForCausalLM",
        },
        max_position_embeddings=131_072,
        pad_token_id=0,
        pretraining_tp=1,
        rope_scaling={
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
            "finetuned": True,
        },
    )


def lwm(context: int, theta: float) -> dict[str, Any]:
    return llama(max_position_embeddings=context, rope_theta=theta, pretraining_tp=1, rope_scaling=None)


def llama3(**fields: Any) -> dict[str, Any]:
    scaling = {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
        **fields.pop("scaling", {}),
    }
    return llama(
        max_position_embeddings=131_072,
        rope_theta=500_000.0,
        rope_scaling=scaling,
        num_key_value_heads=1,
        vocab_size=BPE,
        bos_token_id=0,
        eos_token_id=[1, 2],
        **fields,
    )


def qwen2(**fields: Any) -> dict[str, Any]:
    return llama(
        **{
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "bos_token_id": 0,
            "eos_token_id": 2,
            "rms_norm_eps": 1e-06,
            "use_sliding_window": False,
            "sliding_window": 32_768,
            "max_window_layers": 2,
            "rope_theta": 1_000_000.0,
            **fields,
        }
    )


def qwen3(**fields: Any) -> dict[str, Any]:
    return llama(
        **{
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "head_dim": 128,
            "hidden_size": 64,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "max_position_embeddings": 40_960,
            "rope_theta": 1_000_000,
            "rope_scaling": None,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": 2,
            "vocab_size": BPE + 8,
            **fields,
        }
    )


# Two widths for the same tokens: 152,064 and 151,936 as published.
WIDE, NARROW = BPE + 24, BPE + 8
PUBLISHED: dict[str, dict[str, Any]] = {
    "NousResearch/Yarn-Llama-2-7b-128k": yarn_llama(),
    "NousResearch/Yarn-Llama-2-13b-128k": yarn_llama(),
    "LargeWorldModel/LWM-Text-Chat-128K": lwm(131_072, 1e7),
    "LargeWorldModel/LWM-Text-Chat-256K": lwm(262_144, 1e7),
    "LargeWorldModel/LWM-Text-Chat-512K": lwm(524_288, 2.5e7),
    "LargeWorldModel/LWM-Text-Chat-1M": lwm(1_048_576, 5e7),
    "JackFram/llama-68m": llama(hidden_size=128, max_position_embeddings=2048, pad_token_id=1),
    "meta-llama/Llama-3.1-8B-Instruct": llama3(),
    "meta-llama/Llama-3.2-1B-Instruct": llama3(
        hidden_size=128, head_dim=64, tie_word_embeddings=True, scaling={"factor": 32.0}
    ),
    "Qwen/Qwen2.5-7B-Instruct-1M": qwen2(
        max_position_embeddings=1_010_000,
        rope_theta=10_000_000.0,
        dual_chunk_attention_config={
            "chunk_size": 262_144,
            "local_size": 8192,
            "original_max_position_embeddings": 262_144,
        },
        vocab_size=WIDE,
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": qwen2(
        hidden_size=128, max_position_embeddings=32_768, tie_word_embeddings=True, vocab_size=NARROW
    ),
    "Qwen/Qwen3-8B": qwen3(),
    "Qwen/Qwen3-0.6B": qwen3(tie_word_embeddings=True),
    "mistralai/Mistral-7B-Instruct-v0.3": llama(
        architectures=["MistralForCausalLM"],
        model_type="mistral",
        max_position_embeddings=32_768,
        rope_theta=1_000_000.0,
        sliding_window=None,
        num_key_value_heads=1,
    ),
}
PICKLED = ("NousResearch/Yarn-Llama-2-7b-128k", "JackFram/llama-68m")
ON_THE_HUB = [preset for preset in PRESETS if preset.repository]


def plain(theta: float, dim: int = 128) -> list[float]:
    """Su et al., arXiv 2104.09864: theta_i = b^(-2i/d)."""
    return [theta ** (-2 * i / dim) for i in range(dim // 2)]


def yarn(theta: float, factor: float, original: int, dim: int = 128) -> list[float]:
    """Peng et al., arXiv 2309.00071, section 3.2, with the ramp of the authors' code.

    A pair of dimensions that turns more than 32 times within the original context is kept, one that turns
    less than once is stretched by the factor; in between, a ramp over the whole dimensions.
    """

    def turning(times: float) -> float:
        return dim * math.log(original / (2 * math.pi * times)) / (2 * math.log(theta))

    first, last = math.floor(turning(32)), math.ceil(turning(1))
    stretched = [min(1.0, max(0.0, (i - first) / (last - first))) for i in range(dim // 2)]
    return [
        each * (1 - share) + each / factor * share
        for each, share in zip(plain(theta, dim), stretched, strict=True)
    ]


def llama3_scaled(theta: float, factor: float, dim: int) -> list[float]:
    """Grattafiori et al., arXiv 2407.21783, as in Meta's reference code: 8,192 tokens, bands at 1 and 4."""
    scaled = []
    for each in plain(theta, dim):
        turns = 8192 * each / (2 * math.pi)
        share = min(1.0, max(0.0, (turns - 1) / (4 - 1)))
        scaled.append((1 - share) * each / factor + share * each)
    return scaled


YARN_SCALING = 0.1 * math.log(32) + 1
ROPE: dict[str, tuple[list[float], float]] = {
    "yarn-llama-2-7b-128k": (yarn(1e4, 32, 4096), YARN_SCALING),
    "yarn-llama-2-13b-128k": (yarn(1e4, 32, 4096), YARN_SCALING),
    "lwm-128k": (plain(1e7), 1),
    "lwm-256k": (plain(1e7), 1),
    "lwm-512k": (plain(2.5e7), 1),
    "lwm-1m": (plain(5e7), 1),
    "llama-3.1-8b": (llama3_scaled(5e5, 8, 128), 1),
    "qwen2.5-7b-1m": (plain(1e7), 1),
    "qwen3-8b": (plain(1e6), 1),
    "qwen3-8b-128k": (yarn(1e6, 4, 32_768), 0.1 * math.log(4) + 1),
    "mistral-7b": (plain(1e6), 1),
    "llama-68m": (plain(1e4, 64), 1),
    "llama-3.2-1b": (llama3_scaled(5e5, 32, 64), 1),
    "qwen2.5-0.5b": (plain(1e6, 64), 1),
    "qwen3-0.6b": (plain(1e6), 1),
}


CONTEXT = {
    "yarn-llama-2-7b-128k": 131_072,
    "yarn-llama-2-13b-128k": 131_072,
    "lwm-128k": 131_072,
    "lwm-256k": 262_144,
    "lwm-512k": 524_288,
    "lwm-1m": 1_048_576,
    "llama-3.1-8b": 131_072,
    "qwen2.5-7b-1m": 262_144,
    "qwen3-8b": 40_960,
    "qwen3-8b-128k": 131_072,
    "mistral-7b": 32_768,
    "llama-68m": 2_048,
    "llama-3.2-1b": 131_072,
    "qwen2.5-0.5b": 32_768,
    "qwen3-0.6b": 40_960,
}


@pytest.mark.parametrize("preset", ON_THE_HUB, ids=lambda preset: preset.name)
def test_the_sizes_that_are_known_are_those_of_the_same_model(preset: presets.Preset) -> None:
    """The configurations here are small but for what a family shares; the package has the real sizes."""
    assert preset.repository
    here, known = PUBLISHED[preset.repository], preset.sizes
    for name in ("model_type", "tie_word_embeddings"):
        assert here[name] == known[name]
    scaling = here.get("rope_scaling") or {}
    if scaling.get("type") == "yarn":
        for name in ("factor", "original_max_position_embeddings"):
            assert scaling[name] == known["rope_parameters"][name]
    assert {name for name in known if name.startswith("rope")} == (
        {"rope_parameters"} if scaling.get("type") == "yarn" else set()
    )


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repositories as folders."""
    made = tmp_path_factory.mktemp("hub")
    torch.manual_seed(3)
    for repository, config in PUBLISHED.items():
        folder = save_published(made / repository, config, pickled=repository in PICKLED)
        if config["vocab_size"] == LLAMA2:
            save_sentencepiece(folder)
        else:
            save_tokenizer(folder)
    return made


@pytest.fixture(autouse=True)
def own_cache(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(hub / "cache"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repository, **_: str(hub / repository))
    for repository in PICKLED:
        pull(repository, ignore_progress)


def load(name: str) -> LoadedModel:
    return load_model(name, attention="sdpa")


def test_every_preset_is_tried_here() -> None:
    assert {preset.repository for preset in ON_THE_HUB} == set(PUBLISHED)
    assert {preset.name for preset in ON_THE_HUB} == set(ROPE)
    assert all(preset.draft is None or find_preset(preset.draft) for preset in ON_THE_HUB)


@pytest.mark.parametrize("preset", ON_THE_HUB, ids=lambda preset: preset.name)
def test_rotary_embeddings_are_those_of_the_paper(preset: presets.Preset) -> None:
    loaded = load(preset.name)
    frequencies, scaling = ROPE[preset.name]
    rotary = loaded.model.base_model.rotary_emb
    torch.testing.assert_close(rotary.inv_freq, torch.tensor(frequencies), rtol=1e-5, atol=0)
    assert rotary.attention_scaling == pytest.approx(scaling, rel=1e-6)
    assert loaded.context == loaded.model.config.max_position_embeddings == CONTEXT[preset.name]
    assert loaded.sampling == preset.sampling
    assert type(loaded.model).__module__.startswith("transformers.")  # no code came with the model


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_yarn_reaches_four_times_the_context_of_the_coder_models(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their files declare 32,768 tokens and no scaling; embedding and output matrix are two."""
    save_published(tmp_path, qwen2(max_position_embeddings=32_768, vocab_size=NARROW))
    save_tokenizer(tmp_path)
    monkeypatch.setattr(registry, "wheel_model", lambda **_: tmp_path)
    loaded = load(name)
    rotary = loaded.model.base_model.rotary_emb
    frequencies = torch.tensor(yarn(1e6, 4, 32_768))
    torch.testing.assert_close(rotary.inv_freq, frequencies, rtol=1e-5, atol=0)
    assert rotary.attention_scaling == pytest.approx(0.1 * math.log(4) + 1)
    assert loaded.context == loaded.model.config.max_position_embeddings == 131_072
    assert dict(loaded.sampling) == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("name", "parameters"), [("qwen2.5-coder-0.5b", 630_167_424), ("qwen2.5-coder-1.5b", 1_777_088_000)]
)
def test_the_coder_models_are_counted_as_their_files_are(name: str, parameters: int) -> None:
    """The number of elements of all tensors in the GGUF file."""
    preset = find_preset(name)
    assert preset is not None
    assert Dimensions.of(preset.sizes).parameters() == parameters


@pytest.mark.parametrize(
    ("name", "base", "penalty"),
    [("medium", "qwen2.5-coder-0.5b", {"repetition_penalty": 1.1}), ("large", "qwen2.5-coder-1.5b", {})],
)
def test_our_adapters_belong_to_the_coder_models(
    name: str, base: str, penalty: dict[str, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    preset, coder = find_preset(name), find_preset(base)
    assert preset is not None
    assert coder is not None
    assert coder.packed is not None
    assert (preset.context, preset.packed, preset.sizes) == (131_072, coder.packed, coder.sizes)
    assert (preset.licence, preset.draft) == (coder.licence, coder.draft)
    assert preset.sampling == {**coder.sampling, **penalty}
    assert preset.about != coder.about
    asked: list[PackedModel] = []

    def wheel_model(packed: PackedModel, **_: object) -> Path:
        asked.append(packed)
        return tmp_path

    monkeypatch.setattr(registry, "wheel_model", wheel_model)
    (tmp_path / coder.packed.file).touch()
    source = registry.resolve(name)
    assert asked == [coder.packed]
    assert (source.name, source.folder, source.preset) == (name, tmp_path, preset)
    adapter = source.adapter
    assert adapter is not None
    assert (
        adapter.folder == Path(presets.shipped(name)) == Path(presets.__file__).parents[1] / "weights" / name
    )
    assert (adapter.base, adapter.context) == (base, preset.context)
    assert adapter.rope == {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4,
        "original_max_position_embeddings": 32_768,
    }
    assert presets.short_name(presets.shipped(name)) == f"{name}-adapter"
    shapes = weight_shapes(Path(presets.shipped(name)) / WEIGHTS)
    layers, wide = coder.sizes["num_hidden_layers"], coder.sizes["hidden_size"]
    assert len(shapes) == 2 * 7 * layers  # every linear layer of every block
    last = f"base_model.model.model.layers.{layers - 1}.mlp.up_proj"
    assert shapes[f"{last}.lora_A.weight"] == [adapter.rank, wide]
    assert shapes[f"{last}.lora_B.weight"] == [coder.sizes["intermediate_size"], adapter.rank]


def weight_shapes(file: Path) -> dict[str, list[int]]:
    with safe_open(file, "pt") as tensors:
        return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118


def answers(engine: Engine, request: Request) -> tuple[list[int], list[int]]:
    """Tokens by the stack, and by plain decoding."""
    made: list[list[int]] = []
    for is_plain in (False, True):
        made.append([])
        for event in engine.answer(request, plain=is_plain):
            made[-1] += event.token_ids if isinstance(event, Text) else ()
    return made[0], made[1]


@pytest.mark.parametrize("preset", ON_THE_HUB, ids=lambda preset: preset.name)
def test_three_levels_say_what_plain_decoding_says(preset: presets.Preset) -> None:
    settings = Settings(
        model=preset.name,
        stack="triforce",
        budget=120,
        chunk=4,
        gamma=4,
        draft_gamma=2,
        context=512,
        device="cpu",
    )
    engine, loaded = load_engine(EngineSpec(settings))
    assert loaded.draft == preset.draft
    assert (engine.draft is None) == (preset.draft is None)
    engine.eos_ids = frozenset()
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(3, BPE, (320,), generator=generator).tolist()
    spoken, expected = answers(engine, Request(prompt, max_tokens=24))
    assert len(expected) == 24
    assert spoken == expected


@pytest.mark.parametrize("legacy", [True, False])
def test_lwm_is_asked_as_its_authors_ask(hub: Path, legacy: bool) -> None:
    save_sentencepiece(hub / "LargeWorldModel/LWM-Text-Chat-1M", legacy)
    tokenizer: Any = load("lwm-1m").tokenizer
    format = ChatFormat(tokenizer)
    question, answer, again = (format.encode(text) for text in ("What is it?", "A book.", "Whose?"))
    whole = tokenizer("You are a helpful assistant. USER: What is it? ASSISTANT:", add_special_tokens=False)
    first = format.render([Message("user", question)])
    assert first == [SENTENCEPIECE.index("<s>"), *whole["input_ids"]]
    longer = format.render([Message("user", question), Message("assistant", answer), Message("user", again)])
    assert longer[: len(first)] == first
    turn = tokenizer("USER: Whose? ASSISTANT:", add_special_tokens=False)["input_ids"]
    assert longer == [*first, *answer, tokenizer.eos_token_id, *turn]
    assert format.stop == ()


def test_a_system_text_takes_the_place_of_lwms_own() -> None:
    tokenizer: Any = load("lwm-128k").tokenizer
    format = ChatFormat(tokenizer)
    rendered = format.render(
        [Message("system", format.encode("Be brief.")), Message("user", format.encode("Why?"))]
    )
    whole = tokenizer("Be brief. USER: Why? ASSISTANT:", add_special_tokens=False)["input_ids"]
    assert rendered == [SENTENCEPIECE.index("<s>"), *whole]


def test_a_base_model_is_asked_plainly() -> None:
    format = ChatFormat(load("yarn-llama-2-7b-128k").tokenizer)
    assert format.tokenizer.chat_template is None
    ids = format.render([Message("user", format.encode("Why?"))])
    assert format.tokenizer.decode(ids).split() == ["<s>", "user:", "Why?", "assistant:"]


def test_a_template_of_the_tokenizer_stays(hub: Path) -> None:
    from transformers import AutoTokenizer

    folder = hub / "LargeWorldModel/LWM-Text-Chat-512K"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(folder)
    assert load("lwm-512k").tokenizer.chat_template == "{{ messages[0].content }}"


def test_a_hub_id_finds_its_preset() -> None:
    assert find_preset("Qwen/Qwen3-8B") is find_preset("qwen3-8b")
    assert load("LargeWorldModel/LWM-Text-Chat-1M").tokenizer.chat_template == presets.LWM_TEMPLATE


def test_a_folder_that_wants_dual_chunk_attention_stops_before_it(hub: Path) -> None:
    assert load(str(hub / "Qwen/Qwen2.5-7B-Instruct-1M")).context == 262_144
