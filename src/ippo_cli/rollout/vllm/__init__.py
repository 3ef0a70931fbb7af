"""`rollout=vllm`: generation by vLLM engines, and the transfer of weights to them."""
