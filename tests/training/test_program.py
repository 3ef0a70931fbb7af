"""`task=program`: programs call agents by chat completions."""

from __future__ import annotations

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from model_server import save_partner, serve_model
from small import final_weights, new_run, open_trainer, rows, small_config, stopping_reward, train

from ippo_cli.config.errors import Preempted
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.evaluation.evaluate_run import adapters_by_agent, find_weights
from ippo_cli.evaluation.serve import ServerSettings, serve
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.rollout.rows import build_rollout
from ippo_cli.training.process import run_training
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import Batch

pytest.importorskip("aiohttp", reason="needs the extra program")
openai = pytest.importorskip("openai", reason="needs OpenAI's client")

AGENTS = ("~task.agents.solo", "+task.agents={low: {}, high: {}}")
DIALOGUE = (Path(__file__).parents[2] / "scripts" / "examples" / "dialogue_program.py").read_text()


def write_data(root: Path) -> list[str]:
    """Rows, a reward that draws random numbers, and small models without a warm start."""
    root.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"question": f"{a}+{b}=", "low": f"{a}{b}"}) for a in range(6) for b in range(8)]
    (root / "rows.jsonl").write_text("\n".join(lines))
    return [
        f"task.train={root / 'rows.jsonl'}",
        f"task.eval={root / 'rows.jsonl'}",
        *stopping_reward(root),
        "actor.alphabet=printable",
        "actor.warm_start_steps=0",
        "actor.learning_rate=3e-4",  # its default depends on the task
        "rollout.max_new_tokens=4",
        "num_iterations=2",
        "algorithm=ppo",
    ]


def program_run(root: Path, source: str = DIALOGUE) -> list[str]:
    overrides = write_data(root)
    (root / "play.py").write_text(source)
    return ["task=program", f"task.program={root / 'play.py'}:play", *AGENTS, *overrides]


@pytest.mark.core
def test_program_equals_the_same_protocol_to_the_bit(tmp_path: Path) -> None:
    agents = (
        'low: {template: "{question}", turn_template: "high: {agents.high}"}, '
        'high: {template: "low: {agents.low}", turn_template: "low: {agents.low}"}'
    )
    built_in = ["task=jsonl", "task.protocol=dialogue", "task.num_turns=2", AGENTS[0], "+task.agents={" + agents + "}"]
    expected = train(tmp_path / "protocol", *built_in, *write_data(tmp_path / "a"))
    found = train(tmp_path / "program", *program_run(tmp_path / "b"), "task.max_turns=2")
    for row, wanted in zip(rows(found), rows(expected), strict=True):
        own = {key for key in row if key.endswith(("/calls", "/refused_calls"))}
        assert {key: (row.get(key), wanted.get(key)) for key in row.keys() ^ wanted.keys() ^ own} == {}
        assert {key: (row[key], wanted[key]) for key in wanted if row[key] != wanted[key]} == {}
    weights = final_weights(expected)
    assert all(torch.equal(value, weights[name]) for name, value in final_weights(found).items())


@pytest.mark.slow
def test_stopped_and_resumed_run_equals_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*program_run(tmp_path), "task.max_turns=2", "evaluation.every=0"]
    whole = train(tmp_path, *overrides)
    config, folder = new_run(tmp_path, *overrides)
    monkeypatch.setenv("STOP_AT_CALL", "2")
    with pytest.raises(Preempted):
        run_training(config, folder, resumed=False)
    monkeypatch.delenv("STOP_AT_CALL")
    run_training(config, folder, resumed=True)
    assert rows(folder) == rows(whole)
    weights = final_weights(whole)
    assert all(torch.equal(value, weights[name]) for name, value in final_weights(folder).items())


@pytest.mark.slow
def test_frozen_agents_answer_at_the_same_address_here_and_at_a_server(tmp_path: Path) -> None:
    pytest.importorskip("httpx2", reason="needs the extra `http`")
    model, where = save_partner(tmp_path / "partner"), "task.agents.high"
    shared = [*program_run(tmp_path), "task.max_turns=2", "evaluation.every=0", f"{where}.frozen=true"]
    shared += [f"{where}.rollout.top_k=1", f"{where}.actor.model={model}"]  # one token is certain
    local = train(tmp_path, *shared, f"{where}.actor.kind=full", f"{where}.actor.dtype=fp32")
    with serve_model(model) as (url, server):
        served = train(tmp_path, *shared, f"{where}.actor.kind=server", f"{where}.actor.url={url}")
        assert server.prompts
    last = rows(local)[-1]
    assert last["high/rollout/turns"] == 2.0
    assert "high/policy/loss" not in last
    assert rows(served)[-1]["low/score/mean"] == last["low/score/mean"]
    found, expected = final_weights(served, ["low"]), final_weights(local, ["low"])
    assert all(found[name].equal(value) for name, value in expected.items())


REWRITING = """
from openai import OpenAI


def play(example, endpoint):
    client = OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    messages = [{"role": "user", "content": "a"}]
    for system in ("", "", "other"):
        if system:
            messages = [{"role": "system", "content": system}, *messages]
        completion = client.chat.completions.create(model="low", messages=messages, seed=3, max_tokens=2)
        messages += [completion.choices[0].message, {"role": "user", "content": "b"}]
    streamed = client.chat.completions.create(model="high", messages=messages[:1], stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in streamed)
    final = client.chat.completions.create(
        model="high", messages=messages[:1], logprobs=True, extra_body={"return_token_ids": True}
    )
    choice = final.choices[0]
    assert len(choice.token_ids) == len(choice.logprobs.content) == final.usage.completion_tokens
    return None, {"length": len(text)}
"""


@pytest.mark.core
def test_rewritten_histories_are_new_sequences(tmp_path: Path) -> None:
    overrides = program_run(tmp_path, REWRITING)
    with open_trainer(tmp_path, *overrides, "rollout.buffer_size=4", "task.train_size=4") as trainer:
        episodes = trainer.collector.play_episodes(*batch_of(trainer))
    for episode in episodes:
        assert episode.failure is None
        first, second, third = episode.turns_of_agent("low")
        assert all(len(turn.completion.ids) <= 2 for turn in (first, second, third))
        known = first.prompt + first.completion.ids.tolist()
        assert second.prompt[: len(known)] == known, "sampled tokens are kept"
        assert len(second.prompt) == len(known) + 1, "one character follows"
        assert third.prompt[: len(known)] != known
        assert len(build_rollout([episode], "low", device=torch.device("cpu"), filtered=False).detached[0]) == 1
        assert episode.parts["length"] > 0


@pytest.mark.core
def test_served_agents_answer_as_in_training(tmp_path: Path) -> None:
    """Also concurrent calls, and a key that is not known."""
    folder = train(tmp_path, *program_run(tmp_path), "num_iterations=1", "evaluation.every=0")
    config, _ = small_config(tmp_path, *program_run(tmp_path))
    settings = ServerSettings(host="127.0.0.1", port=0, api_key="secret", seed=0, greedy=True)
    actual: list[str] = []
    answers: list[str] = []

    def call() -> None:
        while not actual:
            time.sleep(0.05)
        address = re.search(r"OPENAI_BASE_URL=(\S+)", actual[0])
        assert address is not None
        client = openai.OpenAI(base_url=address[1], api_key="secret", max_retries=0)
        question = [{"role": "user", "content": "1+2="}]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: client.chat.completions.create(model="low", messages=question), range(8)))
        answers.extend(str(completion.choices[0].message.content) for completion in found)
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=address[1], api_key="other", max_retries=0).models.list()

    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(call)
        weights = find_weights(folder, "latest", policy_by_agent(config), adapters_by_agent(config))
        serve(config, weights, None, settings, actual.append, should_stop=client.done)
        client.result()
    assert len(answers) == 8
    assert len(set(answers)) == 1, "greedy"


FAULTS = """
import os, signal, socket, subprocess, sys, time
from openai import OpenAI


def play(example, endpoint):
    def say(text, model="low", key=endpoint.api_key):
        client = OpenAI(base_url=endpoint.base_url, api_key=key, max_retries=0)
        return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])

    def send(body, length=None):
        host, port = endpoint.base_url.split("/")[2].split(":")
        connection = socket.create_connection((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {endpoint.api_key}\\r\\n"
        connection.sendall((head + f"Content-Length: {length or len(body)}\\r\\n\\r\\n" + body).encode())
        return connection

    text = say(f"{example['number']}?").choices[0].message.content
    kind = example["kind"]
    if kind == "raises":
        raise KeyError("nothing")
    if kind == "sleeps":
        time.sleep(600)
    if kind == "loops":
        while True:
            pass
    if kind == "unknown agent":
        say("a", model="nobody")
    if kind == "too long":
        say("a" * 3000)
    if kind == "disconnects":
        send('{"model": "low", "messages": [{"role": "user", "content": "a"}]}').close()
        time.sleep(600)
    if kind == "garbage":
        if b" 400 " in send("{not json").recv(100):
            raise ValueError("rejected")
    if kind == "half a request":
        send("{", length=1000).recv(1)
    if kind == "exits":
        os._exit(3)
    if kind == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "unknown reward":
        return {"nobody": 1.0}
    if kind == "foreign key":
        say("a", key="sk-other")
    if kind == "too large":
        say("a" * 9_000_000)
    if kind == "prints":
        while True:
            print("x" * 1_000_000, flush=True)
    if kind == "leaves a process":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "left by a program"])
        os._exit(4)
    if kind == "never ends":
        while True:
            say("again")
    return float(len(text))
"""
KINDS = {
    "raises": r"play.py:\d+: KeyError: 'nothing'",
    "sleeps": "task.timeout_s=4",
    "loops": "task.timeout_s=4",
    "unknown agent": "the agents are low, high",
    "too long": "the messages have 3000 tokens, and the context has",
    "disconnects": "closed the connection of a call of low before it had the response",
    "garbage": "rejected",
    "half a request": "task.timeout_s=4",
    "exits": "exit code 3",
    "is killed": "signal 9",
    "unknown reward": "returned a reward for 'nobody'; agents are low high",
    "foreign key": "not that of a running episode",
    "too large": "the body has more than 8388608 bytes",
    "prints": "printed more than",
    "leaves a process": "exit code 4",
}


@pytest.mark.parametrize("copies", [pytest.param(1, marks=pytest.mark.core), pytest.param(14, marks=pytest.mark.slow)])
def test_faulty_programs_fail_their_own_episodes_only(tmp_path: Path, copies: int) -> None:
    names = ["none", "never ends", *KINDS] * copies
    overrides = program_run(tmp_path, FAULTS)
    lines = [json.dumps({"question": "", "kind": kind, "number": number}) for number, kind in enumerate(names)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    overrides += [f"rollout.buffer_size={len(names)}", "task.timeout_s=4", "task.max_turns=3", "reward=environment"]
    overrides = [text for text in overrides if not text.startswith("reward.function")]
    with open_trainer(tmp_path, *overrides, "task.train_size=null", "rollout.context_limit=512") as trainer:
        episodes = trainer.collector.play_episodes(*batch_of(trainer))
        assert wait_for_one_process(), "programs end with their episodes; the process that starts them remains"
    assert len(episodes) == len(names)
    for episode in episodes:
        kind = episode.example["kind"]
        if kind == "none":
            assert episode.failure is None
            assert episode.rewards[-1] == {"low": len(episode.turns[-1].text), "high": len(episode.turns[-1].text)}
        elif kind == "never ends":
            assert (episode.failure, episode.truncation, len(episode.turns)) == (None, "environment", 3)
        else:
            assert re.search(KINDS[kind], str(episode.failure)), (kind, episode.failure)
    left = [Path("/proc", pid, "cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    assert not [path for path in left if b"left by a program" in read_or_nothing(path)]


def wait_for_one_process(limit_s: float = 10.0) -> bool:
    """Whether a single process of `spawner.py` is left below this one."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        children = psutil.Process().children(recursive=True)
        with suppress(psutil.NoSuchProcess):
            if sum("spawner.py" in " ".join(child.cmdline()) for child in children) == 1:
                return True
        time.sleep(0.1)
    return False


def batch_of(trainer: Trainer) -> tuple[Batch, SamplingStream]:
    """The first iteration's examples and random numbers."""
    return trainer.collector._batch(0), trainer.collector._draws(0)


def read_or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
