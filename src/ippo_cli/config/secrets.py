"""Secrets stay in the environment: a configuration names the variable, and what is written down holds the name alone.

A value that is a secret is refused where it is typed. One that came from the environment is written as `${oc.env:NAME}`
into everything that a run keeps, and read from there again; in what a run says it is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ippo_cli.config.errors import ConfigError

SHORTEST = 8  # characters: below this a value is no secret, and occurs by chance
NAME = re.compile(
    r"(?:.*[_.-])?(?:(?:api|access|private|secret|signing)[_-]?key|secret|password|passwd|passphrase|credentials?"
    r"|(?:auth|access|api|bearer|hf|hub|hugging_?face|github|gitlab|refresh|session)[_-]?token|token)",
    re.IGNORECASE,
)
INNOCENT = re.compile(r".*(?:pad|eos|bos|unk|sep|mask|end|new|special)[_-]?token", re.IGNORECASE)
# What services give out, by the beginnings that they chose to be found by; passwords in addresses; private keys.
VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
    r"|(?<=://)[^\s/@:'\"]*:[^\s/@'\"$]+(?=@)"
    r"|(?i:(?<=bearer )[\w.~+/=-]{12,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)
# Names are read whole or not at all: a text of megabytes without a blank would be read again from each character.
TYPED = re.compile(r"""(?<![\w.+~-])([\w.+~-]++)=("[^"]*"|'[^']*'|[^\s;,&)'"]+)""")
REFERENCE = re.compile(r"\$\{oc\.env:(\w+)\}")
LEFT_OUT = "<secret>"


def is_secret_name(name: str) -> bool:
    """Whether what has this name is likely a secret: `api_key`, `HF_TOKEN`; not `pad_token`."""
    return NAME.fullmatch(name) is not None and INNOCENT.fullmatch(name) is None


def from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that hold secrets, the longest values first, so that none is taken for a part of another."""
    found = {
        name: value
        for name, value in environ.items()
        if len(value) >= SHORTEST and (is_secret_name(name) or VALUE.search(value))
    }
    return dict(sorted(found.items(), key=lambda entry: -len(entry[1])))


def refuse_secrets(plain: Any, environ: Mapping[str, str] = os.environ) -> None:
    """Raise `ConfigError` for a value of a configuration that is a secret and is not the environment's."""
    of_environment = [value for value in environ.values() if len(value) >= SHORTEST]
    for key, value in _texts(plain):
        rest = value
        for known in of_environment:
            rest = rest.replace(known, "")
        named = is_secret_name(key.rpartition(".")[2]) and bool(rest)
        if named or VALUE.search(rest):
            typed = f"{key}=MY_API_KEY" if key.endswith("_env") else f"'{key}=${{oc.env:MY_API_KEY}}'"
            raise ConfigError(
                f"{key}=...",
                "is a secret, and would be written into the run's folder",
                f"put it into an environment variable such as MY_API_KEY, and type {typed}",
            )


def kept(value: Any, environ: Mapping[str, str] = os.environ) -> Any:
    """What is written of plain values: secrets of the environment by the names of their variables."""
    secrets = from_environment(environ)
    return _named(value, secrets) if secrets else value


def _named(value: Any, secrets: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _named(part, secrets) for key, part in value.items()}
    if isinstance(value, list):
        return [_named(part, secrets) for part in value]
    if isinstance(value, str):
        for name, secret in secrets.items():
            value = value.replace(secret, f"${{oc.env:{name}}}")
    return value


def restored(value: Any, environ: Mapping[str, str] = os.environ) -> Any:
    """Plain values as they were before `kept`. Raises `ConfigError` where a variable is not there any more."""
    if isinstance(value, dict):
        return {key: restored(part, environ) for key, part in value.items()}
    if isinstance(value, list):
        return [restored(part, environ) for part in value]
    return REFERENCE.sub(lambda found: _value(found, environ), value) if isinstance(value, str) else value


def _value(reference: re.Match[str], environ: Mapping[str, str]) -> str:
    name = reference[1]
    if name in environ and (is_secret_name(name) or VALUE.search(environ[name])):
        return environ[name]
    if is_secret_name(name):
        raise ConfigError(f"${{oc.env:{name}}}", "is not set", f"the run was started with a secret in it: set {name}")
    return reference[0]  # a text of the user's


def redacted(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """What may be said of a text: without the environment's secrets, what looks like one, and values of such names."""
    for name, secret in from_environment(environ).items():
        text = text.replace(secret, f"<{name}>")
    text = VALUE.sub(LEFT_OUT, text)
    return TYPED.sub(_without_value, text)


def _without_value(typed: re.Match[str]) -> str:
    name, value = typed[1], typed[2]
    secret = is_secret_name(name.rpartition(".")[2]) and not value.strip("'\"").startswith(("${", "<", "..."))
    return f"{name}={LEFT_OUT}" if secret and value not in ("null", "None", "''", '""') else typed[0]


def _texts(plain: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Texts below plain values, by their dotted names; those of a list by the list's."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from _texts(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(plain, list):
        for value in plain:
            yield from _texts(value, prefix)
    elif isinstance(plain, str):
        yield prefix, plain
