"""Load user functions: imports between user files, encodings."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.user_code.load import load_function


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
