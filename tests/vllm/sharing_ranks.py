"""One rank of test_sharing_ranks.py: uses the server at an address, and prints what it did as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tiny_engine import build_engine_model, build_model, build_settings, build_tokenizer

from ippo_cli.config.errors import IppoError
from ippo_cli.engine import distributed
from ippo_cli.rollout.vllm.shared_server import SharedServerEngine


def use_server(url: str, **settings: Any) -> list[Any]:
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    made = build_settings(url=[url], request_timeout_s=20.0, **settings)
    engine = SharedServerEngine(
        build_engine_model(model, tokenizer), made, torch.device("cpu"), number=0, log_folder=Path("unused")
    )
    try:
        with distributed.synchronize_errors():
            engine.start()
        with distributed.synchronize_errors():
            engine.load_weights([(name, parameter.detach()) for name, parameter in model.named_parameters()], 1)
        return ["done", engine._transfer is not None]
    except IppoError as error:
        return [type(error).__name__, error.exit_code, str(error)]
    finally:
        engine.close()


if __name__ == "__main__":
    distributed.init(device="cpu", timeout_s=120)
    found = {
        "shared": use_server(sys.argv[1]),
        "absent": use_server("http://127.0.0.1:1"),
        "too few": use_server(sys.argv[1], ranks_per_server=1),
    }
    distributed.shutdown()
    print(json.dumps(found))
