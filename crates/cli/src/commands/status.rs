//! `changefeed status`

use changefeed::{Kind, Result, ShardState};
use serde::Serialize;

use crate::commands::{consumer, watch};
use crate::connect;
use crate::output::{Out, human_ms};

#[derive(Serialize)]
struct FeedStatus<'a> {
    kind: &'static str,
    feed: &'a str,
    feed_id: i16,
    #[serde(flatten)]
    state: &'a ShardState,
}

#[derive(Serialize)]
struct Tagged<'a, T> {
    kind: &'static str,
    #[serde(flatten)]
    value: &'a T,
}

pub(crate) async fn run(database: &str, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    let mut shards = Vec::new();
    for feed in db.feeds().await? {
        match feed.shard_states().await {
            Ok(states) => shards.extend(
                states
                    .into_iter()
                    .map(|state| (feed.name().to_owned(), feed.definition().id, state)),
            ),
            // One feed that is broken must not hide the others.
            Err(error) if error.kind() != Kind::Unavailable => {
                tracing::warn!(feed = feed.name(), %error, "the state of this feed cannot be read");
            }
            Err(error) => return Err(error),
        }
    }
    let consumers = db.consumers().await?;
    let holders = db.lease_holders().await?;
    let incidents = db.incidents().await?;
    let triggers = db.trigger_states().await?;
    let watches = watch::statuses(&db).await?;

    if out.is_json() {
        for (feed, id, state) in &shards {
            out.object(&FeedStatus {
                kind: "shard",
                feed,
                feed_id: id.0,
                state,
            })?;
        }
        for value in &consumers {
            out.object(&Tagged {
                kind: "consumer",
                value,
            })?;
        }
        for value in &watches {
            out.object(&Tagged {
                kind: "watch",
                value,
            })?;
        }
        for value in &holders {
            out.object(&Tagged {
                kind: "lease",
                value,
            })?;
        }
        for value in &triggers {
            out.object(&Tagged {
                kind: "trigger",
                value,
            })?;
        }
        for value in &incidents {
            out.object(&Tagged {
                kind: "incident",
                value,
            })?;
        }
        return Ok(());
    }

    if shards.is_empty() {
        out.line("no feeds yet; `changefeed feed create NAME --from TABLE` makes one")?;
    } else {
        let rows = shards
            .iter()
            .map(|(feed, _, s)| {
                vec![
                    format!("{feed}/{}", s.shard),
                    s.sweep_group.to_string(),
                    s.last.to_string(),
                    s.pending.to_string(),
                    format!("{} ago", human_ms(s.since_ms)),
                ]
            })
            .collect();
        out.table(&["SHARD", "GROUP", "LAST", "PENDING", "AT"], rows)?;
    }
    if !consumers.is_empty() {
        out.line("")?;
        consumer::table(&consumers, out)?;
    }
    if !triggers.is_empty() {
        out.line("")?;
        let rows = triggers
            .iter()
            .map(|t| {
                vec![
                    t.trigger.to_string(),
                    t.pending.to_string(),
                    t.in_flight.to_string(),
                    t.dead.to_string(),
                    t.overdue_ms.map_or_else(String::new, human_ms),
                ]
            })
            .collect();
        out.table(
            &["TRIGGER", "PENDING", "IN FLIGHT", "GIVEN UP", "OVERDUE"],
            rows,
        )?;
    }
    if !watches.is_empty() {
        out.line("")?;
        watch::table(&watches, out)?;
    }
    if !holders.is_empty() {
        out.line("")?;
        let rows = holders
            .iter()
            .map(|h| {
                let state = if h.expires_in_ms > 0 {
                    format!("for {}", human_ms(h.expires_in_ms))
                } else {
                    "free".to_owned()
                };
                vec![
                    h.name.clone(),
                    h.owner.clone(),
                    h.generation.to_string(),
                    state,
                ]
            })
            .collect();
        out.table(&["LEASE", "HOLDER", "GENERATION", "HELD"], rows)?;
    }
    if !incidents.is_empty() {
        out.line("")?;
        let rows = incidents
            .iter()
            .map(|i| {
                let ago = format!("{} ago", human_ms(i.since_ms));
                vec![format!("{}/{}", i.feed, i.shard), i.count.to_string(), ago]
            })
            .collect();
        out.table(&["ULID SHARD", "LOST WRITERS", "LAST"], rows)?;
    }
    if db.needs_sweeping()
        && shards.iter().any(|(_, _, s)| s.pending > 0)
        && holders.iter().all(|h| h.expires_in_ms <= 0)
    {
        out.line("")?;
        out.line(
            "changes are waiting for their numbers and nobody sweeps: run `changefeed serve`",
        )?;
    }
    Ok(())
}
