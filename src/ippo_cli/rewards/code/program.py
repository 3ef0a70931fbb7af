"""What a model wrote as a program: found in its text, read without running it."""

from __future__ import annotations

import ast
import re
import warnings

MOST_CHARACTERS = 2**16
# What has been read is not read again in other ways: of a long row of blanks these are many.
_FENCE = re.compile(r"```[ \t]*+[\w+-]*+[ \t]*+\n(.*?)(?:```|\Z)", re.DOTALL)


def code_of(text: str) -> str:
    """The last block between fences that holds anything, else the text as it is."""
    blocks = [block for block in _FENCE.findall(text) if block.strip()]
    return blocks[-1] if blocks else text


def parsed(code: str) -> ast.Module | None:
    """None for what is no Python, or too long to be looked at."""
    if not code.strip() or len(code) > MOST_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def defines(tree: ast.Module | None, name: str) -> bool:
    """Whether a function of that name is defined at the top."""
    return tree is not None and any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)


def uses(tree: ast.Module | None, function: str, called: str) -> bool:
    """Whether the function calls the other one and does something with what it returns."""
    if tree is None:
        return False
    bodies = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    dropped = {
        id(node.value) for body in bodies for node in ast.walk(body) if isinstance(node, ast.Expr)
    }  # a statement of its own
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == called
        and id(node) not in dropped
        for body in bodies
        for node in ast.walk(body)
    )


def whole_program(prompt: str, text: str, entry_point: str) -> str | None:
    """The program of a response: with its own definition of the function, or as what follows the prompt.

    None where neither is Python.
    """
    code = code_of(text)
    tree = parsed(code)
    if defines(tree, entry_point):
        before = prompt if parsed(prompt) is not None else ""
        return f"{before}\n\n{code}" if before.strip() else code
    completed = prompt + text
    return completed if text.strip() and parsed(completed) is not None else None
