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
CHECKPOINT = "training/test_checkpoint_files.py::"
SAVING = "training/test_saving_ranks.py::"
LEAVING = "training/test_leaving.py::"
WATCHDOG = "training/test_watchdog.py::"

PROMISES = (
    Row(
        "P1 exact resume",
        "rows without times and weights byte-equal, wherever a run was stopped",
        (
            "training/test_resume.py::test_stopping_at_any_call_of_the_reward_and_resuming_changes_nothing",
            "training/test_episodes.py::test_stopping_in_the_middle_of_an_episode_and_resuming_changes_nothing",
            "training/test_launch.py::test_two_ranks_that_are_asked_to_leave_save_and_resume_to_the_byte",
            "training/test_shared_policy.py::test_a_group_that_is_stopped_and_resumed_is_the_group_that_never_stopped",
            "training/test_shared_base.py::test_adapters_in_bf16_learn_and_are_resumed_exactly",
            "training/test_centralized.py::test_a_team_that_is_stopped_and_resumed_is_the_team_that_never_stopped",
            "campaign stops",
        ),
    ),
    Row(
        "P2 SIGKILL at any moment",
        "no published checkpoint is unusable; at most `checkpoint.every` iterations, or `checkpoint.every_seconds` and "
        "one iteration, are lost",
        (
            SURVIVAL + "test_a_job_that_is_killed_in_every_part_of_a_save_goes_on_to_the_byte",
            CHECKPOINT + "test_a_checkpoint_is_due_by_time_after_the_last_one_whatever_made_that_due",
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
            LEAVING + "test_the_other_rank_does_not_write_to_the_end_of_a_long_rollout_first",
            LEAVING + "test_one_rank_that_is_asked_in_the_middle_of_a_rollout_takes_the_other_along",
            "campaign signals",
        ),
    ),
    Row(
        "P4 time limit",
        "saved before it, with the longest update and save so far as a margin; 75",
        (
            "training/test_time_limit.py::test_a_run_saves_before_its_time_limit",
            "training/test_time_limit.py::test_a_run_leaves_early_enough_to_finish_an_update_and_to_save",
            "training/test_time_limit.py::test_no_iteration_is_begun_that_would_be_given_up",
            "engine/test_launchers.py::test_a_jobs_end_is_what_slurm_says_in_its_variables_or_when_asked",
        ),
    ),
    Row(
        "P5 retention",
        "two or more intact ones are kept, older ones go after the next is there, the best is kept apart",
        (
            CHECKPOINT + "test_the_newest_ones_and_the_best_are_kept",
            CHECKPOINT + "test_without_best_only_the_newest_ones_are_kept",
            CHECKPOINT + "test_damaged_checkpoints_that_were_passed_over_are_none_of_those_that_are_kept",
        ),
    ),
    Row(
        "P6 integrity",
        "size and sha256 of every file, read by all ranks; a damaged one is passed over, and named",
        (
            CHECKPOINT + "test_every_damage_is_seen_named_and_passed_over",
            CHECKPOINT + "test_loading_falls_back_past_a_damaged_checkpoint",
            SAVING + "test_each_rank_reads_its_share_of_a_checkpoint_and_damage_in_any_is_every_ranks",
            SURVIVAL + "test_a_hundred_flipped_bits_are_all_seen",
            "campaign flips",
        ),
    ),
    Row(
        "P7 numbers that are not finite",
        "never stepped on, never saved; five steps in a row end the run with 10",
        (
            "engine/test_zero.py::test_a_gradient_that_is_not_finite_is_never_stepped_on",
            "training/test_update.py::"
            "test_a_step_with_a_gradient_that_is_no_number_is_skipped_counted_and_ends_the_run_in_the_end",
            "training/test_failure.py::test_weights_that_are_not_finite_are_not_saved",
        ),
    ),
    Row(
        "P8 hang",
        "stacks of all ranks in the run's folder, exit 11, nothing that was started is left; it goes on to the byte",
        (
            WATCHDOG + "test_ranks_that_hang_leave_their_stacks_tell_of_it_once_and_take_along_what_they_started",
            WATCHDOG + "test_who_waits_for_another_or_has_a_limit_of_its_own_or_was_suspended_does_not_hang",
            SURVIVAL + "test_a_run_that_hangs_ends_with_eleven_and_goes_on_to_the_byte",
            "campaign hangs",
        ),
        "one process whose main thread never gives Python's lock back: stacks, and no end",
    ),
    Row(
        "P9 one rank dies",
        "the job ends within a minute, and names it last",
        (LEAVING + "test_a_rank_that_is_killed_is_named_first_and_last", "campaign points"),
    ),
    Row(
        "P10 rewards that fail",
        "retried, then left out and counted; beyond the budget the run ends with 12; never 0 instead",
        (
            "rewards/test_retry.py::test_rows_that_always_fail_are_the_only_ones_without_a_reward",
            "rewards/test_score.py::test_failures_beyond_the_budget_end_the_run_with_twelve",
            "training/test_failure.py::test_a_run_whose_reward_fails_saves_first_and_resumes_as_if_it_had_not",
            "rewards/test_processes.py::test_a_call_that_takes_too_long_is_killed_with_all_that_it_started",
        ),
    ),
    Row(
        "P11 another number of processes",
        "refused before anything is loaded, unless `checkpoint.reshard=true`: then prompts and their order are the "
        "same, and numbers agree within rounding",
        (
            "training/test_folder.py::test_a_checkpoint_of_another_number_of_processes_is_refused",
            "training/test_resume.py::test_a_refused_resume_leaves_the_run_as_it_was",
            "engine/test_reshard.py::test_one_rank_and_two_go_on_with_each_others_shards",
            "training/test_launch.py::test_two_ranks_that_are_asked_to_leave_save_and_resume_to_the_byte",
            "campaign reshard",
        ),
    ),
    Row(
        "P12 disk full",
        "refused beforehand where it shows; a failed checkpoint is removed and training goes on; three in a row: 13",
        (
            "training/test_full_disk.py::test_a_disk_that_is_full_for_a_while_costs_checkpoints_and_nothing_else",
            "training/test_full_disk.py::test_a_disk_that_stays_full_ends_the_run_which_goes_on_once_there_is_room",
            CHECKPOINT + "test_a_disk_that_cannot_hold_what_is_kept_is_refused_before_training",
        ),
    ),
    Row(
        "P13 no code from outside, no secrets inside",
        "shards run none when loaded; no file of a run holds a secret, and the run goes on with it",
        (
            "engine/test_zero.py::test_shards_run_no_code_when_loaded",
            "training/test_secrets.py::test_no_file_of_a_run_holds_a_secret_that_it_was_given",
            "config/test_secrets.py::test_what_looks_like_a_secret_is_refused_without_being_shown",
        ),
    ),
    Row(
        "P14 another configuration on resume",
        "the difference is said; what a run is cannot change",
        (
            "cli/test_resume.py::test_what_a_run_is_cannot_change",
            "cli/test_resume.py::test_what_a_resume_changes_is_told_once",
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
            "training/test_resume.py::test_stopping_at_any_call_of_the_reward_and_resuming_changes_nothing",
            "campaign stops",
        ),
    ),
    Row(
        "two resumes of one run at once",
        "the second is refused, and changes nothing",
        (
            "training/test_resume.py::test_a_refused_resume_leaves_the_run_as_it_was",
            "cli/test_resume.py::test_a_run_that_is_going_on_cannot_be_resumed_by_name",
            "training/test_folder.py::test_one_process_holds_a_folder_and_its_end_frees_it",
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
        (LEAVING + "test_the_other_rank_does_not_write_to_the_end_of_a_long_rollout_first",),
    ),
    Row(
        "a signal while models warm up",
        "leaves at the next step",
        ("training/test_process.py::test_a_signal_during_the_warm_start_ends_the_run_at_its_next_step",),
    ),
    Row(
        "a signal while a run that has ended puts away what it used",
        "its exit code stays; Ctrl-C ends it",
        ("training/test_process.py::test_a_signal_after_the_end_of_a_run_does_not_change_how_it_ended",),
    ),
    Row(
        "SIGSTOP of a rank",
        "exit 11",
        (WATCHDOG + "test_a_rank_that_is_stopped_ends_the_others_with_eleven", "campaign hangs"),
    ),
    Row(
        "an exception in one rank",
        "both save where both can; one block, its exit code",
        (
            LEAVING + "test_what_fails_on_one_rank_alone_is_learnt_by_the_other_and_both_save",
            "training/test_launch.py::test_an_error_in_one_rank_ends_all_with_its_exit_code",
        ),
    ),
    Row(
        "NaN or infinity in gradients, parameters, rewards, values, logits",
        "as P7; a row without a finite number does not train",
        (
            "engine/test_zero.py::test_a_gradient_that_is_not_finite_is_never_stepped_on",
            "rewards/test_score.py::test_a_row_without_a_finite_number_is_left_out_and_scores_nothing",
            "formulas/test_logprobs.py::test_a_nan_in_the_logits_is_not_hidden",
            "training/test_update.py::"
            "test_a_step_with_a_gradient_that_is_no_number_is_skipped_counted_and_ends_the_run_in_the_end",
            "formulas/test_value_loss.py::test_nan_padding_never_reaches_the_aggregated_loss",
        ),
    ),
    Row(
        "flipped bits, cut, missing and further files, garbled manifest and pointer, step_9 against step_10",
        "seen, named, passed over",
        (
            SURVIVAL + "test_a_hundred_flipped_bits_are_all_seen",
            CHECKPOINT + "test_every_damage_is_seen_named_and_passed_over",
            CHECKPOINT + "test_a_pointer_that_cannot_be_followed_points_nowhere",
            CHECKPOINT + "test_checkpoints_are_ordered_by_number_and_not_by_spelling",
        ),
    ),
    Row(
        "all checkpoints damaged",
        "the run stops with 14 and never begins anew",
        (
            CHECKPOINT + "test_where_nothing_is_intact_there_is_no_checkpoint",
            "training/test_resume.py::test_a_refused_resume_leaves_the_run_as_it_was",
        ),
    ),
    Row(
        "no room, input/output error, no permission",
        "a warning, no number lost",
        (
            SURVIVAL + "test_a_disk_that_fails_now_and_then_costs_checkpoints_and_no_number",
            "training/test_full_disk.py::test_a_disk_that_is_full_for_a_while_costs_checkpoints_and_nothing_else",
        ),
    ),
    Row(
        "another rank's files not there, late, or cut; each rank with a disk of its own",
        "awaited for a while; then no checkpoint is published, and that disks are not shared is said",
        (
            SAVING + "test_a_checkpoint_without_another_ranks_files_is_none",
            SAVING + "test_no_rank_leaves_its_part_of_a_failed_checkpoint_behind",
            CHECKPOINT + "test_what_another_rank_wrote_may_come_late",
            CHECKPOINT + "test_what_another_rank_wrote_must_be_there_whole",
        ),
    ),
    Row(
        "stale temporary folders, a folder that cannot be made",
        "cleared away; refused on all ranks together",
        (
            CHECKPOINT + "test_what_a_run_that_died_left_half_written_is_cleared_away",
            SAVING + "test_what_rank_0_cannot_make_all_ranks_raise_together",
        ),
    ),
    Row(
        "two jobs in the same second",
        "two folders",
        ("training/test_folder.py::test_runs_of_the_same_second_get_folders_of_their_own",),
    ),
    Row(
        "a signal, or the end of who starts them, while ranks are being started",
        "every rank hears it; 75 (130 after Ctrl-C); none is left",
        (
            "training/test_launch.py::test_a_rank_that_was_being_started_when_all_were_asked_to_leave_is_told",
            "training/test_launch.py::test_a_rank_that_has_not_begun_when_it_is_asked_to_leave_is_no_failure",
            "training/test_launch.py::test_a_rank_whose_parent_was_gone_before_it_could_ask_leaves_at_once",
        ),
    ),
    Row(
        "two runs that begin on one machine at the same time",
        "their ranks meet at different ports, and only at 127.0.0.1",
        ("training/test_launch.py::test_nobody_else_can_take_the_port_while_ranks_are_being_started",),
    ),
    Row(
        "ranks started by somebody else",
        "one folder",
        ("training/test_launch.py::test_torchrun_starts_ranks_that_agree_on_one_folder",),
    ),
    Row(
        "another configuration on one rank",
        "named on every rank",
        ("engine/test_distributed.py::test_a_disagreement_names_the_ranks_on_every_rank",),
    ),
    Row(
        "rewards that raise, give None, NaN, too few numbers, other types, call exit, fork",
        "as P10",
        (
            "rewards/test_score.py::test_a_reward_that_keeps_failing_is_told_with_its_own_words",
            "rewards/test_contract.py::test_none_is_a_row_without_a_number",
            "rewards/test_contract.py::test_what_breaks_the_contract_is_told_by_name",
            "rewards/test_retry.py::test_numbers_for_too_few_rows_are_no_fault_of_a_row",
            "rewards/test_score.py::test_a_reward_that_calls_exit_does_not_end_the_run_as_if_it_were_done",
            LEAVING + "test_a_reward_with_a_pool_runs_and_one_that_never_answers_is_left",
        ),
    ),
    Row(
        "rewards that sleep for ever, print a gigabyte, call `os._exit`",
        "counted as failed, in a process of their own (`reward.process=true`)",
        (
            "rewards/test_processes.py::test_calls_are_answered_in_their_order_and_one_that_fails_costs_no_other",
            "rewards/test_function.py::test_a_process_of_its_own_can_be_killed_and_costs_only_its_row",
        ),
    ),
    Row(
        "an answer that takes for ever to be compared (a tower of powers)",
        "that row has failed, and no other",
        ("rewards/test_math.py::test_a_tower_of_powers_is_killed_and_fails_alone",),
    ),
    Row(
        "no rows on one rank, equal rewards, empty and cut responses",
        "finite numbers, the same on every rank",
        (
            "training/test_seldom_speaking.py::test_two_ranks_train_an_agent_that_speaks_on_one_of_them_as_one_rank_does",
            "formulas/test_advantages.py::test_equal_scores_give_exactly_zero",
            "algorithms/test_targets.py::test_truncated_rows_are_treated_as_the_key_says",
        ),
    ),
    Row(
        "curves that cannot be written",
        "no row is lost",
        ("training/test_run.py::test_curves_that_cannot_be_drawn_cost_no_row",),
    ),
    Row(
        "markup, escape sequences, NUL, lone surrogates, ten megabytes on the console",
        "spelled out, never acted upon, cut",
        (
            "training/test_console.py::test_model_text_is_spelled_out_and_never_acted_upon",
            "training/test_console.py::test_ten_megabytes_are_cut_at_once",
        ),
    ),
    Row(
        "one job of a sweep fails or is stopped",
        "the others go on; a rerun does that one alone",
        (
            "training/test_launch.py::test_a_failing_job_stops_no_other_and_is_the_one_that_a_sweep_goes_on_with",
            "training/test_launch.py::test_a_sweep_that_is_asked_to_leave_begins_no_other_job_and_goes_on_later",
        ),
    ),
)

RESUME = "training/test_resume.py::test_stopping_at_any_call_of_the_reward_and_resuming_changes_nothing"
BASE = "training/test_shared_base.py::"
FAMILIES = "campaign families"
CALL, WRITING = "at a call of the reward", "in the middle of a response; before an update"
RESUMED = (
    Row("independent PPO, two agents, separate critics, fp32", "at any call of the reward", (RESUME, FAMILIES)),
    Row(
        "every `algorithm=`, with its own critic or none",
        WRITING,
        (FAMILIES, "training/test_resume.py::test_leaving_beside_greedy_responses_observes_no_score_twice"),
    ),
    Row(
        "centralised critics (MAPPO)",
        CALL,
        (
            "training/test_centralized.py::test_a_team_that_is_stopped_and_resumed_is_the_team_that_never_stopped",
            FAMILIES,
        ),
    ),
    Row(
        "agents that learn in turn (HAPPO)",
        CALL,
        (
            "training/test_learning_order.py::test_a_run_that_is_stopped_and_resumed_goes_on_in_the_same_order",
            FAMILIES,
        ),
    ),
    Row(
        "turns as actions, weights by agent",
        CALL,
        (
            "training/test_update_by_turn.py::"
            "test_a_run_with_weights_by_agent_that_is_stopped_and_resumed_is_the_run_that_never_stopped",
            FAMILIES,
        ),
    ),
    Row("a value head", WRITING, (FAMILIES,)),
    Row(
        "adapters, alone and on a shared base",
        "after an iteration, from checkpoints of each kind; in the middle of a response",
        (
            BASE + "test_every_kind_of_checkpoint_is_resumed_evaluated_and_started_from",
            "models/test_lora.py::test_the_same_adapter_is_the_same_bytes_whenever_it_is_saved",
            FAMILIES,
        ),
    ),
    Row(
        "a shared policy",
        CALL,
        (
            "training/test_shared_policy.py::test_a_group_that_is_stopped_and_resumed_is_the_group_that_never_stopped",
            FAMILIES,
        ),
    ),
    Row(
        "partners, ratings, frozen agents, credit against the initial weights",
        CALL,
        (
            "training/test_partners.py::test_a_run_with_a_pool_and_ratings_is_resumed_exactly",
            "training/test_frozen.py::test_a_run_with_one_is_resumed_exactly_and_evaluated",
            "training/test_credit.py::test_initial_weights_play_anew_after_a_stop_and_a_resume_too",
        ),
    ),
    Row(
        "a dialogue of several turns",
        "in the middle of an episode",
        ("training/test_episodes.py::test_stopping_in_the_middle_of_an_episode_and_resuming_changes_nothing",),
    ),
    Row(
        "bf16: whole models, adapters, agents of two formats",
        CALL,
        (
            BASE + "test_adapters_in_bf16_learn_and_are_resumed_exactly",
            "training/test_unlike_agents.py::test_a_mixed_team_that_is_stopped_and_resumed_is_the_team_that_never_stopped",
            FAMILIES,
        ),
    ),
    Row("ZeRO 3, in fp32 and bf16, on one rank and on two", WRITING, (FAMILIES,)),
    Row(
        "two ranks",
        "by a signal to the job",
        ("training/test_launch.py::test_two_ranks_that_are_asked_to_leave_save_and_resume_to_the_byte", FAMILIES),
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
