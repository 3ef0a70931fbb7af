"""Start a vLLM server that training can send weights to: `python -m ippo_cli.rollout.vllm.serve MODEL [ARGUMENTS]`.

`ARGUMENTS` are those of `vllm serve`, such as `--port 8000`. The server listens on this host only unless `--host` says
otherwise: everyone who reaches it can replace its weights.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

COMMAND = "python -m ippo_cli.rollout.vllm.serve MODEL --port 8000"
EXTENSION = "ippo_cli.rollout.vllm.worker_extension.WorkerExtension"
PROCESSOR = "ippo_cli.rollout.vllm.noise_processor:NoiseProcessor"
V1_RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
"""Environment of engines with `PROCESSOR`: vLLM's second model runner has another interface for such classes."""
SETTINGS = {
    "VLLM_SERVER_DEV_MODE": "1",  # /collective_rpc, /reset_prefix_cache
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer may use the same cores
}
MODULES = ("vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server")
"""Newest first. `vllm serve` is not used: it fails for a vLLM that is installed under another name."""


def server_arguments(model: str, arguments: Sequence[str]) -> list[str]:
    """The command line of vLLM's server, without the program."""
    fixed = {
        "--worker-extension-cls": EXTENSION,
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",
    }
    flags = [part for name, value in fixed.items() if name not in arguments for part in (name, value)]
    if "--uds" not in arguments and "--host" not in arguments:
        flags += ["--host", "127.0.0.1"]
    return ["--model", model, "--enable-scale-out", *flags, *arguments]


def main(arguments: Sequence[str]) -> None:
    """Run the server in this process."""
    if not arguments or arguments[0].startswith("-"):
        raise SystemExit(f"usage: {COMMAND} [arguments of vllm serve]")
    os.environ.update({name: value for name, value in SETTINGS.items() if name not in os.environ})
    if PROCESSOR in arguments:
        os.environ.update(V1_RUNNER)
    sys.argv[1:] = server_arguments(arguments[0], arguments[1:])
    for module in MODULES:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=False)
        except ImportError as error:
            if error.name is None or not module.startswith(error.name):
                raise
        else:
            return
    raise SystemExit("vllm is not installed, or not a version with its API server; see docs/vllm.md")


if __name__ == "__main__":
    main(sys.argv[1:])
