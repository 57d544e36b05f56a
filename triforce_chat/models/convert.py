"""Converts a GGUF file into a folder of safetensors, which loads in a fraction of the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_model
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from triforce_chat.models.completeness import check_loaded
from triforce_chat.models.end_tokens import end_token_ids, repair_gguf_tokenizer
from triforce_chat.models.failures import convert_errors
from triforce_chat.models.gguf_for_transformers import quick_gguf
from triforce_chat.models.progress import Progress, Report
from triforce_chat.models.silence_logs import silence_logs

STEPS = 2  # the weights, the tokenizer
# Fields of a config read from GGUF that describe the file, not the model.
FILE_FIELDS = (
    "quantization_config",
    "_name_or_path",
    "_model_name_or_path",
    "model_type",
    "transformers_version",
)


def convert_gguf(gguf: Path, folder: Path, dtype: str, report: Report) -> None:
    """Write config, weights (as ``dtype``), tokenizer and chat template of ``gguf`` into the existing ``folder``.

    Takes as much memory as the converted weights. Raises ModelError or OutOfMemory if it fails.
    """
    report(Progress("converting", 0, STEPS))
    model, info = _read(AutoModelForCausalLM, gguf, dtype=getattr(torch, dtype), output_loading_info=True)
    check_loaded(gguf.name, info["missing_keys"])
    report(Progress("converting", 1, STEPS))
    tokenizer = _read(AutoTokenizer, gguf)
    repair_gguf_tokenizer(tokenizer, model.config)
    report(Progress("converting", STEPS, STEPS))
    _save(model, tokenizer, folder, report)


def _read(kind: Any, gguf: Path, **options: Any) -> Any:
    with convert_errors(gguf.name, "cpu"), silence_logs(), quick_gguf():
        return kind.from_pretrained(
            gguf.parent, gguf_file=gguf.name, local_files_only=True, trust_remote_code=False, **options
        )


def _save(model: Any, tokenizer: Any, folder: Path, report: Report) -> None:
    size = sum(weight.nbytes for weight in model.parameters())
    report(Progress("saving", 0, size))
    with silence_logs():
        _plain_config(model).save_pretrained(folder)
        _generation_config(model, tokenizer).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    try:
        save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, for one
        raise OSError(str(error)) from error
    report(Progress("saving", size, size))


def _plain_config(model: Any) -> Any:
    """The config without fields about GGUF, which would make transformers expect quantized weights."""
    values = {key: value for key, value in model.config.to_dict().items() if key not in FILE_FIELDS}
    return type(model.config)(**{**values, "architectures": [type(model).__name__]})


def _generation_config(model: Any, tokenizer: Any) -> GenerationConfig:
    config = model.config
    ends = sorted(end_token_ids(model, tokenizer))
    return GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=ends, pad_token_id=config.pad_token_id
    )
