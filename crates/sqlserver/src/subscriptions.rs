//! Subscriptions, and how far their sinks have got.

use changefeed_core::{
    Advance, ConsumerName, Cursor, Error, Feed, FeedId, Lane, LaneFailure, LaneState, ParkedChange,
    Result, ShardId, Subscription, SubscriptionDefinition, subscription_starts, words,
};
use tiberius::Row;

use crate::connection::Connection;
use crate::consumers::advance_consumer;
use crate::error::{db, is_duplicate};
use crate::row::Cells;
use crate::session::Session;

impl Session {
    pub(crate) async fn subscriptions(&mut self) -> Result<Vec<Subscription>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/subscriptions.sql"), &[])
            .await?;
        let mut all: Vec<Subscription> = Vec::new();
        for row in &rows {
            let name: &str = row.take(0)?;
            if all
                .last()
                .is_none_or(|s| s.definition.name.as_str() != name)
            {
                all.push(Subscription {
                    definition: serde_json::from_str(row.take(2)?).map_err(|e| {
                        words::definition_unreadable(format!("subscription '{name}'")).caused_by(e)
                    })?,
                    feed_id: FeedId(row.take(1)?),
                    paused: row.maybe_text(3)?,
                    shards: Vec::new(),
                });
            }
            if let (Some(_), Some(last)) = (row.maybe::<i16>(4)?, all.last_mut()) {
                last.shards.push(lane_state(row, 4)?);
            }
        }
        Ok(all)
    }

    pub(crate) async fn create_subscription(
        &mut self,
        definition: &SubscriptionDefinition,
        feed: &Feed,
        starts: &[(ShardId, Cursor)],
        replace: bool,
    ) -> Result<()> {
        definition.check_feed(feed)?;
        let starts = subscription_starts(feed, starts);
        self.whole(async |connection| {
            create(connection, definition, feed.id, &starts, replace).await
        })
        .await
    }

    pub(crate) async fn drop_subscription(&mut self, name: &ConsumerName) -> Result<()> {
        drop(&mut self.connection, name).await
    }

    pub(crate) async fn pause_subscription(
        &mut self,
        name: &ConsumerName,
        reason: Option<&str>,
    ) -> Result<()> {
        pause(&mut self.connection, name, reason).await
    }

    /// Statement by statement: each is right by itself, and what comes later is fenced by the generation.
    pub(crate) async fn hold_lane(&mut self, lane: &Lane, generation: i64) -> Result<LaneState> {
        let connection = &mut *self.connection;
        ensure(connection, lane).await?;
        let held = connection
            .execute(
                include_str!("sql/subscription_hold.sql"),
                &[&lane.name.as_str(), &lane.shard.0, &generation],
            )
            .await?;
        let state = state(connection, lane).await?;
        match held {
            0 => Err(words::lane_moved(lane)),
            _ => Ok(state),
        }
    }

    pub(crate) async fn advance_lane(&mut self, lane: &Lane, advance: &Advance) -> Result<()> {
        let connection = &mut *self.connection;
        let moved = connection
            .one(
                include_str!("sql/subscription_advance.sql"),
                &[
                    &lane.name.as_str(),
                    &lane.shard.0,
                    &advance.generation,
                    &epoch(advance.epoch),
                    &advance.held.map(|held| held.to_string()),
                    &advance.sent,
                    &advance.lost,
                    &advance.from.map(|from| from.to_string()),
                    &advance.to.to_string(),
                    &lane.feed.0,
                    &advance.parked,
                ],
            )
            .await?;
        match (moved.take::<i32>(0)?, moved.take::<i32>(1)?) {
            (0, _) => Err(words::lane_moved(lane)),
            // It may have been this very call, whose answer was lost.
            (_, 0) => match state(connection, lane).await?.cursor {
                Some(now) if now == advance.to && advance.from != Some(now) => Ok(()),
                _ => Err(lane.name.moved(lane.shard)),
            },
            _ => Ok(()),
        }
    }

    pub(crate) async fn stop_lane(
        &mut self,
        lane: &Lane,
        generation: Option<i64>,
        reason: &str,
    ) -> Result<()> {
        let connection = &mut *self.connection;
        ensure(connection, lane).await?;
        let (name, shard, feed) = (lane.name.as_str(), lane.shard.0, lane.feed.0);
        let stopped = connection
            .one(
                include_str!("sql/subscription_stop.sql"),
                &[&name, &shard, &reason, &generation.unwrap_or(-1), &feed],
            )
            .await?;
        found(stopped.take(0)?, || words::lane_moved(lane))
    }

    pub(crate) async fn note_lane(
        &mut self,
        lane: &Lane,
        generation: i64,
        failure: Option<&str>,
    ) -> Result<()> {
        self.connection
            .execute(
                include_str!("sql/subscription_note.sql"),
                &[&lane.name.as_str(), &lane.shard.0, &generation, &failure],
            )
            .await?;
        Ok(())
    }

    pub(crate) async fn restart_lane(&mut self, lane: &Lane, after: Option<Cursor>) -> Result<u32> {
        let connection = &mut *self.connection;
        ensure(connection, lane).await?;
        let (name, shard, feed) = (lane.name.as_str(), lane.shard.0, lane.feed.0);
        let after = after.map(|after| after.to_string());
        let restarted = connection
            .one(
                include_str!("sql/subscription_restart.sql"),
                &[&name, &shard, &feed, &after],
            )
            .await?;
        match restarted.maybe::<i32>(0)? {
            Some(epoch) => Ok(epoch.unsigned_abs()),
            None => Err(words::no_subscription(&lane.name)),
        }
    }

    pub(crate) async fn parked_changes(
        &mut self,
        name: &ConsumerName,
        limit: usize,
    ) -> Result<Vec<ParkedChange>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self
            .connection
            .query(
                include_str!("sql/subscription_parked.sql"),
                &[&name.as_str(), &limit],
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(ParkedChange {
                    shard: ShardId(row.take(0)?),
                    epoch: row.take::<i32>(1)?.unsigned_abs(),
                    cursor: row.take::<&str>(2)?.parse()?,
                    reason: row.text(3)?,
                })
            })
            .collect()
    }

    /// Does all of it, or nothing.
    async fn whole<T>(&mut self, act: impl AsyncFnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let connection = &mut *self.connection;
        connection.begin().await?;
        let done = async {
            let done = act(connection).await?;
            connection.commit().await?;
            Ok(done)
        }
        .await;
        if done.is_err() {
            connection.tidy().await;
        }
        done
    }
}

fn found(rows: i32, error: impl FnOnce() -> Error) -> Result<()> {
    if rows == 0 { Err(error()) } else { Ok(()) }
}

fn epoch(epoch: u32) -> i32 {
    i32::try_from(epoch).unwrap_or(i32::MAX)
}

/// Reads the columns shard, generation, epoch, cursor, held, stopped, sent, lost, parked, failing.
fn lane_state(row: &Row, at: usize) -> Result<LaneState> {
    let cursor = |at: usize| -> Result<Option<Cursor>> {
        row.maybe::<&str>(at)?.map(str::parse).transpose()
    };
    Ok(LaneState {
        shard: ShardId(row.take(at)?),
        generation: row.take(at + 1)?,
        epoch: row.take::<i32>(at + 2)?.unsigned_abs(),
        cursor: cursor(at + 3)?,
        held: cursor(at + 4)?,
        stopped: row.maybe_text(at + 5)?,
        sent: row.take(at + 6)?,
        lost: row.take(at + 7)?,
        parked: row.take(at + 8)?,
        failing: match (row.maybe::<i64>(at + 9)?, row.maybe_text(at + 10)?) {
            (Some(since_ms), Some(error)) => Some(LaneFailure { since_ms, error }),
            _ => None,
        },
    })
}

/// Defines one as a step among others: its feed may be one that an earlier step has made.
pub(crate) async fn define(
    connection: &mut Connection,
    definition: &SubscriptionDefinition,
    starts: &[(ShardId, Option<Cursor>)],
) -> Result<()> {
    let feeds = connection
        .query(
            "select feed_id from changefeed.feed where name = convert(varchar(100), @P1)",
            &[&definition.feed.as_str()],
        )
        .await?;
    let feed = feeds
        .first()
        .ok_or_else(|| words::feed_gone(&definition.feed))?;
    create(connection, definition, FeedId(feed.take(0)?), starts, true).await
}

pub(crate) async fn drop(connection: &mut Connection, name: &ConsumerName) -> Result<()> {
    let sql = include_str!("sql/subscription_drop.sql");
    let gone = connection.one(sql, &[&name.as_str()]).await?;
    found(gone.take(0)?, || words::no_subscription(name))
}

pub(crate) async fn pause(
    connection: &mut Connection,
    name: &ConsumerName,
    reason: Option<&str>,
) -> Result<()> {
    let sql = include_str!("sql/subscription_pause.sql");
    let paused = connection.one(sql, &[&name.as_str(), &reason]).await?;
    found(paused.take(0)?, || words::no_subscription(name))
}

async fn create(
    connection: &mut Connection,
    definition: &SubscriptionDefinition,
    feed: FeedId,
    starts: &[(ShardId, Option<Cursor>)],
    replace: bool,
) -> Result<()> {
    definition.validate()?;
    let name = &definition.name;
    let text = serde_json::to_string(definition)
        .map_err(|e| words::definition_unwritable().caused_by(e))?;
    let row = connection
        .one(
            include_str!("sql/subscription_known.sql"),
            &[&name.as_str(), &feed.0],
        )
        .await?;
    if let Some(known) = row.maybe::<i16>(0)? {
        if !replace {
            return Err(words::subscription_name_taken(name));
        }
        if known != feed.0 {
            return Err(words::subscription_elsewhere(name));
        }
        connection
            .execute(
                include_str!("sql/subscription_change.sql"),
                &[&name.as_str(), &text],
            )
            .await?;
        return Ok(());
    }
    if row.take::<i32>(1)? > 0 {
        return Err(words::consumer_taken(name));
    }
    let created = connection
        .tried_execute(
            include_str!("sql/subscription_create.sql"),
            &[&name.as_str(), &feed.0, &text],
        )
        .await;
    match created {
        Err(error) if is_duplicate(&error) => return Err(words::subscription_name_taken(name)),
        Err(error) => return Err(db(error)),
        Ok(0) => return Err(words::feed_gone(&definition.feed)),
        Ok(_) => {}
    }
    for (shard, start) in starts {
        let lane = Lane {
            name: name.clone(),
            feed,
            shard: *shard,
        };
        ensure(connection, &lane).await?;
        // No consumer has this name.
        if let Some(start) = start {
            advance_consumer(connection, name, feed, *shard, None, *start).await?;
        }
    }
    Ok(())
}

/// Makes the row of a shard, if the subscription is there.
async fn ensure(connection: &mut Connection, lane: &Lane) -> Result<()> {
    connection
        .execute(
            include_str!("sql/subscription_ensure.sql"),
            &[&lane.name.as_str(), &lane.shard.0],
        )
        .await?;
    Ok(())
}

async fn state(connection: &mut Connection, lane: &Lane) -> Result<LaneState> {
    let rows = connection
        .query(
            include_str!("sql/subscription_shard.sql"),
            &[&lane.name.as_str(), &lane.feed.0, &lane.shard.0],
        )
        .await?;
    match rows.first() {
        Some(row) => lane_state(row, 0),
        None => Err(words::no_subscription(&lane.name)),
    }
}
