"""Two ranks share a server: one of them transfers weights, and a failure of one ends both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_server import serve
from rank_scripts import found_by_ranks

from ippo_cli.rollout.shared_tensors import boot_id

pytestmark = pytest.mark.slow
DESCRIPTION = {
    "dtype": "float32",
    "vocab_size": 259,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "logprobs_mode": "processed_logprobs",
    "max_loras": 0,
    "boot_id": boot_id(),
}


def test_first_rank_transfers_weights_and_failures_are_shared(tmp_path: Path) -> None:
    calls: list[str] = []

    def answer(path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "model", "max_model_len": 4096}]}
        if path == "/reset_prefix_cache?reset_running_requests=true":
            calls.append(path)
            return 200, {"success": True}
        if path != "/collective_rpc":
            calls.append(path)
            return 200, {}
        calls.append(body["method"])
        if body["method"] == "ippo_describe":
            file = Path(body["args"][0])
            return 200, {"results": [DESCRIPTION | {"word": file.read_text() if file.is_file() else None}]}
        return 200, {"results": [{"lm_head.weight": ["lm_head.weight"]}]}

    with serve(answer) as url:
        first, second = found_by_ranks(Path(__file__).with_name("sharing_ranks.py"), url, folder=tmp_path)
    assert (first["shared"], second["shared"]) == (["done", True], ["done", False])
    assert [call for call in calls if call != "ippo_describe"] == [
        "/pause?mode=keep",  # the other rank may have requests in flight
        "ippo_load_shared",
        "ippo_finish",
        "/reset_prefix_cache?reset_running_requests=true",
        "/update_weight_version",
        "/resume",
    ]
    assert first["absent"][:2] == ["EngineError", 16]
    assert "rollout.vllm.url=http://127.0.0.1:1: the server cannot be reached" in first["absent"][2]
    assert second["absent"] == ["OtherRankFailed", 16, "exiting because rank 0 failed"]
    for rank, found in enumerate((first["too few"], second["too few"])):
        assert found[0] == "EngineError"
        assert f"has no address for the model of low and ranks {rank}; list one address" in found[2]
