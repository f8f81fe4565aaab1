//! Subscriptions, and how far their sinks have got.

use changefeed_core::{
    Advance, ConsumerName, Cursor, Error, Feed, FeedId, Lane, LaneState, ParkedChange, Result,
    ShardId, Subscription, SubscriptionDefinition, words,
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
        definition.validate()?;
        definition.check_feed(feed)?;
        self.whole(async |connection| create(connection, definition, feed, starts, replace).await)
            .await
    }

    pub(crate) async fn drop_subscription(&mut self, name: &ConsumerName) -> Result<()> {
        self.whole(async |connection| {
            let gone = connection
                .execute(include_str!("sql/subscription_drop.sql"), &[&name.as_str()])
                .await?;
            found(gone, || words::no_subscription(name))
        })
        .await
    }

    pub(crate) async fn pause_subscription(
        &mut self,
        name: &ConsumerName,
        reason: Option<&str>,
    ) -> Result<()> {
        self.whole(async |connection| {
            let paused = connection
                .execute(
                    include_str!("sql/subscription_pause.sql"),
                    &[&name.as_str(), &reason.unwrap_or_default()],
                )
                .await?;
            found(paused, || words::no_subscription(name))?;
            if reason.is_none() {
                connection
                    .execute(
                        include_str!("sql/subscription_resume.sql"),
                        &[&name.as_str()],
                    )
                    .await?;
            }
            Ok(())
        })
        .await
    }

    pub(crate) async fn hold_lane(&mut self, lane: &Lane, generation: i64) -> Result<LaneState> {
        self.whole(async |connection| {
            ensure(connection, lane).await?;
            let held = connection
                .execute(
                    include_str!("sql/subscription_hold.sql"),
                    &[&lane.name.as_str(), &lane.shard.0, &generation],
                )
                .await?;
            found(held, || words::lane_moved(lane))?;
            state(connection, lane).await
        })
        .await
    }

    pub(crate) async fn advance_lane(&mut self, lane: &Lane, advance: &Advance) -> Result<()> {
        let moved = self
            .whole(async |connection| step(connection, lane, advance).await)
            .await;
        let Err(error) = moved else {
            return Ok(());
        };
        if error.kind() != changefeed_core::Kind::Moved {
            return Err(error);
        }
        // It may have been this very call, whose answer was lost.
        let now = state(&mut self.connection, lane).await?;
        let ours = now.generation == advance.generation && now.epoch == advance.epoch;
        match now.cursor == Some(advance.to) && advance.from != Some(advance.to) && ours {
            true => Ok(()),
            false => Err(error),
        }
    }

    pub(crate) async fn stop_lane(
        &mut self,
        lane: &Lane,
        generation: Option<i64>,
        reason: &str,
    ) -> Result<()> {
        self.whole(async |connection| {
            ensure(connection, lane).await?;
            let stopped = connection
                .execute(
                    include_str!("sql/subscription_stop.sql"),
                    &[
                        &lane.name.as_str(),
                        &lane.shard.0,
                        &reason,
                        &generation.unwrap_or(-1),
                    ],
                )
                .await?;
            found(stopped, || words::lane_moved(lane))?;
            if generation.is_none() {
                put(connection, lane, None).await?;
            }
            Ok(())
        })
        .await
    }

    pub(crate) async fn restart_lane(&mut self, lane: &Lane, after: Option<Cursor>) -> Result<u32> {
        self.whole(async |connection| {
            ensure(connection, lane).await?;
            connection
                .execute(
                    include_str!("sql/subscription_restart.sql"),
                    &[&lane.name.as_str(), &lane.shard.0],
                )
                .await?;
            put(connection, lane, after).await?;
            state(connection, lane).await.map(|state| state.epoch)
        })
        .await
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

fn found(rows: u64, error: impl FnOnce() -> Error) -> Result<()> {
    if rows == 0 { Err(error()) } else { Ok(()) }
}

fn epoch(epoch: u32) -> i32 {
    i32::try_from(epoch).unwrap_or(i32::MAX)
}

/// Reads the columns shard, generation, epoch, cursor, held, stopped, sent, lost, parked.
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
    })
}

async fn create(
    connection: &mut Connection,
    definition: &SubscriptionDefinition,
    feed: &Feed,
    starts: &[(ShardId, Cursor)],
    replace: bool,
) -> Result<()> {
    let name = &definition.name;
    let text = serde_json::to_string(definition)
        .map_err(|e| words::definition_unwritable().caused_by(e))?;
    let row = connection
        .one(
            include_str!("sql/subscription_known.sql"),
            &[&name.as_str(), &feed.id.0],
        )
        .await?;
    if let Some(known) = row.maybe::<i16>(0)? {
        if !replace {
            return Err(words::subscription_name_taken(name));
        }
        if known != feed.id.0 {
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
            &[&name.as_str(), &feed.id.0, &text],
        )
        .await;
    match created {
        Err(error) if is_duplicate(&error) => return Err(words::subscription_name_taken(name)),
        Err(error) => return Err(db(error)),
        Ok(created) => found(created, || words::feed_gone(&feed.name))?,
    }
    for shard in &feed.shards {
        let lane = Lane {
            name: name.clone(),
            feed: feed.id,
            shard: shard.shard,
        };
        ensure(connection, &lane).await?;
        let start = starts.iter().find(|(of, _)| *of == shard.shard);
        put(connection, &lane, start.map(|(_, cursor)| *cursor)).await?;
    }
    Ok(())
}

/// Moves the position and counts, if everything is as the caller believes.
async fn step(connection: &mut Connection, lane: &Lane, advance: &Advance) -> Result<()> {
    let (name, shard) = (&lane.name, lane.shard);
    // Locks the row first: whoever takes over or restarts waits here, or has been before.
    let counted = connection
        .execute(
            include_str!("sql/subscription_advance.sql"),
            &[
                &name.as_str(),
                &shard.0,
                &advance.generation,
                &epoch(advance.epoch),
                &advance.held.map(|held| held.to_string()),
                &advance.sent,
                &advance.lost,
                &i64::from(advance.parked.is_some()),
            ],
        )
        .await?;
    found(counted, || words::lane_moved(lane))?;
    advance_consumer(connection, name, lane.feed, shard, advance.from, advance.to).await?;
    if let Some(reason) = &advance.parked {
        connection
            .execute(
                include_str!("sql/subscription_park.sql"),
                &[
                    &name.as_str(),
                    &shard.0,
                    &epoch(advance.epoch),
                    &advance.to.to_string(),
                    reason,
                ],
            )
            .await?;
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

/// Puts the position somewhere, or nowhere.
async fn put(connection: &mut Connection, lane: &Lane, cursor: Option<Cursor>) -> Result<()> {
    connection
        .execute(
            include_str!("sql/subscription_forget.sql"),
            &[&lane.name.as_str(), &lane.feed.0, &lane.shard.0],
        )
        .await?;
    if let Some(cursor) = cursor {
        advance_consumer(connection, &lane.name, lane.feed, lane.shard, None, cursor).await?;
    }
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
