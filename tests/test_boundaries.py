"""Nothing heavy happens before it is needed. Which rooms may import which others: the contracts in pyproject.toml."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.places import TESTS

import triforce_chat

PACKAGE = Path(triforce_chat.__file__).parent
HEAVY = ("torch", "transformers", "pypdf", "numpy", "bs4", "tokenizers", "safetensors", "gguf", "accelerate")
SLOW_TERMINAL = (
    "rich.console",
    "rich.progress",
    "rich.markdown",
    "rich.live",
    "rich.table",
    "prompt_toolkit",
)


def modules(folder: str) -> list[Path]:
    found = sorted((PACKAGE / folder).rglob("*.py"))
    assert found
    return found


def imports(path: Path) -> Iterator[str]:
    """Absolute names of what a module imports, also inside functions; without ``if TYPE_CHECKING``."""
    tree = ast.parse(path.read_text("utf-8"))
    skipped = {id(node) for guard in guards(tree) for node in ast.walk(guard)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def guards(tree: ast.AST) -> Iterator[ast.If]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield node


def file_of(name: str) -> Path | None:
    """The package's own module that an imported name lives in."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        place = PACKAGE.parent.joinpath(*parts[:n])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
    return None


def reached(path: Path) -> set[Path]:
    """Modules of the package that an import of this one can ever lead to."""
    found, open_ = set[Path](), [path]
    while open_:
        module = open_.pop()
        found.add(module)
        named = (file_of(name) for name in imports(module) if name.startswith("triforce_chat"))
        open_ += [file for file in named if file and file not in found]
    return found


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)


def loaded_by(statement: str) -> set[str]:
    return set(python(f"{statement}\nimport sys\nprint(*sys.modules)").stdout.split())


@pytest.mark.parametrize("path", modules("ui"), ids=lambda path: path.stem)
def test_the_terminal_never_reaches_torch(path: Path) -> None:
    for module in reached(path):
        assert not [name for name in imports(module) if within(name, "torch", "transformers")], module


@pytest.mark.parametrize("name", ["dimensions", "plan", "remedies", "messages", "workload"])
def test_a_plan_is_made_without_torch_and_terminal(name: str) -> None:
    loaded = loaded_by(f"import triforce_chat.memory_plan.{name}")
    assert not [each for each in loaded if within(each, *HEAVY, "rich", "typer")]


def test_a_rank_reads_its_connection_before_torch_is_loaded() -> None:
    loaded = loaded_by("import triforce_chat.parallel.worker")
    assert "triforce_chat.parallel.workers" in loaded
    assert not [name for name in loaded if within(name, *HEAVY, *SLOW_TERMINAL)]


def test_importing_the_terminal_loads_no_torch() -> None:
    names = [".".join(("triforce_chat.ui", path.stem)) for path in modules("ui") if path.stem != "__init__"]
    loaded = loaded_by(
        f"import {', '.join(names)}, triforce_chat.chat.records, triforce_chat.settings.settings"
    )
    assert "rich.console" in loaded  # the question is answered at all
    assert not [name for name in loaded if within(name, "torch", "transformers", "pypdf")]


def test_importing_the_commands_loads_nothing_heavy() -> None:
    loaded = loaded_by("import triforce_chat.cli.app")
    assert "triforce_chat.cli.app" in loaded
    assert not [name for name in loaded if within(name, *HEAVY, *SLOW_TERMINAL)]
    package = {name for name in loaded if within(name, "triforce_chat")}
    own = {name for name in package if name.startswith("triforce_chat.cli")}
    sampling = (".engine", ".engine.sampling", ".engine.sampling.options")
    stacks = (".engine.speculation", ".engine.speculation.stack_specs")
    eviction = (".engine.cache", ".engine.cache.eviction")
    settings = [
        ".settings",
        *(f".settings.{name}" for name in ("options", "settings", "sizes", "specification", "umask")),
    ]
    ends = ("", ".errors", ".suggestions", *sampling, *stacks, *eviction, *settings)
    assert package - own == {f"triforce_chat{end}" for end in ends}


def processor_seconds() -> float:
    """What the programs that this one started have used so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


HELP = [["--help"], ["ask", "--help"], ["bench", "--help"], ["--version"]]
SMALLEST = """
import typer

app = typer.Typer()
for name in ("one", "other"):
    app.command(name)(lambda number=1: None)
app()
"""


def least_seconds(*arguments: str, enough: float = 0.0) -> float:
    """Of the processor's time, the best of ten runs: others slow this one down, nobody makes it faster."""
    took: list[float] = []
    while len(took) < 10 and min(took, default=enough) >= enough:
        started = processor_seconds()
        subprocess.run([sys.executable, *arguments], capture_output=True, timeout=180, check=True)
        took.append(processor_seconds() - started)
    return min(took)


@pytest.fixture(scope="module")
def library_seconds() -> float:
    """What the smallest program needs that has commands and is asked for help."""
    return least_seconds("-c", SMALLEST, "one", "--help")


@pytest.mark.parametrize(
    ("share", "arguments"),
    [(1.5, ["--help"]), (1.5, ["--version"]), (2, ["ask", "--help"]), (2, ["bench", "--help"])],
)
def test_help_costs_little_more_than_the_library_that_prints_it(
    share: float, arguments: list[str], library_seconds: float
) -> None:
    """Machines differ by a multiple, and so do versions of Typer: no number of seconds would hold for all."""
    most = share * library_seconds
    assert least_seconds("-m", "triforce_chat", *arguments, enough=most) < most


@pytest.mark.parametrize("arguments", HELP)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "triforce_chat", *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stderr
    loaded = {line.rpartition("|")[2].strip() for line in shown.splitlines()}
    assert "triforce_chat.cli.app" in loaded
    assert not [name for name in loaded if within(name, *HEAVY, *SLOW_TERMINAL)]


def holds_tests(module: str) -> bool:
    return module == "conftest" or module.startswith("test_")


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_is_imported(path: Path) -> None:
    """Helpers that several tests need are in ``support``."""
    names = [name.split(".") for name in imports(path)]
    assert not [name for name in names if name[0] == "tests" or any(map(holds_tests, name))]


def test_nothing_happens_at_import(tmp_path: Path) -> None:
    code = "import triforce_chat.cli.app, triforce_chat.ui.repl, triforce_chat.documents; print('silent')"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": ""},
        timeout=180,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("silent\n", "")
    assert list(tmp_path.iterdir()) == []
