"""The fault matrix: guarantees, injected faults, expected results, and the tests that show them.

`python tests/faults/matrix.py` writes it into `docs/reliability.md`; test_matrix.py checks that the page is up to date.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
MARKERS = ("<!-- matrix: begin -->", "<!-- matrix: end -->")


@dataclass(frozen=True)
class Row:
    """One guarantee or fault. `tests`: tests as `folder/file::test`, parts of the campaign as `campaign NAME`."""

    subject: str
    expected: str
    tests: tuple[str, ...] = ()
    missing: str = ""  # not covered yet


SURVIVAL = "faults/test_survival.py::"
CHECKPOINT = "runs/test_checkpoint_files.py::"
SAVING = "training/test_saving_ranks.py::"
LEAVING = "training/test_leaving.py::"
WATCHDOG = "runs/test_watchdog.py::"

GUARANTEES = (
    Row(
        "P1 exact resume",
        "metric rows (except times) and weights are byte-equal, wherever the run is stopped",
        (
            "training/test_resume.py::test_stop_at_any_reward_call_and_resume_exactly",
            "training/test_episodes.py::test_preemption_within_an_episode_resumes_exactly",
            "runs/test_launch.py::test_preempted_ranks_save_and_resume_exactly",
            "training/test_shared_policy.py::test_group_resumes_exactly",
            "training/test_shared_base.py::test_bf16_adapters_resume_exactly",
            "training/test_centralized.py::test_team_resumes_exactly",
            "campaign stops",
        ),
    ),
    Row(
        "P2 SIGKILL at any moment",
        "every published checkpoint is usable; at most `checkpoint.every` iterations, or `checkpoint.every_seconds` "
        "and one iteration, are lost",
        (
            SURVIVAL + "test_job_killed_during_save_resumes_exactly",
            CHECKPOINT + "test_due_by_time_since_last_checkpoint",
            "campaign kills",
            "campaign soak",
        ),
    ),
    Row(
        "P3 SIGTERM, SIGUSR1, SIGUSR2 on any rank",
        "checked between two tokens, after the reward, and after the forward passes of each agent; an update that has "
        "started is completed; the run saves and exits with code 75",
        (
            SURVIVAL + "test_run_stopped_in_any_phase_resumes_exactly",
            LEAVING + "test_other_rank_stops_within_a_long_rollout",
            LEAVING + "test_one_preempted_rank_stops_the_other_during_rollout",
            "campaign signals",
        ),
    ),
    Row(
        "P4 time limit",
        "saved before the limit, with a margin of the longest update and save so far; exit code 75",
        (
            "runs/test_deadline.py::test_run_saves_before_time_limit",
            "runs/test_deadline.py::test_deadline_allows_update_and_save",
            "runs/test_deadline.py::test_no_iteration_starts_if_it_would_be_aborted",
            "engine/test_launchers.py::test_job_end_time",
        ),
    ),
    Row(
        "P5 retention",
        "two or more intact checkpoints are kept; older ones are removed after the next one is published; the best one "
        "is kept in addition",
        (
            CHECKPOINT + "test_newest_and_best_are_kept",
            CHECKPOINT + "test_only_newest_are_kept_without_best",
            CHECKPOINT + "test_damaged_checkpoints_do_not_count_as_kept",
        ),
    ),
    Row(
        "P6 integrity",
        "ranks share the check of size and SHA-256 of every file; a damaged checkpoint is reported and skipped",
        (
            CHECKPOINT + "test_every_damage_is_reported_and_skipped",
            CHECKPOINT + "test_load_skips_damaged_checkpoint",
            SAVING + "test_ranks_share_verification_and_agree_on_damage",
            SURVIVAL + "test_flipped_bits_are_detected",
            "campaign flips",
        ),
    ),
    Row(
        "P7 non-finite numbers",
        "no optimizer step, no checkpoint; five such steps in a row end the run with exit code 10",
        (
            "engine/test_zero.py::test_nonfinite_gradient_skipped",
            "training/test_update.py::test_non_finite_gradients_are_skipped_and_end_the_run",
            "training/test_failure.py::test_non_finite_weights_are_not_saved",
        ),
    ),
    Row(
        "P8 hang",
        "stacks of all ranks in the run's folder, exit code 11, no child process remains; the run resumes exactly",
        (
            WATCHDOG + "test_hanging_ranks_write_stacks_and_kill_children",
            WATCHDOG + "test_waiting_or_suspended_ranks_do_not_hang",
            SURVIVAL + "test_hanging_run_exits_with_11_and_resumes_exactly",
            "campaign hangs",
        ),
        "a single process with a main thread that never releases Python's global lock writes stacks and does not exit",
    ),
    Row(
        "P9 one rank dies",
        "the job ends within a minute, and its last message names the rank",
        (LEAVING + "test_killed_rank_is_reported_first_and_last", "campaign points"),
    ),
    Row(
        "P10 failing rewards",
        "retried, then excluded and counted; above the failure budget the run ends with exit code 12; a failure never "
        "counts as score 0",
        (
            "rewards/test_retry.py::test_only_failing_rows_have_no_reward",
            "rewards/test_score.py::test_exceeded_failure_budget_has_exit_code_12",
            "training/test_failure.py::test_failed_reward_saves_and_resumes_exactly",
            "processes/test_pool.py::test_timeout_kills_all_processes_of_the_call",
        ),
    ),
    Row(
        "P11 another number of processes",
        "rejected before anything is loaded, unless `checkpoint.reshard=true`: then prompts and their order are the "
        "same, and numbers agree within rounding",
        (
            "runs/test_folder.py::test_other_world_size_is_rejected",
            "training/test_resume.py::test_rejected_resume_does_not_change_the_run",
            "engine/test_reshard.py::test_resharding_between_one_and_two_ranks",
            "runs/test_launch.py::test_preempted_ranks_save_and_resume_exactly",
            "campaign reshard",
        ),
    ),
    Row(
        "P12 disk full",
        "rejected in advance if it can be detected; a failed checkpoint is removed and training continues; three "
        "failures in a row: exit code 13",
        (
            "training/test_full_disk.py::test_temporarily_full_disk_costs_only_checkpoints",
            "training/test_full_disk.py::test_full_disk_ends_run_which_resumes_later",
            CHECKPOINT + "test_too_small_disk_is_rejected_before_training",
        ),
    ),
    Row(
        "P13 no foreign code, no stored secrets",
        "loading shards runs no code; no file of a run contains a secret, and the run still resumes with it",
        (
            "engine/test_zero.py::test_shards_loaded_as_data",
            "training/test_secrets.py::test_no_file_of_a_run_has_its_secrets",
            "config/test_secrets.py::test_secret_value_is_rejected_and_not_printed",
        ),
    ),
    Row(
        "P14 changed configuration on resume",
        "changes are reported; keys that identify the run cannot change",
        (
            "compose/test_resume.py::test_frozen_keys",
            "compose/test_resume.py::test_config_changes",
        ),
    ),
)
FAULTS = (
    Row(
        "SIGKILL at every point, of rank 0 and of rank 1",
        "as P2 and P9",
        (
            SURVIVAL + "test_job_killed_during_save_resumes_exactly",
            "campaign points",
            "campaign kills",
        ),
    ),
    Row(
        "stop and resume at every step, one and two agents",
        "byte-equal",
        (
            "training/test_resume.py::test_stop_at_any_reward_call_and_resume_exactly",
            "campaign stops",
        ),
    ),
    Row(
        "two resumes of one run at once",
        "the second one is rejected and changes nothing",
        (
            "training/test_resume.py::test_rejected_resume_does_not_change_the_run",
            "compose/test_resume.py::test_active_run_cannot_be_resumed",
            "runs/test_folder.py::test_lock_is_exclusive_and_freed_on_exit",
        ),
    ),
    Row(
        "TERM, USR1, USR2, INT in every phase, twice, during a save",
        "saved, exit code 75 (130 after Ctrl-C), byte-equal after resume",
        (SURVIVAL + "test_run_stopped_in_any_phase_resumes_exactly", "campaign signals"),
    ),
    Row(
        "a signal to one rank during a rollout of several minutes",
        "all ranks abandon the rollout within seconds",
        (LEAVING + "test_other_rank_stops_within_a_long_rollout",),
    ),
    Row(
        "a signal during the warm start of models",
        "the run exits at the next step",
        ("training/test_process.py::test_signal_during_warm_start_ends_the_run",),
    ),
    Row(
        "a signal during the cleanup of a finished run",
        "the exit code is unchanged; Ctrl-C ends the cleanup",
        ("training/test_process.py::test_signal_after_the_end_keeps_the_result",),
    ),
    Row(
        "SIGSTOP of a rank",
        "exit code 11",
        (WATCHDOG + "test_stopped_rank_ends_others_with_exit_code_11", "campaign hangs"),
    ),
    Row(
        "an exception on one rank",
        "both ranks save if both can; one error block; the exit code of the exception",
        (
            LEAVING + "test_failure_on_one_rank_saves_on_both",
            "runs/test_launch.py::test_error_in_one_rank_ends_all",
        ),
    ),
    Row(
        "NaN or infinity in gradients, parameters, rewards, values, logits",
        "as P7; a row without a finite number is excluded from training",
        (
            "engine/test_zero.py::test_nonfinite_gradient_skipped",
            "rewards/test_score.py::test_non_finite_row_is_excluded",
            "formulas/test_logprobs.py::test_nan_logits_propagate",
            "training/test_update.py::test_non_finite_gradients_are_skipped_and_end_the_run",
            "formulas/test_value_loss.py::test_nan_padding_ignored",
        ),
    ),
    Row(
        "flipped bits; truncated, missing and extra files; corrupt manifest and pointer; order of step_9 and step_10",
        "detected, reported, skipped",
        (
            SURVIVAL + "test_flipped_bits_are_detected",
            CHECKPOINT + "test_every_damage_is_reported_and_skipped",
            CHECKPOINT + "test_invalid_pointer_is_none",
            CHECKPOINT + "test_checkpoints_are_sorted_numerically",
        ),
    ),
    Row(
        "all checkpoints damaged",
        "the run ends with exit code 14 and never starts from the beginning",
        (
            CHECKPOINT + "test_no_checkpoint_if_none_is_intact",
            "training/test_resume.py::test_rejected_resume_does_not_change_the_run",
        ),
    ),
    Row(
        "disk full, input/output error, no permission",
        "a warning; no metric is lost",
        (
            SURVIVAL + "test_failing_disk_costs_only_checkpoints",
            "training/test_full_disk.py::test_temporarily_full_disk_costs_only_checkpoints",
        ),
    ),
    Row(
        "files of another rank are missing, late or truncated; each rank has its own disk",
        "the rank waits; after the timeout no checkpoint is published, and a message says that disks are not shared",
        (
            SAVING + "test_checkpoint_without_other_ranks_files_fails",
            SAVING + "test_failed_checkpoint_leaves_no_files",
            CHECKPOINT + "test_files_of_other_ranks_may_appear_late",
            CHECKPOINT + "test_files_of_other_ranks_must_be_complete",
        ),
    ),
    Row(
        "stale temporary folders; a folder that cannot be created",
        "removed; an error on all ranks",
        (
            CHECKPOINT + "test_temporary_folders_are_removed",
            SAVING + "test_all_ranks_raise_if_rank_0_cannot_create_folder",
        ),
    ),
    Row(
        "two jobs in the same second",
        "two folders",
        ("runs/test_folder.py::test_runs_of_the_same_second_get_different_folders",),
    ),
    Row(
        "a signal, or the death of the parent process, during the start of ranks",
        "every rank receives it; exit code 75 (130 after Ctrl-C); no rank remains",
        (
            "runs/test_launch.py::test_starting_rank_receives_earlier_signals",
            "runs/test_launch.py::test_preemption_before_rank_start_is_not_a_failure",
            "runs/test_launch.py::test_rank_exits_if_parent_died_before_prctl",
        ),
    ),
    Row(
        "two runs that start on one machine at the same time",
        "ranks rendezvous at different ports, and only at 127.0.0.1",
        ("runs/test_launch.py::test_rendezvous_port_is_reserved",),
    ),
    Row(
        "ranks started by an external launcher",
        "one folder for all ranks",
        ("runs/test_launch.py::test_torchrun_ranks_agree_on_one_folder",),
    ),
    Row(
        "a different configuration on one rank",
        "every rank reports that rank",
        ("engine/test_distributed.py::test_check_same_on_ranks",),
    ),
    Row(
        "rewards that raise, return None, NaN, too few numbers or other types, call exit, or fork",
        "as P10",
        (
            "rewards/test_score.py::test_message_of_failing_reward",
            "rewards/test_contract.py::test_none_becomes_nan",
            "rewards/test_contract.py::test_contract_violations",
            "rewards/test_retry.py::test_length_error_is_not_bisected",
            "rewards/test_score.py::test_exit_in_reward_is_a_failure",
            LEAVING + "test_reward_pool_works_and_blocked_reward_is_abandoned",
        ),
    ),
    Row(
        "rewards that sleep forever, print a gigabyte, or call `os._exit`",
        "counted as failed, in a separate process (`reward.process=true`)",
        (
            "processes/test_pool.py::test_results_are_in_call_order",
            "rewards/test_function.py::test_killed_process_fails_only_its_row",
        ),
    ),
    Row(
        "an answer with an endless comparison (a tower of powers)",
        "only that row fails",
        ("rewards/test_math.py::test_timeout_fails_only_its_row",),
    ),
    Row(
        "no rows on one rank, equal rewards, empty and truncated responses",
        "finite numbers, equal on every rank",
        (
            "training/test_seldom_speaking.py::test_agent_that_acts_on_one_rank_matches_one_rank",
            "formulas/test_advantages.py::test_equal_scores_have_zero_advantage",
            "training/test_targets.py::test_truncation_modes",
        ),
    ),
    Row(
        "curves that cannot be written",
        "no metric row is lost",
        ("reporting/test_run_log.py::test_failed_curves_do_not_lose_rows",),
    ),
    Row(
        "markup, escape sequences, NUL, lone surrogates, ten megabytes on the console",
        "escaped, never interpreted, truncated",
        (
            "reporting/test_console.py::test_model_text_is_escaped",
            "reporting/test_console.py::test_ten_megabytes_are_truncated_fast",
        ),
    ),
    Row(
        "one job of a sweep fails or is preempted",
        "the other jobs continue; a rerun repeats only that job",
        (
            "runs/test_launch.py::test_failed_job_does_not_stop_sweep_and_is_rerun",
            "runs/test_launch.py::test_preempted_sweep_starts_no_job_and_resumes",
        ),
    ),
)

RESUME = "training/test_resume.py::test_stop_at_any_reward_call_and_resume_exactly"
BASE = "training/test_shared_base.py::"
FAMILIES = "campaign families"
CALL, WRITING = "at a reward call", "within a response; before an update"
RESUMED = (
    Row("independent PPO, two agents, separate critics, fp32", "at any reward call", (RESUME, FAMILIES)),
    Row(
        "every `algorithm=`, with its default critic or none",
        WRITING,
        (FAMILIES, "training/test_resume.py::test_preemption_with_additional_responses_counts_scores_once"),
    ),
    Row(
        "centralised critics (MAPPO)",
        CALL,
        (
            "training/test_centralized.py::test_team_resumes_exactly",
            FAMILIES,
        ),
    ),
    Row(
        "sequential updates of agents (HAPPO)",
        CALL,
        (
            "training/test_learning_order.py::test_resume_keeps_the_update_order",
            FAMILIES,
        ),
    ),
    Row(
        "turns as actions, weights by agent",
        CALL,
        (
            "training/test_update_by_turn.py::test_run_with_agent_weights_resumes_exactly",
            FAMILIES,
        ),
    ),
    Row("a value head", WRITING, (FAMILIES,)),
    Row(
        "adapters, on separate bases and on a shared base",
        "after an iteration, from each kind of checkpoint; within a response",
        (
            BASE + "test_every_checkpoint_kind_resumes_and_evaluates",
            "models/test_lora.py::test_saved_adapter_bytes_deterministic",
            FAMILIES,
        ),
    ),
    Row(
        "a shared policy",
        CALL,
        (
            "training/test_shared_policy.py::test_group_resumes_exactly",
            FAMILIES,
        ),
    ),
    Row(
        "opponent pool, ratings, frozen agents, credit relative to the initial weights",
        CALL,
        (
            "training/test_opponents.py::test_run_with_pool_and_ratings_resumes_exactly",
            "training/test_frozen.py::test_run_with_frozen_agent_resumes_exactly",
            "training/test_credit.py::test_initial_weights_replay_after_resume",
        ),
    ),
    Row(
        "a dialogue of several turns",
        "within an episode",
        ("training/test_episodes.py::test_preemption_within_an_episode_resumes_exactly",),
    ),
    Row(
        "bf16: full models, adapters, agents of two dtypes",
        CALL,
        (
            BASE + "test_bf16_adapters_resume_exactly",
            "training/test_unlike_agents.py::test_mixed_team_resumes_exactly",
            FAMILIES,
        ),
    ),
    Row("ZeRO 3 in fp32 and bf16, on one rank and on two ranks", WRITING, (FAMILIES,)),
    Row(
        "two ranks",
        "by a signal to the job",
        ("runs/test_launch.py::test_preempted_ranks_save_and_resume_exactly", FAMILIES),
    ),
    Row(
        "a SLURM job on two nodes",
        "by the scheduler",
        ("slurm/test_train.py::test_preempted_job_is_requeued_and_resumes_exactly",),
    ),
)


def format_tables() -> str:
    """Return all tables in Markdown."""
    parts = []
    for head, rows in (("guarantee", GUARANTEES), ("fault", FAULTS)):
        parts += [f"| {head} | expected result | tests | not covered |", "|---|---|---|---|"]
        for row in rows:
            tests = "<br>".join(_format_test(name) for name in row.tests)
            parts.append(f"| {row.subject} | {row.expected} | {tests} | {row.missing} |")
        parts.append("")
    parts += ["| resumes exactly | stopped | tests |", "|---|---|---|"]
    parts += [f"| {row.subject} | {row.expected} | {'<br>'.join(map(_format_test, row.tests))} |" for row in RESUMED]
    return "\n".join(parts).rstrip()


def _format_test(name: str) -> str:
    file, _, test = name.partition("::")
    return f"`{file.rpartition('/')[2]}`: {test.removeprefix('test_').replace('_', ' ')}" if test else name


def replace_tables(page: str) -> str:
    """Return the page with current tables."""
    before, rest = page.split(MARKERS[0])
    return "\n".join([before + MARKERS[0], format_tables(), MARKERS[1] + rest.split(MARKERS[1])[1]])


if __name__ == "__main__":
    PAGE.write_text(replace_tables(PAGE.read_text()))
