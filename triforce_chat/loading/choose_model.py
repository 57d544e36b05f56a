"""Chooses the model that suits a machine, where the user names none.

A larger model answers better and takes longer and more memory, so the largest one is taken that this machine holds and,
on a CPU, decodes at about a reader's pace. Where that one cannot be had, a smaller one answers instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import torch

from triforce_chat.errors import ModelError
from triforce_chat.loading.cpu_speed import ms_per_token
from triforce_chat.loading.device import device_and_dtype, keeps_format
from triforce_chat.loading.planning import offload_of, plan_for
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.inputs import Machine, available_memory, describe_draft
from triforce_chat.memory_plan.plan import with_resident_weights
from triforce_chat.models.describe import Description, as_stored, describe
from triforce_chat.models.drafts import draft_for
from triforce_chat.models.inventory import is_missing
from triforce_chat.settings.layers import user_values
from triforce_chat.settings.options import Options
from triforce_chat.settings.paths import failed_download_mark
from triforce_chat.settings.settings import Settings
from triforce_chat.settings.sizes import readable

BEST, MIDDLE, SMALL = CANDIDATES = ("large", "medium", "small")
GPU_BYTES = 8 * 10**9  # memory of a GPU from which on it gets the best candidate
READING_PACE = 150  # milliseconds per token
USEFUL_CONTEXT = 16_384  # tokens; a candidate whose context would have to be shorter is too large
DIGITS = 2  # significant ones of an estimated time
RETRY_AFTER = 3600  # seconds after a failed download

Fetch = Callable[[str], object]  # makes sure that a model is on this machine; raises ModelError


@dataclass(frozen=True, slots=True)
class Computer:
    """What the choice depends on."""

    machine: Machine  # (device, dtype, free memory)
    gpu_bytes: int | None  # the whole memory of a GPU; None: a CPU computes
    step: Callable[[Description], float] = ms_per_token  # a decoding step on the CPU, in milliseconds


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates that suit a machine, the best first, and what speaks against a still better one."""

    models: Sequence[str]
    advice: str | None = None  # one line; None if the best candidate is the first

    @property
    def model(self) -> str:
        return self.models[0]

    @property
    def summary(self) -> str:
        """The choice and what speaks against a better one, in one line."""
        return "; ".join(filter(None, [f"auto chooses {self.model} here", self.advice]))


def this_computer(settings: Settings) -> Computer:
    """The device in the settings, as it is now. Raises UsageError for a device that this machine lacks."""
    name, dtype = device_and_dtype(settings)
    device = torch.device(name)
    machine = device, dtype, available_memory(device, settings.tp)
    return Computer(machine, gpu_memory(device), partial(ms_per_token, dtype=dtype))


def users_choice() -> Choice:
    """The choice on this machine under the user's own settings. Raises TriforceError for mistakes in these."""
    settings = Options(**user_values()).settings
    return choose(settings, this_computer(settings))


def gpu_memory(device: torch.device) -> int | None:
    """The whole memory of a GPU, in bytes; None for a CPU."""
    if device.type == "cpu":
        return None
    whole: int = torch.cuda.get_device_properties(device).total_memory
    return whole


def choose(settings: Settings, computer: Computer) -> Choice:
    """Choose; nothing is downloaded or loaded. ``small`` is chosen where nothing else can be.

    Raises DoesNotFit and UsageError for settings that no candidate could meet.
    """
    objections = {
        name: objection(described(name, settings, computer), settings, computer) for name in (BEST, MIDDLE)
    }
    suitable = [name for name, against in objections.items() if against is None]
    better = [against for _, against in takewhile(lambda rated: rated[1], objections.items())]
    return Choice((*suitable, SMALL), better[-1] if better else None)


def described(name: str, settings: Settings, computer: Computer) -> Description:
    """A candidate, with the weights that stay as they are if they would."""
    model = describe(name)
    device, dtype, _ = computer.machine
    return as_stored(model, device, dtype) if keeps_format(settings, device.type) else model


def objection(model: Description, settings: Settings, computer: Computer) -> str | None:
    """Why a model does not suit the machine, in one line for the user; None if it does."""
    (device, _, memory), own = computer.machine, Dimensions.of(model.fields)
    context = settings.room or USEFUL_CONTEXT
    if not own.divides_among(settings.tp):
        return f"{model.name} answers better, but {settings.tp} processes cannot share it"
    if context > model.context:
        return f"{model.name} answers better, but was made for {model.context:,} tokens at most"
    draft = describe_draft(draft_for(model))
    made = plan_for(settings, model, draft, context, computer.machine, settings.tp)
    plan = with_resident_weights(made, offload_of(settings))
    if not plan.fits:
        need, free = readable(plan.device), readable(memory.device or 0)
        return f"{model.name} answers better, but with {context:,} tokens it takes {need} of memory; {free} are free"
    if model.name != BEST:
        return None
    if computer.gpu_bytes is not None:
        few = computer.gpu_bytes < GPU_BYTES
        return f"{_better(BEST)}; it is meant for GPUs of {readable(GPU_BYTES)} or more" if few else None
    return _too_slow(model, settings, computer) if device.type == "cpu" else None


def _too_slow(best: Description, settings: Settings, computer: Computer) -> str | None:
    step = computer.step(best)
    if step < READING_PACE:
        return None
    other = computer.step(described(MIDDLE, settings, computer))
    return f"{_better(BEST)} and takes about {rounded(step)} ms a token here instead of {rounded(other)}"


def _better(name: str) -> str:
    return f"--model {name} answers better"


def rounded(milliseconds: float) -> str:
    """An estimate with as many digits as it deserves."""
    return f"{float(f'{milliseconds:.{DIGITS}g}'):,.0f}"


def obtain(models: Sequence[str], fetch: Fetch) -> tuple[str, str | None]:
    """Fetch the first of the models that can be had: (its name, one line if another was wanted).

    After the first failure those that are on this machine come first, because the next download would fail
    likewise, after a wait. For an hour after a failure a machine that has one of them does not even try: without a
    network every start would wait. Raises ModelError if none can be had.
    """
    wanted, *others = models
    if is_missing(wanted) and failed_lately() and not all(map(is_missing, others)):
        failure: ModelError | None = ModelError(
            f"a download failed within the last hour; 'triforce-chat models pull {wanted}' tries again now"
        )
    else:
        failure = _failure(fetch, wanted)
    if failure is None:
        return wanted, None
    for name in sorted(others, key=is_missing):
        if _failure(fetch, name) is None:
            return name, f"{name} answers, because {wanted} cannot be had now: {failure}"
    raise failure


def failed_lately() -> bool:
    """Whether a download failed within the last hour."""
    try:
        return 0 <= time.time() - failed_download_mark().stat().st_mtime < RETRY_AFTER
    except OSError:
        return False


def _failure(fetch: Fetch, name: str) -> ModelError | None:
    try:
        fetch(name)
    except ModelError as error:
        if is_missing(name):
            with suppress(OSError):  # a cache that cannot be written to costs the wait again
                failed_download_mark().touch()
        return error
    return None
