"""Extracts programs from generated texts, and analyses them without running them."""

from __future__ import annotations

import ast
import html
import itertools
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence

MAX_CHARACTERS = 2**16
METHOD_CLASS = "Solution"  # a method of this class may be the function under test, as on LeetCode
METHOD_PROGRAM = """from typing import *

{code}

def {name}(*args, **kwargs):
    return {METHOD_CLASS}().{name}(*args, **kwargs)
"""  # such programs expect the names of `typing`
MAX_BLOCKS = 16  # per text; only the last blocks are used
# Possessive quantifiers prevent backtracking, which is quadratic or worse for long runs of blanks.
_FENCE_START = re.compile(r"([ \t]*+(?:(?:[-*+]|[0-9]{1,9}+[.)])[ \t]++)*+)[^`~\n]*?(`{3,}+|~{3,}+)[ \t]*+[^`\n]*+")
_QUOTED = re.compile(r" {0,3}>(?!>) ?")
_THINK_END = re.compile(r"</think>(?![\"'])")  # not in a string literal of a program
_FUTURE = re.compile(r"^from __future__ import (?:\([^)]*\)|[^\n]*)\n?", re.MULTILINE)
_INLINE_CODE = re.compile(r"`([^`\n]+)`")
_CODE_LINE = re.compile(
    r"(?:async |def |class |import |from |@|if |for |while |try|with |else|elif |except|finally|[#)\]}\"'])"
)
_STATEMENT = re.compile(r"[A-Za-z_][\w.]*\s*(?:[=(\[]|:\s)")


def code_blocks(text: str) -> list[str]:
    """The contents of Markdown code fences (backticks or tildes), dedented; the last fence may be unclosed.

    Fences may be in a list, in a quotation, or in a block of Markdown. Without fences, the contents of HTML `<code>`.
    """
    blocks = _fenced_blocks(_unquote(_answer_lines(text)))
    blocks = [part for block in blocks for part in _inner_blocks(block)] or _html_blocks(text)
    return blocks[-MAX_BLOCKS:]


def _inner_blocks(block: str) -> list[str]:
    """The fenced blocks inside a block that is Markdown; else the block itself."""
    if "```" not in block or parse_code(block) is not None:
        return [block]
    return _fenced_blocks(block.split("\n")) or [block]


def _html_blocks(text: str) -> list[str]:
    bodies = (part.partition(">")[2].partition("</code>")[0] for part in text.split("<code")[1:])
    return [html.unescape(body) for body in bodies if "\n" in body.strip("\n")]


def _fenced_blocks(all_lines: list[str]) -> list[str]:
    """The fenced blocks of some lines.

    A block ends at a line that contains only the fence and is indented less than 4 columns beyond the opening fence, or
    at the end of a line with an odd number of fences. Other fences, such as in docstrings, belong to the block.
    """
    blocks: list[str] = []
    lines = iter(all_lines)
    for line in lines:
        opening = _FENCE_START.fullmatch(line)
        if opening is None:
            continue
        indent, fence = len(opening[1].expandtabs(4)), opening[2]
        block: list[str] = []
        for inside in lines:
            content, closed = _cut_at_fence(inside, fence, indent)
            if content is not None:
                block.append(content)
            if closed:
                break
        else:
            if not block:
                break
        if any(part.strip() for part in block):
            blocks.append("\n".join(_dedent(part, indent) for part in block) + "\n")
    return blocks


def _answer_lines(text: str) -> list[str]:
    """The lines after `</think>`, split at LF, CRLF and CR only; `str.splitlines` splits at more characters."""
    answer = _THINK_END.split(text)[-1]
    text = answer if answer.strip() else text
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _unquote(lines: list[str]) -> list[str]:
    """Remove the `>` of quotations that contain a fence; other lines that start with `>` may be code."""
    unquoted: list[str] = []
    for is_quoted, group in itertools.groupby(lines, key=lambda line: _QUOTED.match(line) is not None):
        own = list(group)
        inner = [_QUOTED.sub("", line, count=1) for line in own] if is_quoted else own
        unquoted += inner if any(map(_FENCE_START.fullmatch, inner)) else own
    return unquoted


def _cut_at_fence(line: str, fence: str, indent: int) -> tuple[str | None, bool]:
    """The text of the line that belongs to the block (None: nothing), and whether the block ends at this line."""
    stripped = line.strip()
    if stripped.startswith(fence) and not stripped.strip(fence[0]):
        inner = len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip())
        return (None, True) if inner < indent + 4 else (line, False)
    if stripped.endswith(fence) and stripped.count(fence) % 2:
        return line.rstrip()[: -len(fence)], True
    return line, False


def _dedent(line: str, indent: int) -> str:
    blank = len(line) - len(line.lstrip(" \t"))
    return line[min(indent, blank) :]


def extract_code(text: str, name: str) -> str:
    """The code of a text that should define `name`: the last block with it, after the definitions of earlier blocks.

    Other blocks, such as usage examples and outputs, are ignored. Without fences: the lines that look like code, or the
    whole text.
    """
    blocks = code_blocks(text)
    for has_function in (has_function_body, defines_function):
        for place in reversed(range(len(blocks))):
            if has_function(parse_code(blocks[place]), name):
                return join_programs([*map(_reusable_definitions, blocks[:place]), blocks[place]])
    for session in map(_remove_prompts, reversed(blocks)):
        if defines_function(parse_code(session), name):
            return session
    for block in reversed(blocks):
        if parse_code(block) is not None:
            return block
    if blocks:
        return blocks[-1]
    plain = "\n".join(_answer_lines(text))
    if parse_code(plain) is None:
        inline = _INLINE_CODE.findall(plain)[-MAX_BLOCKS:]
        for code in (_find_unfenced_code(plain), *reversed(inline), _remove_prompts(plain)):
            if defines_function(parse_code(code), name):
                return code
    return plain


def _remove_prompts(code: str) -> str:
    """The statements of an interactive session, which begin with `>>>` and `...`."""
    lines = [line.strip() for line in code.split("\n")]
    return "".join(f"{line[3:].removeprefix(' ')}\n" for line in lines if line.startswith((">>>", "...")))


def _reusable_definitions(block: str) -> str:
    """The imports, functions, classes and constants of a block, which later blocks may use; no other statements."""
    tree = parse_code(block)
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    own = [node for node in tree.body if isinstance(node, kinds) or _is_constant(node)] if tree is not None else []
    return "".join(f"{ast.unparse(node)}\n\n" for node in own)


def _is_constant(node: ast.stmt) -> bool:
    """Whether a statement assigns a literal value, without references to other names."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    literals = ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict | ast.UnaryOp | ast.BinOp
    operators = ast.operator | ast.unaryop | ast.expr_context
    return all(isinstance(part, literals | operators) for part in ast.walk(node.value))


def join_programs(programs: Sequence[str]) -> str:
    """Concatenate programs, with imports from `__future__` moved to the top, as Python requires."""
    future = dict.fromkeys(line for program in programs for line in _FUTURE.findall(program))
    rest = [_FUTURE.sub("", program) if future else program for program in programs]
    return "".join([*(f"{line.rstrip()}\n" for line in future), "\n\n".join(rest)])


def _find_unfenced_code(text: str) -> str:
    """The lines from the first that starts like a program to the line before the next prose."""
    lines = text.split("\n")
    begin = next(
        (at for at, line in enumerate(lines) if re.match(r"(?:async )?def |class |import |from \S+ import |@", line)),
        None,
    )
    if begin is None:
        return text
    end = begin
    while end < len(lines) and _may_be_code(lines[end]):
        end += 1
    return "\n".join(lines[begin:end]) + "\n"


def _may_be_code(line: str) -> bool:
    return not line.strip() or line[0] in " \t" or bool(_CODE_LINE.match(line) or _STATEMENT.match(line))


def parse_code(code: str) -> ast.Module | None:
    """The syntax tree; None if the code is empty, longer than `MAX_CHARACTERS` or not valid Python."""
    if not code.strip() or len(code) > MAX_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
            compile(tree, "<program>", "exec")  # rejects for example `return` outside a function
            return tree
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def defines_function(tree: ast.Module | None, name: str) -> bool:
    """Whether a module defines, imports or assigns a function of this name, or has a class or a method of this name.

    Methods count in a class `Solution`, imports from the standard library.
    """
    return has_function_body(tree, name) or (tree is not None and any(_may_define(node, name) for node in tree.body))


def has_function_body(tree: ast.Module | None, name: str) -> bool:
    """Whether a function of this name is defined at module level, or as a method of a class `Solution`."""
    return tree is not None and any(_statement_defines(node, name) for node in tree.body)


def _may_define(node: ast.stmt, name: str) -> bool:
    """Whether a statement binds the name to what may be a function: an import, a class, or the result of a call."""
    if isinstance(node, ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.ImportFrom):
        is_standard = (node.module or "").split(".")[0] in sys.stdlib_module_names and not node.level
        return is_standard and any((alias.asname or alias.name) == name for alias in node.names)
    if isinstance(node, ast.If | ast.Try):
        return any(_may_define(part, name) for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt))
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
        return False
    is_use = any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node.value))
    return not is_use and name in _assigned_names(node)


def _statement_defines(node: ast.stmt, name: str, *, methods: bool = True) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name == name
    if isinstance(node, ast.ClassDef) and node.name == METHOD_CLASS:
        return methods and any(_statement_defines(part, name) for part in node.body)
    if isinstance(node, ast.If | ast.Try):
        return any(_statement_defines(part, name) for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt))
    if not (
        isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda | ast.Name | ast.Attribute)
    ):
        return False
    return name in _assigned_names(node)


def _assigned_names(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def uses_call_result(tree: ast.Module | None, function: str, called: str) -> bool:
    """Whether `function` calls `called` and uses its return value."""
    if tree is None:
        return False
    bodies = [
        node
        for part in tree.body
        for node in (part.body if isinstance(part, ast.ClassDef) and part.name == METHOD_CLASS else [part])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    ]
    dropped = {
        id(node.value) for body in bodies for node in ast.walk(body) if isinstance(node, ast.Expr)
    }  # a call that is a statement discards its result
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == called
        and id(node) not in dropped
        for body in bodies
        for node in ast.walk(body)
    )


def assemble_program(prompt: str, text: str, entry_point: str) -> str | None:
    """The program of a response, which either defines the function itself or continues the prompt.

    None if neither is valid Python.
    """
    code = extract_code(text, entry_point)
    if defines_function(tree := parse_code(code), entry_point):
        before = prompt if parse_code(prompt) is not None else ""
        if tree is not None and not any(
            _statement_defines(node, entry_point, methods=False) or _may_define(node, entry_point) for node in tree.body
        ):
            code = METHOD_PROGRAM.format(code=code, name=entry_point, METHOD_CLASS=METHOD_CLASS)
        return join_programs([part for part in (before, code) if part.strip()])
    trees = {program: tree for program in _completions(prompt, text) if (tree := parse_code(program)) is not None}
    return next(
        (program for program, tree in trees.items() if defines_function(tree, entry_point)), next(iter(trees), None)
    )


def _completions(prompt: str, text: str) -> Iterator[str]:
    """Candidate programs: the prompt continued by the whole text, by its blocks, or by the body before other text."""
    for body in ["\n".join(_answer_lines(text)), *reversed(code_blocks(text))]:
        if body.strip():
            yield prompt + body
            yield prompt + textwrap.indent(textwrap.dedent(body), "    ")
            yield prompt + _first_body(body)


def _first_body(text: str) -> str:
    """The lines of a function's body: all lines before the first later line without indentation."""
    lines = text.split("\n")
    body = [lines[0]]
    for line in lines[1:]:
        if line.strip() and line[0] not in " \t":
            break
        body.append(line)
    return "\n".join(body) + "\n"
