//! What the measures of event triggers share, whatever the database.

pub(crate) mod capture;
pub(crate) mod deliveries;
mod delivering;
pub(crate) mod fetch;
pub(crate) mod latency;
mod process;
pub(crate) mod resources;

use changefeed::{
    Capture, Changefeed, Delivery, Error, EventTrigger, Kind, Result, Setting, TableName,
    TriggerDefinition,
};
use changefeed_receiver::Receiver;

pub(crate) use delivering::Delivering;

/// The name of the scratch trigger, and how we know it again after a run that was killed.
pub(crate) const TRIGGER: &str = "changefeed-bench";

/// A database with a table of orders that an event trigger listens to.
pub(crate) trait Orders {
    /// Has the events of new orders go to this webhook from now on.
    fn send_to(&self, webhook: &str) -> impl Future<Output = Result<EventTrigger>>;

    /// Makes so many orders at once.
    fn order(&self, count: u64) -> impl Future<Output = Result<()>>;

    /// Does what the database would do by itself sooner or later, so that it does not do it in
    /// the middle of a measure.
    fn tidy(&self) -> impl Future<Output = Result<()>>;
}

/// With our trigger or without.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Bare,
    Ours,
}

/// One of many clients of a server.
pub(crate) trait Client: Send + Sync + 'static {
    /// Makes one order in a transaction of its own.
    fn order(&self, side: Side) -> impl Future<Output = Result<()>> + Send;
}

/// A server with two tables of orders, one of them without a trigger, and the log of events.
pub(crate) trait Server: Orders {
    type Client: Client;
    /// Somebody whose snapshot is held until this is dropped.
    type Snapshot;

    /// A new connection.
    fn client(&self) -> impl Future<Output = Result<Self::Client>>;

    /// Makes so many orders in the table without a trigger.
    fn order_bare(&self, count: u64) -> impl Future<Output = Result<()>>;

    /// Empties both tables.
    fn clear_orders(&self) -> impl Future<Output = Result<()>>;

    /// Empties the log.
    fn clear_log(&self) -> impl Future<Output = Result<()>>;

    /// Has nothing left to do when the clock starts.
    fn come_to_rest(&self) -> impl Future<Output = Result<()>>;

    /// Adds events that were delivered long ago.
    fn fill_log(&self, trigger: &EventTrigger, events: i64) -> impl Future<Output = Result<()>>;

    /// Holds a snapshot while events are captured, taken and delivered; nothing where nobody can
    /// hold one.
    fn live_under_a_snapshot(
        &self,
        trigger: &EventTrigger,
        events: i64,
    ) -> impl Future<Output = Result<Option<Self::Snapshot>>>;

    /// The server's processes that work for programs of ours in this database; `None` where they
    /// are not visible from here.
    fn sessions(&self) -> impl Future<Output = Result<Option<Vec<String>>>>;

    /// Where a process of its own connects.
    fn url(&self) -> &str;
}

/// A trigger for the inserts of a table.
pub(crate) fn definition(table: TableName, webhook: &str) -> Result<TriggerDefinition> {
    Ok(TriggerDefinition {
        name: TRIGGER.parse()?,
        table,
        capture: Capture {
            insert: true,
            ..Capture::default()
        },
        delivery: Delivery {
            webhook: Some(Setting::Value(webhook.to_owned())),
            ..Delivery::default()
        },
    })
}

/// The measures deliver whatever waits in the database, so nobody else's events may be there.
pub(crate) async fn refuse_others(db: &Changefeed) -> Result<()> {
    let triggers = db.triggers().await?;
    let other = triggers
        .iter()
        .map(|t| &t.definition().definition.name)
        .find(|name| name.as_str() != TRIGGER);
    match other {
        None => Ok(()),
        Some(name) => Err(Error::new(
            Kind::AlreadyExists,
            format!("there are event triggers in this database, like '{name}'"),
        )
        .advise("the measures would deliver their events: name another database")),
    }
}

/// A webhook in this process that accepts everything and keeps nothing.
pub(crate) async fn receiver() -> Result<Receiver> {
    Receiver::start_counting()
        .await
        .map_err(|e| Error::new(Kind::Unavailable, "no port for a webhook").caused_by(e))
}
