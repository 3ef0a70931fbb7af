"""Embedding of sample files: chunks, and what is left out when there is no space."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from synthetic import write_run

from ippo_cli.report.samples import EmbeddedSamples, embed_samples
from ippo_cli.runs.records import RunRecord


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return RunRecord(write_run(tmp_path_factory.mktemp("runs") / "a", iterations=20, files=4, episodes_per_file=4))


def decode(found: EmbeddedSamples, name: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(found.chunks[name])))


def kept(found: EmbeddedSamples, kind: str) -> list[tuple[str, int]]:
    return [(file["mode"], file["iteration"]) for file in found.files if file[kind]]


def test_texts_and_token_values_are_apart(run: RunRecord) -> None:
    found = embed_samples([run], 10**9)
    number = next(number for number, file in enumerate(found.files) if file["mode"] == "train")
    texts, tokens = decode(found, f"text-{number}"), decode(found, f"tokens-{number}")
    original = run.sample_files[number].episodes()
    assert [turn["tokens"] for turn in original[1]["turns"]] == tokens[1]
    assert "tokens" not in texts[1]["turns"][0]
    assert texts[1]["turns"][0]["observation"] == original[1]["turns"][0]["observation"]
    assert texts[1]["agents"] == {name: {"score": row["score"]} for name, row in original[1]["agents"].items()}
    assert found.notes == []
    assert len(found.index) == sum(len(file.episodes()) for file in run.sample_files)


def test_evaluations_have_no_tokens(run: RunRecord) -> None:
    assert ("eval", 5) in kept(embed_samples([run], 10**9), "text")
    assert ("eval", 5) not in kept(embed_samples([run], 10**9), "tokens")


def test_token_values_of_old_files_are_left_out_first(run: RunRecord) -> None:
    whole = embed_samples([run], 10**9)
    found = embed_samples([run], whole.size - 1)
    assert kept(found, "text") == kept(whole, "text")
    assert kept(found, "tokens") == kept(whole, "tokens")[1:]
    assert found.size <= whole.size - 1
    assert found.notes[0].startswith("Token values of the oldest 1 of 4 sample files are left out")


def test_texts_of_old_files_are_left_out_without_space(run: RunRecord) -> None:
    whole = embed_samples([run], 10**9)
    texts = sum(len(data) for name, data in whole.chunks.items() if name.startswith("text"))
    found = embed_samples([run], texts - 1)
    assert kept(found, "tokens") == []
    assert kept(found, "text") == [file for file in kept(whole, "text") if file != ("train", 5)]
    assert len(found.index) == len(whole.index)
    assert [note.split(" of ")[0] for note in found.notes] == ["Texts", "Token values"]


def test_a_damaged_file_has_the_episodes_before_the_damage(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", iterations=5, files=1, episodes_per_file=3)
    file = folder / "samples" / "train_00000005.jsonl"
    file.write_text(file.read_text()[:-200])
    found = embed_samples([RunRecord(folder)], 10**9)
    assert found.index.to_data()["file"].count(0) == 2


def test_samples_of_incomplete_groups_are_no_equal_groups(tmp_path: Path) -> None:
    for size, count in ((2, 4), (8, 0)):
        folder = write_run(
            tmp_path / str(size), files=1, episodes_per_file=4, settings={"rollout": {"num_generations": size}}
        )
        file = folder / "samples" / "train_00000400.jsonl"
        episodes = [json.loads(line) for line in file.read_text().splitlines()]
        for place, episode in enumerate(episodes):
            episode["group"] = place // 2
            for row in episode["agents"].values():
                row["score"] = 0.5
        file.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
        flags = embed_samples([RunRecord(folder)], 10**9).index.to_data()
        assert (
            sum(flag for flag, number in zip(flags["zero_variance"], flags["file"], strict=True) if not number) == count
        )
