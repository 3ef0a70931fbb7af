"""Load user functions: imports between user files, encodings."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.user_code.load import load_component, load_function, try_state


def test_file_imports_modules_of_its_folder(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "package").mkdir(parents=True)
        (tmp_path / folder / "helper_of_test.py").write_text(f"NAME = {folder!r}\n")
        (tmp_path / folder / "package" / "__init__.py").write_text("")
        (tmp_path / folder / "package" / "inner.py").write_text(f"NAME = {folder!r}\n")
        (tmp_path / folder / "later_of_test.py").write_text("VALUE = 3\n")
        (tmp_path / folder / "reward.py").write_text(
            "from helper_of_test import NAME\nfrom package.inner import NAME as INNER\n"
            "def score():\n    from later_of_test import VALUE\n    return NAME, INNER, VALUE\n"
        )
    for folder in ("one", "two"):
        assert load_function(f"{tmp_path}/{folder}/reward.py:score")() == (folder, folder, 3)


def test_installed_package_has_priority_over_user_file(tmp_path: Path) -> None:
    (tmp_path / "jinja2.py").write_text("raise RuntimeError('the neighbour')\n")
    (tmp_path / "reward.py").write_text("import jinja2\ndef score():\n    return jinja2.__version__\n")
    assert load_function(f"{tmp_path}/reward.py:score")()[0].isdigit()


def test_latin_1_file_without_encoding_declaration_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("def score():\n    return 'caf\xe9'\n", encoding="latin-1")
    with pytest.raises(ConfigError, match=r"byte 0xe9 at character 16 of line 2 is not UTF-8\); save it as UTF-8"):
        load_function(f"{tmp_path}/reward.py:score")
    (tmp_path / "cookie.py").write_text("# coding: latin-1\ndef score():\n    return 'caf\xe9'\n", encoding="latin-1")
    assert load_function(f"{tmp_path}/cookie.py:score")() == "caf\xe9"


STATES = """
class Counter:
    def __init__(self, *, width=1):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}


class Forgets(Counter):
    def load_state_dict(self, state):
        self.count += 1


class Fails(Counter):
    def load_state_dict(self, state):
        self.count = state["counter"]


class Right(Counter):
    def load_state_dict(self, state):
        self.count = state.pop("count")


def width(inputs, config, width=1):
    return inputs
"""


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("Counter", "has one of state_dict and load_state_dict; write both, or neither"),
        ("Fails", "KeyError: 'counter'.*; fix its load_state_dict"),
        ("Forgets", "another state after .*; let load_state_dict restore all that state_dict returns"),
    ],
)
def test_state_that_cannot_be_restored_is_rejected(name: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "states.py").write_text(STATES)
    component = load_component(f"{tmp_path}/states.py:{name}", "algorithm.advantage", {})
    with pytest.raises(ConfigError, match=rule):
        try_state(component, f"algorithm.advantage=states.py:{name}")


def test_first_state_is_returned_after_a_trial(tmp_path: Path) -> None:
    (tmp_path / "states.py").write_text(STATES)
    component = load_component(f"{tmp_path}/states.py:Right", "algorithm.advantage", {})
    assert try_state(component, "algorithm.advantage=states.py:Right") == {"count": 0}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("width", "remove it, or make it a keyword-only parameter"),
        ("Right", "remove it, or give the class a dataclass Keys with this field"),
    ],
)
def test_unknown_key_of_code_names_how_to_declare_it(name: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / "states.py").write_text(STATES)
    with pytest.raises(ConfigError, match=f"is not a key of .*; {remedy}"):
        load_component(f"{tmp_path}/states.py:{name}", "algorithm.advantage", {"width": 2})
