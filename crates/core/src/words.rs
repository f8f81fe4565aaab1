//! Errors and findings that every database words the same way.

use std::fmt::Display;

use crate::{
    ConsumerName, Error, EventId, FeedId, FeedName, Kind, Lane, TableName, TriggerName, Watch,
    WatchName,
};

/// A finding: what captures a table was made for its new form.
pub const CAPTURE_RECREATED: &str = "its table was altered; its database triggers were recreated";

/// A finding: what captures a table still has its old form.
pub fn capture_not_recreated(error: &Error) -> String {
    format!("its table was altered, but its database triggers could not be recreated: {error}")
}

/// A finding: a setting that lets the server forget what it has committed.
pub fn numbers_at_risk(setting: impl Display) -> String {
    format!("{setting}: a crash may take back numbers that were already read")
}

const LIST_FEEDS: &str = "`changefeed feed list` shows the feeds";
const LIST_TRIGGERS: &str = "`changefeed trigger list` shows the triggers";

/// The error for changing the number of shards of a feed while old rows are put into the present ones.
pub fn backfill_at_work(feed: &FeedName) -> Error {
    Error::new(
        Kind::Busy,
        format!("a backfill of feed '{feed}' is at work"),
    )
    .advise("let it finish, then try again")
}

/// The error for changing the number of shards of a feed that has shards which its table is not spread over.
pub fn shards_by_hand(feed: &FeedName) -> Error {
    Error::invalid(format!("feed '{feed}' has shards that were added by hand"))
        .advise("remove them from the table `shard`, or create another feed")
}

/// A feed that was dropped since the caller looked.
pub fn feed_gone(name: &FeedName) -> Error {
    Error::not_found(format!("feed '{name}' is already gone"))
}

/// A feed with a name that another one has.
pub fn feed_name_taken(name: &FeedName) -> Error {
    let message = format!("there is already a feed '{name}'");
    Error::new(Kind::AlreadyExists, message).advise(LIST_FEEDS)
}

/// A feed with an id that another one has.
pub fn feed_id_taken(id: FeedId) -> Error {
    let message = format!("there is already a feed with id {id}");
    Error::new(Kind::AlreadyExists, message).advise(LIST_FEEDS)
}

/// A feed of events that is created without its trigger.
pub fn feed_of_events() -> Error {
    Error::invalid("a feed of events is made by an event trigger")
        .advise("use `changefeed trigger create … --feed NAME`")
}

/// A trigger whose events cannot enter a feed that has rows.
pub fn feed_has_table(name: &FeedName) -> Error {
    Error::invalid(format!(
        "feed '{name}' has a table of its own, so events cannot enter it"
    ))
    .advise("name a feed without a table, or one that does not exist yet")
}

/// Shards from which a value cannot choose one.
pub fn shards_with_gaps(feed: &FeedName) -> Error {
    Error::invalid(format!(
        "the shards of feed '{feed}' are not numbered from 0 without gaps"
    ))
}

/// A feed of several shards without a column that decides.
pub fn shard_column_missing(feed: &FeedName, shards: impl Display) -> Error {
    Error::invalid(format!(
        "feed '{feed}' has {shards} shards and needs a column that decides the shard"
    ))
    .advise("add --shard-by COLUMN")
}

/// A column that cannot be the shard of a ULID feed.
pub fn shard_not_integer(table: impl Display, column: &str) -> Error {
    Error::invalid(format!(
        "column '{column}' of {table} does not hold integers, so it cannot be the shard"
    ))
}

/// A column that cannot hold ULIDs, and the types that can.
pub fn not_a_ulid(table: impl Display, column: &str, is: &str, needed: &str) -> Error {
    Error::invalid(format!(
        "column '{column}' of {table} is {is}; a ULID needs 16 bytes: {needed}"
    ))
}

/// A column that a table does not have, and those that it has.
pub fn no_column(table: impl Display, name: &str, known: &[&str]) -> Error {
    Error::not_found(format!("table {table} has no column '{name}'"))
        .advise(format!("its columns are {}", known.join(", ")))
}

/// A table that is not there.
pub fn no_table(name: &TableName) -> Error {
    Error::not_found(format!("there is no table {name}"))
}

/// A subscription by a name that nobody has.
pub fn no_subscription(name: &ConsumerName) -> Error {
    Error::not_found(format!("there is no subscription '{name}'"))
        .advise("`changefeed subscription list` shows those there are")
}

/// A subscription with a name that another one has.
pub fn subscription_name_taken(name: &ConsumerName) -> Error {
    let message = format!("there is already a subscription '{name}'");
    Error::new(Kind::AlreadyExists, message)
        .advise("add --replace to change it; it goes on where it is")
}

/// A subscription that is to push another feed.
pub fn subscription_elsewhere(name: &ConsumerName) -> Error {
    Error::invalid(format!("subscription '{name}' pushes another feed"))
        .advise("drop it first, or choose another name")
}

/// A subscription whose consumer would be the one of another program.
pub fn consumer_taken(name: &ConsumerName) -> Error {
    let message = format!("there is already a consumer '{name}' of this feed");
    Error::new(Kind::AlreadyExists, message)
        .advise("choose another name: a subscription keeps its position as a consumer")
}

/// A position that another instance or a person has moved.
pub fn lane_moved(lane: &Lane) -> Error {
    let (name, shard) = (&lane.name, lane.shard);
    let message = format!("shard {shard} of subscription '{name}' is not where it was");
    Error::new(Kind::Moved, message).advise("another instance works on it, or a person moved it")
}

/// A trigger by a name that nobody has.
pub fn no_trigger(name: &TriggerName) -> Error {
    Error::not_found(format!("there is no trigger '{name}'")).advise(LIST_TRIGGERS)
}

/// A trigger that was dropped since the caller looked.
pub fn trigger_gone(name: &TriggerName) -> Error {
    Error::not_found(format!("trigger '{name}' is already gone")).advise(LIST_TRIGGERS)
}

/// A trigger with a name that another one has.
pub fn trigger_name_taken(name: &TriggerName) -> Error {
    let message = format!("there is already a trigger '{name}'");
    Error::new(Kind::AlreadyExists, message)
        .advise("add --replace to change it; its events are kept")
}

/// A trigger that is not invoked by hand.
pub fn trigger_not_manual(name: &TriggerName) -> Error {
    Error::invalid(format!("trigger '{name}' does not allow events by hand"))
        .advise("create it with --manual, or replace it by one that has it")
}

/// A stored definition that this program cannot read.
pub fn definition_unreadable(of: impl Display) -> Error {
    let message = format!("the definition of {of} cannot be read");
    Error::new(Kind::Database, message).advise("a newer program may have written it; use that one")
}

/// A definition that has no JSON form.
pub fn definition_unwritable() -> Error {
    Error::invalid("the definition cannot be written as JSON")
}

/// An event by an id that none has.
pub fn no_event(id: EventId) -> Error {
    Error::not_found(format!("there is no event {id}"))
        .advise("`changefeed event list` shows the events")
}

/// An event that nothing delivers any more.
pub fn event_without_trigger(id: EventId) -> Error {
    Error::invalid(format!("the trigger of event {id} was dropped"))
        .advise("create the trigger again and invoke it with the event's payload")
}

/// An event that is leased.
pub fn event_in_flight(id: EventId) -> Error {
    let message = format!("event {id} is being delivered at this moment");
    Error::new(Kind::Busy, message).advise("try again when the attempt is over")
}

/// A payload in the log that is not JSON.
pub fn row_not_json(change_id: i64) -> Error {
    let message = format!("the row of change {change_id} is not JSON");
    Error::new(Kind::Database, message)
}

/// A token that is revoked before it is returned.
pub fn token_gone() -> Error {
    Error::new(Kind::Database, "the new token is gone already")
}

/// A stored digest of another length.
pub fn token_damaged() -> Error {
    Error::new(Kind::Database, "a token's digest does not have 32 bytes")
}

/// A watch whose table was dropped.
pub fn watch_table_dropped(name: &WatchName) -> Error {
    Error::not_found(format!("the table that watch '{name}' watches was dropped"))
        .advise(format!("`changefeed watch drop {name}` removes the watch"))
}

/// A watch that has another table.
pub fn watch_elsewhere(name: &WatchName, table: impl Display) -> Error {
    let message = format!("watch '{name}' already watches {table}");
    Error::new(Kind::AlreadyExists, message)
        .advise("give the function another name, or drop that watch")
}

/// A watch whose name has the hash of another one's.
pub fn watch_id_taken(name: &WatchName, other: &str) -> Error {
    Error::invalid(format!(
        "watch '{name}' would have the same id as watch '{other}'"
    ))
    .advise("give it another name")
}

/// A watch whose tables of ours were deleted.
pub fn watch_state_deleted(watch: &Watch) -> Error {
    Error::not_found(format!("the state of watch '{}' was deleted", watch.name))
        .advise("it is created again when the watch starts")
}

/// A watched table with another key than our tables were made for.
pub fn watch_key_altered(table: &TableName) -> Error {
    Error::not_found(format!(
        "the primary key of {table} was altered: our tables no longer fit it"
    ))
    .advise("start the watch again: what can be kept is brought to the new key")
}

/// A key column with a name of ours.
pub fn watch_key_reserved(table: impl Display, column: &str) -> Error {
    Error::invalid(format!(
        "the key column '{column}' of {table} has a name that changefeed needs for itself"
    ))
    .advise("key columns of watched tables must not begin with _changefeed_")
}

/// A table or column that a statement about a watch did not find.
pub fn watch_table_missing() -> Error {
    Error::not_found("a table or column of this watch no longer exists")
        .advise("start the watch again: what was deleted is created again")
}

/// A login that the server refuses.
pub fn login_refused(message: &str) -> Error {
    let message = format!("the server refused the login: {message}");
    Error::new(Kind::Permission, message).advise("check user and password in the database URL")
}

/// A table on which the user may not create a trigger; the caller adds what grants it.
pub fn trigger_right_missing(table: impl Display) -> Error {
    let message = format!("the database user may not create a trigger on {table}");
    Error::new(Kind::Permission, message)
}

/// A statement that the user may not run; the caller adds what grants it.
pub fn right_missing(message: &str) -> Error {
    let message = format!("the database user lacks a right: {message}");
    Error::new(Kind::Permission, message)
}

/// A server that is starting, stopping or full.
pub fn server_unavailable(message: &str) -> Error {
    let message = format!("the server is not available: {message}");
    Error::new(Kind::Unavailable, message)
}

/// A server that does not answer at its address.
pub fn server_unreachable(server: &str) -> Error {
    let message = format!("the {server} cannot be reached");
    Error::new(Kind::Unavailable, message)
        .advise("check host and port, and that the server is running")
}

/// An answer that the driver cannot read.
pub fn server_misunderstood(server: &str) -> Error {
    let message = format!("the answer of the {server} cannot be read");
    Error::new(Kind::Database, message)
}

/// An answer that is not the one to the statement.
pub fn server_unexpected() -> Error {
    Error::new(
        Kind::Database,
        "the server sent an answer that does not belong to the statement",
    )
}

/// A call that took longer than its limit, and where to look why.
pub fn no_answer(after: std::time::Duration, look_at: &str) -> Error {
    let seconds = after.as_secs();
    let message = format!("the database did not answer within {seconds} seconds");
    Error::new(Kind::Unavailable, message).advise(format!(
        "look at {look_at} for what it is doing; it is not known whether this was done"
    ))
}

/// A pool whose connections are all in use.
pub fn connections_in_use(count: usize, after: std::time::Duration) -> Error {
    let seconds = after.as_secs();
    Error::new(
        Kind::Unavailable,
        format!("all {count} connections to the database were in use for {seconds} seconds"),
    )
}

/// A pool that gives none for another reason.
pub fn no_connection() -> Error {
    let message = "no connection to the database is available";
    Error::new(Kind::Unavailable, message)
}

/// A call within a call.
pub fn second_connection() -> Error {
    Error::defect("a call of the store asked for a second connection")
}

/// A table that others lock for longer than we wait.
pub fn table_in_use(table: impl Display) -> Error {
    let message = format!("other sessions have been writing to {table} for too long");
    Error::new(Kind::Busy, message).advise("try again when there are no long transactions on it")
}

/// Tables of others in our schema, which an uninstall would drop.
pub fn foreign_tables(names: &[String]) -> Error {
    Error::invalid(format!(
        "the schema changefeed also holds tables that are not ours: {}",
        names.join(", ")
    ))
}

/// What is said of a watch whose row in `global_state` is gone.
pub const WATCH_STATE_EMPTIED: &str = "what was kept of a watch in global_state was deleted: if its backlog was \
     truncated with it, the changes that waited there are lost; `changefeed watch reset --from beginning` hands over \
     all rows";
