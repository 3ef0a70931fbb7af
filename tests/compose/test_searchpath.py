"""Sources of options: Hydra's registry after it was sent to a job of a launcher."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

from omegaconf import OmegaConf

import ippo_cli
from ippo_cli.compose.searchpath import BUILTIN_OPTIONS, load_builtin_option

RESTORE = """
import pickle, sys
from hydra.core.singleton import Singleton
Singleton.set_state(pickle.load(sys.stdin.buffer))
from hydra._internal.sources_registry import SourcesRegistry
print(SourcesRegistry.instance().resolve("file").__qualname__)
"""
STORE = """
import pickle, sys
from hydra.core.singleton import Singleton
from ippo_cli.compose.load import register_options
register_options()
instances = {kind: value for kind, value in Singleton.get_state()["instances"].items() if "ources" in kind.__name__}
sys.stdout.buffer.write(pickle.dumps({"instances": instances, "omegaconf_resolvers": {}}))
"""


def run(program: str, given: bytes = b"") -> bytes:
    environment = os.environ | {"PYTHONPATH": str(Path(ippo_cli.__file__).parents[1])}
    ended = subprocess.run([sys.executable, "-c", program], input=given, env=environment, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout


def test_registry_of_sources_can_be_restored_in_another_process() -> None:
    state = run(STORE)
    assert pickle.loads(state)["instances"]
    assert run(RESTORE, state).split() == [b"OptionFolder"]


def test_built_in_options_are_read_as_omegaconf_reads_them() -> None:
    files = sorted(BUILTIN_OPTIONS.rglob("*.yaml"))
    assert len(files) > 100
    for file in files:
        assert repr(OmegaConf.create(load_builtin_option(file.read_text()))) == repr(OmegaConf.load(file)), file
