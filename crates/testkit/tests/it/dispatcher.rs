//! The dispatcher with a receiver that misbehaves by script, on every store: promises 8, 9 and 12.

mod failures;
mod handlers;
mod holding;
mod order;
mod pace;
mod stage;

changefeed_testkit::on_every_store! {
    failures {
        promise_8_every_kind_of_failure_is_tried_again_until_it_works
        promise_8_what_uses_up_its_retries_is_kept_as_a_dead_letter
        promise_8_a_receiver_that_cannot_be_reached_loses_nothing
        a_final_status_ends_it_at_once
        a_receiver_that_is_gone_pauses_the_trigger_and_loses_nothing
        a_redirect_is_a_failure_and_is_not_followed
        strange_answers_are_answers_or_failures
        an_event_that_was_cut_off_too_often_is_given_up
    }
    pace {
        the_interval_is_kept
        waits_grow_where_that_was_asked_for
        retry_after_is_honoured_within_its_maximum_and_not_for_ever
        a_slow_webhook_does_not_hold_up_another
        a_trigger_has_no_more_requests_than_its_limit
        an_instance_has_no_more_requests_than_its_limit
        an_event_is_delivered_soon_after_its_commit
        a_dispatcher_is_told_of_commits
    }
    order {
        events_of_one_key_arrive_in_order_whatever_fails
        one_key_that_fails_holds_up_no_other
    }
    holding {
        promise_9_a_request_longer_than_the_lease_is_made_once
        promise_12_ten_dispatchers_do_the_work_of_one
        a_stop_finishes_what_is_under_way_and_gives_back_the_rest
        a_stop_that_cannot_wait_records_what_it_cut_off
        a_pause_holds_back_what_was_taken_already
        what_is_no_longer_served_here_is_given_back
        a_dropped_trigger_ends_its_deliveries
        a_new_trigger_is_served_without_a_restart
    }
    handlers {
        an_event_goes_to_a_function
        a_function_that_fails_panics_or_hangs_is_tried_again
    }
}
