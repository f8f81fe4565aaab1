//! Numbering on SQLite keeps promises 2 and 3, and every mutation of it is found.
use crate::common::{holds, is_found};
use changefeed_model::one_writer::{OneWriter, change_insert};

#[test]
fn one_writer_at_a_time() {
    holds(
        "one writer: four writers",
        OneWriter::new(4, &change_insert(), true),
    );
}

#[test]
fn every_mutation_is_found() {
    let breaks = "2: numbers are unique and gapless";
    let mut early = change_insert();
    early.move_before("number", "lock");
    is_found(
        "number before the lock",
        breaks,
        OneWriter::new(3, &early, true),
    );
    let stale = OneWriter::new(3, &change_insert(), false);
    is_found("write behind a stale snapshot", breaks, stale);
}

#[test]
fn the_model_is_of_what_is_shipped() {
    let sql = include_str!("../../../sqlite/migrations/0001/feeds.sql");
    crate::common::stands_in(&change_insert(), sql, "create trigger", "end;");
}
