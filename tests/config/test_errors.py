"""Storage errors are recognised in exceptions of different libraries."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from ippo_cli.config.errors import ConfigError, StorageError, convert_storage_errors, is_disk_full


@pytest.mark.parametrize(("number", "full"), [(errno.ENOSPC, True), (errno.EACCES, False)])
def test_copytree_error_is_a_storage_error(tmp_path: Path, number: int, full: bool) -> None:
    (tmp_path / "from" / "below").mkdir(parents=True)
    (tmp_path / "from" / "below" / "file").write_text("text")

    def refused(_: object, target: str) -> NoReturn:
        raise OSError(number, "as the system says", target)

    with pytest.raises(StorageError, match=r"^to cannot be written \(") as raised, convert_storage_errors("to"):
        shutil.copytree(tmp_path / "from", tmp_path / "to", copy_function=refused)
    cause = raised.value.__cause__
    assert isinstance(cause, shutil.Error)
    assert is_disk_full(cause) is full


def test_same_file_error_is_not_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(shutil.SameFileError), convert_storage_errors("to"):
        shutil.copyfile(tmp_path / "file", tmp_path / "file")


def test_values_of_users_cannot_begin_a_line() -> None:
    error = ConfigError("name=a\nippo: done", "is not a\x1b[31m name", "use\u2028 letters")
    assert str(error) == r"name=a\nippo: done is not a\x1b[31m name; use\u2028 letters"
    assert error.key == "name"
