//! Event triggers: capture, fetching, delivery, and what a delivering process takes.

mod capture;
pub(crate) mod deliveries;
mod delivering;
mod fetch;
mod latency;
mod process;
mod resources;

use std::path::Path;

use changefeed::{
    Capture, Changefeed, Delivery, Error, EventTrigger, Kind, Result, Sink, TableName,
    TriggerDefinition,
};
use changefeed_receiver::Receiver;

pub(crate) use delivering::Delivering;

use crate::feeds::Snapshots;
use crate::idle::Backends;
use crate::latency::Publish;
use crate::report::{Budget, Findings};
use crate::scale::Scale;

/// The name of the scratch trigger, and how we know it again after a run that was killed.
const TRIGGER: &str = "changefeed-bench";
/// Who takes turns at writing while events are delivered.
const TRICKLE: usize = 4;
/// Larger than any id that the tables give by themselves.
const FIRST_ID: i64 = 1_000_000_000;

/// A database with a table of orders that an event trigger listens to.
pub(crate) trait Orders {
    fn db(&self) -> &Changefeed;

    /// What it is called.
    fn table(&self) -> TableName;

    /// Has the events of new orders go to this webhook from now on.
    async fn send_to(&self, webhook: &str) -> Result<EventTrigger> {
        let definition = definition(self.table(), webhook)?;
        self.db().store().create_trigger(&definition, true).await
    }

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
pub(crate) trait Server: Orders + Backends + Snapshots {
    type Client: Client;
    type Trickle: Publish;

    /// Makes both tables.
    fn make_orders(&self) -> impl Future<Output = Result<()>>;

    /// A new connection.
    fn client(&self) -> impl Future<Output = Result<Self::Client>>;

    /// A writer of orders whose ids are known.
    fn trickle(&self) -> impl Future<Output = Result<Self::Trickle>>;

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

    /// Events that live as they do: captured, taken, delivered.
    fn live(&self, trigger: &EventTrigger, events: i64) -> impl Future<Output = Result<()>>;

    /// Removes both tables, and what is left of their triggers.
    fn remove_orders(&self) -> impl Future<Output = Result<()>>;

    /// Where a process of its own connects.
    fn url(&self) -> &str;
}

pub(crate) async fn measure(
    server: &impl Server,
    program: &Path,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    refuse_others(server.db()).await?;
    // What a run that was killed has left behind.
    forget(server).await?;
    server.make_orders().await?;
    let measured = measures(server, program, scale, findings).await;
    findings.doing("removing the events of the measures");
    forget(server).await?;
    measured
}

async fn measures(
    server: &impl Server,
    program: &Path,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let db = server.db();
    resources::idle(server, program, scale, findings).await?;
    let mut writers = Vec::new();
    for _ in 0..TRICKLE {
        writers.push(server.trickle().await?);
    }
    let most = Some(Budget::at_most(15.0));
    let follow = scale.follow;
    latency::measure(db, server, writers, FIRST_ID, follow, most, findings).await?;
    capture::single(server, scale, findings).await?;
    capture::bulk(server, scale, findings).await?;
    server.clear_log().await?;
    let least = Some(Budget::at_least(0.3));
    deliveries::measure(db, server, scale, least, findings).await?;
    server.clear_log().await?;
    resources::memory(server, program, scale, findings).await?;
    server.clear_log().await?;
    fetch::measure(db, server, scale, findings).await
}

/// Removes the trigger with all its traces.
async fn forget(server: &impl Server) -> Result<()> {
    server.clear_log().await?;
    drop_trigger(server.db()).await?;
    server.remove_orders().await
}

pub(crate) async fn drop_trigger(db: &Changefeed) -> Result<()> {
    for trigger in db.triggers().await? {
        if trigger.definition().definition.name.as_str() == TRIGGER {
            trigger.drop_trigger().await?;
        }
    }
    Ok(())
}

/// A trigger for the inserts of a table.
fn definition(table: TableName, webhook: &str) -> Result<TriggerDefinition> {
    Ok(TriggerDefinition {
        name: TRIGGER.parse()?,
        table,
        capture: Capture {
            insert: true,
            ..Capture::default()
        },
        delivery: Delivery {
            sink: Sink::webhook(webhook.to_owned()),
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
