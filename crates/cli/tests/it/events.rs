//! `changefeed deliver` as real processes: killed, crashed at named places, frozen and woken, many
//! at once, and with a server that crashes under them. Promises 8, 9, 11 and 12 by an independent
//! judge over the log, the tables and what a receiver saw.

mod crashes;
mod fleet;
mod frozen;
mod histories;

changefeed_testkit::on_every_store! {
    crashes {
        promise_11_a_crash_at_any_named_place_loses_nothing
        promise_11_kill_minus_9_in_the_middle_of_requests_loses_nothing
        told_to_stop_it_finishes_and_says_what_it_did
        promise_11_a_backfill_that_is_killed_goes_on
        whoever_dies_while_a_trigger_is_dropped_leaves_nothing_to_deliver
    }
    frozen {
        promise_9_a_frozen_instance_cannot_write_over_the_new_owner
    }
    histories {
        promise_12_ten_instances_do_the_work_of_one
        promises_8_9_and_11_hold_in_a_history_of_kills_crashes_and_freezes
    }
}

#[test]
fn promise_11_a_server_that_crashes_under_load_loses_nothing() {
    changefeed_testkit::run(histories::a_server_that_crashes_under_load_loses_nothing());
}
