"""Templates, and the stream of prompts that depends on seed and index alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.load import compose_node, resolve, typed
from ippo_cli.config.schema import AgentConfig
from ippo_cli.models.tiny import character_tokenizer
from ippo_cli.tasks.prompts import PromptStream, render_template, share

ROWS = [{"letters": "abcdefghij"[: row % 7 + 1], "n": row} for row in range(10)]
CHAT = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
Make = Callable[..., PromptStream]


@pytest.fixture(scope="module")
def agents() -> dict[str, AgentConfig]:
    return typed(resolve(compose_node([]))).task.agents


@pytest.fixture
def stream(agents: dict[str, AgentConfig]) -> Make:
    """A maker of streams over ten rows, four prompts of two generations at a time."""

    def make(examples: Any = ROWS, **changes: Any) -> PromptStream:
        texts = changes.pop("texts", {})
        asked = {name: AgentConfig(**{**vars(agent), **texts.get(name, {})}) for name, agent in agents.items()}
        tokenizer = character_tokenizer([chr(code) for code in range(32, 127)])
        tokenizer.chat_template = changes.pop("template", None)
        settings = {"seed": 3, "prompts_per_iteration": 4, "num_generations": 2, "max_prompt_tokens": 60}
        return PromptStream(
            examples, asked, dict.fromkeys(asked, tokenizer), **{**settings, "chat_template": False, **changes}
        )

    return make


def texts(stream: PromptStream, ids: torch.Tensor, mask: torch.Tensor) -> list[str]:
    tokenizer = stream.tokenizers["low"]
    return [tokenizer.decode(row[keep]) for row, keep in zip(ids, mask, strict=True)]


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{a}<", "x<"),
        ("{a}{b}{a}", "x2x"),
        ("no field", "no field"),
        ("", ""),
        ('{{"key": {a}}}', '{"key": x}'),
        ("{{{a}}}", "{x}"),
        ("{c}", "{a}"),  # what an example says is never a template
        ("{d.e}", "dotted"),
        ("line\n{a}\t", "line\nx\t"),
    ],
)
def test_fields_are_replaced_and_double_braces_are_braces(template: str, filled: str) -> None:
    assert render_template(template, {"a": "x", "b": 2, "c": "{a}", "d.e": "dotted"}, "where") == filled


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ("{x}", "names the field 'x', which examples do not have; they have: a b"),
        ("{}", "names the field '', which"),
        ("{0}", "names the field '0', which"),
        ("{a.b}", "names the field 'a.b', which"),
        ("{a:>8}", "formats the field 'a', .*; write {a}, or {{ and }} for braces"),
        ("{a!r}", "formats the field 'a'"),
        ('{"key": 1}', "formats the field '\"key\"'"),
        ("{a", "is no template .*; write {{ and }} for braces"),
        ("a}", "is no template"),
        ("{n}", "names the field 'n', which is null in an example"),
    ],
)
def test_a_template_that_does_not_fit_is_a_mistake_in_the_configuration(template: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as raised:
        render_template(
            template, {"a": "x", "b": 2, **({"n": None} if "n}" in template else {})}, "task.agents.low.template"
        )
    assert str(raised.value).startswith(f"task.agents.low.template={template!r} ")


@pytest.mark.parametrize(("total", "ranks"), [(10, 3), (8, 2), (3, 4), (0, 2), (7, 7)])
def test_shares_cover_everything_once_and_differ_by_at_most_one(total: int, ranks: int) -> None:
    parts = [share(total, rank, ranks) for rank in range(ranks)]
    assert [row for part in parts for row in part] == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_each_pass_over_the_data_shows_every_row_once_in_an_order_of_its_own(stream: Make) -> None:
    made = stream(prompts_per_iteration=5, num_generations=1)
    passes = [
        [row["n"] for half in (0, 1) for row in made.batch(2 * number + half, 0, 1)["low"].examples]
        for number in range(4)
    ]
    assert all(sorted(order) == list(range(10)) for order in passes)
    assert len({tuple(order) for order in passes}) == 4


def test_a_pass_may_end_within_an_iteration(stream: Make) -> None:
    made = stream(prompts_per_iteration=4, num_generations=1)
    seen = [row["n"] for iteration in range(5) for row in made.batch(iteration, 0, 1)["low"].examples]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))


def test_a_batch_larger_than_the_data_takes_whole_passes(stream: Make) -> None:
    made = stream(prompts_per_iteration=25, num_generations=1)
    seen = [row["n"] for row in made.batch(0, 0, 1)["low"].examples]
    assert sorted(seen[:10]) == sorted(seen[10:20]) == list(range(10))
    assert len(set(seen[20:])) == 5


def test_what_comes_depends_on_seed_and_index_and_not_on_what_was_asked_before(stream: Make) -> None:
    made = stream()
    ahead = made.batch(7, 0, 1)["low"]
    for iteration in (0, 3, 7):
        again = made.batch(iteration, 0, 1)["low"]
    fresh = stream().batch(7, 0, 1)["low"]
    assert ahead.examples == again.examples == fresh.examples
    assert torch.equal(ahead.ids, fresh.ids)
    assert torch.equal(ahead.index, fresh.index)
    assert stream(seed=4).batch(7, 0, 1)["low"].examples != ahead.examples


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_together_see_what_one_rank_sees(ranks: int, stream: Make) -> None:
    made = stream()
    for iteration in (0, 2):
        whole = made.batch(iteration, 0, 1)["high"]
        parts = [stream().batch(iteration, rank, ranks)["high"] for rank in range(ranks)]
        assert [row for part in parts for row in part.examples] == whole.examples
        assert torch.cat([part.index for part in parts]).tolist() == whole.index.tolist()
        split = [text for part in parts for text in texts(made, part.ids, part.mask)]
        assert split == texts(made, whole.ids, whole.mask)


def test_responses_to_one_prompt_lie_together_under_indices_of_their_own(stream: Make) -> None:
    first, second = (stream().batch(iteration, 0, 1)["low"] for iteration in (0, 1))
    assert first.index.tolist() == list(range(8))
    assert second.index.tolist() == list(range(8, 16))
    numbers = [row["n"] for row in first.examples]
    assert numbers[::2] == numbers[1::2]
    assert len(set(numbers)) == 4


def test_every_agent_is_asked_about_the_same_examples_in_its_own_words(stream: Make) -> None:
    made = stream()
    batch = made.batch(1, 0, 1)
    assert list(batch) == ["low", "high"]
    assert batch["low"].examples == batch["high"].examples
    assert torch.equal(batch["low"].index, batch["high"].index)
    for name, end in (("low", "<"), ("high", ">")):
        expected = [row["letters"] + end for row in batch[name].examples]
        assert texts(made, batch[name].ids, batch[name].mask) == expected


def test_prompts_are_padded_on_the_left_and_masks_come_from_lengths(stream: Make) -> None:
    made = stream()
    batch = made.tokenize_prompts([{"letters": "a"}, {"letters": "abc"}], torch.tensor([5, 6]))["low"]
    tokenizer = made.tokenizers["low"]
    assert batch.mask.tolist() == [[False, False, True, True], [True] * 4]
    assert batch.ids[0, 2:].tolist() == tokenizer("a<").input_ids
    assert batch.ids.dtype == torch.int64
    assert batch.index.tolist() == [5, 6]


def test_asking_about_nothing_gives_an_empty_batch(stream: Make) -> None:
    batch = stream().tokenize_prompts([], torch.zeros(0, dtype=torch.long))["low"]
    assert len(batch.ids) == len(batch.mask) == len(batch.examples) == 0


def test_a_chat_template_wraps_prompt_and_system_message(stream: Make) -> None:
    made = stream(
        chat_template=True,
        template=CHAT,
        texts={"high": {"system": "Be brief."}, "low": {"template": "Sort {letters}"}},
    )
    assert made.text("low", {"letters": "ba"}) == "<user>Sort ba<assistant>"
    assert made.text("high", {"letters": "ba"}) == "<system>Be brief.<user>ba><assistant>"
    batch = made.tokenize_prompts([{"letters": "ba"}], torch.tensor([0]))["low"]
    assert texts(made, batch.ids, batch.mask) == ["<user>Sort ba<assistant>"]


def test_a_chat_template_that_is_not_there_is_told_before_training(stream: Make) -> None:
    with pytest.raises(ConfigError, match=r"^task\.chat_template=true needs a chat template, and agent low's .*; set"):
        stream(chat_template=True)


def test_auto_uses_a_chat_template_where_the_tokenizer_has_one(stream: Make) -> None:
    row = {"letters": "ba"}
    assert stream(chat_template="auto", template=CHAT).text("low", row) == "<user>ba<<assistant>"
    assert stream(chat_template="auto").text("low", row) == "ba<"
    assert stream(chat_template=False, template=CHAT).text("low", row) == "ba<"


def test_a_system_message_that_no_chat_template_would_write_is_refused(stream: Make) -> None:
    briefly = {"high": {"system": "Be brief."}}
    stream(chat_template="auto", template=CHAT, texts=briefly)
    with pytest.raises(
        ConfigError, match=r"^task\.agents\.high\.system='Be brief\.' has an effect with a chat .*; use"
    ):
        stream(chat_template="auto", texts=briefly)


def test_a_prompt_that_is_too_long_is_an_error_and_never_cut(stream: Make) -> None:
    made = stream(max_prompt_tokens=6)
    made.tokenize_prompts([{"letters": "abcde"}], torch.tensor([0]))
    with pytest.raises(ConfigError) as raised:
        made.tokenize_prompts([{"letters": "abcde"}, {"letters": "abcdef"}], torch.tensor([0, 1]))
    said = str(raised.value)
    assert said.startswith("rollout.max_prompt_tokens=6 does not allow agent low's prompt of 7 tokens, 'abcdef<'; ")


WIDE = {"low": 99, "high": 99}


def test_a_prompt_that_is_too_long_is_found_before_it_is_asked(stream: Make) -> None:
    made = stream(max_prompt_tokens=6)
    with pytest.raises(ConfigError) as raised:
        made.refuse_too_long(enumerate(ROWS), "the training data", WIDE)
    said = "rollout.max_prompt_tokens=6 does not allow agent low's prompt of 7 tokens, row 5 of the training data, "
    assert str(raised.value).startswith(said + "'abcdef<'; ")
    made.refuse_too_long(enumerate(ROWS[:5]), "the training data", WIDE)
    with pytest.raises(ConfigError, match=r"^rollout\.max_prompt_tokens=60 lets in .*, which leaves no room") as raised:
        stream().refuse_too_long(enumerate(ROWS), "the data", WIDE | {"high": 6})
    assert "agent high's prompt of 6 tokens, row 4 of the data, 'abcde>'" in str(raised.value)
    assert "in its context of 6; " in str(raised.value)


def test_what_a_chat_template_writes_counts(stream: Make) -> None:
    made = stream(chat_template=True, template="<" * 40 + CHAT, max_prompt_tokens=99)
    made.refuse_too_long(enumerate(ROWS), "the data", {"low": 66, "high": 66})
    with pytest.raises(ConfigError, match="agent low's prompt of 65 tokens, row 6 of the data"):
        made.refuse_too_long(enumerate(ROWS), "the data", {"low": 65, "high": 65})


def test_a_long_row_far_behind_short_ones_is_found(stream: Make) -> None:
    many = [{"letters": "ab"}] * 1500 + [{"letters": "a" * 60}]
    with pytest.raises(ConfigError, match="prompt of 61 tokens, row 1500 of the data"):
        stream().refuse_too_long(enumerate(many), "the data", WIDE)


@pytest.mark.parametrize(("iterations", "rows"), [(1, 4), (2, 8), (3, 10), (9, 10)])
def test_only_rows_that_a_run_reaches_are_looked_at(iterations: int, rows: int, stream: Make) -> None:
    made = stream(num_generations=1)
    asked = dict(made.scheduled_examples(iterations))
    seen = [row["n"] for number in range(iterations) for row in made.batch(number, 0, 1)["low"].examples]
    assert sorted(asked) == sorted(set(seen))
    assert len(asked) == rows
    assert all(example["n"] == row for row, example in asked.items())


def test_the_character_tokenizer_reads_lines_ends_as_characters() -> None:
    tokenizer = character_tokenizer("ab\n ")
    ids = tokenizer("a\n\n b\n").input_ids
    assert len(ids) == 6
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == "a\n\n b\n"


def test_an_empty_prompt_is_an_error(stream: Make) -> None:
    with pytest.raises(ConfigError, match="prompt of 0 tokens, ''; prompts must have a token"):
        stream(texts={"low": {"template": ""}}).tokenize_prompts([{"letters": "a"}], torch.tensor([0]))
