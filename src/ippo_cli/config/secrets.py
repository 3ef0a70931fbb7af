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

MIN_SECRET_LENGTH = 8  # characters: below this a value is no secret, and occurs by chance
SECRET_NAME = re.compile(
    r"(?:.*[_.-])?(?:(?:api|access|private|secret|signing)[_-]?key|secret|password|passwd|passphrase|credentials?"
    r"|(?:auth|access|api|bearer|hf|hub|hugging_?face|github|gitlab|refresh|session)[_-]?token|token)",
    re.IGNORECASE,
)
HARMLESS_NAME = re.compile(r".*(?:pad|eos|bos|unk|sep|mask|end|new|special)[_-]?token", re.IGNORECASE)
# What services give out, by the beginnings that they chose to be found by; passwords in addresses; private keys.
SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
    r"|(?<=://)[^\s/@:'\"]*:[^\s/@'\"$]+(?=@)"
    r"|(?i:(?<=bearer )[\w.~+/=-]{12,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)
# Names are read whole or not at all: a text of megabytes without a blank would be read again from each character.
ASSIGNMENT = re.compile(r"""(?<![\w.+~-])([\w.+~-]++)=("[^"]*"|'[^']*'|[^\s;,&)'"]+)""")
ENV_REFERENCE = re.compile(r"\$\{oc\.env:(\w+)\}")
REDACTED = "<secret>"


def is_secret_name(name: str) -> bool:
    """Whether what has this name is likely a secret: `api_key`, `HF_TOKEN`; not `pad_token`."""
    return SECRET_NAME.fullmatch(name) is not None and HARMLESS_NAME.fullmatch(name) is None


def environment_secrets(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that hold secrets, the longest values first, so that none is taken for a part of another."""
    found = {
        name: value
        for name, value in environ.items()
        if len(value) >= MIN_SECRET_LENGTH and (is_secret_name(name) or SECRET_VALUE.search(value))
    }
    return dict(sorted(found.items(), key=lambda entry: -len(entry[1])))


def check_secrets(plain: Any, environ: Mapping[str, str] = os.environ) -> None:
    """Raise `ConfigError` for a value of a configuration that is a secret and is not the environment's."""
    of_environment = [value for value in environ.values() if len(value) >= MIN_SECRET_LENGTH]
    for key, value in _iter_texts(plain):
        rest = value
        for known in of_environment:
            rest = rest.replace(known, "")
        named = is_secret_name(key.rpartition(".")[2]) and bool(rest)
        if named or SECRET_VALUE.search(rest):
            typed = f"{key}=MY_API_KEY" if key.endswith("_env") else f"'{key}=${{oc.env:MY_API_KEY}}'"
            raise ConfigError(
                f"{key}=...",
                "is a secret, and would be written into the run's folder",
                f"put it into an environment variable such as MY_API_KEY, and type {typed}",
            )


def mask_secrets(value: Any, environ: Mapping[str, str] = os.environ) -> Any:
    """What is written of plain values: secrets of the environment by the names of their variables."""
    secrets = environment_secrets(environ)
    return _replace_secrets(value, secrets) if secrets else value


def _replace_secrets(value: Any, secrets: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replace_secrets(part, secrets) for key, part in value.items()}
    if isinstance(value, list):
        return [_replace_secrets(part, secrets) for part in value]
    if isinstance(value, str):
        for name, secret in secrets.items():
            value = value.replace(secret, f"${{oc.env:{name}}}")
    return value


def restore_secrets(value: Any, environ: Mapping[str, str] = os.environ) -> Any:
    """Plain values as they were before `kept`. Raises `ConfigError` where a variable is not there any more."""
    if isinstance(value, dict):
        return {key: restore_secrets(part, environ) for key, part in value.items()}
    if isinstance(value, list):
        return [restore_secrets(part, environ) for part in value]
    return (
        ENV_REFERENCE.sub(lambda found: _resolve_reference(found, environ), value) if isinstance(value, str) else value
    )


def _resolve_reference(reference: re.Match[str], environ: Mapping[str, str]) -> str:
    name = reference[1]
    if name in environ and (is_secret_name(name) or SECRET_VALUE.search(environ[name])):
        return environ[name]
    if is_secret_name(name):
        raise ConfigError(f"${{oc.env:{name}}}", "is not set", f"the run was started with a secret in it: set {name}")
    return reference[0]  # a text of the user's


def redact_text(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """What may be said of a text: without the environment's secrets, what looks like one, and values of such names."""
    for name, secret in environment_secrets(environ).items():
        text = text.replace(secret, f"<{name}>")
    text = SECRET_VALUE.sub(REDACTED, text)
    return ASSIGNMENT.sub(_redact_assignment, text)


def _redact_assignment(typed: re.Match[str]) -> str:
    name, value = typed[1], typed[2]
    secret = is_secret_name(name.rpartition(".")[2]) and not value.strip("'\"").startswith(("${", "<", "..."))
    return f"{name}={REDACTED}" if secret and value not in ("null", "None", "''", '""') else typed[0]


def _iter_texts(plain: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Texts below plain values, by their dotted names; those of a list by the list's."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from _iter_texts(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(plain, list):
        for value in plain:
            yield from _iter_texts(value, prefix)
    elif isinstance(plain, str):
        yield prefix, plain
