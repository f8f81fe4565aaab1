//! What the measures of event triggers share, whatever the database.

pub(crate) mod deliveries;
mod delivering;
pub(crate) mod latency;
pub(crate) mod process;

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
