"""`launch.placement`: values, names, and rules between models and ranks."""

from __future__ import annotations

import pytest

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config import vllm
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.hardware import world_size
from ippo_cli.config.placement import Placement, format_ranks, read_placement
from ippo_cli.config.schema import Config

SERVERS = ("rollout=vllm", "rollout.vllm.mode=server")
TWO_DEVICES = "++rollout.vllm.engine_args.tensor_parallel_size=2"
KL = "algorithm.kl.reward.coef=0.1"


def compose(*overrides: str) -> Config:
    return load_config(normalize_arguments(list(overrides)))


def checked_config(*overrides: str, ranks: int = 8) -> Config:
    config = compose(*overrides)
    check_config(config, ranks)
    return config


def parse_placement(*overrides: str, ranks: int = 8) -> Placement:
    return read_placement(checked_config(*overrides, ranks=ranks), ranks)


@pytest.fixture(autouse=True)
def pretend_vllm_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "find_spec", lambda name: object())


@pytest.mark.parametrize("overrides", [[], ["launch.placement={actor: all}"]])
def test_without_placement_everything_is_on_all_ranks(overrides: list[str]) -> None:
    placement = parse_placement(*overrides, ranks=3)
    assert len(set(placement.ranks.values())) == 1
    assert set(placement.ranks) == {f"{a}.{c}" for a in ("low", "high") for c in ("actor", "critic", "reference")} | {
        "reward"
    }
    assert placement.of("low", "critic") == placement.of("high", "reward") == (0, 1, 2)


@pytest.mark.parametrize(
    ("value", "ranks"), [("all", (0, 1, 2, 3, 4)), ("3", (3,)), ("0-3", (0, 1, 2, 3)), ("'0-1,4'", (0, 1, 4))]
)
def test_values(value: str, ranks: tuple[int, ...]) -> None:
    assert parse_placement(f"launch.placement={{critic: {value}}}", ranks=5).of("low", "critic") == ranks


def test_keys_with_several_components_in_quotes() -> None:
    placement = parse_placement('launch.placement={"actor,critic": "0-5", "reference": "6-7", "high.actor": "0-1"}', KL)
    assert placement.of("low", "actor") == placement.of("high", "critic") == (0, 1, 2, 3, 4, 5)
    assert placement.of("high", "actor") == (0, 1), "the entry of one agent wins"
    assert placement.of("high", "reference") == (6, 7)
    assert len(set(placement.ranks.values())) > 1


def test_critic_and_reference_follow_their_actor() -> None:
    placement = parse_placement("launch.placement={low.actor: 0-2, high.actor: 3-7}", KL)
    assert placement.of("low", "critic") == placement.of("low", "reference") == (0, 1, 2)
    assert placement.of("high", "reference") == (3, 4, 5, 6, 7)


def test_rollout_names_devices_beside_the_ranks() -> None:
    placement = parse_placement(*SERVERS, "launch.placement={rollout: 6-7}", "launch.processes=6", ranks=6)
    assert placement.rollout_devices == (6, 7)
    assert len(set(placement.ranks.values())) == 1


def test_rollout_may_name_the_ranks_of_the_actors() -> None:
    assert parse_placement("launch.placement={actor: 0-3, critic: 4-7, rollout: 0-3}").ranks
    assert len(set(parse_placement("launch.placement={rollout: all}").ranks.values())) == 1
    assert parse_placement("rollout=vllm", "launch.placement={critic: 4-7, rollout: all}").ranks


def test_engines_in_the_ranks_need_all_of_them() -> None:
    with pytest.raises(ConfigError, match=r"engines of rollout\.vllm\.mode=colocate need each of them"):
        parse_placement("rollout=vllm", "launch.placement={actor: 0-3, critic: 4-7, rollout: 0-3}")


def test_planned_machines_have_devices_for_ranks_and_for_servers() -> None:
    keys = [*SERVERS, "mode=plan", "plan=h100", "launch.placement={rollout: 4-7}"]
    assert world_size(compose(*keys, "plan.devices=512"), None) == 256
    assert world_size(compose(*keys, "plan.devices=8"), None) == 4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["{acto: 3}"], r"launch.placement.acto=3 names acto, which is not a component \(closest: actor\); use one of"),
        (["{lwo.actor: 3}"], r"lwo.actor=3 names lwo, which is not an agent \(closest: low\); use one of low high, or"),
        (
            ["{actor: 8}"],
            r"actor=8 names rank 8, and this run has 8 \(launch.processes times launch.nodes\); use ranks",
        ),
        (["{actor: ''}"], r"actor= is empty; write all, 3, 0-3 or '0-1,4'"),
        (["{actor: 5-3}"], r"actor=5-3 has the reversed range 5-3; write 3-5"),
        (["{actor: first}"], r"actor=first is not a set of numbers"),
        (["{actor: [0,1]}"], r"is not a set of numbers"),
        (["{actor: '0-3,2'}"], r"names 2 twice"),
        (["{'actor,critic': 0-3, critic: 4-7}"], r"critic=4-7 places critic twice, also in actor,critic"),
        (["{low.rollout: all}"], r"names rollout of one agent, and all agents have the same"),
        (["{actor: 0-5, critic: 6}"], r"leaves rank 7 of 8 without a model; place a model there, or start 7 ranks"),
        (["{reference: 7}"], r"reference=7 places the reference, and no KL term"),
        (["{reward: 7}"], r"reward=7 places the reward, and the reward is not a model"),
        (
            ["{critic: 7}", "critic=none", "algorithm=grpo", "rollout.num_generations=2"],
            r"no value function is trained",
        ),
        (
            ["{critic: 7}", "critic=value_head"],
            r"low's critic apart from its actor, and critic=value_head is a head on",
        ),
        (
            ["{critic: 7}", "critic=adapter", "actor=tiny_lora"],
            r"apart from its actor, and critic=adapter is an adapter",
        ),
        (
            ["{reference: 7}", "actor=tiny_lora", KL],
            r"the reference of actor=lora uses the actor's base; place reference and actor of low on 0",
        ),
        (
            ["{reference: 7}", "actor.reference_update_every=2", KL],
            r"reference_update_every copies the actor's weights",
        ),
        (["{reference: 7}", "reward.credit_assignment=difference"], r"replayed episodes are sampled from it"),
        (
            ["{reference: 7}", "algorithm.kl.loss.coef=0.1", "algorithm.kl.loss.estimator=full"],
            r"compares whole distrib",
        ),
        (["{low.actor: 0-3}", "team=shared_policy"], r"differs from the ranks of low's actor.*share the policy shared"),
        (["{low.actor: 0-3}", "team=shared_base", "actor=tiny_lora"], r"both agents share the base shared"),
        (["{low.critic: 0-3}", "critic=centralized", "critic.shared=true"], r"both agents share the critic team"),
        (["{low.actor: 0-3}", "algorithm=happo"], r"update_order=sequential corrects an update by the probabilities"),
        (
            ["{critic: 0-2}", "deepspeed.sequence_parallel=2"],
            r"critic on 3 ranks, and deepspeed.sequence_parallel=2 does",
        ),
        (["{rollout: 0-3}"], r"rollout=0-3 is not the actors' ranks, and rollout=hf samples with the models"),
        (
            ["{rollout: 0-3}", "rollout=vllm"],
            r"is not the actors' ranks, and rollout.vllm.mode=colocate.*use 0-7, or",
        ),
        (
            ["{rollout: 7-8}", *SERVERS, "launch.processes=8"],
            r"names device 7, and devices 0 to 7 of a machine are those",
        ),
        (["{rollout: 8-10}", *SERVERS, "launch.processes=8", TWO_DEVICES], r"gives each server 2 devices, and 3"),
        (["{rollout: all}", *SERVERS, "launch.processes=8"], r"rollout=all names no devices"),
        (["{rollout: 8}", *SERVERS, "rollout.vllm.url=[http://localhost:8000]"], r"places servers that run already"),
        (["{rollout: 8}", *SERVERS, "mode=plan", "plan=h100"], r"names device 8, and a machine has 8"),
    ],
)
def test_refused_placements(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked_config(f"launch.placement={overrides[0]}", *overrides[1:])


PLAN = ("mode=plan", "plan=h100")


@pytest.mark.parametrize(
    ("refused", "remedy", "accepted"),
    [
        # The refused command; words of the remedy; the command with it. The first override is the mapping.
        (["{reference: 6-7, actor: 0-5}"], "remove reference from the mapping, and place another model on 6-7",
         ["{actor: 0-5, critic: 6-7}"]),
        (["{reference: 7}"], "remove reference from the mapping", ["{}"]),
        (["{actor: 0-5, critic: 6-7}", "critic=value_head"], "place critic and actor of low on 0-7",
         ["{critic: 0-7, actor: 0-7}", "critic=value_head"]),
        (["{actor: 0-5, reference: 6-7}", "actor=tiny_lora", KL], "place reference and actor of low on 0-7",
         ["{actor: 0-7, reference: 0-7}", "actor=tiny_lora", KL]),
        (["{reference: 7}", "reward.credit_assignment=difference"], "place reference and actor of low on 0-7",
         ["{reference: 0-7}", "reward.credit_assignment=difference"]),
        (["{low.actor: 0-3}", "team=shared_policy"], "place actor of low and high on 0-7",
         ["{actor: 0-7}", "team=shared_policy"]),
        (["{low.actor: 0-3}", "team=shared_policy"], "use a team that does not share it",
         ["{low.actor: 0-3}", "team=independent"]),
        (["{low.critic: 0-3}", "critic=centralized", "critic.shared=true"], "place critic of low and high on 0-7",
         ["{critic: 0-7}", "critic=centralized", "critic.shared=true"]),
        (["{low.actor: 0-3}", "algorithm=happo"], "place actor of low and high on 0-7",
         ["{actor: 0-7}", "algorithm=happo"]),
        (["{critic: 0-2}", "deepspeed.sequence_parallel=2"], "use a multiple of 2 ranks",
         ["{critic: 0-3}", "deepspeed.sequence_parallel=2"]),
        (["{critic: 0-2}", "deepspeed.sequence_parallel=2"], "sequence_parallel as one of 1",
         ["{critic: 0-2}", "deepspeed.sequence_parallel=1"]),
        (["{rollout: 0-3}"], "use 0-7", ["{rollout: 0-7}"]),
        (["{rollout: 0-3}", "launch.processes=8"],
         "rollout=vllm rollout.vllm.mode=server with launch.placement.rollout=8",
         ["{rollout: 8}", "launch.processes=8", *SERVERS]),
        (["{actor: 0-3, critic: 4-7, rollout: 0-3}", "rollout=vllm"], "use all for actor and rollout",
         ["{actor: all, critic: 4-7, rollout: all}", "rollout=vllm"]),
        (["{actor: 0-3, critic: 4-7, rollout: 0-3}", "rollout=vllm", "launch.processes=8"],
         "rollout.vllm.mode=server with launch.placement.rollout=8",
         ["{actor: 0-3, critic: 4-7, rollout: 8}", *SERVERS, "launch.processes=8"]),
        (["{actor: 0-3, critic: 4-7}", "rollout=vllm"], "or rollout.vllm.mode=server",
         ["{actor: 0-3, critic: 4-7}", *SERVERS]),
        (["{actor: 0-3, critic: 4-7}", *SERVERS, "rollout.vllm.url=[http://localhost:8000]"],
         "use all, or servers that the run",
         ["{actor: 0-3, critic: 4-7}", *SERVERS, "rollout.vllm.url=[]"]),
        (["{actor: 0-3, critic: 4-7}", *SERVERS, "rollout.ahead=1"], "use all, or rollout.ahead=0",
         ["{actor: 0-3, critic: 4-7}", *SERVERS, "rollout.ahead=0"]),
        (["{actor: 0-3, critic: 4-7}", *SERVERS, "rollout.ahead=1"], "use all",
         ["{actor: all, critic: 4-7}", *SERVERS, "rollout.ahead=1"]),
        (["{rollout: 7-8}", *SERVERS, "launch.processes=8"], "use devices from 8 on",
         ["{rollout: 8-9}", *SERVERS, "launch.processes=8"]),
        (["{rollout: 8-10}", *SERVERS, "launch.processes=8", TWO_DEVICES], "give them a multiple of 2",
         ["{rollout: 8-11}", *SERVERS, "launch.processes=8", TWO_DEVICES]),
        (["{rollout: all}", *SERVERS, "launch.processes=8"], "such as 8",
         ["{rollout: 8}", *SERVERS, "launch.processes=8"]),
        (["{rollout: all}", *SERVERS, "launch.processes=8", TWO_DEVICES], "such as 8-9",
         ["{rollout: 8-9}", *SERVERS, "launch.processes=8", TWO_DEVICES]),
        (["{rollout: all}", *SERVERS, *PLAN], "such as 7", ["{rollout: 7}", *SERVERS, *PLAN]),
        (["{rollout: 8}", *SERVERS, *PLAN], "use devices up to 7", ["{rollout: 7}", *SERVERS, *PLAN]),
        (["{rollout: 7}", *SERVERS, *PLAN, "plan.devices=12"], "use a multiple of 8",
         ["{rollout: 7}", *SERVERS, *PLAN, "plan.devices=16"]),
        (["{rollout: 8}", *SERVERS, "rollout.vllm.url=[http://localhost:8000]"], "remove rollout from the mapping",
         ["{}", *SERVERS, "rollout.vllm.url=[http://localhost:8000]"]),
        (["{actor: 0-5, critic: 6}"], "or start 7 ranks", ["{actor: 0-5, critic: 6}", "launch.processes=7"]),
        (["{actor: 1-5, critic: 6-7}"], "place a model there", ["{actor: 0-5, critic: 6-7}"]),
        (["{actor: 0-5, critic: 6}", *PLAN], "or start 7 ranks (plan.devices)",
         ["{actor: 0-5, critic: 6}", *PLAN, "plan.devices=7"]),
    ],
)  # fmt: skip
def test_remedies_are_accepted(refused: list[str], remedy: str, accepted: list[str]) -> None:
    def check(overrides: list[str]) -> None:
        keys = [f"launch.placement={overrides[0]}", *overrides[1:]]
        if not any(key.startswith(("launch.processes", "plan=")) for key in keys):
            keys.append("launch.processes=8")
        config = compose(*keys)
        check_config(config, world_size(config, None))

    with pytest.raises(ConfigError) as error:
        check(refused)
    assert remedy in str(error.value)
    check(accepted)


def test_ranks_in_the_middle_are_not_left_out() -> None:
    with pytest.raises(ConfigError, match=r"leaves rank 0 of 8 without a model; place a model there$"):
        checked_config("launch.placement={actor: 1-5, critic: 6-7}")


def test_evaluation_ignores_placement() -> None:
    config = compose("launch.placement={critic: 3}")
    with pytest.raises(ConfigError, match=r"launch\.placement"):
        check_config(config, 1)
    check_config(config, 1, training=False)


def test_ranks_as_text() -> None:
    assert format_ranks((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
