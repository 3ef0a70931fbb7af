"""Errors for unknown ids, and newer versions."""

from __future__ import annotations

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.environments.ids import check_registered, newer_version

pytestmark = pytest.mark.needs_no_package
KNOWN = (
    "classic/chess_v6",
    "classic/tictactoe_v3",
    "classic/rps_v2",
    "Lake-v1",
    "Lake-v2",
    "Lake-v10",
    "Plain",
    "sums",
)


def refusal(name: str) -> str:
    with pytest.raises(ConfigError) as refused:
        check_registered(f"task.env_id={name}", name, KNOWN, kind="game", listing="import x; x.show()")
    return str(refused.value)


def test_registered_names_are_accepted() -> None:
    for name in KNOWN:
        check_registered(f"task.env_id={name}", name, KNOWN, kind="game", listing="")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Lake-v0", "task.env_id=Lake-v0 is not an available version; use Lake-v10"),
        ("Lake", "task.env_id=Lake names no version; use Lake-v10"),
        ("lake-v1", "task.env_id=lake-v1 is not a known game; use Lake-v10; python -c 'import x; x.show()' lists all"),
        (
            "tictactoe",
            "task.env_id=tictactoe is not a known game; use classic/tictactoe_v3; "
            "python -c 'import x; x.show()' lists all",
        ),
        ("clasic/ches_v6", "task.env_id=clasic/ches_v6 is not a known game; use classic/chess_v6"),
    ],
)
def test_error_suggests_similar_names(name: str, message: str) -> None:
    assert refusal(name).startswith(message)


def test_error_without_suggestion_lists_all_names_command() -> None:
    assert "lists all" in refusal("qqqqqq")
    assert len(refusal("qqqqqq").splitlines()) == 1


def test_newer_version_compares_numerically() -> None:
    assert newer_version("Lake-v2", KNOWN) == "Lake-v10", "numbers are compared as numbers"
    assert [newer_version(name, KNOWN) for name in ("Lake-v10", "Plain", "Other-v1", "Lake")] == [None] * 4


def test_namespace_without_a_package() -> None:
    with pytest.raises(ConfigError) as raised:
        check_registered("task.env_id=ALE/Pong-v5", "ALE/Pong-v5", KNOWN, kind="game", listing="show()")
    assert str(raised.value) == (
        "task.env_id=ALE/Pong-v5 is in the namespace ALE/, which no installed package registers; install it (ale-py); "
        "python -c 'show()' lists all"
    )


def test_nothing_similar_is_registered() -> None:
    with pytest.raises(ConfigError, match="is not a known game; python -c 'show\\(\\)' lists all"):
        check_registered("task.env_id=zzzzqq", "zzzzqq", KNOWN, kind="game", listing="show()")
