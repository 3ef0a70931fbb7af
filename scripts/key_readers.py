"""Which modules read a field of the configuration's schema, inferred from annotations."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ippo_cli.config import schema

CLASSES: dict[str, type[Any]] = {name: cls for name, cls in vars(schema).items() if is_dataclass(cls)}


@cache
def owners(cls: type[Any]) -> dict[str, str]:
    """Defining class by field. Not to be changed."""
    return {
        name: base.__name__
        for base in reversed(cls.__mro__)
        if base.__name__ in CLASSES
        for name in base.__annotations__
    }


def annotated(node: ast.expr | None) -> set[str]:
    """Schema classes in an annotation, including those of a container's elements."""
    if node is None:
        return set()
    words = {part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "") for part in ast.walk(node)}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return annotated(ast.parse(node.value, mode="eval").body)
    return words & CLASSES.keys()


@cache
def annotated_classes(cls: str, field: str) -> set[str]:
    """Schema classes in the annotation of a field. Not to be changed."""
    return annotated(ast.parse(CLASSES[cls].__annotations__[field], mode="eval").body)


unparse = cache(ast.unparse)

READ_NODES = (ast.arg, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension, ast.Call, ast.Attribute)


@cache
def walk(scope: ast.AST) -> list[ast.AST]:
    """The nodes of a scope that `Reader.visit` reads: a scope is visited six times, and walking takes most of it."""
    return [node for node in ast.walk(scope) if isinstance(node, READ_NODES)]


class Reader:
    """Fields of schema classes that a function reads, inferred from annotations and `isinstance`."""

    def __init__(
        self, returns: dict[str, set[str]], attributes: dict[str, set[str]], parameters: dict[str, set[str]]
    ) -> None:
        self.returns, self.attributes, self.parameters = returns, attributes, parameters
        self.types: dict[str, set[str]] = {}  # classes by source text of the expression
        self.reads: set[str] = set()

    def kinds(self, node: ast.expr) -> set[str]:
        found = set(self.types.get(unparse(node), ()))
        if isinstance(node, ast.Attribute):
            holders = self.kinds(node.value)
            for holder in holders:
                found |= self.field(holder, node.attr)
            return found if holders else found | self.attributes.get(node.attr, set())
        if isinstance(node, ast.Subscript):
            return found | self.kinds(node.value)
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("values", "items") and isinstance(node.func, ast.Attribute):
                return found | self.kinds(node.func.value)
            if name in ("list", "next", "iter", "sorted", "enumerate", "zip", "tuple"):
                return found.union(*(self.kinds(part) for part in node.args))
            return found | self.returns.get(name, set())
        if isinstance(node, ast.BoolOp | ast.Tuple | ast.List):
            return found.union(*(self.kinds(part) for part in getattr(node, "values", getattr(node, "elts", []))))
        if isinstance(node, ast.IfExp):
            return found | self.kinds(node.body) | self.kinds(node.orelse)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return found | self.kinds(node.elt)
        if isinstance(node, ast.DictComp):
            return found | self.kinds(node.value)
        return found

    def field(self, holder: str, name: str) -> set[str]:
        """Return the classes of a field, and mark it as read."""
        owner = owners(CLASSES[holder]).get(name)
        if owner is None:
            return set()
        self.reads.add(f"{owner}.{name}")
        return annotated_classes(owner, name)

    def bind(self, target: ast.expr, found: set[str]) -> None:
        """Assign classes to the target names; each of several names may have any of the classes."""
        for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if found:
                self.types.setdefault(unparse(part), set()).update(found)

    def visit(self, scope: ast.AST) -> None:
        for node in walk(scope):
            if isinstance(node, ast.arg):
                self.bind(ast.Name(node.arg), annotated(node.annotation))
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    pairs = [(target, node.value)]
                    names = target.elts if isinstance(target, ast.Tuple) else []
                    starred = any(isinstance(each, ast.Starred) for each in [*names, *getattr(node.value, "elts", [])])
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and not starred:
                        pairs = list(zip(target.elts, node.value.elts, strict=True))
                    for one, value in pairs:
                        self.bind(one, self.kinds(value))
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
                self.bind(node.target, annotated(getattr(node, "annotation", None)))
                if node.value is not None:
                    self.bind(node.target, self.kinds(node.value))
            elif isinstance(node, ast.For | ast.comprehension):
                self.bind(node.target, self.kinds(node.iter))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                for part in node.args:  # a lambda has the annotations of its parameter
                    if isinstance(part, ast.Lambda):
                        for arg in part.args.args:
                            self.bind(ast.Name(arg.arg), self.parameters.get(node.func.id, set()))
                if node.func.id == "isinstance":
                    self.bind(node.args[0], annotated(node.args[1]))
                elif node.func.id == "getattr" and isinstance(node.args[1], ast.Constant):
                    for holder in self.kinds(node.args[0]):
                        self.field(holder, str(node.args[1].value))
        for node in walk(scope):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self.kinds(node)


def scopes(tree: ast.Module) -> Iterator[ast.AST]:
    """Functions and methods (with nested functions), and the rest of the module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from node.body
        else:
            yield node


def fields_answered(schemas: Iterable[Path], files: Iterable[Path]) -> set[str]:
    """The fields that methods of schema classes read; methods without a use of their names in `files` are left out."""
    trees = [ast.parse(file.read_text()) for file in files]
    used = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {
        f"{owner}.{part.attr}"
        for file in schemas
        for cls in ast.parse(file.read_text()).body
        if isinstance(cls, ast.ClassDef) and cls.name in CLASSES
        for method in cls.body
        if isinstance(method, ast.FunctionDef) and method.name in used
        for part in ast.walk(method)
        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self"
        if (owner := owners(CLASSES[cls.name]).get(part.attr)) is not None
    }


def fields_read(files: Iterable[Path]) -> set[str]:
    """The fields that any of the files reads, as `Class.field`."""
    return set().union(*fields_read_by_file(files).values())


def fields_read_by_file(files: Iterable[Path]) -> dict[Path, set[str]]:
    """The fields that each file reads; types are inferred from all files together."""
    by_file = {file: ast.parse(file.read_text()) for file in files}
    trees = list(by_file.values())
    returns: dict[str, set[str]] = {name: {name} for name in CLASSES}
    attributes: dict[str, set[str]] = {}
    parameters: dict[str, set[str]] = {}
    named = {  # type aliases
        node.targets[0].id: annotated(node.value)
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Subscript)
    }
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef):
            returns.setdefault(node.name, set()).update(annotated(node.returns))
            for arg in (*node.args.args, *node.args.kwonlyargs):
                parameters.setdefault(node.name, set()).update(annotated(arg.annotation))
                if isinstance(arg.annotation, ast.Name):
                    parameters[node.name] |= named.get(arg.annotation.id, set())
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    attributes.setdefault(part.target.id, set()).update(annotated(part.annotation))
    for _ in range(2):  # attributes depend on the types of assigned values
        for scope in (scope for tree in trees for scope in scopes(tree)):
            reader = Reader(returns, attributes, parameters)
            for _ in range(2):  # a name may be used before its binding in walk order
                reader.visit(scope)
            for text, kinds in reader.types.items():
                if text.startswith("self.") and text.count(".") == 1:
                    attributes.setdefault(text.removeprefix("self."), set()).update(kinds)
    found: dict[Path, set[str]] = {file: set() for file in by_file}
    for file, scope in ((file, scope) for file, tree in by_file.items() for scope in scopes(tree)):
        reader = Reader(returns, attributes, parameters)
        for _ in range(2):
            reader.visit(scope)
        found[file] |= reader.reads
    return found


def readers_by_field(source: Path) -> dict[str, list[str]]:
    """The modules below a package that read each field, without the schema: `training/trainer`."""
    schemas = {source / "config" / "constraints.py", *(source / "config" / "schema").glob("*.py")}
    found: dict[str, list[str]] = {}
    for file, read in fields_read_by_file(file for file in sorted(source.rglob("*.py")) if file not in schemas).items():
        for field in read:
            found.setdefault(field, []).append(str(file.relative_to(source).with_suffix("")))
    return found
