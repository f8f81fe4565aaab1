//! Attacks on the running program: one file per class, one test per hole that was found.
//! `docs/security.md` is the threat model that they belong to.

mod connections;
mod definitions;
mod frozen;
mod pages;
mod protocols;
mod secrets;
mod standby;
mod watches;
mod webhooks;

changefeed_testkit::on_every_store! {
    definitions {
        a_definition_over_http_names_only_variables_that_are_allowed
        a_variable_that_was_granted_stays_in_its_place
        a_variable_that_nobody_granted_is_not_read
        a_condition_over_http_calls_nothing
        a_feed_shows_no_table_of_ours_or_of_the_server
        an_impossible_port_is_refused_wherever_it_is_written
    }
    pages {
        a_feed_of_large_rows_is_read_in_pages_that_fit_into_memory
        a_consumer_cannot_be_put_where_nothing_is_left
    }
    watches {
        idle_watches_do_not_ask
    }
    webhooks {
        a_receiver_that_drops_used_connections_makes_no_dead_letters
    }
}
