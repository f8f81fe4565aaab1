//! `changefeed serve` over HTTP, as a real process on real databases: what readers get, what strangers
//! do not, and what happens when it is told to stop or killed.

mod access;
mod api;
pub(crate) mod client;
mod forms;
mod judges;
mod limits;
mod operating;
mod protocols;
mod reading;
pub(crate) mod serving;
mod streams;

changefeed_testkit::on_every_store! {
    reading {
        pages_follow_each_other_and_rows_are_as_the_database_wrote_them
        a_long_poll_is_answered_as_soon_as_there_is_something
        a_wait_for_nothing_ends_with_an_empty_page
        a_thousand_clients_who_wait_share_what_they_wait_for
    }
    streams {
        a_stream_resumes_where_its_last_event_was
        a_stream_tells_where_it_begins_before_anything_happens
        all_shards_come_in_one_stream_that_can_be_resumed
        promises_1_and_5_a_reader_goes_on_after_kill_minus_9_without_loss_or_repetition
        a_feed_that_is_dropped_ends_its_streams_with_a_sentence
        told_to_stop_it_ends_streams_and_long_polls_at_once
    }
    protocols {
        both_versions_are_spoken_at_one_address
        wrong_handshakes_are_answered_as_their_clients_expect
        the_client_from_pypi_reads_everything_in_order
    }
    api {
        the_life_of_a_feed
        the_life_of_an_event_trigger
        the_life_of_a_watch
        what_it_shows_of_the_whole
    }
    forms {
        the_program_and_http_print_the_same_objects
        errors_are_json_where_everything_is
    }
    access {
        a_revoked_token_opens_nothing_and_its_streams_end
        without_tokens_nobody_else_is_served
    }
    operating {
        it_is_ready_when_everything_is
        metrics_have_the_documented_names
        roles_can_be_split_over_instances
    }
}
