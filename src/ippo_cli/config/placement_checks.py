"""Rules of `launch.placement`: models that need each other's ranks, ranks without a model, devices of servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import gcd

from ippo_cli.config.batch_sizes import format_divisors
from ippo_cli.config.credit import needs_reference, needs_replays
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.hardware import ranks_per_machine
from ippo_cli.config.placement import (
    ACTOR,
    AGENT_COMPONENTS,
    CRITIC,
    KEY,
    REFERENCE,
    REWARD,
    ROLLOUT,
    Placement,
    format_ranks,
    placed_components,
    read_placement,
    read_rollout_ranks,
    uses_servers,
)
from ippo_cli.config.rewards import rewards_with_prefixes
from ippo_cli.config.schema import (
    AdapterCriticConfig,
    Config,
    CriticKind,
    LoraActorConfig,
    ModelRewardConfig,
    UpdateOrder,
    ValueHeadCriticConfig,
    VllmMode,
    VllmRolloutConfig,
)
from ippo_cli.config.served_agents import local_agents
from ippo_cli.config.teams import agents_by_base, agents_by_critic, agents_by_policy
from ippo_cli.config.text import format_count
from ippo_cli.config.vllm import device_slots


def check_placement(config: Config, world_size: int) -> Iterator[ConfigError]:
    """Yield broken rules, one for each entry; raises for the first entry that cannot be read."""
    if not config.launch.placement:
        return
    rules = _Rules(config, read_placement(config, world_size), placed_components(config), world_size)
    reported: set[str] = set()
    for error in rules.find_errors():
        if error.key not in reported:
            reported.add(error.key)
            yield error


def existing_components(config: Config) -> dict[str, tuple[str, ...]]:
    """The agents that have each component of `AGENT_COMPONENTS`; a value head counts as a critic."""
    agents = config.task.agents
    trained = [name for name, agent in agents.items() if not agent.frozen]
    return {
        ACTOR: tuple(local_agents(config)),
        CRITIC: tuple(name for name in trained if agents[name].critic.kind is not CriticKind.none),
        REFERENCE: tuple(trained) if needs_reference(config) else (),
    }


def has_reward_model(config: Config) -> bool:
    """Whether a reward is a model in the ranks' processes."""
    return any(isinstance(own.reward, ModelRewardConfig) for _, own in rewards_with_prefixes(config))


@dataclass(frozen=True, slots=True)
class _Rules:
    config: Config
    placement: Placement
    settings: Mapping[tuple[str | None, str], str]  # the settings by agent (None: all) and component
    world_size: int

    def find_errors(self) -> Iterator[ConfigError]:
        yield from self._check_components_exist()
        yield from self._check_shared_models()
        yield from self._check_same_ranks()
        yield from self._check_rollout()
        yield from self._check_engines()
        yield from self._check_model_parallel()
        yield from self._check_idle_ranks()

    def _check_components_exist(self) -> Iterator[ConfigError]:
        """A component that the run does not have."""
        existing = existing_components(self.config)
        why = {
            ACTOR: "it is at a server (actor=server)",
            CRITIC: "no value function is trained (critic=none, or frozen agents)",
            REFERENCE: "no KL term and no replayed episode uses one",
            REWARD: "the reward is not a model (reward=model)",
        }
        for (agent, component), setting in self.settings.items():
            if component == ROLLOUT:
                continue
            found = has_reward_model(self.config) if component == REWARD else existing[component]
            if found is False or found == () or (agent is not None and agent not in existing[component]):
                of = f" of {agent}" if agent is not None else ""
                idle = self._idle_ranks()
                others = f", and place another model on {format_ranks(idle)}" if idle else ""
                yield ConfigError(
                    setting,
                    f"places the {component}{of}, and {why[component]}",
                    f"remove {component}{of} from the mapping{others}",
                )

    def _check_shared_models(self) -> Iterator[ConfigError]:
        """Agents of one policy, base or critic."""
        groups = [
            *((names, AGENT_COMPONENTS, f"policy {name}") for name, names in agents_by_policy(self.config).items()),
            *((names, (ACTOR,), f"base {name}") for name, names in agents_by_base(self.config).items()),
            *((names, (CRITIC,), f"critic {name}") for name, names in agents_by_critic(self.config).items()),
        ]
        for (first, *others), components, shared in groups:
            for component, name in product(components, others):
                if self._of(name, component) != self._of(first, component):
                    remedy = self._same_ranks((first, component), (name, component))
                    yield ConfigError(
                        self._setting(name, component),
                        f"differs from the ranks of {first}'s {component}, and both agents share the {shared}",
                        f"{remedy}, or use a team that does not share it",
                    )

    def _check_same_ranks(self) -> Iterator[ConfigError]:
        """Models that are computed together."""
        config, existing = self.config, existing_components(self.config)
        terms = config.algorithm.kl.reward, config.algorithm.kl.loss
        has_full_kl = any(term.coef != 0.0 and term.estimator == "full" for term in terms)
        for name, agent in config.task.agents.items():
            if name in existing[CRITIC]:
                if isinstance(agent.critic, ValueHeadCriticConfig):
                    yield from self._require_actor_ranks(name, CRITIC, "critic=value_head is a head on the actor")
                if isinstance(agent.critic, AdapterCriticConfig):
                    yield from self._require_actor_ranks(
                        name, CRITIC, "critic=adapter is an adapter on the actor's base"
                    )
            if name not in existing[REFERENCE]:
                continue
            if isinstance(agent.actor, LoraActorConfig):
                yield from self._require_actor_ranks(
                    name, REFERENCE, "the reference of actor=lora uses the actor's base"
                )
            elif agent.actor.reference_update_every is not None:
                why = "actor.reference_update_every copies the actor's weights to it"
                yield from self._require_actor_ranks(name, REFERENCE, why)
            elif needs_replays(config):
                yield from self._require_actor_ranks(name, REFERENCE, "replayed episodes are sampled from it")
            elif has_full_kl:
                why = "algorithm.kl with estimator=full compares whole distributions of both"
                yield from self._require_actor_ranks(name, REFERENCE, why)
        trained = [name for name, agent in config.task.agents.items() if not agent.frozen]
        if config.team.update_order is UpdateOrder.sequential:
            for name in trained[1:]:
                if self._of(name, ACTOR) != self._of(trained[0], ACTOR):
                    yield ConfigError(
                        self._setting(name, ACTOR),
                        f"differs from the ranks of {trained[0]}'s actor, and team.update_order=sequential corrects an "
                        "update by the probabilities of actors before it",
                        self._same_ranks(*((agent, ACTOR) for agent in trained)),
                    )
                    return

    def _check_rollout(self) -> Iterator[ConfigError]:
        """Ranks or devices of `rollout`."""
        config, setting = self.config, self.settings.get((None, ROLLOUT))
        if setting is None:
            return
        if uses_servers(config):
            yield from self._check_devices(setting)
            return
        actors = {self._of(name, ACTOR) for name in local_agents(config)}
        if actors == {read_rollout_ranks(config, self.world_size)}:
            return
        rule = f"rollout={config.rollout.kind} samples with the models that are trained"
        if isinstance(config.rollout, VllmRolloutConfig):
            rule = "rollout.vllm.mode=colocate runs engines in the processes of the actors' ranks"
        remedy = f"use {format_ranks(*actors)}" if len(actors) == 1 else "remove rollout from the mapping"
        servers = f", or {self._server_setting('rollout=vllm ')}"
        yield ConfigError(setting, f"is not the actors' ranks, and {rule}", remedy + servers)

    def _check_engines(self) -> Iterator[ConfigError]:
        """Engines of `rollout=vllm` where some ranks have no actor."""
        rollout = self.config.rollout
        if not isinstance(rollout, VllmRolloutConfig):
            return
        partial = [name for name in local_agents(self.config) if len(self._of(name, ACTOR)) < self.world_size]
        if not partial:
            return
        setting = self._setting(partial[0], ACTOR)
        if rollout.vllm.mode is VllmMode.colocate:
            is_named = (None, ROLLOUT) in self.settings
            yield ConfigError(
                setting,
                "is not all ranks, and the engines of rollout.vllm.mode=colocate need each of them",
                f"use all{' for actor and rollout' if is_named else ''}, or "
                + (self._server_setting() if is_named else "rollout.vllm.mode=server"),
            )
        elif rollout.vllm.url:
            yield ConfigError(
                setting,
                "is not all ranks, and rollout.vllm.url names servers for all of them",
                "use all, or servers that the run starts (rollout.vllm.url=[])",
            )
        elif rollout.ahead:
            yield ConfigError(
                setting,
                f"is not all ranks, and rollout.ahead={rollout.ahead} collects episodes on each rank separately",
                "use all, or rollout.ahead=0",
            )

    def _check_devices(self, setting: str) -> Iterator[ConfigError]:
        devices, plan = self.placement.rollout_devices, self.config.plan
        if isinstance(self.config.rollout, VllmRolloutConfig) and self.config.rollout.vllm.url:
            yield ConfigError(
                setting, "places servers that run already (rollout.vllm.url)", "remove rollout from the mapping"
            )
            return
        if isinstance(self.config.rollout, VllmRolloutConfig):
            device_slots(devices, self.config.rollout.vllm)
        local = ranks_per_machine(self.config, self.world_size)
        if local is not None and (used := [device for device in devices if device < local]):
            yield ConfigError(
                setting,
                f"names device {used[0]}, and devices 0 to {local - 1} of a machine are those of its ranks",
                f"use devices from {local} on, or fewer ranks (launch.processes)",
            )
        if plan.devices is not None and plan.per_machine is not None:
            count = min(plan.devices, plan.per_machine)
            if devices[-1] >= count:
                yield ConfigError(
                    setting, f"names device {devices[-1]}, and a machine has {count}", f"use devices up to {count - 1}"
                )
            elif plan.devices % count:
                yield ConfigError(
                    f"plan.devices={plan.devices}",
                    f"leaves a machine with fewer than {count} devices, and {setting} names devices of every machine",
                    f"use a multiple of {count}",
                )

    def _check_model_parallel(self) -> Iterator[ConfigError]:
        """Groups of ranks that split a trained model or its rows."""
        deepspeed = self.config.deepspeed
        parts = deepspeed.ranks_per_group
        key = "tensor_parallel" if deepspeed.tensor_parallel > 1 else "sequence_parallel"
        existing = existing_components(self.config)
        seen: set[tuple[int, ...]] = set()
        for component in (ACTOR, CRITIC):
            for name in existing[component]:
                ranks = self._of(name, component)
                if self.config.task.agents[name].frozen or not len(ranks) % parts or ranks in seen:
                    continue
                seen.add(ranks)
                yield ConfigError(
                    self._setting(name, component),
                    f"places {name}'s {component} on {format_count(len(ranks), 'rank')}, and deepspeed.{key}={parts} "
                    "does not divide this",
                    f"use a multiple of {parts} ranks, or deepspeed.{key} as one of {self._format_group_sizes()}",
                )

    def _check_idle_ranks(self) -> Iterator[ConfigError]:
        """Ranks that hold no model."""
        idle = self._idle_ranks()
        if not idle:
            return
        left = self.world_size - len(idle)
        fewer = ""
        if idle[0] == left:  # the last ranks: the others keep their numbers
            key = "plan.devices" if self.config.plan.devices is not None else "launch.processes"
            fewer = f", or start {left} ranks ({key})"
        yield ConfigError(
            f"{KEY}={self.config.launch.placement}",
            f"leaves rank{'s' * (len(idle) > 1)} {format_ranks(idle)} of {self.world_size} without a model",
            f"place a model there{fewer}",
        )

    def _idle_ranks(self) -> list[int]:
        """Ranks without a model that the run has."""
        existing = existing_components(self.config)
        used = {rank for part in AGENT_COMPONENTS for name in existing[part] for rank in self._of(name, part)}
        if has_reward_model(self.config):
            used |= set(self.placement.ranks[REWARD])
        return sorted(set(range(self.world_size)) - used)

    def _same_ranks(self, *placed: tuple[str, str]) -> str:
        """A remedy for components that need the same ranks: one set for all, in which no rank loses its models."""
        ranks = sorted({rank for name, component in placed for rank in self._of(name, component)})
        parts = dict.fromkeys(component for _, component in placed)
        agents = dict.fromkeys(name for name, _ in placed)
        return f"place {' and '.join(parts)} of {' and '.join(agents)} on {format_ranks(ranks)}"

    def _server_setting(self, rollout: str = "") -> str:
        """Overrides for servers on devices that no rank uses."""
        config = self.config
        local = ranks_per_machine(config, self.world_size)
        devices = "devices that no rank uses" if local is None or config.plan.devices is not None else f"{local}"
        return f"{rollout}rollout.vllm.mode=server with {KEY}.rollout={devices}"

    def _format_group_sizes(self) -> str:
        """Sizes of groups that divide the ranks of the run and of each trained component."""
        existing = existing_components(self.config)
        counts = [len(self._of(name, part)) for part in (ACTOR, CRITIC) for name in existing[part]]
        return format_divisors(gcd(self.world_size, *counts))

    def _require_actor_ranks(self, name: str, component: str, why: str) -> Iterator[ConfigError]:
        actor = self._of(name, ACTOR)
        if self._of(name, component) != actor:
            yield ConfigError(
                self._setting(name, component),
                f"places {name}'s {component} apart from its actor, and {why}",
                self._same_ranks((name, component), (name, ACTOR)),
            )

    def _of(self, name: str, component: str) -> tuple[int, ...]:
        return self.placement.of(name, component)

    def _setting(self, name: str, component: str) -> str:
        """The setting that places a component, for errors."""
        named = self.settings.get((name, component)) or self.settings.get((None, component))
        return named or (self._setting(name, ACTOR) if component != ACTOR else f"{KEY}={self.config.launch.placement}")
