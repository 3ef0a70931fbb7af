"""Episodes on an OpenEnv server, of the package `openenv` and of a server with the same messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from guess_process import GuessServer, need_package, run_server
from making import INVALID, act, openenv, row

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import OpenEnvConfig
from ippo_cli.tasks.environments.build import make_environment_factory
from ippo_cli.tasks.environments.openenv import OpenEnvEnvironment
from ippo_cli.tasks.environments.openenv_session import ConnectionLost, ServerError
from ippo_cli.tasks.task import load_task

pytestmark = pytest.mark.needs_no_package
KINDS = [pytest.param((), id="messages"), pytest.param(("--package",), id="package", marks=pytest.mark.slow)]


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[GuessServer]:
    """A server with two sessions, which a test may kill and start again."""
    if request.param:
        need_package()
    with run_server("--max-sessions", "2", *request.param) as started:
        yield started


def make(config: OpenEnvConfig) -> OpenEnvEnvironment:
    world = make_environment_factory(config)()
    assert isinstance(world, OpenEnvEnvironment)
    return world


def test_episode_follows_seed_and_actions(server: GuessServer) -> None:
    world = make(openenv(server.url))
    for _ in range(2):
        assert world.reset(row(13), 0) == {"solo": "?"}
        first, second = act(world, solo="5"), act(world, solo="3")
        assert (first.observations, first.rewards, first.terminated) == ({"solo": "down"}, {"solo": 0.0}, False)
        assert (second.observations, second.rewards, second.terminated) == ({"solo": "yes"}, {"solo": 1.0}, True)
        assert first.parts == {"distance": 2.0, "invalid": 0.0}, "only numbers of the metadata"
    assert world.actions() == {}
    world.close()


def test_max_turns_truncates(server: GuessServer) -> None:
    world = make(openenv(server.url, max_turns=2))
    world.reset(row(3), 0)
    assert [act(world, solo="5").truncated for _ in range(2)] == [False, True]
    world.reset(row(3), 0)
    step = act(world, solo="3")
    assert (step.terminated, step.truncated) == (True, False)
    world.close()


def test_sessions_are_separate_and_are_reused(server: GuessServer) -> None:
    create = make_environment_factory(openenv(server.url, reset_args={"count": True}))
    one, two = create(), create()
    assert one.reset(row(3), 0) == {"solo": "episode 1"}
    assert two.reset(row(7), 0) == {"solo": "episode 1"}
    assert act(one, solo="5").observations == {"solo": "down"}
    assert act(two, solo="5").observations == {"solo": "up"}
    assert one.reset(row(3), 0) == {"solo": "episode 2"}
    one.close()
    three = create()
    assert three.reset(row(3), 0) == {"solo": "episode 1"}, "the closed session is free"
    for world in (two, three):
        world.close()


def test_reset_args_replace_the_seed(server: GuessServer) -> None:
    world = make(openenv(server.url, reset_args={"seed": 4}))
    world.reset(row(3), 0)
    assert act(world, solo="4").terminated
    world.close()


def test_server_without_free_session_is_a_config_error(server: GuessServer) -> None:
    create = make_environment_factory(openenv(server.url))
    worlds = [create() for _ in range(3)]
    for world in worlds[:2]:
        world.reset(row(3), 0)
    message = (
        r"task.url=http.* has no free session .*2/2 sessions active.*; this process has 2\); every .* needs one; "
        "start the server with a higher max_concurrent_envs, or set task.max_sessions"
    )
    with pytest.raises(ConfigError, match=message) as refused:
        worlds[2].reset(row(3), 0)
    assert refused.value.exit_code == 2
    threading.Timer(0.5, worlds[0].close).start()
    assert worlds[2].reset(row(3), 0), "it waits for a session that is about to be free"
    for world in worlds[1:]:
        world.close()


def test_user_function_with_invalid_values_is_an_invalid_response(server: GuessServer, tmp_path) -> None:
    (tmp_path / "own.py").write_text(
        "def act(text):\n    return {'?': None, 'many': {'message': ['5']}, 'odd': {'massage': '5'}}.get(text, "
        "{'message': text})\n"
    )
    world = make(openenv(server.url, action_function=f"{tmp_path / 'own.py'}:act", max_turns=4))
    world.reset(row(3), 0)
    assert act(world, solo="5").observations == {"solo": "down"}
    for number, text in enumerate(("?", "many"), 1):
        step = act(world, solo=text)
        assert (step.observations, step.rewards) == ({"solo": "down"}, {"solo": INVALID})
        assert step.parts["invalid"] == number
    assert not step.truncated
    with pytest.raises(
        ServerError, match=r"VALIDATION_ERROR: Invalid message \(message: Field required; massage: Extra"
    ):
        act(world, solo="odd")
    world.close()


def test_error_in_the_environment_fails_the_episode(server: GuessServer) -> None:
    world = make(openenv(server.url))
    world.reset(row(3), 0)
    with pytest.raises(ServerError, match=r"EXECUTION_ERROR: the board is gone"):
        act(world, solo="crash")
    assert world.reset(row(3), 0)
    world.close()


def test_late_answer_fails_the_episode_and_is_never_read(server: GuessServer) -> None:
    world = make(openenv(server.url, timeout_s=0.5))
    world.reset(row(3), 0)
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"no answer to step within task.timeout_s=0.5"):
        act(world, solo="sleep 1.5")
    assert time.monotonic() - began < 3
    with pytest.raises(ConnectionLost):
        act(world, solo="3")
    time.sleep(1.5)
    assert world.reset(row(3), 0) == {"solo": "?"}
    assert act(world, solo="3").terminated
    world.close()


def test_killed_server_fails_its_episodes_and_may_come_back(server: GuessServer) -> None:
    create = make_environment_factory(openenv(server.url, reset_args={"count": True}))
    world, idle = create(), create()
    world.reset(row(3), 0)
    idle.reset(row(3), 0)
    server.kill()
    with pytest.raises(ConnectionLost, match=r"the connection was closed"):
        act(world, solo="5")
    with pytest.raises(ServerError, match=r"cannot be reached .*refused"):
        world.reset(row(3), 0)
    server.start()
    deadline = time.monotonic() + 30
    while not is_up(server):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(ConnectionLost):
        act(world, solo="5")
    assert world.reset(row(3), 0) == {"solo": "episode 1"}
    assert idle.reset(row(3), 0) == {"solo": "episode 1"}, "a connection that was lost between episodes is replaced"
    world.close()
    idle.close()


def is_up(server: GuessServer) -> bool:
    try:
        make_environment_factory(openenv(server.url))
    except ConfigError:
        return False
    return True


def test_episode_that_is_over_after_reset_fails(server: GuessServer) -> None:
    world = make(openenv(server.url, reset_args={"over": True}))
    with pytest.raises(ServerError, match=r"the episode is over after reset"):
        world.reset(row(3), 0)
    world.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("garbage", "not a message of OpenEnv: '<html>'"),
        ("nan", "the reward is not a finite number: nan"),
        ("undecided", "done is not true or false: 'no'"),
        ("drop", "the connection was closed"),
    ],
)
def test_unusable_answers_fail_the_episode(text: str, message: str) -> None:
    with run_server() as server:
        world = make(openenv(server.url))
        world.reset(row(3), 0)
        with pytest.raises(ServerError, match=message):
            act(world, solo=text)
        assert world.reset(row(3), 0) == {"solo": "?"}
        world.close()


def test_two_answers_to_one_action_fail_the_episode() -> None:
    with run_server() as server:
        world = make(openenv(server.url))
        world.reset(row(3), 0)
        act(world, solo="twice")
        time.sleep(0.2)  # until the second answer is there
        with pytest.raises(ServerError, match="two answers to one request"):
            act(world, solo="1")
        assert world.reset(row(3), 0) == {"solo": "?"}
        world.close()


def test_missing_server_is_found_before_training() -> None:
    with run_server() as server:
        url = server.url
        task = load_task(openenv(url), 0)
        assert [observation for _, observation, _ in task.dry_run.turns] == ["?", "up", "up"]
    with pytest.raises(
        ConfigError, match=r"task.url=http\S+ does not answer as an OpenEnv server \(.*refused.*start"
    ) as no:
        load_task(openenv(url), 0)
    assert no.value.exit_code == 2


def test_failing_reset_is_found_before_training() -> None:
    with run_server() as server, pytest.raises(ConfigError, match=r"task.url=\S+ fails \(.*is over after reset"):
        load_task(openenv(server.url, reset_args={"over": True}), 0)


def test_token_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAME_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"task.token_env=GAME_TOKEN is no variable with a token in ASCII; export"):
        make_environment_factory(openenv("http://127.0.0.1:1", token_env="GAME_TOKEN"))
