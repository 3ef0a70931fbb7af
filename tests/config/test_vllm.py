"""Checks of `rollout=vllm`, and values of other groups that depend on it."""

from __future__ import annotations

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config import vllm as checks
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError

SERVER = "rollout.vllm.mode=server"


@pytest.fixture
def pretend_vllm_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: object())


@pytest.mark.usefixtures("pretend_vllm_is_installed")
def test_default_is_valid() -> None:
    config = load_config(["rollout=vllm"])
    check_config(config, 1)
    assert config.rollout.recompute_logprobs


@pytest.mark.usefixtures("pretend_vllm_is_installed")
@pytest.mark.parametrize("address", ["10.0.0.5", "10.0.0.5:29600", "node7:29600", "[::1]:29600"])
def test_addresses_to_listen_at(address: str) -> None:
    check_config(load_config(["rollout=vllm", SERVER, f"rollout.vllm.listen_address='{address}'"]), 1)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"rollout=vllm needs the package vllm.*pip install 'ippo-cli\[vllm\]'"):
        check_config(load_config(["rollout=vllm"]), 1)
    config = load_config(["rollout=vllm", "rollout.vllm.mode=server", "rollout.vllm.url=[http://localhost:8000]"])
    check_config(config, 1)


@pytest.mark.usefixtures("pretend_vllm_is_installed")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.min_p=0.1", "rollout.top_p=0.9"], r"min_p=0.1 rollout.top_p=0.9 are applied in another order"),
        (["rollout.temperature=2.5"], r"temperature=2.5 is more than vLLM allows"),
        (["rollout.min_new_tokens=2", "rollout.stop_strings=[x]"], r"min_new_tokens=2 delays stop strings"),
        (["rollout.recompute_logprobs=false", "rollout.top_k=3"], r"recompute_logprobs=false leaves low without"),
        (["algorithm=sao", "rollout.top_k=3"], r"ratio_base=sampler leaves low without"),
        (["rollout.recompute_logprobs=false"], r"behavior_correction.level=token has no effect"),
        (
            [
                "rollout.recompute_logprobs=false",
                "algorithm.behavior_correction.level=none",
                "rollout.max_sampler_gap=0.5",
            ],
            r"max_sampler_gap=0.5 needs the trainer's",
        ),
        (["rollout.zero3_gather=layer", "deepspeed=zero3"], r"zero3_gather=layer has no effect with rollout=vllm"),
        (["rollout.vllm.url=[http://localhost:8000]"], r"rollout.vllm.url names servers"),
        (["rollout.vllm.ranks_per_server=2"], r"ranks_per_server=2 has an effect on servers"),
        (["rollout.vllm.listen_address=10.0.0.5"], r"listen_address=10.0.0.5 has an effect on servers"),
        ([SERVER, "rollout.vllm.ranks_per_server=2"], r"ranks_per_server=2 is more than the 1 ranks"),
        ([SERVER, "rollout.vllm.listen_address='10.0.0.5:x'"], r"listen_address=10.0.0.5:x is not an address"),
        ([SERVER, "rollout.vllm.listen_address='http://node7'"], r"listen_address=http://node7 is not an address"),
        (["+rollout.vllm.engine_args.max_num_seqs=4"], r"engine_args.max_num_seqs is decided by another key"),
        (["actor=tiny_lora", "actor.use_dora=true"], r"actor.use_dora=true is not supported by vLLM"),
    ],
)
def test_refused_settings(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(load_config(["rollout=vllm", *overrides]), 1)


EXACT = "rollout.on_policy=exact"


@pytest.mark.usefixtures("pretend_vllm_is_installed")
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["rollout.temperature=2.5", "rollout.min_p=0.1", "rollout.top_p=0.9"],
        ["rollout.min_new_tokens=2", "rollout.stop_strings=[x]", "algorithm.behavior_correction.level=token"],
        ["algorithm=sao"],
        ["algorithm=grpo"],
    ],
    ids=str,
)
def test_exact_samples_need_no_correction(overrides: list[str]) -> None:
    config = load_config(["rollout=vllm", EXACT, *overrides])
    check_config(config, 1)
    assert not config.rollout.recompute_logprobs
    assert config.rollout.gap_limit is None
    assert load_config(["rollout=vllm", EXACT]).algorithm.behavior_correction.level.value == "none"


@pytest.mark.usefixtures("pretend_vllm_is_installed")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.verify_rounds=3"], r"verify_rounds=3 has no effect with rollout.on_policy=approximate"),
        ([EXACT, "rollout.verify_rounds=null"], r"verify_rounds=null leaves rollout.on_policy=exact without drafts"),
        ([EXACT, "rollout.recompute_logprobs=true"], r"recompute_logprobs=true computes again"),
        ([EXACT, "rollout.max_sampler_gap=0.5"], r"max_sampler_gap=0.5 has no effect: with rollout.on_policy=exact"),
        ([EXACT, "algorithm.behavior_correction.level=token"], r"behavior_correction.level=token has no effect"),
        ([EXACT, SERVER, "rollout.ahead=1"], r"rollout.on_policy=exact needs episodes that are sampled with"),
    ],
)
def test_settings_that_exact_samples_exclude(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(load_config(["rollout=vllm", *overrides]), 1)


@pytest.mark.parametrize(
    ("overrides", "level", "cap"),
    [
        ([], "none", None),
        (["rollout=vllm"], "token", 2.0),
        (["rollout=vllm", "algorithm=grpo"], "token", 2.0),
        (["rollout=vllm", "algorithm.behavior_correction.level=none"], "none", None),
        (["rollout=vllm", "algorithm.behavior_correction.cap=3"], "token", 3.0),
        (["rollout.top_k=3", "algorithm.behavior_correction.level=token"], "token", None),
    ],
)
def test_behavior_correction_follows_the_generator(overrides: list[str], level: str, cap: float | None) -> None:
    correction = load_config(overrides).algorithm.behavior_correction
    assert (correction.level.value, correction.cap) == (level, cap)


def test_servers_that_keep_their_weights_do_not_train() -> None:
    config = load_config(["rollout=openai_server", "rollout.server.url=[http://localhost:8000]"])
    check_config(config, 1, training=False)
    with pytest.raises(ConfigError, match=r"rollout=openai_server keeps its servers' weights, and low and high would"):
        check_config(config, 1)
    with pytest.raises(ConfigError, match=r"rollout.server.url=\[\] names no server"):
        check_config(load_config(["rollout=openai_server"]), 1, training=False)
