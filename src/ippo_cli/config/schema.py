"""One dataclass per configuration group: types and meanings here, values in `conf/`.

Fields have no defaults: every value is written in YAML. An agent's are the exception, since no group holds them.
The comment behind a field is its documentation; `docs/config.md` is generated from these comments and the YAML values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def unset(schema: type[T]) -> T:
    """An instance whose every leaf is missing (`???`): the place where one agent's overrides of a group may go."""
    instance = object.__new__(schema)
    for leaf in fields(schema):  # type: ignore[arg-type]
        object.__setattr__(instance, leaf.name, "???")
    return instance


# Enum members are spelled as in YAML, so that a value reads the same on the command line, in code and in errors.
class Mode(str, Enum):
    train = "train"
    plan = "plan"


class TaskKind(str, Enum):
    sorting = "sorting"
    jsonl = "jsonl"
    probe_letters = "probe_letters"
    probe_grid = "probe_grid"


class ActorKind(str, Enum):
    tiny = "tiny"
    full = "full"


class CriticKind(str, Enum):
    separate = "separate"
    value_head = "value_head"
    none = "none"


class RolloutKind(str, Enum):
    hf = "hf"


class RewardKind(str, Enum):
    exact_match = "exact_match"
    function = "function"
    grid = "grid"
    gsm8k = "gsm8k"


class TeamKind(str, Enum):
    independent = "independent"


class Dtype(str, Enum):
    fp32 = "fp32"
    bf16 = "bf16"


class Schedule(str, Enum):
    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class Objective(str, Enum):
    on_policy = "on_policy"
    clip = "clip"


class Advantage(str, Enum):
    gae = "gae"
    reward_to_go = "reward_to_go"
    group = "group"
    leave_one_out = "leave_one_out"
    greedy_baseline = "greedy_baseline"

    @property
    def needs_critic(self) -> bool:
        """Whether values are part of the estimator; to all others a critic is of no use."""
        return self is Advantage.gae

    @property
    def needs_group(self) -> bool:
        """Whether the baseline is made of other responses to the same prompt."""
        return self in (Advantage.group, Advantage.leave_one_out)

    @property
    def walks(self) -> bool:
        """Whether rewards are followed from action to action; all others judge a response as a whole."""
        return self in (Advantage.gae, Advantage.reward_to_go)


class Credit(str, Enum):
    token = "token"
    turn = "turn"
    auto = "auto"


class TurnValue(str, Enum):
    first = "first"
    mean = "mean"
    final = "final"
    after = "after"


class ValueUnit(str, Enum):
    token = "token"
    turn = "turn"


class RatioLevel(str, Enum):
    token = "token"
    turn = "turn"
    sequence = "sequence"


class Pooling(str, Enum):
    sum = "sum"
    mean = "mean"


class Reweight(str, Enum):
    none = "none"
    pow = "pow"
    max_min = "max_min"
    max_random = "max_random"


class WeightLevel(str, Enum):
    none = "none"
    token = "token"
    sequence = "sequence"


class Truncation(str, Enum):
    bootstrap = "bootstrap"
    penalty = "penalty"
    mask = "mask"
    none = "none"


class Processor(str, Enum):
    scale = "scale"
    shift = "shift"
    clip = "clip"
    zscore = "zscore"
    running_zscore = "running_zscore"


class Match(str, Enum):
    characters = "characters"
    exact = "exact"


class NumberMatch(str, Enum):
    strict = "strict"
    flexible = "flexible"


class Zero3Gather(str, Enum):
    all = "all"
    layer = "layer"


class Device(str, Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Console(str, Enum):
    auto = "auto"
    rich = "rich"
    plain = "plain"


@dataclass
class OptimizerConfig:
    """What every trained model has: AdamW, a learning-rate schedule, clipping."""

    learning_rate: float  # peak learning rate of AdamW
    lr_schedule: Schedule  # constant | linear | cosine decay over the run, after the warm-up
    warmup_iterations: int  # iterations over which the learning rate rises linearly from 0
    min_lr_ratio: float  # share of the peak learning rate at which linear and cosine schedules end
    weight_decay: float  # AdamW's decoupled weight decay (applied to matrices, not to biases and norms)
    adam_beta1: float  # AdamW's first-moment decay
    adam_beta2: float  # AdamW's second-moment decay
    adam_epsilon: float  # AdamW's epsilon
    max_grad_norm: float  # global gradient-norm clip; 0 switches it off


@dataclass
class ActorConfig(OptimizerConfig):
    """The policy: a causal language model."""

    kind: ActorKind  # tiny (made locally) | full (loaded from actor.model)
    model: str | None  # folder or hub id of a causal language model in safetensors format
    revision: str | None  # commit, branch or tag of a hub model
    dtype: Dtype  # fp32 | bf16 (the optimizer keeps fp32 master weights)
    gradient_checkpointing: bool  # recompute activations in the backward pass: less memory, more time


@dataclass
class TinyActorConfig(ActorConfig):
    """A small transformer with a character tokenizer, made and warm-started locally."""

    hidden_size: int  # width of the transformer
    num_layers: int  # transformer layers
    num_heads: int  # attention heads; must divide hidden_size
    warm_start_steps: int  # supervised steps on the task's reference answers before training; 0 = random weights
    warm_start_batch_size: int  # examples per supervised step
    warm_start_learning_rate: float  # learning rate of the supervised steps


@dataclass
class CriticConfig:
    """The value function, common to all kinds."""

    kind: CriticKind  # separate | value_head | none


@dataclass
class NoCriticConfig(CriticConfig):
    """No value function: for algorithms whose baseline comes from scores alone."""


@dataclass
class TrainedCriticConfig(CriticConfig):
    """A value function that is learnt."""

    value_head_hidden_dim: int | None  # width of a hidden layer in the value head; null = one linear map
    learning_rate: float  # separate: of the critic's optimizer; value_head: of the head's parameter group


@dataclass
class ValueHeadCriticConfig(TrainedCriticConfig):
    """A head on the actor's last hidden state, trained with the actor by one joint loss."""


@dataclass
class SeparateCriticConfig(TrainedCriticConfig, OptimizerConfig):
    """A model of its own: a backbone without a language-model head, and a value head."""

    model: str | None  # folder or hub id of the backbone; null = start from the same weights as the actor
    revision: str | None  # commit, branch or tag of a hub model
    dtype: Dtype  # fp32 | bf16
    gradient_checkpointing: bool  # recompute activations in the backward pass
    warm_start: str | None  # a `critic/` folder of an earlier run to start from, backbone and head
    mini_batch_size: int | None  # sequences per step, global; null = the algorithm's, else an eighth of the buffer
    ppo_epochs: int | None  # passes over the buffer; null = algorithm.ppo_epochs


@dataclass
class PromptConfig:
    """How an agent is asked."""

    template: str  # the prompt; {field} is replaced by that field of the example
    turn_template: str | None = (
        None  # what it is told later; null = what others said since, in a world the template again
    )
    system: str | None = None  # system message; needs a chat template
    answer: str | None = None  # the reference answer as a template; exact_match, gsm8k and the warm start use it


@dataclass
class AgentConfig(PromptConfig):
    """One named agent of a task: how it is asked, and what is its own among the groups' values."""

    actor: TinyActorConfig = field(default_factory=partial(unset, TinyActorConfig))  # this agent's values of `actor`
    critic: SeparateCriticConfig = field(default_factory=partial(unset, SeparateCriticConfig))  # and of `critic`


@dataclass
class TaskConfig:
    """Where examples come from, and who works on them."""

    kind: TaskKind  # sorting | jsonl | probe_letters | probe_grid
    agents: dict[str, AgentConfig]  # the named agents
    protocol: str  # who speaks when: parallel | sequential | dialogue | path/to/file.py:name of one's own
    num_turns: int  # turns of every agent, with protocol=parallel or dialogue
    primary_metric: str  # the evaluation metric that is the task's score: `sampled/...` or `greedy/...`


@dataclass
class SortingConfig(TaskConfig):
    """Distinct letters in random order are to be written in order, generated from the seed."""

    alphabet: str  # the letters that may occur
    length: int  # letters per example
    train_size: int  # number of training examples
    eval_size: int  # number of held-out examples; none of them is a training example


@dataclass
class JsonlConfig(TaskConfig):
    """Rows of JSON-lines, CSV or Parquet files, or of a dataset on the hub."""

    train: Any  # .jsonl, .json, .csv, .tsv or .parquet file, a pattern or list of these, a folder, or a hub dataset id
    train_split: str  # split of a hub dataset
    train_size: int | None  # use only the first rows; null = all
    eval: Any  # held-out rows, from the same
    eval_split: str  # split of a hub dataset
    eval_size: int | None  # use only the first rows; null = all
    data_config: str | None  # configuration name of a hub dataset
    chat_template: bool | str  # through the tokenizer's chat template: auto (where there is one) | true | false


@dataclass
class LettersConfig(TaskConfig):
    """A probe: random strings of letters; one answer is right for all of them, or the last letter decides."""

    alphabet: str  # the letters that may occur; the letter after the last one is the first
    length: int  # letters per example, repetitions allowed
    train_size: int  # number of training examples
    eval_size: int  # number of held-out examples; none of them is a training example


@dataclass
class GridConfig(TaskConfig):
    """A probe: from a start to a goal on a square grid, one letter per step; `reward=grid` scores the walk."""

    size: int  # cells per side, 2 to 9: cells are named as on a chess board
    train_size: int  # number of training examples
    eval_size: int  # number of held-out examples; none of them is a training example


@dataclass
class KlRewardConfig:
    """KL penalty inside the per-token reward."""

    coef: float  # coefficient; 0 switches it off
    estimator: str  # k1 | abs | k2 | k3, of the sampled token; full = exact, over the vocabulary
    target: float | None  # adapt the coefficient towards this KL per token; null = fixed
    horizon: int | None  # time scale of the adaptation, in samples; null without a target


@dataclass
class KlLossConfig:
    """KL term in the policy loss."""

    coef: float  # coefficient; 0 switches it off
    estimator: str  # k1 | abs | k2 | k3, their straight-through forms k1+ | abs+ | k2+ | k3+ | full (exact)


@dataclass
class KlConfig:
    """How far the policy may move from its initial weights."""

    reward: KlRewardConfig
    loss: KlLossConfig
    allow_both: bool  # permit a KL term in the reward and in the loss at once


@dataclass
class ReweightConfig:
    """PF-PPO: which rows of the buffer are trained on, drawn with replacement by their scores."""

    method: Reweight  # none | pow (|score|^power) | max_min (the extremes) | max_random (the best 4 times)
    power: float | None  # of the absolute score, with method=pow; null otherwise


@dataclass
class BehaviorCorrectionConfig:
    """Importance weights where sampling filters or another engine make the sampler differ from the policy."""

    level: WeightLevel  # none | token | sequence: what one weight stands for
    cap: float | None  # weights are truncated at this; null = never
    band_low: float | None  # weights below this become 0: what they stand for is not trained on; null = no band
    band_high: float | None  # and above this; set both or neither


@dataclass
class AlgorithmConfig:
    """What is learnt from a buffer: objective, advantages, KL, epochs. null: has no part in this algorithm."""

    objective: Objective  # on_policy (log-prob times advantage) | clip (PPO's clipped ratio)
    advantage: Advantage  # gae (with a critic) | reward_to_go | group | leave_one_out | greedy_baseline (without one)
    credit: Credit  # what an action is: token | turn | auto (turn where a row of the buffer has several turns)
    turn_value: TurnValue | None  # a turn's value: its first | mean | final token's, or after (sees the whole turn)
    value_unit: ValueUnit  # what the value loss regresses: every token's value | one value per turn
    scale_by_std: bool | None  # advantage=group: divide by the group's standard deviation (GRPO) or not (Dr. GRPO)
    gamma: float | None  # discount per action
    gae_lambda: float | None  # GAE's lambda
    length_adaptive_alpha: float | None  # lambda of a row with l actions is max(0, 1 - 1 / (alpha l)), not gae_lambda
    critic_gae_lambda: float | None  # lambda of the critic's returns; null = that of the advantages
    advantage_normalization: bool  # whiten advantages per agent over the actions of the whole buffer
    clip_range_low: float | None  # the ratio is clipped below 1 - this
    clip_range_high: float | None  # and above 1 + this
    dual_clip: float | None  # bound of the loss for negative advantages (> 1); null = off
    ratio_level: RatioLevel  # what one ratio is of: token | turn | sequence
    ratio_pooling: Pooling | None  # log-ratios of a turn or sequence: sum (the product) | mean (GSPO); null for tokens
    value_clip_range: float | None  # clip of the value update; null = off
    huber_delta: float | None  # the value error counts linearly beyond this; null = squared everywhere
    value_loss_coef: float | None  # weight of the value loss
    entropy_coef: float  # weight of the entropy bonus
    loss_aggregation: str  # token-mean | seq-mean-token-sum | seq-mean-token-mean | seq-mean-token-sum-norm
    ppo_epochs: int  # passes over the buffer
    mini_batch_size: int | None  # sequences per optimizer step, global; null = rollout.buffer_size
    allow_off_policy_steps: bool  # let objective=on_policy take several optimizer steps per iteration
    target_kl: float | None  # skip the rest of an iteration's policy steps above this approximate KL; null = never
    critic_warmup: int  # first iterations in which only the critic is trained
    truncation: Truncation  # responses cut at the limit: none (scored as is) | penalty | mask | bootstrap (adds V)
    truncation_penalty: float | None  # subtracted from the score of a truncated response with truncation=penalty
    reweight: ReweightConfig
    behavior_correction: BehaviorCorrectionConfig
    kl: KlConfig


@dataclass
class RolloutConfig:
    """How responses are sampled."""

    kind: RolloutKind  # hf: batched decoding with the training model itself
    buffer_size: int  # joint samples per iteration over all ranks: prompts x num_generations
    history: str  # a history that is no prefix of the next prompt: prefix (refused) | turns (rows of their own)
    num_generations: int  # responses per prompt and agent, aligned by index across agents
    temperature: float  # divides the logits; log-probs, entropy and KL use it as well
    top_p: float  # nucleus filter; 1 = off
    top_k: int  # keep the k likeliest tokens; 0 = off
    min_p: float  # drop tokens below this share of the likeliest one; 0 = off
    repetition_penalty: float  # divide the logits of tokens already seen; 1 = off
    max_new_tokens: int  # response limit
    min_new_tokens: int  # no stop token before this many tokens
    stop_strings: list[str]  # text that ends a response
    decode_batch_size: int  # rows decoded together, per rank; changes what is sampled by rounding only (seen in bf16)
    max_prompt_tokens: int  # a longer prompt is an error, told before the first rollout
    context_limit: int | None  # prompt + response limit; null = what the model was made for
    recompute_logprobs: bool  # take the ratio against a forward of the training model, not the sampler's own numbers
    zero3_gather: Zero3Gather  # ZeRO stage 3: all (whole weights while decoding) | layer (one layer at a time)


@dataclass
class RewardConfig:
    """How responses become scores."""

    kind: RewardKind  # exact_match | function | grid | gsm8k
    team_weight: float  # weight of the joint reward in each agent's score
    agent_weight: float  # weight of the agent's own reward
    processor: list[Processor]  # steps applied in order to the mixed score: scale, shift, clip, zscore, running_zscore
    scale: float  # processor `scale` multiplies by this
    shift: float  # processor `shift` adds this
    clip_low: float  # processor `clip` bounds
    clip_high: float  # processor `clip` bounds
    norm_eps: float  # `zscore` (of the buffer), `running_zscore` (of all so far): scores that deviate less stay
    failure_budget: float  # share of a buffer's rows that may fail before the run stops
    reward_batch_rows: int  # call the reward for as many finished rows while others are written; 0 = once, for all rows


@dataclass
class ExactMatchConfig(RewardConfig):
    """Compares each response with its agent's reference answer."""

    match: Match  # characters (share of correct positions) | exact (all or nothing)


@dataclass
class FunctionRewardConfig(RewardConfig):
    """A function of the user's."""

    function: str | None  # path.py:function or module:function
    whole_batch: bool  # its numbers compare rows: a rank's rows are never asked about in parts, not even after failures


@dataclass
class GridRewardConfig(RewardConfig):
    """How near to its goal a walk ended, less what its detours cost."""

    step_cost: float  # subtracted for every step that did not bring the walk nearer


@dataclass
class Gsm8kRewardConfig(RewardConfig):
    """Whether a response's number is that of the reference answer."""

    match: NumberMatch  # strict (the number after the last ####) | flexible (the last number); both are reported


@dataclass
class TeamConfig:
    """What agents share."""

    kind: TeamKind  # independent: nothing


@dataclass
class DeepspeedConfig:
    """How models are spread over ranks, and how much is computed at once."""

    stage: int  # ZeRO stage: 0 | 1 | 2 | 3
    offload_optimizer: bool  # keep optimizer state in host memory (stages 1 to 3)
    offload_params: bool  # keep parameters in host memory (stage 3)
    reduce_bucket_size: int  # elements per gradient reduction
    persistence_threshold: int  # stage 3: smaller parameters stay whole on every rank
    micro_batch_tokens: int  # tokens per forward and backward pass, per rank; changes the result by rounding only
    forward_batch_tokens: int  # tokens per forward without gradients (values, references); changes rounding only
    pack_sequences: bool  # train on rows put one after another instead of padded, where a model's attention allows it
    logit_chunk_tokens: int | None  # response tokens whose logits exist at once; null = 64 million logits' worth


@dataclass
class CheckpointConfig:
    """When runs are saved, and what is kept."""

    every: int  # iterations between checkpoints; 0 = at the end only
    keep: int  # checkpoints kept, at least 2
    best: bool  # save after every evaluation that is the best so far, and keep the last of these


@dataclass
class EvaluationConfig:
    """When held-out data is scored."""

    every: int  # iterations between evaluations; 0 = at both ends only
    seed: int  # seed of the sampled evaluation
    greedy: bool  # also decode greedily


@dataclass
class TrackerConfig:
    """What is shown and written while a run goes on."""

    tensorboard: bool  # write event files below the run's folder
    console: Console  # auto (live display on a terminal) | rich | plain (one line per iteration)
    samples_every: int  # iterations between sample tables; 0 = never
    samples: int  # rows of a sample table
    profile: bool  # trace one iteration into the run's folder (profile/), and show where its time went


@dataclass
class LaunchConfig:
    """Processes and devices."""

    processes: int  # ranks started on this machine (ignored under torchrun, the deepspeed launcher and srun)
    device: Device  # auto (cuda where there is one) | cpu | cuda
    threads: int | None  # CPU threads per rank; null = cores divided by ranks
    timeout_s: int  # seconds after which a collective that does not finish is an error


@dataclass
class RunConfig:
    """What concerns the whole run."""

    name: str  # experiment name: runs lie below output_dir/name
    seed: int  # seeds data order, initial weights and sampling
    num_iterations: int | None  # passes of generate - score - update; exactly one of this and num_epochs
    num_epochs: float | None  # passes over the training prompts
    output_dir: str  # root of all runs
    mode: Mode  # train | plan (check everything and show the arithmetic; nothing is loaded)
    resume: str  # never | auto | must | the folder of a run
    deterministic: bool  # bitwise repeatable operations where PyTorch has them


@dataclass
class Config(RunConfig):
    """A whole run."""

    task: TaskConfig
    algorithm: AlgorithmConfig
    actor: ActorConfig
    critic: CriticConfig
    rollout: RolloutConfig
    reward: RewardConfig
    team: TeamConfig
    deepspeed: DeepspeedConfig
    checkpoint: CheckpointConfig
    evaluation: EvaluationConfig
    tracker: TrackerConfig
    launch: LaunchConfig


SCHEMAS: dict[str, type[Any]] = {
    "config": Config,
    "task_sorting": SortingConfig,
    "task_jsonl": JsonlConfig,
    "task_probe_letters": LettersConfig,
    "task_probe_grid": GridConfig,
    "algorithm": AlgorithmConfig,
    "actor_tiny": TinyActorConfig,
    "actor_full": ActorConfig,
    "critic_separate": SeparateCriticConfig,
    "critic_value_head": ValueHeadCriticConfig,
    "critic_none": NoCriticConfig,
    "rollout": RolloutConfig,
    "reward_exact_match": ExactMatchConfig,
    "reward_function": FunctionRewardConfig,
    "reward_grid": GridRewardConfig,
    "reward_gsm8k": Gsm8kRewardConfig,
    "team": TeamConfig,
    "deepspeed": DeepspeedConfig,
    "checkpoint": CheckpointConfig,
    "evaluation": EvaluationConfig,
    "tracker": TrackerConfig,
    "launch": LaunchConfig,
}
"""Schema nodes by the name under which a YAML file lists them first (`/schema/NAME@_here_`)."""
