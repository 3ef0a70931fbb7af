"""One dataclass per configuration group: types and meanings here, values in `conf/`.

Fields have no defaults: every value is written in YAML. An agent's are the exception, since no group holds them.
What a value must be beyond its type is part of the field's type (`config/constraints.py`).
The comment behind a field is its documentation; `docs/config.md` is generated from these comments and the YAML values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from functools import partial
from typing import Annotated, Any, TypeVar

from ippo_cli.config.constraints import (
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    NotEmpty,
    OneOf,
    PositiveFloat,
    PositiveInt,
    Range,
    Seed,
    UnitFloat,
)

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
    signalling = "signalling"
    relay = "relay"
    ladder = "ladder"
    gymnasium = "gymnasium"
    pettingzoo = "pettingzoo"
    reasoning_gym = "reasoning_gym"
    environment = "environment"


class ActorKind(str, Enum):
    tiny = "tiny"
    full = "full"


class Alphabet(str, Enum):
    auto = "auto"
    printable = "printable"


class CriticKind(str, Enum):
    separate = "separate"
    value_head = "value_head"
    none = "none"


class RolloutKind(str, Enum):
    hf = "hf"


class History(str, Enum):
    prefix = "prefix"
    turns = "turns"
    latest = "latest"


class RewardKind(str, Enum):
    environment = "environment"
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


class ObservationForm(str, Enum):
    short = "short"
    words = "words"
    numbers = "numbers"


class IllegalMove(str, Enum):
    retry = "retry"
    lose = "lose"


class Opponent(str, Enum):
    random = "random"


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


LossAggregation = Annotated[
    str, OneOf(("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"))
]
KlRewardEstimator = Annotated[str, OneOf(("k1", "abs", "k2", "k3", "full"))]
KlLossEstimator = Annotated[str, OneOf(("k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+", "full"))]
Data = Annotated[Any, NotEmpty()]  # a name, a list of names, or nothing


@dataclass
class OptimizerConfig:
    """What every trained model has: AdamW, a learning-rate schedule, clipping."""

    learning_rate: NonNegativeFloat  # peak learning rate of AdamW
    lr_schedule: Schedule  # constant | linear | cosine decay over the run, after the warm-up
    warmup_iterations: NonNegativeInt  # iterations over which the learning rate rises linearly from 0
    min_lr_ratio: UnitFloat  # share of the peak learning rate at which linear and cosine schedules end
    weight_decay: NonNegativeFloat  # AdamW's decoupled weight decay (applied to matrices, not to biases and norms)
    adam_beta1: Annotated[float, Range(0.0, 1.0, open_high=True)]  # AdamW's first-moment decay
    adam_beta2: Annotated[float, Range(0.0, 1.0, open_high=True)]  # AdamW's second-moment decay
    adam_epsilon: PositiveFloat  # AdamW's epsilon
    max_grad_norm: NonNegativeFloat  # global gradient-norm clip; 0 switches it off


@dataclass
class ActorConfig(OptimizerConfig):
    """The policy: a causal language model."""

    kind: ActorKind  # tiny (made locally) | full (loaded from actor.model)
    model: Name | None  # folder or hub id of a causal language model in safetensors format
    revision: str | None  # commit, branch or tag of a hub model
    dtype: Dtype  # fp32 | bf16 (the optimizer keeps fp32 master weights)
    gradient_checkpointing: bool  # recompute activations in the backward pass: less memory, more time


@dataclass
class TinyActorConfig(ActorConfig):
    """A small transformer with a character tokenizer, made and warm-started locally."""

    alphabet: Alphabet  # auto (characters of prompts and answers) | printable (bytes: reads and writes any text)
    hidden_size: PositiveInt  # width of the transformer
    num_layers: PositiveInt  # transformer layers
    num_heads: PositiveInt  # attention heads; must divide hidden_size
    warm_start_steps: NonNegativeInt  # supervised steps on reference answers or random play before training
    warm_start_batch_size: PositiveInt  # examples per supervised step
    warm_start_learning_rate: PositiveFloat  # learning rate of the supervised steps


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

    value_head_hidden_dim: PositiveInt | None  # width of a hidden layer in the value head; null = one linear map
    learning_rate: NonNegativeFloat  # separate: of the critic's optimizer; value_head: of the head's parameter group


@dataclass
class ValueHeadCriticConfig(TrainedCriticConfig):
    """A head on the actor's last hidden state, trained with the actor by one joint loss."""


@dataclass
class SeparateCriticConfig(TrainedCriticConfig, OptimizerConfig):
    """A model of its own: a backbone without a language-model head, and a value head."""

    model: Name | None  # folder or hub id of the backbone; null = start from the same weights as the actor
    revision: str | None  # commit, branch or tag of a hub model
    dtype: Dtype  # fp32 | bf16
    gradient_checkpointing: bool  # recompute activations in the backward pass
    warm_start: Name | None  # a `critic/` folder of an earlier run to start from, backbone and head
    mini_batch_size: PositiveInt | None  # sequences per step, global; null = the algorithm's, or a buffer's eighth
    ppo_epochs: PositiveInt | None  # passes over the buffer; null = algorithm.ppo_epochs


@dataclass
class PromptConfig:
    """How an agent is asked."""

    template: str  # the prompt; {field} is replaced by that field of the example
    turn_template: str | None = None  # what it is told later; null = what others said since, in worlds template again
    system: str | None = None  # system message; needs a chat template
    answer: str | None = None  # the reference answer as a template; exact_match, gsm8k and the warm start use it
    warm_start_answer: str | None = None  # what actor=tiny's warm start teaches, as a template; null = answer


@dataclass
class AgentConfig(PromptConfig):
    """One named agent of a task: how it is asked, and what is its own among the groups' values."""

    actor: TinyActorConfig = field(default_factory=partial(unset, TinyActorConfig))  # this agent's values of `actor`
    critic: SeparateCriticConfig = field(default_factory=partial(unset, SeparateCriticConfig))  # and of `critic`


@dataclass
class TaskConfig:
    """Where examples come from, and who works on them."""

    kind: TaskKind  # chosen with task=
    agents: dict[str, AgentConfig]  # the named agents
    primary_metric: str  # the evaluation metric that is the task's score: `sampled/...` or `greedy/...`


@dataclass
class ConversationConfig(TaskConfig):
    """Agents are told about an example, and may hear each other; a reward judges what they said."""

    protocol: str  # parallel (all at once) | sequential (those before are heard) | dialogue (all are) | path.py:Name
    num_turns: PositiveInt  # turns of each agent

    @property
    def answers_once(self) -> bool:
        """Whether every agent has a single turn, in an order that is known beforehand."""
        return self.num_turns == 1 and self.protocol in ("parallel", "sequential")


@dataclass
class SortingConfig(ConversationConfig):
    """Distinct letters in random order are to be written in order, generated from the seed."""

    alphabet: str  # the letters that may occur
    length: PositiveInt  # letters per example
    train_size: PositiveInt  # number of training examples
    eval_size: PositiveInt  # number of held-out examples; none of them is a training example


@dataclass
class JsonlConfig(ConversationConfig):
    """Rows of JSON-lines, CSV or Parquet files, or of a dataset on the hub."""

    train: Data  # .jsonl, .json, .csv, .tsv or .parquet file, a pattern or list of these, a folder, or a hub dataset id
    train_split: str  # split of a hub dataset
    train_size: PositiveInt | None  # use only the first rows; null = all
    eval: Data  # held-out rows, from the same
    eval_split: str  # split of a hub dataset
    eval_size: PositiveInt | None  # use only the first rows; null = all
    data_config: str | None  # configuration name of a hub dataset
    chat_template: bool | str  # through the tokenizer's chat template: auto (where there is one) | true | false


@dataclass
class LettersConfig(ConversationConfig):
    """A probe: random strings of letters; one answer is right for all of them, or the last letter decides."""

    alphabet: str  # the letters that may occur; the letter after the last one is the first
    length: PositiveInt  # letters per example, repetitions allowed
    train_size: PositiveInt  # number of training examples
    eval_size: PositiveInt  # number of held-out examples; none of them is a training example


@dataclass
class GridConfig(ConversationConfig):
    """A probe: from a start to a goal on a square grid, one letter per step; `reward=grid` scores the walk."""

    size: Annotated[int, Range(2, 9)]  # cells per side, 2 to 9: cells are named as on a chess board
    train_size: PositiveInt  # number of training examples
    eval_size: PositiveInt  # number of held-out examples; none of them is a training example


@dataclass
class WorldConfig(TaskConfig):
    """An environment that answers by itself and pays as it goes; its examples are seeds, drawn from the run's seed."""

    train_size: PositiveInt  # number of training seeds
    eval_size: PositiveInt  # number of held-out seeds; none of them is a training seed
    num_workers: PositiveInt  # threads that step environments; 1 = one after another


@dataclass
class SteppedWorldConfig(WorldConfig):
    """A world that is stepped until it ends."""

    environment_args: dict[str, Any]  # keyword arguments for whatever makes the environment
    max_turns: PositiveInt | None  # turns of an agent after which an episode is truncated; null = no limit but its own


@dataclass
class GymnasiumConfig(SteppedWorldConfig):
    """A Gymnasium environment with discrete actions, read and answered as text."""

    env_id: Name | None  # what gymnasium.make takes, such as FrozenLake-v1, or module:Name-v0 for one's own
    observation: ObservationForm  # short (few characters) | words (sentences, with a map where there is one) | numbers
    invalid_reward: float  # what an answer that names no action is paid; the environment is not stepped then


@dataclass
class PettingzooConfig(SteppedWorldConfig):
    """A PettingZoo environment with discrete actions, turn-based or with all agents acting at once."""

    env_id: Name | None  # what pettingzoo.make takes, such as classic/tictactoe_v3
    observation: ObservationForm  # short (few characters) | words (sentences and boards) | numbers
    invalid_reward: float  # what an answer that names no legal action is paid; the environment is not stepped then
    illegal_move: IllegalMove  # retry (as any invalid answer) | lose (handed to the game, which has a rule for it)
    opponent: Opponent  # who plays the seats beyond the task's agents: random (uniform over legal actions)
    seat: int | str  # the first agent's seat, from 0; the others follow. alternate = the example's seed decides


@dataclass
class ReasoningGymConfig(WorldConfig):
    """Questions of a reasoning_gym dataset, scored by the dataset itself."""

    dataset: Name | None  # its name in reasoning_gym, such as chain_sum
    dataset_args: dict[str, Any]  # its settings, such as {min_terms: 2, max_terms: 3}
    num_turns: PositiveInt  # answers that may be given to a question; a wrong one is told its score
    answer_tag: str | None  # the answer is what stands in the last <tag>...</tag>; null = the whole text


@dataclass
class OwnEnvironmentConfig(SteppedWorldConfig):
    """An environment of one's own: an object with Gymnasium's reset, step and close, in texts."""

    environment: Name | None  # path/to/file.py:function or module:function that returns it, given environment_args


@dataclass
class SignallingConfig(ConversationConfig):
    """One agent sees a signal, the other acts on what the first one says; what messages mean is theirs to settle."""

    signals: str  # the characters that may be seen, one per example, and acted on
    symbols: str  # the characters of messages in the warm start
    message_length: PositiveInt  # and their length
    train_size: PositiveInt  # number of training examples; signals occur equally often
    eval_size: PositiveInt  # number of held-out examples, of the same signals


@dataclass
class RelayConfig(ConversationConfig):
    """One agent writes the letter after the one it reads; the other writes the later of that one and its own."""

    alphabet: str  # the letters that may occur; the letter after the last one is the first
    train_size: PositiveInt  # number of training examples
    eval_size: PositiveInt  # number of held-out examples; none of them is a training example


@dataclass
class LadderConfig(WorldConfig):
    """An agent climbs from letter to letter by a stride that it is told once; every right turn is paid."""

    alphabet: str  # the rungs; the letter after the last one is the first
    strides: PositiveInt  # strides are 1 to this many letters
    num_rungs: PositiveInt  # turns of an episode


@dataclass
class KlRewardConfig:
    """KL penalty inside the per-token reward."""

    coef: NonNegativeFloat  # coefficient; 0 switches it off
    estimator: KlRewardEstimator  # k1 | abs | k2 | k3, of the sampled token; full = exact, over the vocabulary
    target: PositiveFloat | None  # adapt the coefficient towards this KL per token; null = fixed
    horizon: Annotated[int, Range(0, open_low=True)] | None  # time scale of the adaptation in samples; null: no target


@dataclass
class KlLossConfig:
    """KL term in the policy loss."""

    coef: NonNegativeFloat  # coefficient; 0 switches it off
    estimator: KlLossEstimator  # k1 | abs | k2 | k3, their straight-through forms k1+ | abs+ | k2+ | k3+ | full (exact)


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
    power: PositiveFloat | None  # of the absolute score, with method=pow; null otherwise


@dataclass
class BehaviorCorrectionConfig:
    """Importance weights where sampling filters or another engine make the sampler differ from the policy."""

    level: WeightLevel  # none | token | sequence: what one weight stands for
    cap: PositiveFloat | None  # weights are truncated at this; null = never
    band_low: NonNegativeFloat | None  # weights below this become 0: their tokens are not trained on; null = no band
    band_high: PositiveFloat | None  # and above this; set both or neither


@dataclass
class AlgorithmConfig:
    """What is learnt from a buffer: objective, advantages, KL, epochs. null: has no part in this algorithm."""

    objective: Objective  # on_policy (log-prob times advantage) | clip (PPO's clipped ratio)
    advantage: Advantage  # gae (with a critic) | reward_to_go | group | leave_one_out | greedy_baseline (without one)
    credit: Credit  # what an action is: token | turn | auto (turn where a row of the buffer has several turns)
    turn_value: TurnValue | None  # a turn's value: its first | mean | final token's, or after (sees the whole turn)
    value_unit: ValueUnit  # what the value loss regresses: every token's value | one value per turn
    scale_by_std: bool | None  # advantage=group: divide by the group's standard deviation (GRPO) or not (Dr. GRPO)
    gamma: UnitFloat | None  # discount per action
    gae_lambda: UnitFloat | None  # GAE's lambda
    length_adaptive_alpha: PositiveFloat | None  # lambda over l actions is max(0, 1 - 1 / (alpha l)); null = gae_lambda
    critic_gae_lambda: UnitFloat | None  # lambda of the critic's returns; null = that of the advantages
    advantage_normalization: bool  # whiten advantages per agent over the actions of the whole buffer
    clip_range_low: Annotated[float, Range(0.0, 1.0, open_low=True)] | None  # the ratio is clipped below 1 - this
    clip_range_high: PositiveFloat | None  # and above 1 + this
    dual_clip: Annotated[float, Range(1.0, open_low=True)] | None  # bounds the loss of negative advantages; null = off
    ratio_level: RatioLevel  # what one ratio is of: token | turn | sequence
    ratio_pooling: Pooling | None  # log-ratios of a turn or sequence: sum (the product) | mean (GSPO); null for tokens
    value_clip_range: PositiveFloat | None  # clip of the value update; null = off
    huber_delta: PositiveFloat | None  # the value error counts linearly beyond this; null = squared everywhere
    value_loss_coef: NonNegativeFloat | None  # weight of the value loss
    entropy_coef: float  # weight of the entropy bonus
    loss_aggregation: LossAggregation  # token-mean | seq-mean-token-sum | seq-mean-token-mean | seq-mean-token-sum-norm
    ppo_epochs: PositiveInt  # passes over the buffer
    mini_batch_size: PositiveInt | None  # sequences per optimizer step, global; null = rollout.buffer_size
    allow_off_policy_steps: bool  # let objective=on_policy take several optimizer steps per iteration
    target_kl: PositiveFloat | None  # skip the rest of an iteration's policy steps above this KL estimate; null = never
    critic_warmup: NonNegativeInt  # first iterations in which only the critic is trained
    truncation: Truncation  # responses cut at the limit: none (scored as is) | penalty | mask | bootstrap (adds V)
    truncation_penalty: PositiveFloat | None  # subtracted from a truncated response's score with truncation=penalty
    reweight: ReweightConfig
    behavior_correction: BehaviorCorrectionConfig
    kl: KlConfig


@dataclass
class RolloutConfig:
    """How responses are sampled."""

    kind: RolloutKind  # hf: batched decoding with the training model itself
    buffer_size: PositiveInt  # joint samples per iteration over all ranks: prompts x num_generations
    num_generations: PositiveInt  # responses per prompt and agent, aligned by index across agents
    temperature: PositiveFloat  # divides the logits; log-probs, entropy and KL use it as well
    top_p: Annotated[float, Range(0.0, 1.0, open_low=True)]  # nucleus filter; 1 = off
    top_k: NonNegativeInt  # keep the k likeliest tokens; 0 = off
    min_p: Annotated[float, Range(0.0, 1.0, open_high=True)]  # drop tokens below this share of the likeliest; 0 = off
    repetition_penalty: PositiveFloat  # divide the logits of tokens already seen; 1 = off
    max_new_tokens: PositiveInt  # response limit
    min_new_tokens: NonNegativeInt  # no stop token before this many tokens
    stop_strings: list[str]  # text that ends a response
    decode_batch_size: PositiveInt  # rows decoded together, per rank; changes samples by rounding only (seen in bf16)
    max_prompt_tokens: PositiveInt  # more in a first prompt is an error; later, with history=latest, it cuts an episode
    context_limit: Annotated[int, Range(2)] | None  # prompt + response limit; null = what the model was made for
    history: History  # what agents read later: prefix (all so far) | turns (anew, where rewritten) | latest (told last)
    recompute_logprobs: bool  # take the ratio against a forward of the training model, not the sampler's own numbers
    zero3_gather: Zero3Gather  # ZeRO stage 3: all (whole weights while decoding) | layer (one layer at a time)


@dataclass
class RewardConfig:
    """How responses become scores."""

    kind: RewardKind  # exact_match | function | grid | gsm8k | environment
    team_weight: float  # weight of the joint reward in each agent's score
    agent_weight: float  # weight of the agent's own reward
    processor: list[Processor]  # steps applied in order to the mixed score: scale, shift, clip, zscore, running_zscore
    scale: float  # processor `scale` multiplies by this
    shift: float  # processor `shift` adds this
    clip_low: float  # processor `clip` bounds
    clip_high: float  # processor `clip` bounds
    norm_eps: NonNegativeFloat  # `zscore` (of the buffer), `running_zscore` (of all so far) leave smaller deviations
    failure_budget: UnitFloat  # share of a buffer's rows that may fail before the run stops
    reward_batch_rows: NonNegativeInt  # reward this many finished rows while others are written; 0 = all rows at once


@dataclass
class ExactMatchConfig(RewardConfig):
    """Compares each response with its agent's reference answer."""

    match: Match  # characters (share of correct positions) | exact (all or nothing)


@dataclass
class FunctionRewardConfig(RewardConfig):
    """A function of the user's."""

    function: Name | None  # path.py:function or module:function
    whole_batch: bool  # its numbers compare rows: a rank's rows are never asked about in parts, not even after failures


@dataclass
class GridRewardConfig(RewardConfig):
    """How near to its goal a walk ended, less what its detours cost."""

    step_cost: UnitFloat  # subtracted for every step that did not bring the walk nearer


@dataclass
class Gsm8kRewardConfig(RewardConfig):
    """Whether a response's number is that of the reference answer."""

    match: NumberMatch  # strict (the number after the last ####) | flexible (the last number); both are reported


@dataclass
class EnvironmentRewardConfig(RewardConfig):
    """What a world pays as it goes."""


@dataclass
class TeamConfig:
    """What agents share."""

    kind: TeamKind  # independent: nothing


@dataclass
class DeepspeedConfig:
    """How models are spread over ranks, and how much is computed at once."""

    stage: Annotated[int, Range(0, 3)]  # ZeRO stage: 0 | 1 | 2 | 3
    offload_optimizer: bool  # keep optimizer state in host memory (stages 1 to 3)
    offload_params: bool  # keep parameters in host memory (stage 3)
    reduce_bucket_size: PositiveInt  # elements per gradient reduction
    persistence_threshold: NonNegativeInt  # stage 3: smaller parameters stay whole on every rank
    micro_batch_tokens: PositiveInt  # tokens per forward and backward pass, per rank; changes rounding only
    forward_batch_tokens: PositiveInt  # tokens per forward without gradient (values, references); changes rounding only
    pack_sequences: bool  # train on rows put one after another instead of padded, where a model's attention allows it
    logit_chunk_tokens: PositiveInt | None  # response tokens whose logits exist at once; null = 64 million logits


@dataclass
class CheckpointConfig:
    """When runs are saved, and what is kept."""

    every: NonNegativeInt  # iterations between checkpoints; 0 = at the end only
    keep: Annotated[int, Range(2)]  # checkpoints kept, at least 2
    best: bool  # save after every evaluation that is the best so far, and keep the last of these


@dataclass
class EvaluationConfig:
    """When held-out data is scored."""

    every: NonNegativeInt  # iterations between evaluations; 0 = at both ends only
    seed: Seed  # seed of the sampled evaluation
    greedy: bool  # also decode greedily


@dataclass
class TrackerConfig:
    """What is shown and written while a run goes on."""

    tensorboard: bool  # write event files below the run's folder
    console: Console  # auto (live display on a terminal) | rich | plain (one line per iteration)
    samples_every: NonNegativeInt  # iterations between sample tables; 0 = never
    samples: NonNegativeInt  # rows of a sample table
    profile: bool  # trace one iteration into the run's folder (profile/), and show where its time went


@dataclass
class LaunchConfig:
    """Processes and devices."""

    processes: PositiveInt  # ranks started on this machine (ignored under torchrun, the deepspeed launcher and srun)
    device: Device  # auto (cuda where there is one) | cpu | cuda
    threads: PositiveInt | None  # CPU threads per rank; null = cores divided by ranks
    timeout_s: PositiveInt  # seconds after which a collective that does not finish is an error


@dataclass
class RunConfig:
    """What concerns the whole run."""

    name: str  # experiment name: runs lie below output_dir/name
    seed: Seed  # seeds data order, initial weights and sampling
    num_iterations: PositiveInt | None  # passes of generate - score - update; exactly one of this and num_epochs
    num_epochs: PositiveFloat | None  # passes over the training prompts
    output_dir: Name  # root of all runs
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
    "task_signalling": SignallingConfig,
    "task_relay": RelayConfig,
    "task_ladder": LadderConfig,
    "task_gymnasium": GymnasiumConfig,
    "task_pettingzoo": PettingzooConfig,
    "task_reasoning_gym": ReasoningGymConfig,
    "task_environment": OwnEnvironmentConfig,
    "algorithm": AlgorithmConfig,
    "actor_tiny": TinyActorConfig,
    "actor_full": ActorConfig,
    "critic_separate": SeparateCriticConfig,
    "critic_value_head": ValueHeadCriticConfig,
    "critic_none": NoCriticConfig,
    "rollout": RolloutConfig,
    "reward_environment": EnvironmentRewardConfig,
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
