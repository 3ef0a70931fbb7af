"""What is told of a name that a package does not know."""

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


def told(name: str) -> str:
    with pytest.raises(ConfigError) as refused:
        check_registered(f"task.env_id={name}", name, KNOWN, kind="game", listing="import x; x.show()")
    return str(refused.value)


def test_a_name_that_is_there_is_let_through() -> None:
    for name in KNOWN:
        check_registered(f"task.env_id={name}", name, KNOWN, kind="game", listing="")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Lake-v0", "task.env_id=Lake-v0 is a version that is not there (any more); use Lake-v10"),
        ("Lake", "task.env_id=Lake names no version; use Lake-v10"),
        ("lake-v1", "task.env_id=lake-v1 is no game; use Lake-v10; python -c 'import x; x.show()' lists all"),
        (
            "tictactoe",
            "task.env_id=tictactoe is no game; use classic/tictactoe_v3; python -c 'import x; x.show()' lists all",
        ),
        ("clasic/ches_v6", "task.env_id=clasic/ches_v6 is no game; use classic/chess_v6"),
    ],
)
def test_what_would_work_comes_first(name: str, said: str) -> None:
    assert told(name).startswith(said)


def test_a_name_like_none_is_answered_with_some_and_the_way_to_all() -> None:
    assert "lists all" in told("qqqqqq")
    assert len(told("qqqqqq").splitlines()) == 1


def test_an_older_version_knows_the_newest() -> None:
    assert newer_version("Lake-v2", KNOWN) == "Lake-v10", "numbers are compared as numbers"
    assert [newer_version(name, KNOWN) for name in ("Lake-v10", "Plain", "Other-v1", "Lake")] == [None] * 4


def test_namespace_without_a_package() -> None:
    with pytest.raises(ConfigError) as raised:
        check_registered("task.env_id=ALE/Pong-v5", "ALE/Pong-v5", KNOWN, kind="game", listing="show()")
    assert str(raised.value) == (
        "task.env_id=ALE/Pong-v5 is in ALE/, where no installed package registers anything; install it (ale-py); "
        "python -c 'show()' lists all"
    )


def test_nothing_similar_is_registered() -> None:
    with pytest.raises(ConfigError, match="is no game; python -c 'show\\(\\)' lists all"):
        check_registered("task.env_id=zzzzqq", "zzzzqq", KNOWN, kind="game", listing="show()")
