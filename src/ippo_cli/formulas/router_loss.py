"""Load balancing of mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ippo_cli.formulas.shapes import Routers, Scalar


def router_loss(logits: Sequence[Routers], *, top_k: int) -> Scalar:
    """`E sum_e f_e P_e` over the tokens of all layers, given each layer's router logits `[N, E]`.

    f_e is the mean number of times that a token chooses expert e, without gradient, P_e its mean probability. The loss
    is `top_k` where experts are chosen equally often, and 0 without tokens.

    Source: Fedus et al. 2021, "Switch Transformers", eq. 4 to 6; for `top_k` experts and several layers as
    `load_balancing_loss_func` of transformers.
    """
    probabilities = torch.cat([layer.float().softmax(dim=-1) for layer in logits])
    tokens, experts = probabilities.shape
    chosen = probabilities.detach().topk(top_k, dim=-1).indices.flatten()
    counts = torch.zeros(experts, device=probabilities.device).index_add_(0, chosen, torch.ones_like(chosen).float())
    return experts * (counts * probabilities.sum(dim=0)).sum() / max(tokens, 1) ** 2
