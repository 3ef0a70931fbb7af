"""Properties of engines at every stage, dtype and number of ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from cases import TinyLM, rows
from cases import share as loss_share
from torch import Tensor

from ippo_cli.engine.zero import Engine
from ippo_cli.engine.zero_config import zero_config

STAGES = (0, 1, 2, 3)


def assert_close(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=0, atol=tolerance, msg=lambda text, name=name: name + text)


def test_update_independent_of_micro_batches_ranks_and_stage(results: dict[str, Any]) -> None:
    norm, expected = results["reference"][1.0, 0.0]
    assert {key[0] for key in results["micro_batches"]} == set(STAGES)
    for step, by_rank, state in results["micro_batches"].values():
        assert step.applied
        assert step.grad_norm == pytest.approx(norm, rel=1e-5)
        assert_close(state, expected)
        for weights in by_rank:
            assert all(torch.equal(weights[name], by_rank[0][name]) for name in weights)


def test_bf16_micro_batches_equal_up_to_rounding(results: dict[str, Any]) -> None:
    norm, expected = results["reference"][1.0, 0.0]
    for step, state in results["bf16_micro_batches"].values():
        assert step.grad_norm == pytest.approx(norm, rel=1e-2)
        assert_close({name: tensor.float() for name, tensor in state.items()}, expected, tolerance=2e-2)


def test_weights_without_gradient_decay(results: dict[str, Any]) -> None:
    for (_stage, dtype), (before, after) in results["unreached"].items():
        torch.testing.assert_close(after, before * (1 - 0.5 * 0.1), rtol=1e-6 if dtype == "fp32" else 1e-2, atol=0)


def test_computed_gradients_sum_to_that_of_the_step(results: dict[str, Any]) -> None:
    for (_stage, dtype, _offload), (weights, by_rank, step, same) in results["computed_gradients"].items():
        module = TinyLM(0)
        module.load_state_dict(weights, strict=False)
        (ids, mask), tolerance = rows(), 1e-6 if dtype == "fp32" else 1e-2
        loss_share(module(ids), ids, mask, int(mask.sum())).backward()
        expected = [parameter.grad for parameter in module.parameters()]
        for parts in by_rank:
            assert len(parts) == 4, "two parts after each of two backward passes"
            for left, right in zip(parts, by_rank[0], strict=True):
                assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
            assert all(torch.equal(a, b) for a, b in zip(parts[0], parts[2], strict=True))
            total = [left + right for left, right in zip(parts[0], parts[1], strict=True)]
            for found, wanted in zip(total, expected, strict=True):
                torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
            norm = float(torch.cat([part.flatten() for part in total]).norm())
            assert norm == pytest.approx(step.grad_norm, rel=1e-5 if dtype == "fp32" else 1e-2)
            assert all(part.flatten().norm() > 0 for part in (*parts[0][:1], *parts[1][:1]))
        assert same, "the step of the engine changed"


def test_changed_parameters(results: dict[str, Any]) -> None:
    expected = results["changed_parameters"][0, "fp32", False][2][0]
    for (stage, dtype, offload), states in results["changed_parameters"].items():
        by_rank = [[weights[rank] for weights in states] for rank in range(len(states[0]))]
        for before, changed, after in by_rank:
            tolerance = 1e-5 if dtype == "fp32" else 2e-2
            wanted = before | {"down.weight": 2.0 * before["down.weight"], "down.bias": before["down.bias"] + 0.25}
            assert_close(changed, wanted, tolerance)
            # The next step starts from the changed master weights, with the optimizer's state.
            own = {name: tensor.float() for name, tensor in after.items()}
            assert_close(own, expected, 1e-4 if dtype == "fp32" else 0.1)
            assert all(torch.equal(own[name], by_rank[0][2][name].float()) for name in own), (stage, dtype, offload)


def test_clipping(results: dict[str, Any]) -> None:
    for (_stage, clip), (step, state) in results["clipping"].items():
        norm, expected = results["reference"][20.0, clip]
        assert norm > 1.0  # DeepSpeed's default would clip here
        assert step.grad_norm == pytest.approx(norm, rel=1e-5)
        assert_close(state, expected)


def test_nonfinite_gradient_skipped(results: dict[str, Any]) -> None:
    assert len(results["bad_gradients"]) == 14
    for key, (everywhere, kept, same_end) in results["bad_gradients"].items():
        for bad, last_applied in everywhere:
            assert [step.applied for step in bad] == [False, False], key
            assert [step.grad_norm for step in bad] == [math.inf, math.inf], key
            assert last_applied, key
        assert kept, f"{key}: the weights changed"
        assert same_end, f"{key}: the optimizer's state changed, or gradients stayed"


def test_load_is_bitwise_exact(results: dict[str, Any]) -> None:
    assert len(results["continuation"]) == 12
    for key, (loaded, same_end, first, second, end) in results["continuation"].items():
        assert loaded, f"{key}: the weights differ right after loading"
        assert first == second, f"{key}: the gradients differ"
        assert same_end, f"{key}: the weights differ after two more steps"
        assert end["calls"] == 3, f"{key}: buffers were not loaded"


def test_load_keeps_new_hyperparameters(results: dict[str, Any]) -> None:
    for stage, settings in results["changed_settings"].items():
        assert settings == ([(0.02, 0.3, (0.8, 0.95)), (0.02, 0.0, (0.8, 0.95))], 0.0), stage


def test_failed_write_raised_on_its_rank(results: dict[str, Any], folder: Path) -> None:
    errors, reload = results["failing_write"]
    assert errors[-1] == "IsADirectoryError"
    assert set(errors[:-1]) <= {""}
    assert "cannot load" in reload


def test_shards_loaded_as_data(results: dict[str, Any]) -> None:
    error, ran = results["poisoned_shards"]
    assert "mp_rank_00_model_states.pt contains posix.mkdir, which is not data" in error
    assert "weights_only" not in error
    assert not ran


def test_shard_files(results: dict[str, Any], folder: Path) -> None:
    ranks = len(results["collectives"])
    for stage in STAGES:
        saved = sorted(path.name for path in (folder / "continuation" / f"{stage}-fp32-0").rglob("*.pt"))
        shards = [f"zero_pp_rank_{rank}_mp_rank_00_{{}}.pt" for rank in range(ranks)]
        models = [shard.format("model_states") for shard in shards] if stage == 3 else ["mp_rank_00_model_states.pt"]
        assert saved == sorted(models + [shard.format("optim_states") for shard in shards if stage > 0])
        assert len(saved) == sum(path.is_file() for path in (folder / "continuation" / f"{stage}-fp32-0").rglob("*"))


def test_shards_contain_no_enum(results: dict[str, Any], folder: Path) -> None:
    assert results["collectives"]
    for file in (folder / "continuation").rglob("*.pt"):
        with ZipFile(file) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
            assert b"Enum" not in archive.read(name)


def test_inference_with_unequal_forwards(results: dict[str, Any]) -> None:
    for stage, seen in results["inference"].items():
        during, after = seen["modes"]
        assert during == {False}, stage
        assert after == (True, False, True), f"{stage}: training flags were not restored"
        assert not seen["grad"], stage
        first, second, unchanged = seen["states"]
        assert unchanged, f"{stage}: inference changed the training"
        whole, part, nested, by_layer, scored, later = seen["outputs"]
        kinds = {"whole": whole, "nested": nested, "layer": by_layer, "scored": scored}
        assert_close(kinds, dict.fromkeys(kinds, logits(first)))
        assert_close({"part": part, "later": later}, {"part": logits_of_ends(first), "later": logits(second)})


def embedded(state: dict[str, Tensor]) -> Tensor:
    """The embedded rows of cases.py."""
    return state["embed.weight"][torch.randint(0, 13, (8, 6), generator=torch.Generator().manual_seed(5))]


def logits(state: dict[str, Tensor]) -> Tensor:
    """The expected logits of TinyLM of cases.py, computed independently."""
    x = embedded(state)
    hidden = torch.nn.functional.linear(x, state["up.weight"], state["up.bias"])
    hidden = torch.nn.functional.layer_norm(hidden, (16,), state["norm.weight"], state["norm.bias"]).tanh()
    return (x + torch.nn.functional.linear(hidden, state["down.weight"], state["down.bias"])) @ state["head.weight"].T


def logits_of_ends(state: dict[str, Tensor]) -> Tensor:
    return embedded(state) @ state["head.weight"].T


def test_engine_trains_after_error_in_inference(results: dict[str, Any]) -> None:
    assert results["inference_survives_errors"] == {2: True, 3: True}


def test_bf16_with_fp32_buffers(results: dict[str, Any]) -> None:
    for stage, (first, last, dtypes) in results["bf16_learning"].items():
        assert last < 0.4 * first, stage
        assert dtypes.pop("calls") == torch.float32
        assert set(dtypes.values()) == {torch.bfloat16}, stage


def test_engines_independent(results: dict[str, Any]) -> None:
    assert results["neighbours"] == dict.fromkeys(STAGES, True)


def test_engine_keeps_configuration_dict(results: dict[str, Any]) -> None:
    assert results["untouched_config"]


def test_adapters_on_shared_base_independent(results: dict[str, Any]) -> None:
    for stage, (same, names) in results["shared_base"].items():
        assert same, stage
        assert names == ["adapters.a.weight", "base.calls"], stage


def test_full_state_dict(results: dict[str, Any]) -> None:
    for ranks, tied, inside, kept, expected, state in results["whole_state"].values():
        assert ranks == [rank == 0 for rank in range(len(ranks))]
        assert tied
        assert inside, "another state inside inference"
        assert kept, "a later step changed it"
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_learning_rate_factor(results: dict[str, Any]) -> None:
    for stage, (start, none, half, full) in results["learning_rate"].items():
        assert all(torch.equal(start[name], none[name]) for name in start), stage
        moved = [(later["up.bias"] - earlier["up.bias"]).norm() for earlier, later in ((none, half), (half, full))]
        assert moved[1] / moved[0] == pytest.approx(2.0, rel=0.3), stage


def test_second_training_in_same_process(results: dict[str, Any]) -> None:
    alone, states = results["second_training"]
    assert alone == (1, 1.0)
    for state in states:
        assert_close(state, results["reference"][1.0, 0.0][1])


def test_no_output_and_no_compilation(results: dict[str, Any], folder: Path) -> None:
    printed = [file.read_text() for kind in ("printed", "errors") for file in sorted(folder.glob(f"{kind}*"))]
    assert printed == [""] * 2 * len(results["collectives"])
    assert not (folder / "extensions").exists()


def test_module_without_optimizer(results: dict[str, Any]) -> None:
    whole, found = results["read_only"]
    assert found.pop("refused") == "an engine without parameters to train needs stage 3, not 2"
    assert len(found) == 3
    for ranks in found.values():
        for same, left, share in ranks:
            assert same == [True] * 4
            assert left == 0, "gathered weights are released"
            assert whole / len(ranks) <= share < whole / len(ranks) + 10


def test_invalid_calls_rejected(results: dict[str, Any]) -> None:
    assert results["refusals"] == {
        "second group": "the process group is already running; call shutdown() first",
        "optimizer": "optimizer=adam; use one of adamw sgd",
        "gather": "gather=none; use one of all layer",
        "other module": "the checkpoint is of another module: 2 names differ, such as ['up.bias', 'up.weight']",
    }


def test_engine_without_process_group_rejected() -> None:
    zero = zero_config(
        stage=0,
        dtype="fp32",
        offload_optimizer=False,
        offload_params=False,
        reduce_bucket_size=1000,
        prefetch_bucket_size=0,
        persistence_threshold=0,
        max_live_parameters=1_000_000_000,
        max_grad_norm=1.0,
    )
    with pytest.raises(RuntimeError, match=r"distributed\.init"):
        Engine(torch.nn.Linear(2, 2), [], zero=zero, device="cpu")
