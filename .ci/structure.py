"""Prints how the program is built: its packages in layers, import cycles, and the largest files and functions.

A package is a module or folder directly under ``triforce_chat``. It is one layer above the highest package it imports,
at any line; imports for type checkers alone do not count. Exits with 1 where packages import each other in a circle.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "triforce_chat"
SHOWN = 8  # rows of each list
Graph = dict[str, set[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    modules = {module_of(path): tree for path, tree in trees.items()}
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in trees}
    imports = {name: set(imported(tree, set(modules))) - {name} for name, tree in modules.items()}
    packages = grouped(imports, lambda name: name.split(".")[1] if "." in name else name)
    circles = cycles(packages)
    layers = layers_of(packages, circles)
    print(
        f"{len(trees)} files, {sum(lines.values())} lines, {len(packages)} packages, {max(layers.values())} layers\n"
    )
    for layer in sorted(set(layers.values()), reverse=True):
        for package in sorted(package for package, own in layers.items() if own == layer):
            print(f"{layer:3}  {package:14} -> {' '.join(sorted(packages[package])) or '-'}")
    print(f"\ncycles of packages: {circles or 'none'}")
    print(f"cycles of modules: {cycles(imports) or 'none'}")
    print("modules at the root:", *(path.stem for path in trees if path.parent == PACKAGE))
    print(
        "classes in engine/:",
        sum(isinstance(node, ast.ClassDef) for node in nodes(modules, "triforce_chat.engine")),
    )
    largest("longest files", {str(path.relative_to(PACKAGE)): count for path, count in lines.items()})
    functions = {
        f"{name}.{node.name}:{node.lineno}": node
        for name, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    }
    largest("longest functions", {name: length(node) for name, node in functions.items()})
    constructors = {name: parameters(node) for name, node in functions.items() if node.name == "__init__"}
    largest("constructors with most parameters", constructors)
    return int(bool(circles))


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Modules of the package that a module imports at any line."""
    for node in runtime_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & known
            yield from inner or {node.module}


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING``."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from runtime_nodes(child)


def grouped(graph: Graph, package: object) -> Graph:
    assert callable(package)
    packages: Graph = {}
    for name, targets in graph.items():
        packages.setdefault(package(name), set()).update(package(target) for target in targets)
    return {name: targets - {name} for name, targets in packages.items()}


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of nodes that reach each other."""
    reach = {name: reachable(graph, name) for name in graph}
    groups = {frozenset(other for other in reach[name] if name in reach[other]) for name in graph}
    return sorted(sorted(group) for group in groups if group)


def reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    queue = list(graph[start])
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += graph[name]
    return found


def layers_of(graph: Graph, circles: list[list[str]]) -> dict[str, int]:
    """The longest way down from each node; nodes of one cycle count as one."""
    knot = {name: frozenset(group) for group in circles for name in group}
    layers: dict[str, int] = {}

    def layer(name: str) -> int:
        if name not in layers:
            group = knot.get(name, frozenset({name}))
            below = {target for member in group for target in graph[member]} - group
            value = 1 + max(map(layer, below), default=0)
            layers.update(dict.fromkeys(group, value))
        return layers[name]

    for name in graph:
        layer(name)
    return layers


def nodes(modules: dict[str, ast.Module], package: str) -> Iterator[ast.AST]:
    for name, tree in modules.items():
        if name == package or name.startswith(f"{package}."):
            yield from ast.walk(tree)


def length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters(node: Function) -> int:
    """How many a constructor takes, without ``self``."""
    own = node.args
    return len(own.posonlyargs) + len(own.args) + len(own.kwonlyargs) - 1


def largest(title: str, sizes: dict[str, int]) -> None:
    print(f"\n{title}")
    for name in sorted(sizes, key=lambda name: -sizes[name])[:SHOWN]:
        print(f"{sizes[name]:6}  {name}")


if __name__ == "__main__":
    sys.exit(main())
