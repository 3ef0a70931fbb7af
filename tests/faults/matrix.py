"""The fault matrix: what is promised, what is made to go wrong, what must come of it, and what shows it.

`python tests/faults/matrix.py` writes it into `docs/reliability.md`; test_matrix.py sees that it is up to date.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
MARKERS = ("<!-- matrix: begin -->", "<!-- matrix: end -->")


@dataclass(frozen=True)
class Row:
    """One promise or fault. `shown`: tests as `folder/file::test`, parts of the campaign as `campaign NAME`."""

    what: str
    expected: str
    shown: tuple[str, ...] = ()
    missing: str = ""  # of what the project wants and does not have yet


SURVIVAL = "faults/test_survival.py::"
CHECKPOINT = "runs/test_checkpoint_files.py::"
SAVING = "training/test_saving_ranks.py::"
LEAVING = "training/test_leaving.py::"
WATCHDOG = "runs/test_watchdog.py::"

PROMISES = (
    Row(
        "P1 exact resume",
        "rows without times and weights byte-equal, wherever a run was stopped",
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
        "no published checkpoint is unusable; at most `checkpoint.every` iterations, or `checkpoint.every_seconds` and "
        "one iteration, are lost",
        (
            SURVIVAL + "test_a_job_that_is_killed_in_every_part_of_a_save_goes_on_to_the_byte",
            CHECKPOINT + "test_due_by_time_since_last_checkpoint",
            "campaign kills",
            "campaign soak",
        ),
    ),
    Row(
        "P3 SIGTERM, SIGUSR1, SIGUSR2 on any rank",
        "heard between two tokens, after the reward, after each agent's forwards; an update that was begun is "
        "finished; saved, 75",
        (
            SURVIVAL + "test_a_run_that_is_asked_to_leave_in_every_phase_goes_on_to_the_byte",
            LEAVING + "test_other_rank_stops_within_a_long_rollout",
            LEAVING + "test_one_preempted_rank_stops_the_other_during_rollout",
            "campaign signals",
        ),
    ),
    Row(
        "P4 time limit",
        "saved before it, with the longest update and save so far as a margin; 75",
        (
            "runs/test_deadline.py::test_run_saves_before_time_limit",
            "runs/test_deadline.py::test_deadline_allows_update_and_save",
            "runs/test_deadline.py::test_no_iteration_starts_if_it_would_be_aborted",
            "engine/test_launchers.py::test_job_end_time",
        ),
    ),
    Row(
        "P5 retention",
        "two or more intact ones are kept, older ones go after the next is there, the best is kept apart",
        (
            CHECKPOINT + "test_newest_and_best_are_kept",
            CHECKPOINT + "test_only_newest_are_kept_without_best",
            CHECKPOINT + "test_damaged_checkpoints_do_not_count_as_kept",
        ),
    ),
    Row(
        "P6 integrity",
        "size and sha256 of every file, read by all ranks; a damaged one is passed over, and named",
        (
            CHECKPOINT + "test_every_damage_is_reported_and_skipped",
            CHECKPOINT + "test_load_skips_damaged_checkpoint",
            SAVING + "test_ranks_share_verification_and_agree_on_damage",
            SURVIVAL + "test_a_hundred_flipped_bits_are_all_seen",
            "campaign flips",
        ),
    ),
    Row(
        "P7 numbers that are not finite",
        "never stepped on, never saved; five steps in a row end the run with 10",
        (
            "engine/test_zero.py::test_nonfinite_gradient_skipped",
            "training/test_update.py::test_non_finite_gradients_are_skipped_and_end_the_run",
            "training/test_failure.py::test_non_finite_weights_are_not_saved",
        ),
    ),
    Row(
        "P8 hang",
        "stacks of all ranks in the run's folder, exit 11, nothing that was started is left; it goes on to the byte",
        (
            WATCHDOG + "test_hanging_ranks_write_stacks_and_kill_children",
            WATCHDOG + "test_waiting_or_suspended_ranks_do_not_hang",
            SURVIVAL + "test_a_run_that_hangs_ends_with_eleven_and_goes_on_to_the_byte",
            "campaign hangs",
        ),
        "one process whose main thread never gives Python's lock back: stacks, and no end",
    ),
    Row(
        "P9 one rank dies",
        "the job ends within a minute, and names it last",
        (LEAVING + "test_killed_rank_is_reported_first_and_last", "campaign points"),
    ),
    Row(
        "P10 rewards that fail",
        "retried, then left out and counted; beyond the budget the run ends with 12; never 0 instead",
        (
            "rewards/test_retry.py::test_only_failing_rows_have_no_reward",
            "rewards/test_score.py::test_exceeded_failure_budget_has_exit_code_12",
            "training/test_failure.py::test_failed_reward_saves_and_resumes_exactly",
            "rewards/test_processes.py::test_timeout_kills_process_group",
        ),
    ),
    Row(
        "P11 another number of processes",
        "refused before anything is loaded, unless `checkpoint.reshard=true`: then prompts and their order are the "
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
        "refused beforehand where it shows; a failed checkpoint is removed and training goes on; three in a row: 13",
        (
            "training/test_full_disk.py::test_temporarily_full_disk_costs_only_checkpoints",
            "training/test_full_disk.py::test_full_disk_ends_run_which_resumes_later",
            CHECKPOINT + "test_too_small_disk_is_rejected_before_training",
        ),
    ),
    Row(
        "P13 no code from outside, no secrets inside",
        "shards run none when loaded; no file of a run holds a secret, and the run goes on with it",
        (
            "engine/test_zero.py::test_shards_loaded_as_data",
            "training/test_secrets.py::test_no_file_of_a_run_has_its_secrets",
            "config/test_secrets.py::test_secret_value_is_rejected_and_not_printed",
        ),
    ),
    Row(
        "P14 another configuration on resume",
        "the difference is said; what a run is cannot change",
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
            SURVIVAL + "test_a_job_that_is_killed_in_every_part_of_a_save_goes_on_to_the_byte",
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
        "the second is refused, and changes nothing",
        (
            "training/test_resume.py::test_rejected_resume_does_not_change_the_run",
            "compose/test_resume.py::test_active_run_cannot_be_resumed",
            "runs/test_folder.py::test_lock_is_exclusive_and_freed_on_exit",
        ),
    ),
    Row(
        "TERM, USR1, USR2, INT in every phase, twice, during a save",
        "saved, 75 (130 after Ctrl-C), byte-equal after resume",
        (SURVIVAL + "test_a_run_that_is_asked_to_leave_in_every_phase_goes_on_to_the_byte", "campaign signals"),
    ),
    Row(
        "a signal to one rank inside minutes of writing",
        "all ranks abandon it within seconds",
        (LEAVING + "test_other_rank_stops_within_a_long_rollout",),
    ),
    Row(
        "a signal while models warm up",
        "leaves at the next step",
        ("training/test_process.py::test_signal_during_warm_start_ends_the_run",),
    ),
    Row(
        "a signal while a run that has ended puts away what it used",
        "its exit code stays; Ctrl-C ends it",
        ("training/test_process.py::test_signal_after_the_end_keeps_the_result",),
    ),
    Row(
        "SIGSTOP of a rank",
        "exit 11",
        (WATCHDOG + "test_stopped_rank_ends_others_with_exit_code_11", "campaign hangs"),
    ),
    Row(
        "an exception in one rank",
        "both save where both can; one block, its exit code",
        (
            LEAVING + "test_failure_on_one_rank_saves_on_both",
            "runs/test_launch.py::test_error_in_one_rank_ends_all",
        ),
    ),
    Row(
        "NaN or infinity in gradients, parameters, rewards, values, logits",
        "as P7; a row without a finite number does not train",
        (
            "engine/test_zero.py::test_nonfinite_gradient_skipped",
            "rewards/test_score.py::test_non_finite_row_is_excluded",
            "formulas/test_logprobs.py::test_nan_logits_propagate",
            "training/test_update.py::test_non_finite_gradients_are_skipped_and_end_the_run",
            "formulas/test_value_loss.py::test_nan_padding_ignored",
        ),
    ),
    Row(
        "flipped bits, cut, missing and further files, garbled manifest and pointer, step_9 against step_10",
        "seen, named, passed over",
        (
            SURVIVAL + "test_a_hundred_flipped_bits_are_all_seen",
            CHECKPOINT + "test_every_damage_is_reported_and_skipped",
            CHECKPOINT + "test_invalid_pointer_is_none",
            CHECKPOINT + "test_checkpoints_are_sorted_numerically",
        ),
    ),
    Row(
        "all checkpoints damaged",
        "the run stops with 14 and never begins anew",
        (
            CHECKPOINT + "test_no_checkpoint_if_none_is_intact",
            "training/test_resume.py::test_rejected_resume_does_not_change_the_run",
        ),
    ),
    Row(
        "no room, input/output error, no permission",
        "a warning, no number lost",
        (
            SURVIVAL + "test_a_disk_that_fails_now_and_then_costs_checkpoints_and_no_number",
            "training/test_full_disk.py::test_temporarily_full_disk_costs_only_checkpoints",
        ),
    ),
    Row(
        "another rank's files not there, late, or cut; each rank with a disk of its own",
        "awaited for a while; then no checkpoint is published, and that disks are not shared is said",
        (
            SAVING + "test_checkpoint_without_other_ranks_files_fails",
            SAVING + "test_failed_checkpoint_leaves_no_files",
            CHECKPOINT + "test_files_of_other_ranks_may_appear_late",
            CHECKPOINT + "test_files_of_other_ranks_must_be_complete",
        ),
    ),
    Row(
        "stale temporary folders, a folder that cannot be made",
        "cleared away; refused on all ranks together",
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
        "a signal, or the end of who starts them, while ranks are being started",
        "every rank hears it; 75 (130 after Ctrl-C); none is left",
        (
            "runs/test_launch.py::test_starting_rank_receives_earlier_signals",
            "runs/test_launch.py::test_preemption_before_rank_start_is_not_a_failure",
            "runs/test_launch.py::test_rank_exits_if_parent_died_before_prctl",
        ),
    ),
    Row(
        "two runs that begin on one machine at the same time",
        "their ranks meet at different ports, and only at 127.0.0.1",
        ("runs/test_launch.py::test_rendezvous_port_is_reserved",),
    ),
    Row(
        "ranks started by somebody else",
        "one folder",
        ("runs/test_launch.py::test_torchrun_ranks_agree_on_one_folder",),
    ),
    Row(
        "another configuration on one rank",
        "named on every rank",
        ("engine/test_distributed.py::test_check_same_on_ranks",),
    ),
    Row(
        "rewards that raise, give None, NaN, too few numbers, other types, call exit, fork",
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
        "rewards that sleep for ever, print a gigabyte, call `os._exit`",
        "counted as failed, in a process of their own (`reward.process=true`)",
        (
            "rewards/test_processes.py::test_results_are_in_call_order",
            "rewards/test_function.py::test_killed_process_fails_only_its_row",
        ),
    ),
    Row(
        "an answer that takes for ever to be compared (a tower of powers)",
        "that row has failed, and no other",
        ("rewards/test_math.py::test_timeout_fails_only_its_row",),
    ),
    Row(
        "no rows on one rank, equal rewards, empty and cut responses",
        "finite numbers, the same on every rank",
        (
            "training/test_seldom_speaking.py::test_agent_that_acts_on_one_rank_matches_one_rank",
            "formulas/test_advantages.py::test_equal_scores_have_zero_advantage",
            "training/test_targets.py::test_truncation_modes",
        ),
    ),
    Row(
        "curves that cannot be written",
        "no row is lost",
        ("reporting/test_run_log.py::test_failed_curves_do_not_lose_rows",),
    ),
    Row(
        "markup, escape sequences, NUL, lone surrogates, ten megabytes on the console",
        "spelled out, never acted upon, cut",
        (
            "reporting/test_console.py::test_model_text_is_escaped",
            "reporting/test_console.py::test_ten_megabytes_are_truncated_fast",
        ),
    ),
    Row(
        "one job of a sweep fails or is stopped",
        "the others go on; a rerun does that one alone",
        (
            "runs/test_launch.py::test_failed_job_does_not_stop_sweep_and_is_rerun",
            "runs/test_launch.py::test_preempted_sweep_starts_no_job_and_resumes",
        ),
    ),
)

RESUME = "training/test_resume.py::test_stop_at_any_reward_call_and_resume_exactly"
BASE = "training/test_shared_base.py::"
FAMILIES = "campaign families"
CALL, WRITING = "at a call of the reward", "in the middle of a response; before an update"
RESUMED = (
    Row("independent PPO, two agents, separate critics, fp32", "at any call of the reward", (RESUME, FAMILIES)),
    Row(
        "every `algorithm=`, with its own critic or none",
        WRITING,
        (FAMILIES, "training/test_resume.py::test_preemption_with_greedy_responses_counts_scores_once"),
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
        "agents that learn in turn (HAPPO)",
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
        "adapters, alone and on a shared base",
        "after an iteration, from checkpoints of each kind; in the middle of a response",
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
        "partners, ratings, frozen agents, credit against the initial weights",
        CALL,
        (
            "training/test_opponents.py::test_run_with_pool_and_ratings_resumes_exactly",
            "training/test_frozen.py::test_run_with_frozen_agent_resumes_exactly",
            "training/test_credit.py::test_initial_weights_replay_after_resume",
        ),
    ),
    Row(
        "a dialogue of several turns",
        "in the middle of an episode",
        ("training/test_episodes.py::test_preemption_within_an_episode_resumes_exactly",),
    ),
    Row(
        "bf16: whole models, adapters, agents of two formats",
        CALL,
        (
            BASE + "test_bf16_adapters_resume_exactly",
            "training/test_unlike_agents.py::test_mixed_team_resumes_exactly",
            FAMILIES,
        ),
    ),
    Row("ZeRO 3, in fp32 and bf16, on one rank and on two", WRITING, (FAMILIES,)),
    Row(
        "two ranks",
        "by a signal to the job",
        ("runs/test_launch.py::test_preempted_ranks_save_and_resume_exactly", FAMILIES),
    ),
    Row(
        "a job of SLURM on two nodes",
        "by its scheduler",
        ("slurm/test_train.py::test_a_job_that_is_asked_to_leave_is_queued_again_and_goes_on_to_the_byte",),
    ),
)


def table() -> str:
    """All tables in Markdown."""
    parts = []
    for head, rows in (("promise", PROMISES), ("fault", FAULTS)):
        parts += [f"| {head} | what must come of it | shown by | not there yet |", "|---|---|---|---|"]
        for row in rows:
            shown = "<br>".join(_shown(name) for name in row.shown)
            parts.append(f"| {row.what} | {row.expected} | {shown} | {row.missing} |")
        parts.append("")
    parts += ["| resumed to the byte | stopped | shown by |", "|---|---|---|"]
    parts += [f"| {row.what} | {row.expected} | {'<br>'.join(map(_shown, row.shown))} |" for row in RESUMED]
    return "\n".join(parts).rstrip()


def _shown(name: str) -> str:
    file, _, test = name.partition("::")
    return f"`{file.rpartition('/')[2]}`: {test.removeprefix('test_').replace('_', ' ')}" if test else name


def with_table(page: str) -> str:
    """The page with the tables as they are now."""
    before, rest = page.split(MARKERS[0])
    return "\n".join([before + MARKERS[0], table(), MARKERS[1] + rest.split(MARKERS[1])[1]])


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
