"""Secrets stay in environment variables: configurations and run files hold only the variable's name.

A secret typed as a value is an error. A secret from the environment is saved as `${oc.env:NAME}` in all run files and
restored from the variable; log messages omit it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ippo_cli.config.errors import ConfigError

MIN_SECRET_LENGTH = 8  # characters; shorter values are not secrets and may occur by chance
SECRET_NAME = re.compile(
    r"(?:.*[_.-])?(?:(?:api|access|private|secret|signing)[_-]?key|secret|password|passwd|passphrase|credentials?"
    r"|(?:auth|access|api|bearer|hf|hub|hugging_?face|github|gitlab|refresh|session)[_-]?token|token)",
    re.IGNORECASE,
)
# Tokens of a vocabulary.
HARMLESS_NAME = re.compile(
    r".*(?:pad|eos|bos|eot|unk|sep|cls|mask|begin|start|end|stop|new|special|first|last|next|prefix|suffix|control|think"
    r"|image|audio|video|max|min|per|each|num)[_-]?token",
    re.IGNORECASE,
)
# Tokens of services, by their prefixes; passwords in URLs; private keys.
SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
    r"|(?<=://)[^\s/@:'\"]*:[^\s/@'\"$]+(?=@)"
    r"|(?i:(?<=bearer )[\w.~+/=-]{12,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)
# Possessive quantifier: backtracking would take quadratic time for megabytes of text without spaces.
ASSIGNMENT = re.compile(r"""(?<![\w.+~-])([\w.+~-]++)=("[^"]*"|'[^']*'|[^\s;,&)'"]+)""")
ENV_REFERENCE = re.compile(r"\$\{oc\.env:(\w+)\}")
REDACTED = "<secret>"


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is likely a secret: `api_key`, `HF_TOKEN`; not `pad_token`."""
    return SECRET_NAME.fullmatch(name) is not None and HARMLESS_NAME.fullmatch(name) is None


def environment_secrets(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables with secrets, longest values first, because a value may contain another."""
    found = {
        name: value
        for name, value in environ.items()
        if len(value) >= MIN_SECRET_LENGTH and (is_secret_name(name) or SECRET_VALUE.search(value))
    }
    return dict(sorted(found.items(), key=lambda entry: -len(entry[1])))


def check_secrets(plain: Any, environ: Mapping[str, str] = os.environ) -> None:
    """Raise `ConfigError` for a secret that does not come from the environment, and for a text that names a secret as
    run files do: a resume would put the secret there.
    """
    of_environment = [value for value in environ.values() if len(value) >= MIN_SECRET_LENGTH]
    for key, value in _iter_texts(plain):
        for name in ENV_REFERENCE.findall(value):
            if _is_secret_variable(name, environ):
                raise ConfigError(
                    key,
                    f"has the text ${{oc.env:{name}}}, which means the secret itself in the files of a run",
                    f"write the text differently, such as ${name}",
                )
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
    """Replace secrets of the environment in plain values by references to their variables."""
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
    """Undo `mask_secrets`. Raises `ConfigError` if a variable is not set."""
    if isinstance(value, dict):
        return {key: restore_secrets(part, environ) for key, part in value.items()}
    if isinstance(value, list):
        return [restore_secrets(part, environ) for part in value]
    return (
        ENV_REFERENCE.sub(lambda found: _resolve_reference(found, environ), value) if isinstance(value, str) else value
    )


def _resolve_reference(reference: re.Match[str], environ: Mapping[str, str]) -> str:
    name = reference[1]
    if name in environ and _is_secret_variable(name, environ):
        return environ[name]
    if is_secret_name(name):
        raise ConfigError(f"${{oc.env:{name}}}", "is not set", f"set {name}: the run was started with a secret in it")
    return reference[0]  # literal text of the user


def _is_secret_variable(name: str, environ: Mapping[str, str]) -> bool:
    return is_secret_name(name) or SECRET_VALUE.search(environ.get(name, "")) is not None


def redact_text(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Remove secrets from a text: values of the environment, known token formats, and assignments to secret names."""
    for name, secret in environment_secrets(environ).items():
        text = text.replace(secret, f"<{name}>")
    text = SECRET_VALUE.sub(REDACTED, text)
    return ASSIGNMENT.sub(_redact_assignment, text)


def _redact_assignment(typed: re.Match[str]) -> str:
    name, value = typed[1], typed[2]
    key, bare = name.rpartition(".")[2], value.strip("'\"")
    secret = is_secret_name(key) and not bare.startswith(("${", "<", "..."))
    if key.lower().endswith("token") and len(bare) < MIN_SECRET_LENGTH:
        secret = False  # a word such as `eos`; a token of a service is longer
    return f"{name}={REDACTED}" if secret and value not in ("null", "None", "''", '""') else typed[0]


def _iter_texts(plain: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted name and value of every string; items of a list have the list's name."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from _iter_texts(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(plain, list):
        for value in plain:
            yield from _iter_texts(value, prefix)
    elif isinstance(plain, str):
        yield prefix, plain
