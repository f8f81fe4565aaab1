//! Subscriptions, and how far their sinks have got.

use async_trait::async_trait;
use changefeed_core::{
    Advance, ConsumerName, Cursor, Error, Feed, FeedId, Lane, LaneFailure, LaneState, ParkedChange,
    Result, ShardId, Subscription, SubscriptionDefinition, SubscriptionStore, subscription_starts,
    words,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::SqliteStore;
use crate::consumers::advance_consumer;
use crate::error::Explain;

#[async_trait]
impl SubscriptionStore for SqliteStore {
    async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        self.reading(|tx| list(tx)).await
    }

    async fn create_subscription(
        &self,
        definition: &SubscriptionDefinition,
        feed: &Feed,
        starts: &[(ShardId, Cursor)],
        replace: bool,
    ) -> Result<()> {
        definition.check_feed(feed)?;
        let starts = subscription_starts(feed, starts);
        let (definition, feed) = (definition.clone(), feed.id);
        self.writing(move |tx| create(tx, &definition, feed, &starts, replace))
            .await
    }

    async fn drop_subscription(&self, name: &ConsumerName) -> Result<()> {
        let name = name.clone();
        self.writing(move |tx| drop(tx, &name)).await
    }

    async fn pause_subscription(&self, name: &ConsumerName, reason: Option<&str>) -> Result<()> {
        let (name, reason) = (name.clone(), reason.map(str::to_owned));
        self.writing(move |tx| pause(tx, &name, reason.as_deref()))
            .await
    }

    async fn hold_lane(&self, lane: &Lane, generation: i64) -> Result<LaneState> {
        let lane = lane.clone();
        self.writing(move |tx| {
            ensure(tx, &lane)?;
            let held = tx
                .execute(
                    "update changefeed_subscription_shard set generation = ?3 \
                     where name = ?1 and shard = ?2 and generation <= ?3",
                    params![lane.name.as_str(), lane.shard.0, generation],
                )
                .explained()?;
            found(held, || words::lane_moved(&lane))?;
            state(tx, &lane)
        })
        .await
    }

    async fn advance_lane(&self, lane: &Lane, advance: &Advance) -> Result<()> {
        let (lane, advance) = (lane.clone(), advance.clone());
        self.writing(move |tx| {
            let now = state(tx, &lane)?;
            if now.generation != advance.generation || now.epoch != advance.epoch {
                return Err(words::lane_moved(&lane));
            }
            // It may have been this very call, whose answer was lost.
            if now.cursor == Some(advance.to) && advance.from != Some(advance.to) {
                return Ok(());
            }
            let (name, shard) = (&lane.name, lane.shard);
            advance_consumer(tx, name, lane.feed, shard, advance.from, advance.to)?;
            tx.execute(
                "update changefeed_subscription_shard set held = ?3, sent = sent + ?4, \
                 lost = lost + ?5, parked = parked + ?6 where name = ?1 and shard = ?2",
                params![
                    name.as_str(),
                    shard.0,
                    advance.held.map(|held| held.to_string()),
                    advance.sent,
                    advance.lost,
                    i64::from(advance.parked.is_some()),
                ],
            )
            .explained()?;
            if let Some(reason) = &advance.parked {
                tx.execute(
                    "insert into changefeed_subscription_parked (name, shard, epoch, cursor, reason) \
                     values (?1, ?2, ?3, ?4, ?5) on conflict do nothing",
                    params![
                        name.as_str(),
                        shard.0,
                        advance.epoch,
                        advance.to.to_string(),
                        reason
                    ],
                )
                .explained()?;
            }
            Ok(())
        })
        .await
    }

    async fn stop_lane(&self, lane: &Lane, generation: Option<i64>, reason: &str) -> Result<()> {
        let (lane, reason) = (lane.clone(), reason.to_owned());
        self.writing(move |tx| {
            ensure(tx, &lane)?;
            let stopped = tx
                .execute(
                    "update changefeed_subscription_shard set stopped = ?3 \
                     where name = ?1 and shard = ?2 and generation = coalesce(?4, generation)",
                    params![lane.name.as_str(), lane.shard.0, reason, generation],
                )
                .explained()?;
            found(stopped, || words::lane_moved(&lane))?;
            if generation.is_none() {
                put(tx, &lane, None)?;
            }
            Ok(())
        })
        .await
    }

    async fn note_lane(&self, lane: &Lane, generation: i64, failure: Option<&str>) -> Result<()> {
        let (lane, failure) = (lane.clone(), failure.map(str::to_owned));
        self.writing(move |tx| {
            tx.execute(
                include_str!("sql/subscription_note.sql"),
                params![lane.name.as_str(), lane.shard.0, generation, failure],
            )
            .explained()?;
            Ok(())
        })
        .await
    }

    async fn restart_lane(&self, lane: &Lane, after: Option<Cursor>) -> Result<u32> {
        let lane = lane.clone();
        self.writing(move |tx| {
            ensure(tx, &lane)?;
            tx.execute(
                "update changefeed_subscription_shard \
                 set epoch = epoch + 1, held = null, stopped = null where name = ?1 and shard = ?2",
                params![lane.name.as_str(), lane.shard.0],
            )
            .explained()?;
            put(tx, &lane, after)?;
            state(tx, &lane).map(|state| state.epoch)
        })
        .await
    }

    async fn parked_changes(&self, name: &ConsumerName, limit: usize) -> Result<Vec<ParkedChange>> {
        let name = name.clone();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.reading(move |tx| {
            let mut statement = tx
                .prepare_cached(
                    "select shard, epoch, cursor, reason from changefeed_subscription_parked \
                     where name = ?1 order by parked_at desc, shard, cursor desc limit ?2",
                )
                .explained()?;
            let mut rows = statement.query(params![name.as_str(), limit]).explained()?;
            let mut parked = Vec::new();
            while let Some(row) = rows.next().explained()? {
                parked.push(ParkedChange {
                    shard: ShardId(row.get(0).explained()?),
                    epoch: row.get(1).explained()?,
                    cursor: row.get::<_, String>(2).explained()?.parse()?,
                    reason: row.get(3).explained()?,
                });
            }
            Ok(parked)
        })
        .await
    }
}

fn found(rows: usize, error: impl FnOnce() -> Error) -> Result<()> {
    if rows == 0 { Err(error()) } else { Ok(()) }
}

fn list(tx: &Connection) -> Result<Vec<Subscription>> {
    let mut statement = tx
        .prepare_cached(include_str!("sql/subscriptions.sql"))
        .explained()?;
    let mut rows = statement.query([]).explained()?;
    let mut all: Vec<Subscription> = Vec::new();
    while let Some(row) = rows.next().explained()? {
        let name: String = row.get(0).explained()?;
        if all
            .last()
            .is_none_or(|s| s.definition.name.as_str() != name)
        {
            let definition: String = row.get(2).explained()?;
            all.push(Subscription {
                definition: serde_json::from_str(&definition).map_err(|e| {
                    words::definition_unreadable(format!("subscription '{name}'")).caused_by(e)
                })?,
                feed_id: FeedId(row.get(1).explained()?),
                paused: row.get(3).explained()?,
                shards: Vec::new(),
            });
        }
        if let (Some(_), Some(last)) = (row.get::<_, Option<i16>>(4).explained()?, all.last_mut()) {
            last.shards.push(lane_state(row, 4)?);
        }
    }
    Ok(all)
}

/// Reads the columns shard, generation, epoch, cursor, held, stopped, sent, lost, parked, failing.
fn lane_state(row: &Row<'_>, at: usize) -> Result<LaneState> {
    let cursor = |at: usize| -> Result<Option<Cursor>> {
        let text: Option<String> = row.get(at).explained()?;
        text.map(|text| text.parse()).transpose()
    };
    Ok(LaneState {
        shard: ShardId(row.get(at).explained()?),
        generation: row.get(at + 1).explained()?,
        epoch: row.get(at + 2).explained()?,
        cursor: cursor(at + 3)?,
        held: cursor(at + 4)?,
        stopped: row.get(at + 5).explained()?,
        sent: row.get(at + 6).explained()?,
        lost: row.get(at + 7).explained()?,
        parked: row.get(at + 8).explained()?,
        failing: match (
            row.get::<_, Option<i64>>(at + 9).explained()?,
            row.get(at + 10).explained()?,
        ) {
            (Some(since_ms), Some(error)) => Some(LaneFailure { since_ms, error }),
            _ => None,
        },
    })
}

/// Defines one as a step among others: its feed may be one that an earlier step has made.
pub(crate) fn define(
    tx: &Connection,
    definition: &SubscriptionDefinition,
    starts: &[(ShardId, Option<Cursor>)],
) -> Result<()> {
    let feed: Option<i16> = tx
        .query_row(
            "select feed_id from changefeed_feed where name = ?1",
            [definition.feed.as_str()],
            |row| row.get(0),
        )
        .optional()
        .explained()?;
    let feed = feed.ok_or_else(|| words::feed_gone(&definition.feed))?;
    create(tx, definition, FeedId(feed), starts, true)
}

pub(crate) fn drop(tx: &Connection, name: &ConsumerName) -> Result<()> {
    tx.execute(
        "delete from changefeed_consumer where name = ?1 and feed_id = \
         (select feed_id from changefeed_subscription where name = ?1)",
        [name.as_str()],
    )
    .explained()?;
    let gone = tx
        .execute(
            "delete from changefeed_subscription where name = ?1",
            [name.as_str()],
        )
        .explained()?;
    found(gone, || words::no_subscription(name))
}

pub(crate) fn pause(tx: &Connection, name: &ConsumerName, reason: Option<&str>) -> Result<()> {
    let paused = tx
        .execute(
            "update changefeed_subscription set paused = ?2 where name = ?1",
            params![name.as_str(), reason],
        )
        .explained()?;
    found(paused, || words::no_subscription(name))?;
    if reason.is_none() {
        tx.execute(
            "update changefeed_subscription_shard set stopped = null where name = ?1",
            [name.as_str()],
        )
        .explained()?;
    }
    Ok(())
}

fn create(
    tx: &Connection,
    definition: &SubscriptionDefinition,
    feed: FeedId,
    starts: &[(ShardId, Option<Cursor>)],
    replace: bool,
) -> Result<()> {
    definition.validate()?;
    let name = &definition.name;
    let text = serde_json::to_string(definition)
        .map_err(|e| words::definition_unwritable().caused_by(e))?;
    let known: Option<i16> = tx
        .query_row(
            "select feed_id from changefeed_subscription where name = ?1",
            [name.as_str()],
            |row| row.get(0),
        )
        .optional()
        .explained()?;
    match known {
        Some(_) if !replace => return Err(words::subscription_name_taken(name)),
        Some(other) if other != feed.0 => return Err(words::subscription_elsewhere(name)),
        Some(_) => {
            tx.execute(
                "update changefeed_subscription set definition = ?2 where name = ?1",
                params![name.as_str(), text],
            )
            .explained()?;
            return Ok(());
        }
        None => {}
    }
    let consumers: i64 = tx
        .query_row(
            "select count(*) from changefeed_consumer where name = ?1 and feed_id = ?2",
            params![name.as_str(), feed.0],
            |row| row.get(0),
        )
        .explained()?;
    if consumers > 0 {
        return Err(words::consumer_taken(name));
    }
    let created = tx
        .execute(
            "insert into changefeed_subscription (name, feed_id, definition) \
             select ?1, feed_id, ?3 from changefeed_feed where feed_id = ?2",
            params![name.as_str(), feed.0, text],
        )
        .explained()?;
    found(created, || words::feed_gone(&definition.feed))?;
    for (shard, start) in starts {
        let lane = Lane {
            name: name.clone(),
            feed,
            shard: *shard,
        };
        ensure(tx, &lane)?;
        put(tx, &lane, *start)?;
    }
    Ok(())
}

/// Makes the row of a shard, if the subscription is there.
fn ensure(tx: &Connection, lane: &Lane) -> Result<()> {
    tx.prepare_cached(
        "insert into changefeed_subscription_shard (name, shard) \
         select name, ?2 from changefeed_subscription where name = ?1 on conflict do nothing",
    )
    .and_then(|mut s| s.execute(params![lane.name.as_str(), lane.shard.0]))
    .explained()?;
    Ok(())
}

/// Puts the position somewhere, or nowhere.
fn put(tx: &Connection, lane: &Lane, cursor: Option<Cursor>) -> Result<()> {
    let (name, feed, shard) = (lane.name.as_str(), lane.feed.0, lane.shard.0);
    tx.execute(
        "delete from changefeed_consumer where name = ?1 and feed_id = ?2 and shard = ?3",
        params![name, feed, shard],
    )
    .explained()?;
    if let Some(cursor) = cursor {
        advance_consumer(tx, &lane.name, lane.feed, lane.shard, None, cursor)?;
    }
    Ok(())
}

fn state(tx: &Connection, lane: &Lane) -> Result<LaneState> {
    let mut statement = tx
        .prepare_cached(include_str!("sql/subscription_shard.sql"))
        .explained()?;
    let mut rows = statement
        .query(params![lane.name.as_str(), lane.feed.0, lane.shard.0])
        .explained()?;
    match rows.next().explained()? {
        Some(row) => lane_state(row, 0),
        None => Err(words::no_subscription(&lane.name)),
    }
}
