//! The suite that every store passes: one function per case, over any [`Backend`], grouped by
//! promise or theme. [`conformance!`](crate::conformance!) turns all of them into tests.
//!
//! [`Backend`]: crate::backend::Backend

pub mod access;
pub mod backfill;
pub mod capture;
pub mod clocks;
pub mod consumers;
pub mod definitions;
pub mod erasing;
pub mod event_altered;
pub mod event_capture;
pub mod event_delivery;
pub mod event_log;
pub mod event_order;
pub mod event_pace;
pub mod event_transactions;
pub mod feeds;
pub mod filtering;
pub mod instances;
pub mod leases;
pub mod outcomes;
pub mod promises;
pub mod reading;
pub mod replaying;
pub mod resharding;
pub mod schema;
pub mod subscription_places;
pub mod subscriptions;
pub mod telling;
pub mod triggers;
pub mod trim;
pub mod ulids;
pub mod wake;
pub mod watch_columns;
pub mod watch_handing;
pub mod watch_leases;
pub mod watch_promises;
pub mod watch_tables;
pub mod watches;

/// Cases of a test program's own, by module, each on every database; on SQL Server with the feature
/// `sqlserver-server` of the crate that has them.
#[macro_export]
macro_rules! on_every_store {
    ($($theme:ident { $($case:ident)* })*) => {
        $crate::on_every_store! { @ postgres (PostgresBackend) $($theme { $($case)* })* }
        $crate::on_every_store! { @ sqlite (SqliteBackend) $($theme { $($case)* })* }
        #[cfg(feature = "sqlserver-server")]
        $crate::on_every_store! { @ sqlserver (SqlServerBackend) $($theme { $($case)* })* }
    };
    (@ $store:ident ($backend:ident) $($theme:ident { $($case:ident)* })*) => {
        mod $store {
            $($(
                #[test]
                fn $case() {
                    $crate::run(async {
                        let backend = $crate::backend::$backend::fresh().await;
                        super::$theme::$case(std::sync::Arc::new(backend)).await;
                    });
                }
            )*)*
        }
    };
}

/// One `#[test]` per case of the suite, each on a fresh backend.
///
/// ```
/// use changefeed_testkit::backend::SqliteBackend;
///
/// changefeed_testkit::conformance!(SqliteBackend::fresh().await);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conformance {
    ($backend:expr) => {
        $crate::conformance_cases! { ($backend)
            schema {
                migrating_twice_changes_nothing
                twenty_instances_migrate_at_once
                a_newer_schema_is_refused_and_left_alone
                without_our_tables_the_command_to_run_is_named
                uninstalling_leaves_the_application_as_it_was
            }
            feeds {
                every_column_has_its_documented_default
                feeds_made_by_plain_sql_work_like_ours
                shard_numbers_need_not_be_dense
                any_number_of_feeds_with_shards_of_their_own
                one_change_in_several_feeds
                a_name_or_an_id_is_taken_once
                a_feed_name_that_no_url_could_hold_is_refused_by_the_database
                a_missing_table_or_column_is_named_and_nothing_is_made
                an_unknown_shard_refuses_the_insert
                an_own_start_is_where_numbers_begin
                a_dropped_feed_takes_everything_with_it
                change_ids_may_come_from_anywhere
                the_sequence_begins_where_it_is_documented
            }
            promises {
                promise_1_a_change_that_commits_late_is_not_skipped
                promise_1_a_long_open_transaction_holds_nobody_up_and_loses_nothing
                promise_2_numbers_are_gapless_from_the_start_in_every_shard
                promise_3_what_was_committed_before_comes_before
                promise_4_what_was_rolled_back_never_appears_and_leaves_no_gap
                promise_4_savepoints_take_back_only_their_own
                promise_5_a_page_read_twice_starts_with_the_same_changes
                promise_11_a_connection_cut_in_mid_transaction_publishes_nothing
                promise_11_work_cut_off_at_any_moment_is_done_by_the_next
                promises_1_to_5_hold_in_a_random_history
            }
            outcomes {
                a_cursor_that_is_stored_late_moves_nothing_back
                a_claim_that_got_no_answer_is_given_back_and_was_no_attempt
                a_batch_that_got_no_answer_is_given_back_and_was_no_attempt
                an_event_by_hand_is_one_event_for_each_key
                a_redelivery_that_is_repeated_changes_nothing
                a_redelivery_with_a_key_is_done_once
            }
            instances {
                promise_12_two_instances_do_the_work_of_one
                promise_12_twenty_instances_do_the_work_of_one
                a_backlog_larger_than_a_batch_is_numbered_in_order
                a_hot_shard_does_not_starve_its_group
                sweep_groups_are_independent
            }
            reading {
                first_last_and_numbers_are_places_to_begin
                a_time_is_a_place_to_begin
                an_empty_page_keeps_the_cursor
                a_cursor_ahead_of_the_feed_is_refused
                a_reader_of_before_a_recovery_is_told
                a_page_size_out_of_bounds_is_refused
                an_unknown_shard_or_feed_is_named
                plain_sql_reads_the_same_pages
                a_joined_table_gives_its_rows
                a_joined_row_that_is_gone_is_said_to_be_gone
                old_data_by_hand_gets_the_numbers_it_was_given
                old_data_by_hand_cannot_take_live_numbers
                a_change_id_of_another_feed_reads_as_nothing
            }
            filtering {
                a_row_comes_and_goes_with_the_condition
                a_replay_of_a_filtered_feed_equals_its_rows
                columns_that_are_left_out_are_not_told
                a_filtered_backfill_has_the_rows_of_the_feed
                a_filter_that_does_not_fit_is_refused
            }
            erasing {
                nothing_is_kept_of_a_row_that_is_erased
                only_a_whole_key_is_erased
                a_key_is_erased_as_it_is_shown
            }
            telling {
                a_change_tells_its_operation_and_its_key
                a_changed_key_is_a_delete_and_an_insert
                a_key_is_written_as_in_the_row
                a_row_that_was_there_before_is_told_as_backfilled
                a_change_of_somebodys_own_tells_nothing
                a_copy_that_follows_a_feed_equals_the_table
                images_are_the_rows_before_and_after
                images_can_be_switched_on_and_off
                a_backfilled_row_has_its_image
                a_feed_whose_table_is_gone_is_noticed
            }
            replaying {
                a_replay_of_images_equals_the_table_at_every_cursor
                a_replay_of_cascades_equals_the_table_at_every_cursor
            }
            resharding {
                a_feed_goes_on_in_other_shards
                promise_13_a_subscription_keeps_the_order_of_rows
                a_consumer_finds_everything_in_the_new_shards
                only_captured_feeds_get_another_number_of_shards
                order_is_kept_for_each_row_while_shards_are_closed_under_writers
                who_waits_for_a_shard_is_told_that_it_is_closed
            }
            capture {
                inserts_updates_and_deletes_become_changes
                a_rolled_back_write_publishes_nothing
                several_feeds_from_one_table
                the_shard_is_that_of_the_documented_formula
                a_row_without_a_shard_value_goes_to_shard_0
                names_that_need_quotes
                composite_and_text_keys
                a_changed_primary_key_shows_the_old_row_gone_and_the_new_one_there
                rows_come_with_every_type_of_value
                a_table_without_a_primary_key_is_refused
                a_view_is_refused
                a_renamed_key_is_followed
                a_dropped_feed_leaves_the_table_writable
                many_rows_in_one_statement_are_one_change_each
            }
            definitions {
                steps_are_taken_together
                a_step_that_fails_undoes_those_before_it
                watches_are_put_and_dropped_together_with_the_rest
                a_feed_goes_to_another_sweep_group_while_it_is_written_to
                a_table_is_found_by_the_name_that_definitions_are_read_back_with
            }
            access {
                a_token_is_kept_without_its_secret_until_it_is_revoked
                a_token_ends_when_its_time_is_over
                a_token_that_allows_nothing_is_refused
                instances_see_each_other
            }
            backfill {
                existing_rows_get_numbers_below_the_start
                a_backfill_goes_on_where_it_stopped
                a_backfill_under_live_traffic_misses_no_row
                a_reader_during_a_backfill_skips_nothing
                a_joined_table_can_be_backfilled
                a_feed_without_a_table_cannot_be_backfilled
                an_empty_table_is_finished_at_once
            }
            subscription_places {
                a_sink_that_is_away_is_noted_under_the_generation
                subscriptions_are_put_and_dropped_together_with_their_feeds
            }
            subscriptions {
                a_subscription_is_created_once_and_keeps_its_place
                promise_13_a_late_writer_moves_no_position
                promise_13_what_the_sink_says_wins
                a_refused_change_stops_its_shard_or_is_parked
                promise_13_a_webhook_gets_every_change_in_order
                a_closure_gets_every_shard_in_order
            }
            consumers {
                a_cursor_is_kept_by_name_and_shard
                lag_is_counted_in_changes_and_time
                effects_and_cursor_commit_together
                a_consumer_can_be_forgotten
                a_consumer_of_an_unknown_shard_is_refused
            }
            trim {
                what_every_consumer_has_read_can_be_trimmed
                what_a_consumer_has_not_read_is_kept
                what_is_younger_than_the_age_is_kept
                a_cursor_behind_the_trimmed_part_is_expired
                first_begins_at_the_oldest_change_that_is_kept
                numbers_go_on_after_everything_was_trimmed
                trimming_in_small_batches_ends
                a_consumer_that_is_gone_holds_nothing_back_for_ever
                a_feed_is_trimmed_by_itself
            }
            leases {
                one_owner_at_a_time
                only_an_expired_lease_changes_hands_and_its_generation_grows
                a_released_lease_is_free_at_once
                a_zombie_cannot_release_what_it_lost
                twenty_candidates_one_holder
                many_leases_are_taken_and_renewed_in_one_call
            }
            clocks {
                the_lease_of_a_dead_owner_ends_all_the_same
                the_lease_of_a_living_owner_is_left_alone
                a_step_is_noticed_once
                events_of_before_a_step_back_come_in_time
                rows_of_before_a_step_back_come_in_time
                events_captured_in_a_step_that_nobody_saw_come_in_time
                what_is_put_off_or_held_writes_down_the_time
            }
            wake {
                a_waiter_is_woken_by_a_commit_of_another_instance
                a_waiter_is_woken_for_its_own_shard_only
                news_between_look_and_wait_is_not_missed
                a_thousand_waiters_are_all_woken
                a_watch_is_woken_by_every_change_of_its_table
                a_watch_is_woken_by_its_own_table_only
            }
            ulids {
                rows_are_read_in_the_order_of_their_ulids
                every_place_to_begin
                a_page_read_twice_and_an_empty_page_keep_their_promises
                what_was_rolled_back_never_appears
                one_transaction_has_one_time
                time_stands_still_or_goes_back_and_ulids_grow
                a_time_in_the_future_is_kept
                a_shard_that_is_far_ahead_is_shown
                a_shard_that_runs_short_moves_to_the_next_millisecond
                shards_and_feeds_are_independent
                writers_in_parallel_take_turns
                an_empty_transaction_moves_nothing
                a_reader_is_woken_by_a_commit
                a_cursor_of_the_other_kind_is_refused
                what_needs_numbers_is_refused
                a_consumer_keeps_a_ulid
                the_state_of_a_shard_is_its_newest_ulid
                a_table_that_cannot_be_a_ulid_feed_is_refused
                a_feed_of_ulids_can_be_dropped_and_leaves_its_rows
                nobody_has_disappeared
            }
            triggers {
                a_definition_is_kept_whole_and_seen_by_every_instance
                a_trigger_name_is_taken_once
                names_that_no_trigger_may_have_are_refused
                a_replaced_trigger_keeps_its_events_and_its_pause
                a_trigger_may_move_to_another_table
                a_paused_trigger_captures_and_delivers_nothing
                a_dropped_trigger_leaves_its_events
                what_is_not_there_is_named_and_nothing_is_made
                a_replacement_that_is_refused_changes_nothing
                an_event_by_hand
                a_trigger_for_events_by_hand_alone
                promise_12_twenty_instances_create_one_trigger
                uninstalling_takes_the_triggers_along
            }
            event_capture {
                promise_8_every_change_is_an_event_with_its_rows
                operations_that_nobody_asked_for_make_no_event
                an_update_of_other_columns_makes_no_event
                events_carry_the_columns_of_the_payload
                a_condition_over_old_and_new_decides
                a_condition_that_fails_at_run_time_does_not_fail_the_write
                a_changed_primary_key_is_an_update_with_both_rows
                a_table_without_a_primary_key_is_captured
                names_that_need_quotes
                generated_columns_are_captured
                many_rows_in_one_statement_are_one_event_each
                an_upsert_is_what_it_did
                cascades_are_captured
            }
            event_transactions {
                promise_4_what_was_rolled_back_makes_no_event
                promise_11_a_writer_cut_off_makes_no_event
                session_variables_and_trace_arrive_with_the_event
                triggers_on_one_table_are_independent
                promise_3_events_are_in_the_order_of_the_changes
                an_event_also_enters_its_feed
                the_feed_of_a_trigger_is_made_or_refused
            }
            event_altered {
                a_new_column_is_followed
                a_renamed_column_is_followed
                a_renamed_column_that_is_named_is_followed_or_said
                a_dropped_column_is_followed
                a_renamed_table_is_followed
                a_dropped_table_is_said
                a_condition_survives_a_new_column
                promise_12_many_instances_follow_at_once
            }
            event_delivery {
                promise_9_what_is_held_goes_to_nobody_else
                promise_12_many_instances_take_every_event_once
                promise_9_a_lease_that_runs_out_frees_the_event
                promise_9_a_renewed_lease_is_kept
                promise_9_a_late_result_changes_nothing_and_is_logged
                a_result_that_is_told_twice_is_one_result
                what_is_given_back_counts_no_attempt
                promise_8_what_follows_from_an_attempt
                a_receiver_that_is_gone_pauses_the_trigger
                a_retry_comes_after_its_wait
                promise_11_work_cut_off_at_any_moment_loses_nothing
            }
            event_pace {
                an_event_waits_for_its_first_attempt
                the_last_event_of_a_key_is_delivered_for_all
                all_instances_together_keep_a_pace
                attempts_are_removed_apart_from_events
            }
            event_order {
                events_of_one_key_come_one_after_the_other
                neither_a_hot_key_nor_waiting_keys_hide_others
                events_from_before_the_order_are_not_forgotten
                promise_12_the_overall_limit_is_never_exceeded
                several_triggers_are_served_by_one_claim
            }
            event_log {
                the_log_can_be_filtered
                a_late_attempt_is_not_what_a_filter_looks_at
                an_unknown_event_is_not_there
                plain_sql_shows_the_log
                promise_8_what_was_given_up_can_be_delivered_again
                an_event_that_is_held_cannot_be_delivered_again
                events_are_delivered_again_by_filter
                cleaning_up_keeps_what_it_should
                what_a_consumer_has_not_read_is_not_cleaned
                the_state_of_a_trigger_is_counted
                a_backfill_of_a_trigger_goes_on_where_it_stopped
                promise_12_two_backfills_of_a_trigger_do_it_once
                a_backfill_of_a_trigger_keeps_its_condition
                an_attempt_can_hold_whatever_came_back
            }
            watches {
                inserts_updates_and_deletes_are_handed_over
                note_1_rows_changed_at_once_come_in_the_order_of_their_changes
                note_2_changes_between_two_calls_are_one
                note_3_rows_that_changed_again_come_after_those_that_did_not
                note_3_holds_for_a_large_backlog
                a_batch_has_at_most_its_size_and_the_rest_follows
                a_changed_key_is_a_delete_and_an_insert
                what_was_rolled_back_is_never_handed_over
                several_functions_watch_one_table_independently
                a_dropped_watch_is_not_made_again_by_who_wants_an_existing_one
                a_new_function_begins_now_or_at_the_beginning
                a_known_function_goes_on_and_a_renamed_one_starts_over
                a_function_can_be_reset
                a_dropped_watch_leaves_the_table_as_it_was
                state_deleted_by_hand_is_made_again
                the_backlog_is_counted_and_shown_in_one_row
                versions_are_not_those_of_another_database
            }
            watch_tables {
                what_cannot_be_watched_is_refused_in_one_sentence
                keys_of_every_kind
                names_that_need_quotes
                large_integers_and_all_columns_arrive_unharmed
                a_table_that_is_renamed_or_altered_is_watched_on
                uninstalling_removes_triggers_and_tables
            }
            watch_handing {
                promise_10_rows_of_a_batch_that_failed_are_tried_again_alone
                promise_9_a_late_part_of_a_batch_is_ignored
                a_function_says_which_rows_have_failed
                changes_between_two_looks_are_one
                a_filter_makes_rows_come_and_go
                the_row_as_it_was_is_told
                a_functions_own_changes_are_not_handed_to_it
            }
            watch_columns {
                an_update_tells_the_columns_that_were_changed
                columns_are_kept_until_they_were_handed_over
                columns_are_noted_while_some_function_wants_them
                a_renamed_column_is_told_by_its_name_of_today
                columns_of_an_altered_table_are_not_known
            }
            watch_leases {
                promise_9_a_leased_row_is_nobody_elses
                promise_9_an_expired_lease_changes_hands_and_the_late_one_is_ignored
                promise_10_a_newer_change_of_a_row_in_process_comes_after_it
                a_renewed_lease_lasts
                a_failed_batch_is_tried_again_by_its_holder_and_later_by_others
                one_bad_row_is_parked_alone
                an_attempt_that_was_cut_off_counts
                parked_changes_come_back_by_retry_or_by_a_newer_change
                one_parked_row_is_retried_by_its_version
                a_newer_change_of_a_row_that_uses_up_its_attempts_is_not_parked
                a_released_batch_is_as_if_it_had_not_been_taken
                a_version_has_bits_by_chance_that_stay
                a_lease_that_came_back_has_another_generation
                a_function_that_runs_long_keeps_its_rows
                a_function_is_cancelled_before_its_lease_can_expire
            }
            watch_promises {
                promise_12_ten_instances_share_the_work
                promises_9_to_12_hold_under_random_writes_failures_and_deaths
            }
        }
    };
}

/// The plumbing of [`conformance!`](crate::conformance!): modules by theme, a test per case.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    (($backend:expr) $($theme:ident { $($case:ident)* })*) => {
        $(
            mod $theme {
                #[allow(unused_imports)]
                use super::*;
                $(
                    #[test]
                    fn $case() {
                        $crate::run(async {
                            let backend = ::std::sync::Arc::new($backend);
                            $crate::conformance::$theme::$case(backend).await;
                        });
                    }
                )*
            }
        )*
    };
}
