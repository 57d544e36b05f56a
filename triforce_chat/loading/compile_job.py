"""Has the kernels that a model will need compiled by another process, from the start of a command on.

That process finds out by itself which model will be loaded and which kernels it launches: it needs only what the user
said and which GPU there is. So it begins before this process imports torch. A marker file in Triton's cache says that
a job was done. Nothing here imports torch, triton or transformers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Thread
from typing import Any

from triforce_chat import __version__
from triforce_chat.engine.kernels_available import FIRST, kernels_compile
from triforce_chat.loading.gpu import Gpu
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.models.presets import find_preset
from triforce_chat.models.shapes import find_shape
from triforce_chat.settings.settings import AUTO, SAMPLED, Settings

COMPILER = "triforce_chat.loading.compiling"  # the module that the process runs
ENGINE = Path(__file__).parents[1] / "engine"
CHOSEN = (AUTO, "none")  # what names no model
# Settings that change no kernel, but for a seed that is given or not.
UNRELATED = {*SAMPLED, "max_tokens", "tree_size", "tree_depth"}


@dataclass(frozen=True, slots=True)
class Job:
    """The engine that will be loaded, and the GPU that it is for."""

    spec: EngineSpec
    gpu: Gpu

    def text(self) -> str:
        """This job as JSON. Two jobs with the same text need the same kernels."""
        settings = dataclasses.asdict(self.spec.settings)
        fields = {name: value for name, value in settings.items() if name not in UNRELATED}
        fields |= {name: located(fields[name]) for name in ("model", "draft")}
        fields["seed"] = None if settings["seed"] is None else 0
        return json.dumps(
            {
                "settings": fields,
                "capacity": self.spec.capacity,
                "shape": self.spec.shape and self.spec.shape.name,
                "device_memory": self.spec.device_memory,
                "sequences": self.spec.sequences,
                "gpu": dataclasses.asdict(self.gpu),
            }
        )

    @staticmethod
    def of(text: str) -> Job:
        """A job from its JSON."""
        fields = json.loads(text)
        gpu = Gpu(**{**fields["gpu"], "capability": tuple(fields["gpu"]["capability"])})
        shape = find_shape(fields["shape"]) if fields["shape"] else None
        plain = fields["capacity"], shape, fields["device_memory"], fields["sequences"]
        spec = EngineSpec(Settings(**fields["settings"]), *plain)
        return Job(spec, gpu)

    @property
    def marker(self) -> Path:
        """The file that is there once the job was done with the present kernels and libraries."""
        made_by = self.text(), __version__, released("triton"), released("torch"), sources()
        name = hashlib.sha256(repr(made_by).encode()).hexdigest()[:16]
        return triton_cache(os.environ) / f"triforce-{name}"


def start(spec: EngineSpec, gpu: Gpu | None) -> Thread | None:
    """Begin to compile the kernels of an engine; None if that was done before or nothing is to be compiled.

    The thread waits for the process, which goes on if this one ends early.
    """
    if gpu is None or gpu.capability < FIRST or not kernels_compile() or not hasattr(os, "fork"):
        return None
    job = Job(spec, gpu)
    if job.marker.exists():
        return None
    waiting = Thread(target=run, args=(job,), name="compile ahead", daemon=True)
    waiting.start()
    return waiting


def run(job: Job) -> None:
    """Do a job in a process of its own, and wait for it."""
    subprocess.run(
        # -P: nothing is imported from the folder in which the user works.
        [sys.executable, "-P", "-m", COMPILER],
        input=job.text().encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the chat
        check=False,
    )


def located(model: str) -> str:
    """A model's name that means the same in every folder and for every user."""
    if model in CHOSEN:
        return model
    preset, path = find_preset(model), Path(model).expanduser()
    if preset is not None:
        return preset.name
    return str(path.absolute()) if path.exists() else model


def triton_cache(environment: Mapping[str, Any]) -> Path:
    """The folder in which Triton keeps what it compiled, by its own rules."""
    if named := environment.get("TRITON_CACHE_DIR"):
        return Path(named)
    return Path(environment.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


def sources() -> str:
    """A hash of the kernels' source files, and of what finds out which of them are needed."""
    files = [*sorted((ENGINE / "kernels").glob("*.py")), ENGINE / "compile_ahead.py"]
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()


def released(package: str) -> str | None:
    """The version of an installed package, which is not imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
