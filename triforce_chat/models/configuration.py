"""A model's configuration, without transformers' classes, whose import takes longer than a whole start may."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import torch


class Configuration(SimpleNamespace):
    """Fields by the names, and with the defaults, that transformers gives them."""

    def to_dict(self) -> dict[str, Any]:
        """All fields but private ones, as a config.json has them."""
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {
            name: str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else deepcopy(value)
            for name, value in public.items()
        }

    def update(self, fields: Mapping[str, Any]) -> None:
        """Replace fields."""
        vars(self).update(fields)


def for_transformers(config: Any) -> Any:
    """The same configuration in transformers' class for the architecture, which its own modules need."""
    if not isinstance(config, Configuration):
        return config
    from transformers import AutoConfig

    return AutoConfig.for_model(**config.to_dict())
