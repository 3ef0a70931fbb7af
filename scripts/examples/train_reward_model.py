"""Train a reward model for `reward=model` on preferences; Bradley-Terry loss: -log sigmoid(r(chosen) - r(rejected)).

    train_reward_model.py train MODEL PREFERENCES FOLDER      # JSON lines with prompt, chosen and rejected
    train_reward_model.py sample MODEL QUESTIONS PREFERENCES  # writes such a file from a model and a rule

`sample` has a model answer each `prompt` of a file of JSON lines twice and prefers the shorter answer, the longer one,
or the one with more matches of a regular expression. `train` starts from a causal language model, whole or its first
layers, and prints the fraction of held-out pairs in the right order.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from ippo_cli.models.load import disable_dropout
from ippo_cli.models.reward_model import ConversationTokenizer

Pair = tuple[list[int], list[int]]  # token ids of chosen and rejected


def pairs_of(rows: Sequence[dict[str, str]], tokenizer: Any, max_tokens: int) -> list[Pair]:
    """Tokenize conversations as `reward=model` does; pairs with a too long conversation are excluded."""
    writer = ConversationTokenizer(tokenizer)

    def ids(answer: str) -> list[list[int]]:
        said = [({"role": "user", "content": r["prompt"]}, {"role": "assistant", "content": r[answer]}) for r in rows]
        return writer.token_ids(said)

    pairs = list(zip(ids("chosen"), ids("rejected"), strict=True))
    fitting = [pair for pair in pairs if max(map(len, pair)) <= max_tokens]
    if len(fitting) < len(pairs):
        print(f"{len(pairs) - len(fitting)} of {len(pairs)} pairs are longer than {max_tokens} tokens and are excluded")
    return fitting


def margins(model: Any, pairs: Sequence[Pair]) -> Tensor:
    """Return score(chosen) - score(rejected), `[n]`."""
    rows = [ids for pair in pairs for ids in pair]
    width = max(map(len, rows))
    padded = torch.tensor([[*row, *[model.config.pad_token_id] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    scores = model(input_ids=padded.to(model.device), attention_mask=mask.to(model.device)).logits[:, 0].float()
    return scores[0::2] - scores[1::2]


@torch.no_grad()
def accuracy(model: Any, pairs: Sequence[Pair], batch_size: int) -> float:
    """Return the fraction of pairs with a higher score of the chosen answer."""
    model.eval()
    batches = [pairs[first : first + batch_size] for first in range(0, len(pairs), batch_size)]
    return sum(int((margins(model, batch) > 0).sum()) for batch in batches) / len(pairs)


def initial_model(source: str, tokenizer: Any, layers: int | None) -> Any:
    """Load a classifier with one label and a new head on a language model, or on its first layers."""
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    config.num_labels, config.pad_token_id = 1, tokenizer.pad_token_id
    if layers is not None:
        if not 1 <= layers <= config.num_hidden_layers:
            raise SystemExit(f"--layers {layers}: the model has {config.num_hidden_layers} layers")
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None) is not None:
            config.layer_types = config.layer_types[:layers]
    model = AutoModelForSequenceClassification.from_pretrained(
        source, config=config, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    )
    disable_dropout(model)
    return model


def train(given: argparse.Namespace) -> float:
    """Train, write the folder, and return the held-out accuracy."""
    torch.manual_seed(given.seed)
    tokenizer = AutoTokenizer.from_pretrained(given.model, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    rows = [json.loads(line) for line in Path(given.preferences).read_text().splitlines() if line.strip()]
    order = random.Random(given.seed)
    order.shuffle(rows)
    # All pairs of a prompt are either held out or used for training.
    prompts = list(dict.fromkeys(row["prompt"] for row in rows))
    asked = set(prompts[: max(1, round(given.held_out * len(prompts)))])
    held_out = pairs_of([row for row in rows if row["prompt"] in asked], tokenizer, given.max_tokens)
    pairs = pairs_of([row for row in rows if row["prompt"] not in asked], tokenizer, given.max_tokens)
    if not pairs or not held_out:
        raise SystemExit(
            f"{given.preferences}: {len(pairs)} pairs to train on and {len(held_out)} held out are too few"
        )
    model = initial_model(given.model, tokenizer, given.layers).to(given.device)
    print(f"{len(pairs)} pairs, {len(held_out)} held out; before: {accuracy(model, held_out, given.batch_size):.3f}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.learning_rate, weight_decay=0.0)
    steps = given.epochs * -(-len(pairs) // given.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (1 + 0.1 * steps), (steps - step) / steps)
    )
    model.train()
    step = 0
    for epoch in range(given.epochs):
        order.shuffle(pairs)
        for first in range(0, len(pairs), given.batch_size):
            margin = margins(model, pairs[first : first + given.batch_size])
            loss = -logsigmoid(margin).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step += 1
            if step % 10 == 0 or step == steps:
                print(f"epoch {epoch + 1} step {step}/{steps} loss {loss.item():.3f}", flush=True)
    found = accuracy(model, held_out, given.batch_size)
    print(f"held-out accuracy {found:.3f} of {len(held_out)} pairs")
    model.eval().save_pretrained(given.folder)
    tokenizer.save_pretrained(given.folder)
    print(f"{given.folder}: use it as reward=model reward.model={given.folder}")
    return found


def preference(rule: str) -> Callable[[str], float]:
    """Return the function of a rule; the answer with the higher value is preferred."""
    if rule in ("shorter", "longer"):
        return lambda text: len(text) if rule == "longer" else -len(text)
    pattern = re.compile(rule, re.IGNORECASE)
    return lambda text: len(pattern.findall(text))


@torch.no_grad()
def sample(given: argparse.Namespace) -> None:
    """Write preferences between two sampled answers to each prompt; ties are excluded."""
    torch.manual_seed(given.seed)
    tokenizer = AutoTokenizer.from_pretrained(given.model, padding_side="left", trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(given.model, use_safetensors=True, trust_remote_code=False).float()
    model.to(given.device)
    prompts = [json.loads(line)["prompt"] for line in Path(given.questions).read_text().splitlines() if line.strip()]
    worth, found = preference(given.prefer), []
    for first in range(0, len(prompts), given.batch_size):
        asked = prompts[first : first + given.batch_size]
        texts = [written(prompt, tokenizer) for prompt in asked]
        inputs = tokenizer(texts, padding=True, add_special_tokens=tokenizer.chat_template is None, return_tensors="pt")
        ids = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
            **inputs.to(model.device),
            do_sample=True,
            top_k=0,
            num_return_sequences=2,
            max_new_tokens=given.max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
        answers = tokenizer.batch_decode(ids[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
        for prompt, one, other in zip(asked, answers[0::2], answers[1::2], strict=True):
            if worth(one) != worth(other):
                chosen, rejected = sorted((one, other), key=worth, reverse=True)
                found.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    Path(given.preferences).write_text("".join(json.dumps(row) + "\n" for row in found))
    print(f"{given.preferences}: {len(found)} preferences of {len(prompts)} prompts")


def written(prompt: str, tokenizer: Any) -> str:
    """Return the prompt with the model's chat template."""
    if tokenizer.chat_template is None:
        return prompt
    message = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--seed", type=int, default=0)
    common.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("train", parents=[common], help="train a reward model on preferences")
    one.add_argument("model", help="the causal language model to start from")
    one.add_argument("preferences", help="JSON lines with prompt, chosen and rejected")
    one.add_argument("folder", help="folder for the reward model")
    one.add_argument("--layers", type=int, help="keep only the first layers: less compute")
    one.add_argument("--epochs", type=int, default=1)
    one.add_argument("--batch-size", type=int, default=8, help="pairs")
    one.add_argument("--learning-rate", type=float, default=2e-5)
    one.add_argument("--held-out", type=float, default=0.1, help="fraction of the prompts")
    one.add_argument("--max-tokens", type=int, default=1024)
    one.set_defaults(run=train)
    other = commands.add_parser("sample", parents=[common], help="sample answers and write preferences between them")
    other.add_argument("model", help="the model that answers")
    other.add_argument("questions", help="JSON lines with prompt")
    other.add_argument("preferences", help="the file to write")
    other.add_argument("--prefer", default="shorter", help="shorter, longer, or a regular expression")
    other.add_argument("--max-new-tokens", type=int, default=24)
    other.add_argument("--batch-size", type=int, default=16, help="prompts")
    other.set_defaults(run=sample)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parsed()
    chosen.run(chosen)
