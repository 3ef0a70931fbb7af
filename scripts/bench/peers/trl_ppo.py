"""Run TRL's PPO trainer on a model folder and print the seconds per update as JSON; `pretrained.py` calls it.

    ENV/bin/python trl_ppo.py FOLDER PROMPTS.json --length 32 [--until-end] --updates 4 --dtype bf16

Needs a separate environment: trl 1.10 (later ones have no PPO), torch, transformers, accelerate. `PROMPTS.json` has
lists of token ids. Weights and optimizer states have `--dtype`: TRL keeps no float32 copy of weights on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
from trl.experimental.ppo import PPOConfig, PPOTrainer  # pyright: ignore[reportMissingImports]


class _Length(nn.Module):
    """Replaces a reward model's backbone: its state at a token is the number of tokens so far."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(hidden_states=(attention_mask.float().cumsum(1)[..., None] / 100,))


class Length(nn.Module):
    """A reward without weights, with the interface of a reward model."""

    base_model_prefix = "counted"

    def __init__(self) -> None:
        super().__init__()
        self.counted, self.score = _Length(), nn.Identity()


class Clock(TrainerCallback):
    """Records the end of each update."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--until-end", action="store_true", help="responses may end before --length")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--mini-batches", type=int, default=4)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[given.dtype]
    tokenizer = AutoTokenizer.from_pretrained(given.folder, padding_side="left")
    if tokenizer.pad_token_id == tokenizer.eos_token_id:  # TRL's attention mask is `ids != pad`
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    policy, reference = (AutoModelForCausalLM.from_pretrained(given.folder, dtype=dtype) for _ in range(2))
    value = AutoModelForSequenceClassification.from_pretrained(given.folder, num_labels=1, dtype=dtype)
    value.config.pad_token_id = tokenizer.pad_token_id
    prompts = json.loads(given.prompts.read_text())[: given.batch * given.updates]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = PPOTrainer(
            args=PPOConfig(
                output_dir=folder,
                num_ppo_epochs=1,
                num_mini_batches=given.mini_batches,
                total_episodes=given.batch * given.updates,
                per_device_train_batch_size=given.batch,
                per_device_eval_batch_size=given.batch,
                gradient_accumulation_steps=1,
                local_rollout_forward_batch_size=given.batch,
                response_length=given.length,
                stop_token="eos" if given.until_end else None,
                temperature=1.0,
                kl_coef=0.05,
                whiten_rewards=False,
                num_sample_generations=0,
                learning_rate=1e-6,
                lr_scheduler_type="constant",
                use_cpu=True,
                bf16=False,  # no autocast: weights already have --dtype
                gradient_checkpointing=False,
                report_to="none",
                save_strategy="no",
                eval_strategy="no",
                disable_tqdm=True,
            ),
            processing_class=tokenizer,
            model=policy,
            ref_model=reference,
            reward_model=Length(),
            value_model=value,
            train_dataset=Dataset.from_dict({"input_ids": prompts}),
            eval_dataset=Dataset.from_dict({"input_ids": prompts[: given.batch]}),
            callbacks=[clock],
        )
        trainer.train()
    seconds = [end - begin for begin, end in zip(clock.ends, clock.ends[1:], strict=False)]
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
