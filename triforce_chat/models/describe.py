"""What is known of a model before its weights are touched, or even on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path
from typing import Any

from triforce_chat.errors import DoesNotFit, ModelError
from triforce_chat.models.adapter import is_adapter, read_adapter
from triforce_chat.models.presets import Preset, find_preset
from triforce_chat.models.registry import ModelSource, looks_like_hub_id, resolve
from triforce_chat.models.rope import LONGEST, stretched, stretches


@dataclass(frozen=True, slots=True)
class Description:
    """A model by its configuration."""

    name: str
    fields: Mapping[str, Any]  # of config.json
    context: int  # tokens it was made for
    rope: Mapping[str, Any]  # rope_parameters of transformers
    preset: Preset | None = None
    source: ModelSource | None = None  # where it lies, if it is here

    def reach(self, context: int | None) -> int:
        """The context to allocate: what was asked for, within what the model can be made to reach.

        Raises DoesNotFit.
        """
        if context is None or context <= self.context:
            return context or self.context
        told = f"{self.name} was made for {self.context:,} tokens; --context {context:,} is more"
        if not stretches(self.rope):
            raise DoesNotFit(told)
        if context > LONGEST:
            raise DoesNotFit(f"{told}, and its positions are stretched to {LONGEST:,} at most")
        return context

    def warning(self, context: int) -> str | None:
        """What to say of a context beyond the one that the model was made for."""
        if context <= self.context:
            return None
        factor = stretched(self.rope, context)[0]["factor"]
        return (
            f"warning: {self.name} was made for {self.context:,} tokens; for {context:,} its positions are "
            f"stretched further (YaRN factor {factor:g} instead of {self.rope['factor']:g}), and how good its "
            f"answers are beyond {self.context:,} tokens is unmeasured"
        )


def describe(name: str) -> Description:
    """A model by its name; downloads a config.json at most. Raises ModelError when there is no such model."""
    preset = find_preset(name)
    path = Path(expanduser(name))
    if preset is not None:
        return _of_preset(name, preset)
    if is_adapter(path):
        adapter = read_adapter(path.absolute())
        base = describe(adapter.base)
        return dataclasses.replace(base, name=name, context=adapter.context, rope=adapter.rope)
    if path.exists() or not looks_like_hub_id(name):
        return described(resolve(name))
    return _of_hub(name)


def described(source: ModelSource) -> Description:
    """A model that is on this machine, by its own configuration. Raises ModelError if it cannot be run."""
    from triforce_chat.models.load import configuration

    config = configuration(source)
    rope = config.rope_parameters or {}
    return Description(
        source.name, config.to_dict(), config.max_position_embeddings, rope, source.preset, source
    )


def _of_preset(name: str, preset: Preset) -> Description:
    """By the configuration that was published; one that the table does not have is read where it lies."""
    if not preset.sizes:
        return described(_source(name, preset))
    rope = preset.rope or preset.sizes.get("rope_parameters", {})
    if preset.adapter is not None:
        rope = read_adapter(Path(preset.adapter)).rope
    return Description(name, preset.sizes, preset.context, rope, preset)


def _source(name: str, preset: Preset) -> ModelSource:
    from triforce_chat.models.inventory import folder_of

    if folder_of(preset) is None:
        raise ModelError(f"{name} is not on this machine; fetch it with 'triforce-chat models pull {name}'")
    return resolve(name)


def _of_hub(name: str) -> Description:
    from triforce_chat.models.hub import configuration_folder

    return described(ModelSource(name, configuration_folder(name), None, None))
