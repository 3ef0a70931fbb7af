"""A plan names optional packages that are not installed; training refuses before it loads a model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from folders import SEVEN_B, weightless_folder

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.hub_names import check_hub_access
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import IppoError
from ippo_cli.config.model_args import check_quantization_package
from ippo_cli.config.model_hub import download_models
from ippo_cli.config.schema import Config
from ippo_cli.planning.plan import show_plan
from ippo_cli.planning.trial import check_trainable

ARITHMETIC = ("task=arithmetic", "rollout.max_new_tokens=4")
JUDGE = ("reward=judge", "reward.url=http://127.0.0.1:9/v1", "reward.model=judge")
LORA = ("actor=lora", "actor.model_args={load_in_4bit: true}", "actor.dtype=bf16", "plan=h100", *ARITHMETIC)


def check(config: Config) -> Config:
    """The checks of ippo-train before it plans or trains."""
    check_config(config, 8 if config.plan.devices else 1)
    check_hub_access(config)
    return download_models(config)


def prepare_training(config: Config) -> None:
    """The checks before a model loads."""
    check_quantization_package(check(config))
    check_trainable(config, 1)


@pytest.mark.parametrize(
    ("module", "extra", "keys"),
    [
        ("vllm", "vllm", ("rollout=vllm",)),
        ("math_verify", "math", (*ARITHMETIC, "reward=math")),
        ("math_verify", "math", (*ARITHMETIC, "reward=mix", "+reward.parts.right={kind: math}")),
        ("httpx2", "http", (*ARITHMETIC, *JUDGE)),
        ("wandb", "wandb", ("tracker=wandb",)),
        ("mlflow", "mlflow", ("tracker=mlflow",)),
        ("trackio", "trackio", ("tracker=trackio",)),
        ("modelscope", "modelscope", ("hub=modelscope",)),
        ("bitsandbytes", "quantization", LORA),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_plan_without_package(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, module: str, extra: str, keys: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    if "actor=lora" in keys:
        keys = (*keys, f"actor.model={weightless_folder(tmp_path, SEVEN_B | {'num_hidden_layers': 1})}")
    keys = (*keys, f"output_dir={tmp_path}")
    show_plan(check(load_config(normalize_arguments(["mode=plan", *keys]))))
    assert f"which is not installed; pip install 'ippo-cli[{extra}]'" in " ".join(capsys.readouterr().out.split())
    trained = load_config(normalize_arguments([key for key in keys if not key.startswith("plan=")]))
    with pytest.raises(IppoError, match=rf"pip install 'ippo-cli\[{extra}\]'"):
        prepare_training(trained)
