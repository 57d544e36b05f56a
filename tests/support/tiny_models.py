"""Random models of a few thousand weights, in every form in which a real one may lie on a disk."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, TokenType

from triforce_chat.models.packed import PackedModel, Wheel

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = [chr(number) for number in range(ord("!"), ord("~") + 1)]
VOCABULARY = [*SPECIAL, *LETTERS, "Ġ", "zz", "qq"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
HIDDEN, LAYERS, HEADS, KV_HEADS, MLP = 32, 2, 4, 2, 64
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HIDDEN // HEADS,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


class Evil:
    """Creates a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def save_tokenizer(folder: Path, vocabulary: list[str] = VOCABULARY) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE({token: number for number, token in enumerate(vocabulary)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(SPECIAL)
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>").save_pretrained(folder)


def save_model(folder: Path, model_type: str = "llama", **changes: Any) -> Path:
    """A random model of that architecture with its tokenizer, as ``save_pretrained`` writes them.

    A larger ``vocab_size`` gets as many more tokens; ``save_weights`` leaves it padded instead.
    """
    config = save_weights(folder, model_type, **changes)
    more = [f"more{number}" for number in range(len(VOCABULARY), config.vocab_size)]
    save_tokenizer(folder, [*VOCABULARY, *more])
    return folder


def save_weights(folder: Path, model_type: str = "llama", **changes: Any) -> Any:
    """The same without a tokenizer; returns the configuration."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return config


def write_gguf(
    path: Path,
    architecture: str = "llama",
    context: int = SIZES["max_position_embeddings"],
    seed: int = 0,
    blocks: float = 1.0,
) -> Path:
    """A random model as one GGUF file, all weights in fp32.

    ``blocks`` is a factor of the weights between embedding and output: with 0 each token decides the next one alone.
    """
    writer = GGUFWriter(path, architecture)
    _add_sizes(writer, context)
    _add_tokens(writer)
    random = np.random.default_rng(seed)
    for name, shape in _shapes().items():
        factor = np.float32(blocks if name.startswith("blk.") else 1.0)
        writer.add_tensor(name, factor * random.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def build_wheel(folder: Path, parts: int = 1) -> PackedModel:
    """A tiny GGUF file in wheels in ``folder``, which pip accepts; returns what to expect of it."""
    gguf = write_gguf(folder / "tiny.gguf")
    data = gguf.read_bytes()
    gguf.unlink()
    length = -(-len(data) // parts)
    return PackedModel(
        model="tiny",
        origin="tests",
        file="tiny.gguf",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        wheels=tuple(
            _wheel(folder, f"tiny-gguf{n or ''}", data[n * length : (n + 1) * length]) for n in range(parts)
        ),
        dtype="float32",
        converted_size=4 * len(data),
    )


def _wheel(folder: Path, name: str, content: bytes) -> Wheel:
    module = name.replace("-", "_")
    archive, info = folder / f"{module}-1.0-py3-none-any.whl", f"{module}-1.0.dist-info"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"{module}/tiny.gguf", content)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: never-wanted-here\n"
        packed.writestr(f"{info}/METADATA", metadata)
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return Wheel(
        f"{name}==1.0", archive.stat().st_size, _sha256(archive), f"{module}/tiny.gguf", len(content)
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _add_sizes(writer: GGUFWriter, context: int) -> None:
    writer.add_name("tiny")
    writer.add_context_length(context)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(VOCABULARY))


def _add_tokens(writer: GGUFWriter) -> None:
    kinds = [TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in VOCABULARY]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types(kinds)
    writer.add_token_merges(["z z", "q q"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)


def _shapes() -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    block = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (MLP, HIDDEN),
        "ffn_up": (MLP, HIDDEN),
        "ffn_down": (HIDDEN, MLP),
    }
    blocks = {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in block.items()}
    return {"token_embd.weight": (len(VOCABULARY), HIDDEN), "output_norm.weight": (HIDDEN,), **blocks}


SENTENCEPIECE = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS]


def save_sentencepiece(folder: Path, legacy: bool = True) -> None:
    """A tokenizer as Llama 2 has it: a space in front of every text, bytes for what it does not know."""
    import json

    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {token: number for number, token in enumerate(SENTENCEPIECE)}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "legacy": legacy,
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def save_published(folder: Path, config: dict[str, Any], pickled: bool = False) -> Path:
    """Random weights for a config.json that is written as it is, field for field."""
    import json

    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    settings.initializer_range = 0.3  # decided logits
    model = AutoModelForCausalLM.from_config(settings)
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def save_adapter(folder: Path, base: Path, rank: int = 4, alpha: int = 8, **changes: Any) -> Path:
    """A random LoRA in PEFT's format for the attention of a tiny model; ``changes`` go into its configuration."""
    import json

    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": ["q_proj", "v_proj"],
        "task_type": "CAUSAL_LM",
        **changes,
    }
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 128,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "rope.json").write_text(json.dumps({"rope_parameters": rope, "max_position_embeddings": 2048}))
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(LAYERS):
        for name, out in (("q_proj", HIDDEN), ("v_proj", HIDDEN // HEADS * KV_HEADS)):
            path = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            down, up = (
                torch.randn(rank, HIDDEN, generator=generator),
                torch.randn(out, rank, generator=generator),
            )
            weights[f"{path}.lora_A.weight"], weights[f"{path}.lora_B.weight"] = (
                down.bfloat16(),
                up.bfloat16(),
            )
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def mute_special_tokens(folder: Path) -> None:
    """Zero the output rows of special tokens, so that a random model never ends an answer by itself."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][: len(SPECIAL)] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
