"""The compiled form of this folder's C sources: built once by the system's C compiler and kept in the cache folder.

The library's three instruction paths are chosen at run time, and it is compiled for no processor in particular, so a
cache folder may be shared by machines. Its threads are torch's own: it is linked against the OpenMP runtime that torch
ships, because two pools of threads would fight for the cores.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from triforce_chat.cache_folder import cache_folder

FOLDER = Path(__file__).parent  # of the sources
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared")
TIME_LIMIT = 120.0  # seconds; a compiler takes about ten
KEY_LENGTH = 20  # hexadecimal digits of a hash in a file's name
SHOWN = 200  # characters of a compiler's message

POINTER, COUNT, CODE, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
ARGUMENTS = {
    "project": (POINTER, POINTER, COUNT, POINTER, POINTER),
    "dequantize": (CODE, CODE, POINTER, COUNT, COUNT, POINTER, COUNT, POINTER, CODE),
    "attend": (
        *(CODE, POINTER, COUNT, COUNT, POINTER, POINTER, COUNT, COUNT, COUNT),
        *(POINTER, POINTER, POINTER, POINTER, COUNT, COUNT, COUNT, COUNT, COUNT),
        *(POINTER, COUNT),
        *(COUNT, COUNT, COUNT, COUNT, COUNT, NUMBER),
        *(POINTER, COUNT, POINTER, POINTER, COUNT, COUNT, CODE),
    ),
    "rotate": (
        *(POINTER, COUNT, COUNT, COUNT, COUNT, COUNT),
        *(POINTER, POINTER, NUMBER, POINTER, POINTER, CODE),
    ),
    "best_path": (),
}


class Instructions(IntEnum):
    """The instruction sets that it has a path for, by its own numbers."""

    PLAIN = 0
    AVX2 = 1
    AVX512 = 2


class Unusable(Exception):
    """Why the library cannot be built or loaded, in plain words."""


class Compiled(NamedTuple):
    """The library, or None and the reason in plain words."""

    library: ctypes.CDLL | None
    reason: str | None


@cache  # a process loads it once, and a compiler that fails is not asked again
def library() -> Compiled:
    """Load the library, after compiling it unless the cache folder holds it. Never raises."""
    try:
        return Compiled(_cached() or _built(), None)
    except Unusable as problem:
        return Compiled(None, str(problem))


def loaded() -> ctypes.CDLL:
    """The library where a model is in use that needs it. Raises RuntimeError if there is none."""
    found, reason = library()
    if found is None:
        raise RuntimeError(f"asked for a product without a library: {reason}")
    return found


def instructions() -> Instructions:
    """The best ones that this processor has."""
    return Instructions(loaded().best_path())


def will_compile() -> bool:
    """Whether ``library`` is going to run the compiler, which takes about ten seconds."""
    return not library.cache_info().currsize and not library_file().is_file() and obstacle() is None


def obstacle() -> str | None:
    """What keeps products from running here, in plain words; None if nothing that is known before compiling."""
    if library.cache_info().currsize:
        return library().reason
    try:
        if not library_file().is_file():
            _compiler()
    except Unusable as problem:
        return str(problem)
    return None


def library_file() -> Path:
    """The library in the cache folder, which may not exist."""
    return cache_folder() / "kernels" / f"quantized-{_key()}.so"


def _cached() -> ctypes.CDLL | None:
    """The library from the cache folder; None if it is absent or damaged. It needs no compiler."""
    with suppress(OSError, AttributeError):
        return _loaded(library_file())
    return None


def _built() -> ctypes.CDLL:
    """Compiled into the cache folder, or into a temporary one where that cannot be written or run from."""
    command, path = _compiler(), library_file()
    name = path.name
    with suppress(OSError, AttributeError):
        return _compiled(path.parent, command, name)
    with ExitStack() as stack:
        try:
            # A loaded library needs its file no longer.
            folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            return _compiled(Path(folder), command, name)
        except (OSError, AttributeError) as error:
            raise Unusable(f"the compiled kernels cannot be loaded: {error}") from error


def _compiled(folder: Path, command: list[str], name: str) -> ctypes.CDLL:
    """Raises OSError or AttributeError if the library cannot be written or loaded, Unusable if not compiled."""
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder, ignore_cleanup_errors=True) as work:
        made = Path(work) / name
        _compile(command, made)
        made.replace(path)  # at once, so that another process sees all of it or nothing
    return _loaded(path)


def _loaded(path: Path) -> ctypes.CDLL:
    found = ctypes.CDLL(str(path))
    for name, arguments in ARGUMENTS.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, CODE if name == "best_path" else None
    return found


def _compile(command: list[str], target: Path) -> None:
    sources = map(str, sorted(FOLDER.glob("*.c")))
    output = _output([*command, *FLAGS, "-o", str(target), *sources, *_threads(), "-lm"])
    if not target.is_file():
        raise Unusable(f"the C compiler {command[0]} made nothing: {output[:SHOWN]}")


def _output(command: list[str]) -> str:
    """What a compiler prints. Raises Unusable if it cannot be run, fails, or takes too long."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unusable(f"the C compiler {command[0]} cannot be run: {error}"[:SHOWN]) from error
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise Unusable(f"the C compiler {command[0]} fails: {message[:SHOWN]}")
    return done.stdout


def _compiler() -> list[str]:
    """The command that CC names, or the first compiler on the path."""
    try:
        named = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise Unusable(f"CC is no command: {error}") from error
    if named:
        return named
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise Unusable(f"there is no C compiler ({', '.join(COMPILERS)}); install one, or name it in CC")
    return [found]


def _key() -> str:
    """A key of everything that the library has to fit; a new torch compiles it again.

    Any compiler's will do: to ask one for its version would take longer than to load the library.
    """
    parts = (
        *(file.read_text("utf-8") for file in sorted(FOLDER.glob("*.[ch]"))),
        *FLAGS,
        *_threads(),
        platform.machine(),
        torch.__version__,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:KEY_LENGTH]


def _threads() -> tuple[str, ...]:
    """What links the OpenMP runtime that torch uses: the file that it ships, else the compiler's own."""
    return tuple(map(str, _shipped())) or ("-fopenmp",)


def _shipped() -> Iterator[Path]:
    package = Path(torch.__file__).parent
    for folder in (package / "lib", package.with_name("torch.libs")):
        yield from sorted(folder.glob("libgomp*.so*"))[:1]
