//! Subscriptions, and how far their sinks have got.

use changefeed_core::{
    Advance, ConsumerName, Cursor, Error, Feed, FeedId, Lane, LaneState, ParkedChange, Result,
    ShardId, Subscription, SubscriptionDefinition, words,
};
use tokio_postgres::error::SqlState;
use tokio_postgres::{GenericClient, Row};

use crate::consumers::advance_consumer;
use crate::error::db;
use crate::row::Cells;
use crate::session::Session;

impl Session {
    pub(crate) async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        let client = &**self;
        let rows = client
            .query(include_str!("sql/subscriptions.sql"), &[])
            .await
            .map_err(db)?;
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
                    paused: row.take(3)?,
                    shards: Vec::new(),
                });
            }
            if let (Some(_), Some(last)) = (row.take::<Option<i16>>(4)?, all.last_mut()) {
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
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        create(&*transaction, definition, feed, starts, replace).await?;
        transaction.commit().await.map_err(db)
    }

    pub(crate) async fn drop_subscription(&mut self, name: &ConsumerName) -> Result<()> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        transaction
            .execute(
                "delete from changefeed.consumer c using changefeed.subscription s \
                 where s.name = $1 and c.name = s.name and c.feed_id = s.feed_id",
                &[&name.as_str()],
            )
            .await
            .map_err(db)?;
        let gone = transaction
            .execute(
                "delete from changefeed.subscription where name = $1",
                &[&name.as_str()],
            )
            .await
            .map_err(db)?;
        found(gone, || words::no_subscription(name))?;
        transaction.commit().await.map_err(db)
    }

    pub(crate) async fn pause_subscription(
        &mut self,
        name: &ConsumerName,
        reason: Option<&str>,
    ) -> Result<()> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        let paused = transaction
            .execute(
                "update changefeed.subscription set paused = $2 where name = $1",
                &[&name.as_str(), &reason],
            )
            .await
            .map_err(db)?;
        found(paused, || words::no_subscription(name))?;
        if reason.is_none() {
            transaction
                .execute(
                    "update changefeed.subscription_shard set stopped = null where name = $1",
                    &[&name.as_str()],
                )
                .await
                .map_err(db)?;
        }
        transaction.commit().await.map_err(db)
    }

    pub(crate) async fn hold_lane(&mut self, lane: &Lane, generation: i64) -> Result<LaneState> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        ensure(&*transaction, lane).await?;
        let held = transaction
            .execute(
                "update changefeed.subscription_shard set generation = $3 \
                 where name = $1 and shard = $2 and generation <= $3",
                &[&lane.name.as_str(), &lane.shard.0, &generation],
            )
            .await
            .map_err(db)?;
        found(held, || words::lane_moved(lane))?;
        let state = state(&*transaction, lane).await?;
        transaction.commit().await.map_err(db)?;
        Ok(state)
    }

    pub(crate) async fn advance_lane(&mut self, lane: &Lane, advance: &Advance) -> Result<()> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        let (name, shard) = (&lane.name, lane.shard);
        // Locks the row first: whoever takes over or restarts waits here, or has been before.
        let counted = transaction
            .execute(
                "update changefeed.subscription_shard set held = $5, sent = sent + $6, \
                 lost = lost + $7, parked = parked + $8 \
                 where name = $1 and shard = $2 and generation = $3 and epoch = $4",
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
            .await
            .map_err(db)?;
        found(counted, || words::lane_moved(lane))?;
        let moved = advance_consumer(
            &*transaction,
            name,
            lane.feed,
            shard,
            advance.from,
            advance.to,
        )
        .await;
        if let Err(error) = moved {
            // It may have been this very call, whose answer was lost.
            let now = state(&*transaction, lane).await?.cursor;
            let done = now == Some(advance.to) && advance.from != Some(advance.to);
            transaction.rollback().await.map_err(db)?;
            return if done { Ok(()) } else { Err(error) };
        }
        if let Some(reason) = &advance.parked {
            transaction
                .execute(
                    "insert into changefeed.subscription_parked (name, shard, epoch, cursor, reason) \
                     values ($1, $2, $3, $4, $5) on conflict do nothing",
                    &[
                        &name.as_str(),
                        &shard.0,
                        &epoch(advance.epoch),
                        &advance.to.to_string(),
                        reason,
                    ],
                )
                .await
                .map_err(db)?;
        }
        transaction.commit().await.map_err(db)
    }

    pub(crate) async fn stop_lane(
        &mut self,
        lane: &Lane,
        generation: Option<i64>,
        reason: &str,
    ) -> Result<()> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        ensure(&*transaction, lane).await?;
        let stopped = transaction
            .execute(
                "update changefeed.subscription_shard set stopped = $3 \
                 where name = $1 and shard = $2 and generation = coalesce($4, generation)",
                &[&lane.name.as_str(), &lane.shard.0, &reason, &generation],
            )
            .await
            .map_err(db)?;
        found(stopped, || words::lane_moved(lane))?;
        if generation.is_none() {
            put(&*transaction, lane, None).await?;
        }
        transaction.commit().await.map_err(db)
    }

    pub(crate) async fn restart_lane(&mut self, lane: &Lane, after: Option<Cursor>) -> Result<u32> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        ensure(&*transaction, lane).await?;
        transaction
            .execute(
                "update changefeed.subscription_shard \
                 set epoch = epoch + 1, held = null, stopped = null where name = $1 and shard = $2",
                &[&lane.name.as_str(), &lane.shard.0],
            )
            .await
            .map_err(db)?;
        put(&*transaction, lane, after).await?;
        let state = state(&*transaction, lane).await?;
        transaction.commit().await.map_err(db)?;
        Ok(state.epoch)
    }

    pub(crate) async fn parked_changes(
        &self,
        name: &ConsumerName,
        limit: usize,
    ) -> Result<Vec<ParkedChange>> {
        let client = &**self;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = client
            .query(
                "select shard, epoch, cursor, reason from changefeed.subscription_parked \
                 where name = $1 order by parked_at desc, shard, cursor desc limit $2",
                &[&name.as_str(), &limit],
            )
            .await
            .map_err(db)?;
        rows.iter()
            .map(|row| {
                Ok(ParkedChange {
                    shard: ShardId(row.take(0)?),
                    epoch: row.take::<i32>(1)?.unsigned_abs(),
                    cursor: row.take::<&str>(2)?.parse()?,
                    reason: row.take(3)?,
                })
            })
            .collect()
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
        let text: Option<&str> = row.take(at)?;
        text.map(str::parse).transpose()
    };
    Ok(LaneState {
        shard: ShardId(row.take(at)?),
        generation: row.take(at + 1)?,
        epoch: row.take::<i32>(at + 2)?.unsigned_abs(),
        cursor: cursor(at + 3)?,
        held: cursor(at + 4)?,
        stopped: row.take(at + 5)?,
        sent: row.take(at + 6)?,
        lost: row.take(at + 7)?,
        parked: row.take(at + 8)?,
    })
}

async fn create(
    client: &impl GenericClient,
    definition: &SubscriptionDefinition,
    feed: &Feed,
    starts: &[(ShardId, Cursor)],
    replace: bool,
) -> Result<()> {
    let name = &definition.name;
    let text = serde_json::to_string(definition)
        .map_err(|e| words::definition_unwritable().caused_by(e))?;
    let known = client
        .query_opt(
            "select feed_id from changefeed.subscription where name = $1 for update",
            &[&name.as_str()],
        )
        .await
        .map_err(db)?;
    if let Some(known) = known {
        if !replace {
            return Err(words::subscription_name_taken(name));
        }
        if known.take::<i16>(0)? != feed.id.0 {
            return Err(words::subscription_elsewhere(name));
        }
        client
            .execute(
                "update changefeed.subscription set definition = $2 where name = $1",
                &[&name.as_str(), &text],
            )
            .await
            .map_err(db)?;
        return Ok(());
    }
    let created = client
        .execute(
            "insert into changefeed.subscription (name, feed_id, definition) values ($1, $2, $3)",
            &[&name.as_str(), &feed.id.0, &text],
        )
        .await;
    created.map_err(|error| match error.code() {
        Some(code) if *code == SqlState::UNIQUE_VIOLATION => words::subscription_name_taken(name),
        Some(code) if *code == SqlState::FOREIGN_KEY_VIOLATION => words::feed_gone(&feed.name),
        _ => db(error),
    })?;
    let taken = client
        .query_opt(
            "select 1 from changefeed.consumer where name = $1 and feed_id = $2 limit 1",
            &[&name.as_str(), &feed.id.0],
        )
        .await
        .map_err(db)?;
    if taken.is_some() {
        return Err(words::consumer_taken(name));
    }
    for shard in &feed.shards {
        let lane = Lane {
            name: name.clone(),
            feed: feed.id,
            shard: shard.shard,
        };
        ensure(client, &lane).await?;
        let start = starts.iter().find(|(of, _)| *of == shard.shard);
        put(client, &lane, start.map(|(_, cursor)| *cursor)).await?;
    }
    Ok(())
}

/// Makes the row of a shard, if the subscription is there.
async fn ensure(client: &impl GenericClient, lane: &Lane) -> Result<()> {
    client
        .execute(
            "insert into changefeed.subscription_shard (name, shard) \
             select name, $2 from changefeed.subscription where name = $1 on conflict do nothing",
            &[&lane.name.as_str(), &lane.shard.0],
        )
        .await
        .map_err(db)?;
    Ok(())
}

/// Puts the position somewhere, or nowhere.
async fn put(client: &impl GenericClient, lane: &Lane, cursor: Option<Cursor>) -> Result<()> {
    client
        .execute(
            "delete from changefeed.consumer where name = $1 and feed_id = $2 and shard = $3",
            &[&lane.name.as_str(), &lane.feed.0, &lane.shard.0],
        )
        .await
        .map_err(db)?;
    if let Some(cursor) = cursor {
        advance_consumer(client, &lane.name, lane.feed, lane.shard, None, cursor).await?;
    }
    Ok(())
}

async fn state(client: &impl GenericClient, lane: &Lane) -> Result<LaneState> {
    let row = client
        .query_opt(
            include_str!("sql/subscription_shard.sql"),
            &[&lane.name.as_str(), &lane.feed.0, &lane.shard.0],
        )
        .await
        .map_err(db)?;
    match row {
        Some(row) => lane_state(&row, 0),
        None => Err(words::no_subscription(&lane.name)),
    }
}
