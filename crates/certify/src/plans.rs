//! How the server finds what our statements ask for.

use std::sync::Arc;
use std::time::Duration;

use changefeed::Result;
use changefeed_core::{
    After, BatchOutcome, Capture, CleanUp, Cursor, Delivery, EventTrigger, Feed, LeasedEvent,
    NewFeed, ShardId, Source, Store, TableName, Take, TriggerDefinition, Wanted, Watch,
    WatchSettings, WatchSpec, seek_consumer,
};
use serde::Serialize;

use crate::cases::settle;
use crate::place::Place;

/// Longer than any run.
const LEASE: Duration = Duration::from_secs(3600);

/// Rows in each table that grows, so that a walk through it is not the cheaper way.
const ROWS: i64 = 20_000;
/// At once: SQL Server takes so many rows per statement.
const AT_ONCE: i64 = 1_000;

/// How one table is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Access {
    /// The table, as the plan names it.
    pub table: String,
    /// The operator.
    pub how: String,
    /// Whether all of it is walked through.
    pub whole: bool,
}

/// The plan of a statement.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The beginning of the statement.
    pub statement: String,
    /// How it reads tables.
    pub access: Vec<Access>,
    /// What is wrong with it.
    pub complaints: Vec<String>,
    /// All of it, as the server tells it.
    pub text: String,
}

impl Plan {
    /// A plan, and whether it walks through a table that grows.
    pub(crate) fn judged(
        statement: &str,
        access: Vec<Access>,
        growing: &[&str],
        text: String,
    ) -> Self {
        // Some tables have a number in their names.
        let grows = |table: &str| {
            growing.iter().any(|name| match name.ends_with('_') {
                true => table.starts_with(name),
                false => table == *name,
            })
        };
        let complaints = access
            .iter()
            .filter(|access| access.whole && grows(&access.table))
            .map(|access| format!("{} of {}", access.how, access.table))
            .collect();
        Plan {
            statement: beginning(statement),
            access,
            complaints,
            text,
        }
    }
}

/// A statement for people: in one line, and not all of it.
fn beginning(statement: &str) -> String {
    let words: Vec<&str> = statement.split_whitespace().collect();
    words.join(" ").chars().take(160).collect()
}

/// Fills the tables, does everything a few times, and looks at the plans.
pub(crate) async fn look(place: &Arc<dyn Place>, store: &Arc<dyn Store>) -> Result<Vec<Plan>> {
    let words = place.words();
    let session = place.session().await?;
    let create = format!(
        "create table item (id integer primary key, note {})",
        words.text
    );
    session.run(&create).await?;
    let feed = store
        .create_feed(&NewFeed {
            source: Some(Source::captured(TableName::unqualified("item"))),
            ..NewFeed::new("certify-plans".parse()?)
        })
        .await?;
    let definition = TriggerDefinition {
        name: "certify-plans".parse()?,
        table: TableName::unqualified("item"),
        capture: Capture::everything(),
        delivery: Delivery::default(),
    };
    let trigger = store.create_trigger(&definition, false).await?;
    let spec = WatchSpec::new("certify-plans".parse()?, TableName::unqualified("item"));
    let watch = store.open_watch(&spec).await?;
    for first in (1..=ROWS).step_by(AT_ONCE as usize) {
        let fill = words.fill.replace("{first}", &first.to_string());
        session
            .run(&fill.replace("{count}", &AT_ONCE.to_string()))
            .await?;
    }
    settle(store, &feed).await?;
    let cursor = middle(store, &feed).await?;
    use_store(store, &feed, cursor, (&trigger, &watch)).await?;
    // Something to number, beside all that has its number.
    let fill = words.fill.replace("{first}", &(ROWS + 1).to_string());
    session.run(&fill.replace("{count}", "10")).await?;
    let calls: Vec<String> = words
        .calls
        .iter()
        .map(|call| {
            call.replace("{feed}", &feed.id.to_string())
                .replace("{cursor}", &cursor.to_string())
        })
        .collect();
    let mut plans = place.plans(&calls).await?;
    plans.extend(place.plans_of_store().await?);
    Ok(plans)
}

async fn middle(store: &Arc<dyn Store>, feed: &Feed) -> Result<i64> {
    let page = store.read(feed, ShardId(0), After::First, 1000).await?;
    Ok(page.next.number().unwrap_or_default())
}

/// What instances and readers do all the time.
async fn use_store(
    store: &Arc<dyn Store>,
    feed: &Feed,
    cursor: i64,
    (trigger, watch): (&EventTrigger, &Watch),
) -> Result<()> {
    let consumer = "certify".parse()?;
    let after = Cursor::Number(cursor);
    seek_consumer(&**store, &consumer, feed, ShardId(0), after).await?;
    let settings = WatchSettings::default();
    let take = Take {
        owner: "certify",
        settings: &settings,
    };
    let wanted = Wanted {
        trigger: trigger.id,
        limit: 10,
        overall: None,
        ordered: false,
        debounced: false,
        paced: false,
    };
    for _ in 0..3 {
        store
            .read(feed, ShardId(0), After::Cursor(after), 100)
            .await?;
        store.consumers().await?;
        let held = store.claim_events(&[wanted], "certify", LEASE).await?;
        let held: Vec<_> = held.iter().map(LeasedEvent::claim).collect();
        store.renew_events(&held, LEASE).await?;
        store.release_events(&held).await?;
        if let Some(batch) = store.take(watch, take).await? {
            store.renew(watch, &batch, LEASE).await?;
            store
                .settle(watch, &batch, &BatchOutcome::Done, &settings)
                .await?;
        }
        let what = CleanUp {
            after: LEASE,
            dead_letters: false,
        };
        store.clean_up_events(Some(trigger), what, 100).await?;
        store.trim(feed, LEASE.into(), 100).await?;
    }
    Ok(())
}
