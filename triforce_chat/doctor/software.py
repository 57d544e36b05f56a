"""Versions: Python, torch and everything else that this program stands on."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.util import find_spec

from triforce_chat import __version__
from triforce_chat.doctor.check_result import Finding, ok, problem, warning
from triforce_chat.errors import ModelError

PACKAGE = "triforce-chat"
INSTALL = "pip install --upgrade triforce-chat"
TRITON = "'triton>=3.4'"


def python() -> Iterator[Finding]:
    place = f"{platform.python_version()}, {sys.executable}"
    yield ok("triforce-chat", f"{__version__}, {platform.system()} {platform.machine()}")
    yield ok("python", place)


def torch() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:
        yield problem("torch", f"cannot be imported: {first_line(error)}", INSTALL, ModelError)
        return
    onednn = "oneDNN" if torch.backends.mkldnn.is_available() else "no oneDNN"
    capability = torch.backends.cpu.get_cpu_capability()
    yield ok("torch", f"{torch.__version__}, {capability}, {torch.get_num_threads()} threads, {onednn}")


def transformers() -> Iterator[Finding]:
    try:
        found = import_module("transformers")
    except Exception as error:
        yield problem("transformers", f"cannot be imported: {first_line(error)}", INSTALL, ModelError)
        return
    yield ok("transformers", found.__version__)


def dependencies() -> Iterator[Finding]:
    """Each requirement of the package's metadata against what is installed; wrong ones get their own lines."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(text) for text in metadata.requires(PACKAGE) or ()]
    except metadata.PackageNotFoundError:
        yield warning("packages", "not checked, because the program runs from a folder", "pip install .")
        return
    fitting = []
    for each in wanted:
        if each.marker and not each.marker.evaluate({"extra": ""}):
            continue
        found = installed(each.name)
        if found is None:
            yield problem("packages", f"{each.name} is missing", f"pip install '{each}'", ModelError)
        elif not each.specifier.contains(found, prereleases=True):
            told = f"{each.name} {found} is installed, {each.specifier} is required"
            yield warning("packages", told, f"pip install '{each}'")
        else:
            fitting.append(f"{each.name} {found}")
    yield ok("packages", ", ".join(fitting))


def triton() -> Iterator[Finding]:
    """What a GPU decodes with; without it, transformers' own forward serves."""
    import torch

    from triforce_chat.engine.kernels_available import c_compiler

    if not torch.cuda.is_available():
        yield ok("triton", "not needed: there is no GPU to use it")
        return
    if find_spec("triton") is None:
        told = "not installed: transformers' own forward serves, several times slower"
        yield warning("triton", told, f"pip install {TRITON}")
        return
    if c_compiler() is None:
        told = "finds no C compiler: transformers' own forward serves, several times slower"
        yield warning("triton", told, "install gcc, or name a C compiler in the environment variable CC")
        return
    try:
        yield ok("triton", import_module("triton").__version__)
    except Exception as error:
        told = f"cannot be imported: {first_line(error)}"
        yield problem("triton", told, f"pip install --force-reinstall {TRITON}", ModelError)


def installed(name: str) -> str | None:
    """A package's version; None without it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def first_line(error: BaseException) -> str:
    """What went wrong, short enough for a line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
