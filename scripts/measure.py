"""Measures of the code that a test lets only improve: `python scripts/measure.py`; `--record` stores today's numbers.

Lines and files of packages, tests and documents; functions that are too long or take too many parameters; imports;
checks of a configuration's class outside of `config` and `compose`; keys of the default run; YAML files.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ippo_cli"
RECORD = ROOT / "tests" / "scripts" / "measures.json"
LONG_LINES, MANY_PARAMETERS = 60, 8
# Written by scripts/docs.py.
GENERATED_DOCUMENTS = ("config.md", "metrics.md", "migrating.md")
# Tables and lists that scripts write into documents, between two comments.
GENERATED_BLOCK = re.compile(r"<!-- (\w[\w ]*?)(?:: begin|:[^>]*)? -->.*?<!-- (?:/\1|end of \1|\1: end) -->", re.DOTALL)


@cache
def parse(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text())


def find_functions(files: list[Path]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of files."""
    for file in files:
        for node in ast.walk(parse(file)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node


def count_lines(files: list[Path]) -> int:
    """The lines of files."""
    return sum(len(file.read_text().splitlines()) for file in files)


def count_words(document: Path) -> int:
    """The words of a document that people write."""
    return len(GENERATED_BLOCK.sub(" ", document.read_text()).split())


def count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The parameters of a function without `self` and `cls`."""
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def find_imports(file: Path, *, inside_functions: bool) -> set[str]:
    """The modules of this package that a file imports, without those for type checking."""
    tree = parse(file)
    nodes = ast.walk(tree) if inside_functions else iter(tree.body)
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ippo_cli"):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("ippo_cli")}
    return found


def count_cycles(files: list[Path]) -> int:
    """Groups of files that import each other, also by imports inside functions (Tarjan 1972)."""
    names = {".".join(file.relative_to(SOURCE.parent).with_suffix("").parts): file for file in files}
    edges = {
        name: [other for other in find_imports(file, inside_functions=True) if other in names and other != name]
        for name, file in names.items()
    }
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles = 0

    def visit(name: str) -> None:
        nonlocal cycles
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = []
            while True:
                group.append(stack.pop())
                if group[-1] == name:
                    break
            cycles += len(group) > 1

    sys.setrecursionlimit(10_000)
    for name in edges:
        if name not in index:
            visit(name)
    return cycles


def count_class_checks(files: list[Path]) -> int:
    """Calls of `isinstance` with a class of a configuration, outside of `config` and `compose`."""
    found = 0
    for file in files:
        if file.relative_to(SOURCE).parts[0] in ("config", "compose"):
            continue
        for node in ast.walk(parse(file)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                found += bool(re.search(r"\w+Config\b", ast.unparse(node.args[1])))
    return found


def count_keys() -> dict[str, int]:
    """The keys of the default run, and those without a value."""
    from ippo_cli.compose.load import compose_node, resolve_config

    def walk(value: object) -> Iterator[object]:
        if isinstance(value, dict) and value:
            for child in value.values():
                yield from walk(child)
        else:
            yield value

    values = list(walk(resolve_config(compose_node([]))))
    return {"keys of the default run": len(values), "keys without a value": sum(value is None for value in values)}


def measure() -> dict[str, float]:
    """All measures by name."""
    files = sorted(SOURCE.rglob("*.py"))
    tests = sorted((ROOT / "tests").rglob("*.py"))
    documents = [file for file in (ROOT / "docs").rglob("*.md") if file.name not in GENERATED_DOCUMENTS]
    functions = list(find_functions(files))
    lines = count_lines(files)
    import_lines = sum(
        node.end_lineno - node.lineno + 1  # type: ignore[operator]
        for file in files
        for node in ast.walk(parse(file))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    )
    return {
        "source files": len(files),
        "source lines": lines,
        "test lines": count_lines(tests),
        "words of documents": sum(count_words(file) for file in [ROOT / "README.md", *documents]),
        "YAML files": len(list((ROOT / "conf").rglob("*.yaml"))),
        "functions over 60 lines": sum(
            node.end_lineno - node.lineno + 1 > LONG_LINES  # type: ignore[operator]
            for node in functions
        ),
        "functions with 8 or more parameters": sum(count_parameters(node) >= MANY_PARAMETERS for node in functions),
        "import lines, percent": round(100 * import_lines / lines, 1),
        "groups of files that import each other": count_cycles(files),
        "isinstance of configurations": count_class_checks(files),
        **count_keys(),
    }


def main() -> None:
    """Print the measures beside the recorded ones, or record them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    measured = measure()
    if parser.parse_args().record:
        RECORD.write_text(json.dumps(measured, indent=1) + "\n")
    recorded = json.loads(RECORD.read_text())
    for name, value in measured.items():
        print(f"{name:<40} {value:>9g}   recorded {recorded.get(name, float('nan')):g}")


if __name__ == "__main__":
    main()
