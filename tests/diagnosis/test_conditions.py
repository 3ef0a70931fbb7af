"""Conditions at their limits, and what they need to be checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from recorded_runs import read_runs

from ippo_cli.compose.load import build_config, compose_node, load_config, resolve_config
from ippo_cli.config.schema import Config
from ippo_cli.diagnosis.conditions.responses import find_template_mismatch
from ippo_cli.diagnosis.conditions.team import Readings, count_readings, find_deaf_agents
from ippo_cli.diagnosis.diagnose import diagnose
from ippo_cli.diagnosis.finding import Finding, NotChecked, Observations, Outcome
from ippo_cli.diagnosis.rates import DEFAULT_RATES
from ippo_cli.diagnosis.registry import BY_NAME
from ippo_cli.diagnosis.report import format_diagnosis
from ippo_cli.diagnosis.series import correlation, measure_change

Row = dict[str, float]
ROWS = 24


@pytest.fixture(scope="module")
def config() -> Config:
    return build_config(resolve_config(compose_node(["task=sorting_solo", "algorithm=ppo"])))


def rows(change: Callable[[int], dict[str, float]], count: int = ROWS) -> list[Row]:
    """Iterations of a run that learns, changed by a function of the iteration; noise alternates between two values."""

    def row(n: int) -> Row:
        noise = 0.002 * (-1) ** n
        known = {
            "score/mean": 0.2 + 0.02 * n + noise,
            "score/std": 0.2,
            "rollout/response_length": 6.0 + noise,
            "rollout/logprob": -2.0 + 0.05 * n,
            "rollout/truncated_fraction": 0.1,
            "policy/entropy": 2.0 - 0.05 * n + noise,
            "policy/approx_kl": 0.005,
            "policy/steps": 4.0,
            "policy/grad_norm": 1.0,
            "policy/learning_rate": 1e-4,
            "policy/ratio_first_step_deviation": 1e-6,
            "kl/reference": 0.01 * n,
            "kl/reward_coef": 0.01,
        } | change(n)
        return {"iteration": float(n)} | {f"solo/{key}": value for key, value in known.items()}

    return [row(n) for n in range(1, count + 1)]


def find(name: str, config: Config, change: Callable[[int], dict[str, float]], **known: Any) -> Outcome:
    return BY_NAME[name].find(Observations(config=config, rows=rows(change), **known))


def flat(n: int) -> float:
    """A score that does not rise."""
    return 0.2 + 0.002 * (-1) ** n


def test_sampled_tokens_show_a_large_update_of_a_single_step(config: Config) -> None:
    """`policy/approx_kl` is 0 with one step per iteration: it is measured before each step."""

    def one_step(n: int) -> dict[str, float]:
        return {"policy/approx_kl": 0.0, "policy/steps": 1.0, "score/mean": flat(n)}

    for kl in ({1: 3.0}, {1: 0.5, 5: 0.4}):
        finding = find("learning_rate", config, one_step, sampled_kl={"solo": kl})
        assert isinstance(finding, Finding)
        assert "KL of sampled tokens" in finding.evidence[0].values
        assert "algorithm.target_kl=0.02" not in finding.overrides
    for kl in ({}, {1: 0.9}, {1: 0.05, 5: 0.2}):
        assert find("learning_rate", config, one_step, sampled_kl={"solo": kl}) is None
    assert find("learning_rate", config, lambda _: {}, sampled_kl={"solo": {1: 3.0}}) is None, "the score rises"


def test_responses_that_pass_an_end_of_turn_show_a_wrong_stop_token(config: Config) -> None:
    tiny = config
    config = build_config(resolve_config(compose_node(["task=sorting_solo", "actor=full", "actor.model=x"])))

    def episodes(*tokens: str) -> list[dict[str, Any]]:
        return [{"turns": [{"agent": "solo", "response": "yes", "tokens": {"text": list(tokens)}}]}]

    passing, ended = episodes("yes", "<|im_end|>", "<|im_start|>"), episodes("yes", "<|im_end|>")
    finding = find("stop_token", config, lambda _: {}, episodes=passing * 3 + ended * 7)
    assert isinstance(finding, Finding)
    assert "go on after <|im_end|>" in finding.text
    assert finding.evidence[0].values == "3 of 10 contain <|im_end|> before their end"
    assert finding.overrides == ("rollout.stop_strings=['<|im_end|>']",)
    harmony = episodes("<|channel|>", "4", "<|end|>", "<|start|>", "assistant", "<|channel|>", "4", "<|return|>")
    for others in (passing * 2 + ended * 8, ended * 8, episodes("the", "<end", ">", "!") * 8, harmony * 8):
        assert find("stop_token", config, lambda _: {}, episodes=others) is None
    assert isinstance(find("stop_token", config, lambda _: {}, episodes=passing * 7), NotChecked)
    assert find("stop_token", tiny, lambda _: {}, episodes=()) is None


METRIC_CONDITIONS = (
    "learning_rate",
    "masked_tokens",
    "kl_coefficient",
    "entropy_gone",
    "policy_unchanged",
    "sampler_mismatch",
)


@pytest.mark.parametrize("name", METRIC_CONDITIONS)
def test_a_run_that_learns_fulfils_no_condition(name: str, config: Config) -> None:
    assert find(name, config, lambda _: {}) is None


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "learning_rate",
            lambda n: {"policy/approx_kl": 0.2 if n < 4 else 0.0, "score/mean": flat(n)},
            "actor.learning_rate=0.00035 is too high",
        ),
        (
            "learning_rate",
            lambda n: {"policy/entropy": 2.0 if n in (1, 3) else 0.3, "score/mean": flat(n)},
            "single iterations change the policy of solo by much",
        ),
        ("kl_coefficient", lambda n: {"kl/reference": 0.2 * n}, "coef=0 is too low"),
        (
            "kl_coefficient",
            lambda n: {"kl/reference": 1e-3, "kl/reward_coef": 4.0, "score/mean": flat(n)},
            "it allows a gain of about 0.05 standard deviations",
        ),
        (
            "entropy_gone",
            lambda n: {"policy/entropy": 2.0 if n < 8 else 0.01, "score/mean": flat(n)},
            "the entropy of solo is gone",
        ),
        ("policy_unchanged", lambda _: {"policy/learning_rate": 0.0}, "the learning rate is 0"),
        ("policy_unchanged", lambda _: {"policy/grad_norm": 0.0}, "all gradients are 0"),
        ("policy_unchanged", lambda _: {"policy/steps": 0.0}, "no optimizer step in 24 iterations"),
        ("sampler_mismatch", lambda _: {"policy/ratio_first_step_deviation": 0.05}, "give the same tokens other"),
        ("sampler_mismatch", lambda _: {"rollout/prob_diff/sampler": 0.01}, "before any step"),
        (
            "masked_tokens",
            lambda _: {"policy/clip_fraction": 1.0, "policy/grad_norm": 0.0},
            "every token of solo is masked or clipped",
        ),
        ("masked_tokens", lambda _: {"policy/clip_fraction": 0.0, "rollout/ess_ratio": 0.0}, "all gradients are 0"),
        (
            "length_hacking",
            lambda n: {"rollout/response_length": 6.0 + n / 2, "score/part/exact": 0.5 - 0.02 * n},
            "exact falls",
        ),
    ],
)
def test_condition_of_changed_metrics(
    name: str, change: Callable[[int], dict[str, float]], words: str, config: Config
) -> None:
    found = find(name, config, change)
    assert isinstance(found, Finding)
    assert words in found.text
    assert found.evidence
    assert found.overrides


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("learning_rate", lambda n: {"policy/approx_kl": 0.2 if n < 4 else 0.0}),  # the score rises
        ("learning_rate", lambda n: {"policy/approx_kl": 0.2 if n == 1 else 0.0, "score/mean": flat(n)}),
        ("kl_coefficient", lambda n: {"kl/reference": 0.2 * n, "rollout/logprob": -3.0 + 0.2 * n}),  # likely responses
        ("kl_coefficient", lambda _: {"kl/reference": 1e-3, "kl/reward_coef": 4.0}),  # the score rises
        ("kl_coefficient", lambda n: {"kl/reward_coef": 1.9, "score/mean": flat(n)}),
        ("entropy_gone", lambda n: {"policy/entropy": 2.0 if n < 8 else 0.01}),  # it has learned
        ("sampler_mismatch", lambda n: {"policy/ratio_first_step_deviation": 0.05 * (n == 3)}),
        ("length_hacking", lambda n: {"rollout/response_length": 6.0 + n / 2, "score/part/exact": 0.5 + 0.01 * n}),
        ("length_hacking", lambda n: {"score/part/exact": 0.5 - 0.02 * n}),  # no longer responses
    ],
)
def test_condition_needs_all_of_its_evidence(
    name: str, change: Callable[[int], dict[str, float]], config: Config
) -> None:
    assert find(name, config, change) is None


def value_metrics(value: float, target: float) -> dict[str, float]:
    """Metrics of a critic with a squared error of the variance of returns, 0.2, and of its bias."""
    loss = ((target - value) ** 2 + 0.2) / 2
    return {"targets/value": value, "targets/return": target, "value/loss": loss, "value/explained_variance": 0.0}


@pytest.mark.parametrize(
    ("value", "is_found"),
    [
        (lambda n: 1e-8 * n, True),  # returns rise from 0.2 to 0.44
        (lambda n: 0.3 + 1e-8 * n, False),  # near the returns
        (lambda n: 0.005 * n, False),
        (lambda n: 0.2 + 0.01 * n, False),
        (lambda n: math.nan, False),
    ],
)
def test_values_that_do_not_move_to_the_returns(value: Callable[[int], float], is_found: bool, config: Config) -> None:
    found = find("explained_variance", config, lambda n: value_metrics(value(n), 0.2 + 0.01 * n))
    assert isinstance(found, Finding) is is_found
    if isinstance(found, Finding):
        assert found.text == "values of solo are 0.000 after 24 iterations and returns 0.440"
        assert found.overrides[0] == "critic.learning_rate=0.01"


def test_adapter_that_adds_nothing(config: Config) -> None:
    found = find("policy_unchanged", config, lambda _: {}, unchanged_adapters=("solo",))
    assert isinstance(found, Finding)
    assert "still adds 0 to its base" in found.text


def held_out(first: float) -> dict[str, Any]:
    return {"initial": {"iteration": 0.0, "eval/sampled/solo/score": first}, "held_out_rows": 256, "train_rows": 64}


@pytest.mark.parametrize(("last", "is_found"), [(0.22, True), (0.1, True), (0.45, False), (0.68, False)])
def test_memorisation_needs_a_gap(last: float, is_found: bool, config: Config) -> None:
    known = rows(lambda _: {})
    known[-1]["eval/sampled/solo/score"] = last
    config = replace(config, rollout=replace(config.rollout, buffer_size=256))
    observations = Observations(config=config, rows=known, **held_out(0.2))
    found = BY_NAME["few_examples"].find(observations)
    assert isinstance(found, Finding) is is_found
    # One pass over the rows: a gap has other causes.
    assert BY_NAME["few_examples"].find(replace(observations, train_rows=256 * ROWS)) is None


def test_conditions_name_what_they_lack(config: Config) -> None:
    outcomes = {
        name: BY_NAME[name].find(Observations(config=config, rows=rows(lambda _: {}, 2))) for name in METRIC_CONDITIONS
    }
    assert {name for name, outcome in outcomes.items() if isinstance(outcome, NotChecked)} >= {
        "learning_rate",
        "entropy_gone",
        "policy_unchanged",
    }
    without_reference = [{k: v for k, v in row.items() if "/kl/" not in k} for row in rows(lambda _: {})]
    outcome = BY_NAME["kl_coefficient"].find(Observations(config=config, rows=without_reference))
    assert isinstance(outcome, NotChecked)
    assert "algorithm.kl.reward.coef=0.001 measures it" in outcome.reason


def turn(agent: str, step: int, observation: str, response: str) -> dict[str, Any]:
    return {"agent": agent, "step": step, "observation": observation, "response": response}


def test_messages_that_are_read() -> None:
    history = {"turns": [turn("a", 0, "x", " yes "), turn("b", 1, "x yes", "no"), turn("a", 2, "no?", "ok")]}
    unread = {"turns": [turn("a", 0, "x", "yes"), turn("b", 1, "x", "no")]}
    at_once = {"turns": [turn("a", 0, "x", "yes"), turn("b", 0, "x", "no")]}
    assert count_readings([history, unread, at_once]) == {"a": Readings(1, 0, 2), "b": Readings(1, 0, 1)}
    assert count_readings([history, history])["a"] == Readings(2, 2, 2)


@pytest.mark.parametrize(
    ("counts", "is_unread"),
    [((0, 0, 8), True), ((0, 0, 7), False), ((8, 8, 8), False), ((4, 3, 8), True), ((4, 1, 8), False)],
)
def test_messages_read_by_chance(counts: tuple[int, int, int], is_unread: bool) -> None:
    assert Readings(*counts).is_unread is is_unread


def test_deaf_agents_are_found_in_samples() -> None:
    pair = build_config(resolve_config(compose_node(["task=sorting"])))
    unread = {"turns": [turn("low", 0, "x", "yes"), turn("high", 1, "x", "no")]}
    observations = Observations(config=pair, rows=[{"iteration": 1.0}], episodes=[unread] * 8)
    found = find_deaf_agents(observations)
    assert isinstance(found, Finding)
    assert found.agents == ("low",)
    assert "task.agents.high.template='{letters}>{agents.low}'" in found.overrides
    assert isinstance(find_deaf_agents(replace(observations, episodes=[unread] * 7)), NotChecked)


@pytest.mark.parametrize(
    ("response", "is_found"),
    [
        ("Paris.\nUser: And Spain?\nAssistant: Madrid.", True),
        ("Paris.<|im_end|>\n<|im_start|>user", True),
        ("Paris. [/INST] Thanks", True),
        ("The answer to the user: Paris", False),
        ("Answer: Paris", False),
        ("Paris", False),
    ],
)
def test_markers_of_further_turns(response: str, is_found: bool) -> None:
    overrides = ["task=jsonl", "task.train=a.jsonl", "task.eval=a.jsonl", "task.agents.solo.template='{prompt}'"]
    config = build_config(resolve_config(compose_node(overrides)))
    episodes = [{"turns": [turn("solo", 0, "x", response)]}] * 8
    observations = Observations(config=config, rows=[{"iteration": 1.0}], episodes=episodes)
    found = find_template_mismatch(observations)
    assert isinstance(found, Finding) is is_found
    assert isinstance(find_template_mismatch(replace(observations, episodes=episodes[:7])), NotChecked)


def test_measure_change() -> None:
    noise = [0.01 * (-1) ** n for n in range(16)]
    assert measure_change(noise[:7]) is None
    steady = measure_change(noise)
    rising = measure_change([0.05 * n + part for n, part in enumerate(noise)])
    assert steady is not None
    assert rising is not None
    assert not steady.has_risen
    assert not steady.has_fallen
    assert rising.has_risen
    assert rising.gain == pytest.approx(0.65)
    constant = measure_change([0.5] * 10)
    assert constant is not None
    assert not constant.has_risen


def test_correlation() -> None:
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert correlation([1, 2, 3], [1, 1, 1]) == 0


def test_missing_numbers_are_ignored() -> None:
    """Rows without a score of an agent, as in buffers in which it does not act."""
    for run in read_runs("healthy").values():
        gaps = [
            row | {key: math.nan for key in row if key.endswith(("/score/mean", "/score/std"))}
            if row["iteration"] % 5 == 0
            else row
            for row in run.observations.rows
        ]
        for condition in BY_NAME.values():
            outcome = condition.find(replace(run.observations, rows=gaps))
            assert not isinstance(outcome, Finding), (run.name, condition.name)


def momentary(n: int) -> dict[str, float]:
    """Skipped steps and failing rewards in iteration 9 alone."""
    return {"policy/skipped_steps": 2.0 * (n == 9), "score/failed_fraction": 0.3 * (n == 9)}


def test_warnings_of_conditions_that_ended_are_shown(config: Config) -> None:
    warnings = {"skipped_steps": "steps were skipped", "failing_rewards": "rewards failed", "fell": "the score fell"}
    diagnosis = diagnose(Observations(config=config, rows=rows(momentary)))
    text = format_diagnosis(diagnosis, warnings, ROWS)
    assert "no problem found" in text
    assert "- steps were skipped\n- rewards failed\n" in text
    assert "- the score fell" not in text  # all iterations were examined for it
    diagnosis = diagnose(Observations(config=config, rows=rows(momentary, 9)))
    assert set(diagnosis.findings) == {"failing_rewards", "skipped_steps"}
    assert "printed these warnings" not in format_diagnosis(diagnosis, warnings, 9)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"policy/skipped_steps": 4.0, "policy/grad_norm": 0.0}, "all 96 optimizer steps were skipped"),
        ({"policy/skipped_steps": 0.0, "policy/grad_norm": 0.0}, "all gradients are 0"),
    ],
)
def test_reason_of_an_unchanged_policy(change: dict[str, float], reason: str, config: Config) -> None:
    found = find("policy_unchanged", config, lambda n: change)
    assert isinstance(found, Finding)
    assert reason in found.text


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_not_finite_are_found(value: float, config: Config) -> None:
    known = [row | {"eval/sampled/score": value if row["iteration"] > 20 else 0.5} for row in rows(lambda n: {})]
    diagnosis = diagnose(Observations(config=config, rows=known))
    assert list(diagnosis.findings) == ["non_finite_scores"]
    assert "in 4 of 24 evaluations" in diagnosis.findings["non_finite_scores"].text
    found = find("non_finite_scores", config, lambda n: {"score/mean": value})
    assert isinstance(found, Finding)
    assert found.agents == ("solo",)


def test_rows_without_numbers_are_the_only_finding(config: Config) -> None:
    known = [{key: math.nan for key in row} | {"iteration": row["iteration"]} for row in rows(lambda n: {})]
    diagnosis = diagnose(Observations(config=config, rows=known))
    assert list(diagnosis.findings) == ["non_finite_scores"]
    assert not diagnosis.consequences


def test_conditions_accept_rows_without_metrics(config: Config) -> None:
    known = [{"iteration": float(n), "time/iteration": 1.0} for n in range(1, 60)]
    assert not diagnose(Observations(config=config, rows=known)).findings


def test_missing_gradient_norms_are_not_zero(config: Config) -> None:
    known = [{key: value for key, value in row.items() if "grad_norm" not in key} for row in rows(lambda n: {})]
    assert BY_NAME["policy_unchanged"].find(Observations(config=config, rows=known)) is None


MODELS = {"full": ("actor.model=owner/name",), "lora": ("actor.model=owner/name",)}


def test_default_rates_are_those_of_the_presets() -> None:
    for kind, rate in DEFAULT_RATES.items():
        assert load_config([f"actor={kind.value}", *MODELS.get(kind.value, ())]).actor.learning_rate == rate


@pytest.mark.parametrize(("rate", "advised"), [(0.3, 0.00035), (0.03, 0.00035), (0.0007, 0.00007)])
def test_advised_rate_starts_from_the_default(rate: float, advised: float) -> None:
    config = build_config(
        resolve_config(compose_node(["task=sorting_solo", "algorithm=ppo", f"actor.learning_rate={rate}"]))
    )
    found = find("learning_rate", config, lambda n: {"policy/approx_kl": 0.2, "score/mean": flat(n)})
    assert isinstance(found, Finding)
    assert found.overrides[0] == f"actor.learning_rate={advised:g}"


def test_most_responses_truncated(config: Config) -> None:
    """One response in thirty ends before a limit that is too low."""
    found = find("truncated", config, lambda n: {"rollout/truncated_fraction": 0.97, "score/mean": flat(n)})
    assert isinstance(found, Finding)
    assert "97% of the responses of solo were truncated at rollout.max_new_tokens=8" in found.text
    assert find("truncated", config, lambda _: {"rollout/truncated_fraction": 0.97}) is None, "a score that rises"
