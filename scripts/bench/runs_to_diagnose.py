"""The runs of `failing_runs.py`: twelve ways to fail, some in two variants, and forty healthy runs.

`typed_jobs` are thirteen further runs that are trained and examined by the commands that a user types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ippo_cli.training.experience import ExperienceCollector

TINY = (
    "actor.hidden_size=32",
    "actor.num_layers=1",
    "actor.warmup_iterations=2",
    "actor.warm_start_steps=30",
    "actor.warm_start_learning_rate=3e-3",
    "actor.learning_rate=2e-3",
    "rollout.buffer_size=128",
    "num_iterations=40",
    "evaluation.every=10",
    "evaluation.greedy=false",
    "tracker.tensorboard=false",
    "tracker.console=plain",
    "tracker.samples_every=4",
    "checkpoint.every=0",
    "checkpoint.best=false",
    "launch.threads=1",
)
FIRST_SEED = 100  # of the recorded healthy runs
CRITIC = ("critic.learning_rate=5e-3",)
WIDE = ("actor.hidden_size=64",)
SORTING = (*TINY, "task=sorting", "task.eval_size=128", "task.train_size=8192")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training and the names of the conditions that its diagnosis must have."""

    name: str
    overrides: tuple[str, ...]  # HOME is the folder of `files`, MODEL that of an instruction-tuned model
    expected: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    fault: Callable[[], AbstractContextManager[None]] = nullcontext  # held during the training
    prepare: Callable[[Path], None] | None = None  # writes further files into the folder of `files`
    is_refused: bool = False  # `ippo-train` must end with exit code 2 before a run starts

    @property
    def needs_model(self) -> bool:
        return "actor.model=MODEL" in self.overrides


CONSTANT_REWARD = """
def score(examples, responses):
    return {"team": [0.5 for _ in examples]}
"""
RARE_LETTERS_REWARD = """
def score(examples, responses):
    # Reference answers consist of letters of the prompt: the initial policy writes few others.
    pairs = zip(examples, responses["solo"])
    return {"team": [sum(c not in row["letters"] for c in text) / max(len(text), 6) for row, text in pairs]}
"""
LOW_REWARD = """
def score(examples, responses):
    pairs = zip(examples, responses["low"])
    return {"team": [sum(a == b for a, b in zip(text, row["low"])) / 3 for row, text in pairs]}
"""
LENGTH_REWARD = """
def score(examples, responses):
    texts = responses["solo"]
    exact = [sum(a == b for a, b in zip(text, row["sorted"])) / 6 for row, text in zip(examples, texts)]
    brief = [float(len(text) <= 6) * part for text, part in zip(texts, exact)]
    return {"team": [len(text) / 16 + 0.1 * part for text, part in zip(texts, brief)], "parts": {"correct": brief}}
"""
DEAF_PROTOCOL = """
def talk(example, agents):
    yield {"low": f"{example['letters']}<"}
    yield {"high": f"{example['letters']}>"}
"""
QUESTIONS = [
    *("Name a colour.", "What is 2 + 3?", "Name a fruit.", "What is the capital of France?"),
    *("Name an animal.", "What is 7 - 4?", "Name a day of the week.", "Is the sun hot?"),
]
WORD_REWARD = """
def score(examples, responses):
    return {"team": [1.0 / (1 + len(text)) for text in responses["solo"]]}
"""


@contextmanager
def perturbed_sampler() -> Iterator[None]:
    """Sample with weights that differ from the trained ones by noise, as a sampler with a lossy copy of them would.

    The noise is one of 20 % of each matrix's standard deviation; the trained weights are restored after sampling.
    """
    collect = ExperienceCollector.collect_iteration

    def collect_with_noise(self, iteration, moments, clock):  # type: ignore[no-untyped-def]
        source = torch.Generator().manual_seed(iteration)
        modules = {id(agent.policy): agent.policy.engine.module for agent in self.team.values()}
        saved = [(weight, weight.detach().clone()) for module in modules.values() for weight in module.parameters()]
        with torch.no_grad():
            for weight, _ in saved:
                if weight.dim() > 1:
                    weight += 0.2 * weight.std() * torch.randn(weight.shape, generator=source)
        try:
            return collect(self, iteration, moments, clock)
        finally:
            with torch.no_grad():
                for weight, before in saved:
                    weight.copy_(before)

    ExperienceCollector.collect_iteration = collect_with_noise  # type: ignore[method-assign]
    try:
        yield
    finally:
        ExperienceCollector.collect_iteration = collect  # type: ignore[method-assign]


def failing_jobs(seeds: Sequence[int]) -> list[Job]:
    """The failing runs with these seeds."""
    return [job for seed in seeds for job in _failing(seed)]


def _failing(seed: int) -> Iterator[Job]:
    def job(
        name: str,
        condition: str,
        *overrides: str,
        files: Mapping[str, str] | None = None,
        fault: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Job:
        return Job(
            name=f"failing/{name}/{seed}",
            overrides=(*overrides, f"seed={seed}"),
            expected=(condition,),
            files=files or {},
            fault=fault,
        )

    def function(text: str) -> Mapping[str, str]:
        return {"reward.py": text}

    by_function = ("reward=function", "reward.function=HOME/reward.py:score")
    solo = (*TINY, *CRITIC, "task=sorting_solo", "task.eval_size=128", "task.train_size=8192")
    sorting = (*SORTING, *CRITIC)
    yield job("learning_rate_ppo", "learning_rate", *sorting, *WIDE, "algorithm=ppo", "actor.learning_rate=0.03")
    yield job("learning_rate_ippo", "learning_rate", *sorting, *WIDE, "actor.learning_rate=0.1")
    yield job(
        "kl_weak",
        "kl_coefficient",
        *solo,
        *by_function,
        "algorithm=ppo",
        "algorithm.kl.reward.coef=1e-6",
        "actor.warm_start_steps=200",
        files=function(RARE_LETTERS_REWARD),
    )
    yield job("kl_strong", "kl_coefficient", *sorting, "algorithm=ppo", "algorithm.kl.reward.coef=10")
    yield job("constant_reward", "equal_scores", *sorting, *by_function, files=function(CONSTANT_REWARD))
    yield job(
        "slow_critic",
        "explained_variance",
        *sorting,
        "critic.learning_rate=1e-8",
    )
    yield job(
        "truncated",
        "truncated",
        *sorting,
        "rollout.max_new_tokens=2",
        "actor.warm_start_steps=100",
    )
    yield job(
        "deaf_credit",
        "deaf_agents",
        *sorting,
        *by_function,
        "reward.measure_credit_every=4",
        files=function(LOW_REWARD),
    )
    yield job(
        "deaf_protocol",
        "deaf_agents",
        *sorting,
        "task.protocol=HOME/protocol.py:talk",
        files={"protocol.py": DEAF_PROTOCOL},
    )
    yield job(
        "entropy_gone",
        "entropy_gone",
        *sorting,
        "algorithm=ppo",
        "algorithm.entropy_coef=-1.0",
        "actor.learning_rate=5e-3",
        "actor.warm_start_steps=8",
    )
    yield job(
        "few_examples",
        "few_examples",
        *sorting,
        "task.train_size=8",
        "algorithm=ppo",
    )
    yield job(
        "length_hacking",
        "length_hacking",
        *solo,
        *by_function,
        "algorithm=ppo",
        "rollout.max_new_tokens=16",
        "actor.warm_start_steps=100",
        files=function(LENGTH_REWARD),
    )
    yield job("sampler_mismatch", "sampler_mismatch", *sorting, "algorithm=ppo", fault=perturbed_sampler)
    yield job("stale_lora", "policy_unchanged", *sorting, "actor=tiny_lora", "actor.learning_rate=0", "algorithm=ppo")
    yield job(
        "chat_template",
        "chat_template",
        *by_function,
        "task=jsonl",
        "task.train=HOME/train.jsonl",
        "task.eval=HOME/train.jsonl",
        "task.chat_template=false",
        "task.agents.solo.template='User: {prompt}\nAssistant:'",
        "actor=full",
        "actor.model=MODEL",
        "actor.dtype=fp32",
        "critic=none",
        "algorithm=rloo",
        "rollout.num_generations=4",
        "rollout.buffer_size=8",
        "rollout.max_new_tokens=32",
        "num_iterations=3",
        "evaluation.every=0",
        "evaluation.greedy=false",
        "tracker.tensorboard=false",
        "tracker.console=plain",
        "tracker.samples_every=1",
        "tracker.samples=8",
        "checkpoint.every=0",
        "checkpoint.best=false",
        "launch.threads=1",
        files=function(WORD_REWARD)
        | {"train.jsonl": "".join(json.dumps({"prompt": question}) + "\n" for question in QUESTIONS)},
    )


ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "ippo": CRITIC,
    "ppo": (*CRITIC, "algorithm=ppo"),
    "ppo_value_head": (*CRITIC, "algorithm=ppo", "critic=value_head"),
    "ppo_kl": (*CRITIC, "algorithm=ppo", "algorithm.kl.reward.coef=0.01"),
    "grpo": ("algorithm=grpo", "rollout.num_generations=8"),
    "rloo": ("algorithm=rloo", "rollout.num_generations=4"),
    "remax": ("algorithm=remax",),
    "reinforce_plus_plus": ("algorithm=reinforce_plus_plus",),
    "pf_ppo": (*CRITIC, "algorithm=pf_ppo"),
    "ippo_lora": (*CRITIC, "actor=tiny_lora"),
}
TASKS: Mapping[str, tuple[str, ...]] = {
    "sorting": SORTING,
    "sorting_solo": (*TINY, "task=sorting_solo", "task.eval_size=128", "task.train_size=8192"),
    "relay": (*TINY, "task=relay"),
    "probe": (*TINY, "task=probe_conditional", "actor.warm_start_steps=0", "rollout.max_new_tokens=1"),
}


def healthy_jobs(first_seed: int) -> Iterator[Job]:
    """Every algorithm on every task, each with its own seed."""
    suffix = "" if first_seed == FIRST_SEED else f"/{first_seed}"
    for place, (task, own) in enumerate(TASKS.items()):
        for number, (algorithm, overrides) in enumerate(ALGORITHMS.items()):
            seed = first_seed + place * len(ALGORITHMS) + number
            yield Job(name=f"healthy/{task}_{algorithm}{suffix}", overrides=(*own, *overrides, f"seed={seed}"))


ZERO_REWARD = """
def score(examples, responses):
    return {"team": [float("answer" in text) for text in responses["low"]]}
"""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LETTER_ROWS = "".join(json.dumps({"prompt": f"{a}{b}>", "answer": b}) + "\n" for a in LETTERS for b in LETTERS[:8])


def make_model_with_wrong_stop_token(home: Path) -> None:
    """Write `model`: it answers the prompts of `LETTER_ROWS` and ends with a token that is not its stop token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate(["<pad>", "<eos>", "<|im_end|>", ">", *LETTERS])}
    whole = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    whole.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "extra_special_tokens": ["<|im_end|>"]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=whole, **special)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(vocabulary), pad_token_id=0, eos_token_id=1, **shape))
    rows = [json.loads(line) for line in LETTER_ROWS.splitlines()]
    ids = torch.tensor([tokenizer(row["prompt"] + row["answer"]).input_ids for row in rows])
    ids = torch.cat([ids, torch.full((len(ids), 1), 2)], dim=1)
    labels = torch.cat([torch.full_like(ids[:, :3], -100), ids[:, 3:]], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(home / "model")
    tokenizer.save_pretrained(home / "model")


def typed_jobs(seed: int, healthy_seed: int) -> Iterator[Job]:
    """Eight failing runs and five healthy ones, of other tasks and algorithms than the recorded ones."""
    for job in _list_typed_jobs(seed, healthy_seed):
        yield replace(
            job, overrides=tuple(text.replace("num_iterations=40", "num_iterations=24") for text in job.overrides)
        )


def _list_typed_jobs(seed: int, healthy_seed: int) -> Iterator[Job]:
    solo, sorting = TASKS["sorting_solo"], (*SORTING, *CRITIC)
    relay = (*TASKS["relay"], *CRITIC, "algorithm=ppo")
    by_function = ("reward=function", "reward.function=HOME/reward.py:score")
    letters = ("task=jsonl", "task.train=HOME/letters.jsonl", "task.eval=HOME/letters.jsonl", "algorithm=rloo")
    letters += ("task.agents.solo.answer='{answer}'", "reward=exact_match", "rollout.num_generations=4", "critic=none")
    loaded = tuple(text for text in TINY if not text.startswith(("actor.", "rollout.")))
    loaded += ("actor=full", "actor.dtype=fp32", "actor.learning_rate=1e-3", "rollout.buffer_size=128")
    grpo = ("algorithm=grpo", "rollout.num_generations=8")
    failing: Mapping[str, tuple[str, tuple[str, ...], str]] = {
        "learning_rate_too_high": ("learning_rate", (*solo, *grpo, "actor.learning_rate=0.1"), ""),
        "constant_reward": ("equal_scores", (*solo, *by_function, "algorithm=rloo"), CONSTANT_REWARD),
        "zero_reward": ("equal_scores", (*sorting, *by_function), ZERO_REWARD),
        "kl_explosion": (
            "kl_coefficient",
            (*solo, *by_function, *grpo, "algorithm.kl.loss.coef=1e-6", "actor.warm_start_steps=200"),
            RARE_LETTERS_REWARD,
        ),
        "dead_critic": ("explained_variance", (*relay, "critic.learning_rate=1e-9"), ""),
        "always_truncated": ("truncated", (*solo, "algorithm=rloo", "rollout.max_new_tokens=3"), ""),
    }
    for name, (condition, overrides, reward) in failing.items():
        files = {"reward.py": reward} if reward else {}
        yield Job(name=f"typed/{name}", overrides=(*overrides, f"seed={seed}"), expected=(condition,), files=files)
    yield Job(
        name="typed/wrong_stop_token",
        overrides=(*loaded, *letters, "actor.model=HOME/model", "rollout.max_new_tokens=8", f"seed={seed}"),
        expected=("stop_token",),
        files={"letters.jsonl": LETTER_ROWS},
        prepare=make_model_with_wrong_stop_token,
    )
    yield Job(
        name="typed/missing_field",
        overrides=(*TINY, *letters, "actor.alphabet=printable", f"seed={seed}"),
        files={"letters.jsonl": LETTER_ROWS.replace('"answer"', '"target"')},
        is_refused=True,
    )
    healthy = {
        "ppo": (*solo, *CRITIC, "algorithm=ppo"),
        "grpo": (*TASKS["relay"], *grpo),
        "ippo_team": sorting,
        "lora": (*solo, *CRITIC, "algorithm=ppo", "actor=tiny_lora"),
        "value_head": (*sorting, "algorithm=ppo", "critic=value_head"),
    }
    for number, (name, overrides) in enumerate(healthy.items()):
        yield Job(name=f"typed/healthy_{name}", overrides=(*overrides, f"seed={healthy_seed + number}"))
