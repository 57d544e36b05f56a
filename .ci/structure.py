"""Prints how the package is built: its rooms and their floors, import cycles, and the largest files and functions.

A room is a module or folder directly under the package. A room stands one floor above the highest room it imports, at
any line; imports for type checkers alone do not count. Exits with 1 where rooms import each other in a circle.
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
    rooms = grouped(imports, lambda name: name.split(".")[1] if "." in name else name)
    knots = cycles(rooms)
    floors = floors_of(rooms, knots)
    print(
        f"{len(trees)} files, {sum(lines.values())} lines, {len(rooms)} rooms, {max(floors.values())} floors\n"
    )
    for floor in sorted(set(floors.values()), reverse=True):
        for room in sorted(room for room, own in floors.items() if own == floor):
            print(f"{floor:3}  {room:14} -> {' '.join(sorted(rooms[room])) or '-'}")
    print(f"\ncycles of rooms: {knots or 'none'}")
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
    return int(bool(knots))


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


def grouped(graph: Graph, room: object) -> Graph:
    assert callable(room)
    rooms: Graph = {}
    for name, targets in graph.items():
        rooms.setdefault(room(name), set()).update(room(target) for target in targets)
    return {name: targets - {name} for name, targets in rooms.items()}


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


def floors_of(graph: Graph, knots: list[list[str]]) -> dict[str, int]:
    """The longest way down from each node; nodes of one cycle count as one."""
    knot = {name: frozenset(group) for group in knots for name in group}
    floors: dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in floors:
            group = knot.get(name, frozenset({name}))
            below = {target for member in group for target in graph[member]} - group
            value = 1 + max(map(floor, below), default=0)
            floors.update(dict.fromkeys(group, value))
        return floors[name]

    for name in graph:
        floor(name)
    return floors


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
