"""Engines of users: what they lack is refused, their state resumes, and their weights are the trained ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small import assert_metrics_close, assert_two_ranks_agree, rows, train, train_with_stop
from transformers import PreTrainedTokenizerFast

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Alphabet
from ippo_cli.models.tiny import make_lesson_tokenizer
from ippo_cli.rollout.user_engine import try_engine

CODE = """
import random
import torch
from dataclasses import dataclass
from transformers import AutoModelForCausalLM

@dataclass
class Keys:
    start: int = 1

class Counts:
    '''Draws tokens in proportion to how often prompts had them.'''
    Keys = Keys

    def __init__(self, keys):
        self.counts = [keys.start] * 8

    def generate(self, requests):
        for request in requests:
            for token in request.prompt:
                self.counts[token % 8] += 1
        draws = [random.Random(request.seed) for request in requests]
        return [own.choices(range(8), self.counts, k=r.max_new_tokens) for own, r in zip(draws, requests)]

    def state_dict(self):
        return {"counts": list(self.counts)}

    def load_state_dict(self, state):
        self.counts = list(state["counts"])

class Model:
    '''Decodes with a copy of the trained model, one token at a time.'''
    logprobs = True

    def start(self, model):
        self.model = AutoModelForCausalLM.from_config(model.config, dtype=model.dtype).eval()

    def update_weights(self, weights):
        own = self.model.state_dict()
        own |= {name: tensor.clone() for name, tensor in weights}
        self.model.load_state_dict(own)

    @torch.no_grad()
    def complete(self, request):
        ids, logprobs = list(request.prompt), []
        draws = torch.Generator().manual_seed(request.seed % 2**62)
        while len(logprobs) < request.max_new_tokens and not (logprobs and ids[-1] in request.stop_ids):
            known = self.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            drawn = known.argmax() if request.sampling.greedy else torch.multinomial(known.exp(), 1, generator=draws)
            ids.append(int(drawn))
            logprobs.append(min(float(known[ids[-1]]), 0.0))
        return ids[len(request.prompt):], logprobs

    def generate(self, requests):
        return [self.complete(request) for request in requests]

class Shifted(Model):
    '''Returns log-probabilities of another model.'''
    def complete(self, request):
        ids, logprobs = super().complete(request)
        return ids, [value - 1.0 for value in logprobs]

class Broken:
    def generate(self, requests):
        raise ValueError("no")

class Short:
    def generate(self, requests):
        return [[1]]

class Long:
    def generate(self, requests):
        return [[1] * 99 for _ in requests]

class Unknown:
    def generate(self, requests):
        return [[10**6] for _ in requests]

class Empty:
    def generate(self, requests):
        return [[] for _ in requests]

class Bare:
    logprobs = True
    def generate(self, requests):
        return [[1] for _ in requests]

class Positive:
    logprobs = True
    def generate(self, requests):
        return [([1], [0.5]) for _ in requests]

class Random:
    def generate(self, requests):
        return [[random.randrange(10)] * 4 for _ in requests]

class Declared(Random):
    deterministic = False

class Mute:
    pass
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "engines.py").write_text(CODE)
    return tmp_path / "engines.py"


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    tokenizer = make_lesson_tokenizer(Alphabet.printable, [])
    return {"low": tokenizer, "high": tokenizer}


def attempt(code: Path, name: str, tokenizers: dict[str, PreTrainedTokenizerFast], *keys: str) -> None:
    try_engine(load_config([*normalize_arguments([f"rollout={code}:{name}"]), *keys]), {}, tokenizers, "cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Broken", r"raised .*engines\.py:\d+: ValueError: no; fix its generate"),
        ("Short", "returned 1 results for 2 requests; return a list with one for each request"),
        ("Long", r"returned 99 tokens where request\.max_new_tokens is 4"),
        ("Unknown", r"returned \[1000000\] as a response; return one token id or more"),
        ("Empty", r"returned \[\] as a response; return one token id or more"),
        ("Bare", r"has logprobs = True, and returned list for a request; return a tuple"),
        ("Positive", r"returned \[0\.5\] as log-probabilities of 1 tokens; return one number of at most 0"),
        ("Random", "returned other tokens for the same seeds; draw random numbers from request.seed"),
        ("Mute", r"has no method generate\(requests\)"),
    ],
)
def test_wrong_engines_are_refused(
    code: Path, tokenizers: dict[str, PreTrainedTokenizerFast], name: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as found:
        attempt(code, name, tokenizers)
    assert found.value.key == "rollout.engine"


def test_engine_that_declares_randomness_passes(code: Path, tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    attempt(code, "Declared", tokenizers)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("Counts", ["algorithm=remax"], "greedy_baseline needs episodes that are sampled with the weights before"),
        ("Counts", ["algorithm.kl.reward.coef=0.1"], r"kl\.reward\.coef=0\.1 needs responses that the trained policy"),
        ("Counts", ["algorithm.behavior_correction.level=token"], "needs log-probabilities of the sampler, and"),
        ("Counts", ["rollout.recompute_logprobs=false"], "returns no log-probabilities; use an engine with logprobs"),
        ("Counts", ["rollout.max_sampler_gap=0.1"], r"max_sampler_gap=0\.1 needs log-probabilities of the sampler"),
        ("Model", ["actor=tiny_lora"], "needs adapters to be sent to the engine, and .* has no update_adapter"),
    ],
)
def test_needs_of_the_run_are_compared(
    code: Path, tokenizers: dict[str, PreTrainedTokenizerFast], name: str, keys: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        attempt(code, name, tokenizers, *keys)


def test_choice_is_expanded(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(code.parent)
    found = normalize_arguments(["rollout=engines.py:Counts"])
    assert found == ["rollout=engine", f"rollout.engine={code}:Counts"]
    assert normalize_arguments(["rollout=hf"]) == ["rollout=hf"]
    assert normalize_arguments(["reward=my_module:score"]) == ["reward=function", "reward.function=my_module:score"]
    listed = normalize_arguments([f"tracker=[tensorboard,{code}:Counts]"])
    assert listed == ["tracker=tensorboard", f"tracker.callback={code}:Counts"]


@pytest.mark.slow
@pytest.mark.core
def test_state_of_an_engine_resumes_exactly(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [*normalize_arguments([f"rollout={code}:Counts"]), "rollout.engine_args={start: 3}", "num_iterations=3"]
    whole = train(tmp_path / "whole", *keys)
    stopped = train_with_stop(
        tmp_path / "stopped", monkeypatch, "ippo_cli.training.experience.process_scores", 3, *keys
    )
    assert rows(stopped) == rows(whole)
    assert rows(whole)[-1]["low/rollout/prob_diff/behavior"] == 0.0  # behaviour log-probabilities are the trainer's
    stored = json.loads(next((stopped / "checkpoints").rglob("methods.json")).read_text())
    assert stored["engine"]["states"][0][0]["counts"][0] > 3


@pytest.mark.slow
def test_engine_has_the_trained_weights(code: Path, tmp_path: Path) -> None:
    keys = normalize_arguments([f"rollout={code}:Model"])
    keys += ["rollout.max_sampler_gap=1e-5", "num_iterations=3", "evaluation.every=0", "actor.learning_rate=1e-2"]
    found = rows(train(tmp_path, *keys))
    assert len(found) > 1  # a stale or wrong model ends the run at its first iteration


@pytest.mark.slow
def test_other_log_probabilities_end_the_run(code: Path, tmp_path: Path) -> None:
    keys = [*normalize_arguments([f"rollout={code}:Shifted"]), "rollout.max_sampler_gap=1e-5", "evaluation.every=0"]
    with pytest.raises(Exception, match=r"rollout\.max_sampler_gap=1e-05: the log-probabilities of low"):
        train(tmp_path, *keys)


EXACT = ("rollout.on_policy=exact", "rollout.verify_rounds=2")


def test_exact_samples_of_any_engine_train_as_those_of_the_model(code: Path, tmp_path: Path) -> None:
    keys = [*EXACT, *normalize_arguments([f"rollout={code}:Counts"])]
    own, exact = rows(train(tmp_path / "own")), rows(train(tmp_path / "exact", *keys))
    assert any(row.get("low/rollout/redrawn_tokens", 0) > 0.3 for row in exact)
    assert_metrics_close(own, [{key: row[key] for key in one} for one, row in zip(own, exact, strict=True)])


@pytest.mark.slow
def test_two_ranks_verify_drafts_as_one_rank(code: Path, tmp_path: Path) -> None:
    keys = [*EXACT, *normalize_arguments([f"rollout={code}:Model"])]
    assert_two_ranks_agree(tmp_path, *keys, ranks=["deepspeed=zero3"])


def test_run_with_exact_samples_resumes(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [*EXACT, *normalize_arguments([f"rollout={code}:Counts"])]
    whole = train(tmp_path, *keys)
    stopped = train_with_stop(tmp_path, monkeypatch, "ippo_cli.training.experience.process_scores", 3, *keys)
    assert rows(stopped) == rows(whole)
