"""Spikes of the gradient norm against the median of the steps before."""

from __future__ import annotations

from ippo_cli.agents.grad_norms import MIN_STEPS, WINDOW, GradNorms


def test_spikes_by_hand() -> None:
    norms = GradNorms()
    assert not norms.record(1.0)
    assert not norms.record(100.0), "one step before it has no median"
    for number in range(MIN_STEPS - 2):
        assert not norms.record(1.0 + number / 10)
    # 1 1 1.1 1.2 1.3 1.4 1.5 1.6 1.7 100: the median is 1.35, and 3 times that is 4.05
    assert norms.record(4.06)
    norms.recent.pop()
    assert not norms.record(4.04)


def test_window_forgets_earlier_steps() -> None:
    norms = GradNorms([1.0] * WINDOW)
    for _ in range(WINDOW // 2 + 1):
        norms.record(5.0)
    assert len(norms.recent) == WINDOW
    assert not norms.record(14.0), "the median is 5 now"
    assert norms.record(15.1)


def test_saved_norms_continue() -> None:
    norms = GradNorms([1.0, 2.0, 3.0] * 4)
    copy = GradNorms(norms.recent)
    assert [copy.record(norm) for norm in (5.9, 6.1, 7.0)] == [norms.record(norm) for norm in (5.9, 6.1, 7.0)]
    assert copy.recent == norms.recent
