"""Checks of versions: Python, torch and the other dependencies."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.util import find_spec

from triforce_chat import __version__
from triforce_chat.doctor.check_result import CheckResult, ok, problem, warning
from triforce_chat.errors import ModelError
from triforce_chat.ui.formatting import count

PACKAGE = "triforce-chat"
REINSTALL = "pip install --force-reinstall {}".format  # of one package
INSTALL = "install triforce-chat again, from where you have it"
TRITON = "'triton>=3.4'"


def python() -> Iterator[CheckResult]:
    interpreter = f"{platform.python_version()}, {sys.executable}"
    yield ok("triforce-chat", f"{__version__}, {platform.system()} {platform.machine()}")
    yield ok("python", interpreter)


def torch() -> Iterator[CheckResult]:
    try:
        import torch
    except Exception as error:
        yield problem("torch", f"cannot be imported: {first_line(error)}", REINSTALL("torch"), ModelError)
        return
    onednn = "oneDNN" if torch.backends.mkldnn.is_available() else "no oneDNN"
    capability = torch.backends.cpu.get_cpu_capability()
    yield ok(
        "torch", f"{torch.__version__}, {capability}, {count(torch.get_num_threads(), 'thread')}, {onednn}"
    )


def transformers() -> Iterator[CheckResult]:
    try:
        found = import_module("transformers")
    except Exception as error:
        yield problem(
            "transformers", f"cannot be imported: {first_line(error)}", REINSTALL("transformers"), ModelError
        )
        return
    yield ok("transformers", found.__version__)


def dependencies() -> Iterator[CheckResult]:
    """Compare the package's requirements with the installed versions; each mismatch is a result of its own."""
    from packaging.requirements import Requirement

    try:
        required = [Requirement(text) for text in metadata.requires(PACKAGE) or ()]
    except metadata.PackageNotFoundError:
        yield warning(
            "packages", "not checked, because the program is not installed as a package", "pip install ."
        )
        return
    matching = []
    for each in required:
        if each.marker and not each.marker.evaluate({"extra": ""}):
            continue
        found = installed(each.name)
        if found is None:
            yield problem("packages", f"{each.name} is missing", f"pip install '{each}'", ModelError)
        elif not each.specifier.contains(found, prereleases=True):
            message = f"{each.name} {found} is installed, {each.specifier} is required"
            yield warning("packages", message, f"pip install '{each}'")
        else:
            matching.append(f"{each.name} {found}")
    yield ok("packages", ", ".join(matching))


def triton() -> Iterator[CheckResult]:
    """Triton, which compiles the GPU kernels; without it transformers' own forward is used."""
    import torch

    from triforce_chat.engine.kernels_available import c_compiler

    if not torch.cuda.is_available():
        yield ok("triton", "not needed: there is no GPU to use it")
        return
    if find_spec("triton") is None:
        message = "not installed: transformers' own forward is used, several times slower"
        yield warning("triton", message, f"pip install {TRITON}")
        return
    if c_compiler() is None:
        message = "finds no C compiler: transformers' own forward is used, several times slower"
        yield warning("triton", message, "install gcc, or name a C compiler in the environment variable CC")
        return
    try:
        yield ok("triton", import_module("triton").__version__)
    except Exception as error:
        message = f"cannot be imported: {first_line(error)}"
        yield problem("triton", message, f"pip install --force-reinstall {TRITON}", ModelError)


def cpu_kernels() -> Iterator[CheckResult]:
    """The kernels that multiply quantized weights on a CPU, which are compiled once."""
    from triforce_chat.engine.cpu_kernels import compiled

    kept = compiled.library_file()
    reason = compiled.obstacle()
    if kept.is_file():
        yield ok("kernels", f"compiled, in {kept}")
    elif reason is None:
        yield ok("kernels", "not compiled yet; the first start with quantized weights does that, in seconds")
    else:
        message = f"cannot be compiled: {reason}. Quantized weights are expanded: more memory, fewer tokens a second"
        yield warning("kernels", message, "install gcc, or name a C compiler in the environment variable CC")


def installed(name: str) -> str | None:
    """A package's version; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class if it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
