//! Subscriptions, and how far their sinks have got.

use changefeed_core::{
    Advance, ConsumerName, Cursor, Error, Feed, FeedId, Lane, LaneFailure, LaneState, ParkedChange,
    Result, ShardId, Subscription, SubscriptionDefinition, subscription_starts, words,
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
        definition.check_feed(feed)?;
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        let starts = subscription_starts(feed, starts);
        create(&*transaction, definition, feed.id, &starts, replace).await?;
        transaction.commit().await.map_err(db)
    }

    pub(crate) async fn drop_subscription(&self, name: &ConsumerName) -> Result<()> {
        drop(&***self, name).await
    }

    pub(crate) async fn pause_subscription(
        &self,
        name: &ConsumerName,
        reason: Option<&str>,
    ) -> Result<()> {
        pause(&***self, name, reason).await
    }

    /// Statement by statement: each is right by itself, and what comes later is fenced by the generation.
    pub(crate) async fn hold_lane(&self, lane: &Lane, generation: i64) -> Result<LaneState> {
        let client = &***self;
        ensure(client, lane).await?;
        let held = client
            .execute(
                "update changefeed.subscription_shard set generation = $3 \
                 where name = $1 and shard = $2 and generation <= $3",
                &[&lane.name.as_str(), &lane.shard.0, &generation],
            )
            .await
            .map_err(db)?;
        if held == 0 {
            // It was dropped, or a later one works on it.
            state(client, lane).await?;
            return Err(words::lane_moved(lane));
        }
        state(client, lane).await
    }

    pub(crate) async fn advance_lane(&self, lane: &Lane, advance: &Advance) -> Result<()> {
        let client = &***self;
        let moved = client
            .query_one(
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
            .await
            .map_err(db)?;
        match (moved.take(0)?, moved.take(1)?) {
            (false, _) => Err(words::lane_moved(lane)),
            (true, true) => Ok(()),
            // It may have been this very call, whose answer was lost.
            (true, false) => match state(client, lane).await?.cursor {
                Some(now) if now == advance.to && advance.from != Some(now) => Ok(()),
                _ => Err(lane.name.moved(lane.shard)),
            },
        }
    }

    pub(crate) async fn stop_lane(
        &self,
        lane: &Lane,
        generation: Option<i64>,
        reason: &str,
    ) -> Result<()> {
        let client = &***self;
        ensure(client, lane).await?;
        let (name, shard, feed) = (lane.name.as_str(), lane.shard.0, lane.feed.0);
        let stopped = client
            .query_one(
                include_str!("sql/subscription_stop.sql"),
                &[&name, &shard, &reason, &generation, &feed],
            )
            .await
            .map_err(db)?;
        found(stopped.take(0)?, || words::lane_moved(lane))
    }

    pub(crate) async fn note_lane(
        &self,
        lane: &Lane,
        generation: i64,
        failure: Option<&str>,
    ) -> Result<()> {
        self.execute(
            "update changefeed.subscription_shard set failure = $4::text, \
             failing_since = case when $4::text is not null then coalesce(failing_since, clock_timestamp()) end \
             where name = $1 and shard = $2 and generation = $3",
            &[&lane.name.as_str(), &lane.shard.0, &generation, &failure],
        )
        .await
        .map_err(db)?;
        Ok(())
    }

    pub(crate) async fn restart_lane(&self, lane: &Lane, after: Option<Cursor>) -> Result<u32> {
        let client = &***self;
        ensure(client, lane).await?;
        let (name, shard, feed) = (lane.name.as_str(), lane.shard.0, lane.feed.0);
        let restarted = client
            .query_opt(
                include_str!("sql/subscription_restart.sql"),
                &[&name, &shard, &feed, &after.map(|after| after.to_string())],
            )
            .await
            .map_err(db)?;
        match restarted {
            Some(row) => Ok(row.take::<i32>(0)?.unsigned_abs()),
            None => Err(words::no_subscription(&lane.name)),
        }
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

fn found(rows: i64, error: impl FnOnce() -> Error) -> Result<()> {
    if rows == 0 { Err(error()) } else { Ok(()) }
}

fn epoch(epoch: u32) -> i32 {
    i32::try_from(epoch).unwrap_or(i32::MAX)
}

/// Reads the columns shard, generation, epoch, cursor, held, stopped, sent, lost, parked, failing.
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
        failing: match (row.take::<Option<i64>>(at + 9)?, row.take(at + 10)?) {
            (Some(since_ms), Some(error)) => Some(LaneFailure { since_ms, error }),
            _ => None,
        },
    })
}

/// Defines one as a step among others: its feed may be one that an earlier step has made.
pub(crate) async fn define(
    client: &impl GenericClient,
    definition: &SubscriptionDefinition,
    starts: &[(ShardId, Option<Cursor>)],
) -> Result<()> {
    let feed = client
        .query_opt(
            "select feed_id from changefeed.feed where name = $1",
            &[&definition.feed.as_str()],
        )
        .await
        .map_err(db)?
        .ok_or_else(|| words::feed_gone(&definition.feed))?;
    create(client, definition, FeedId(feed.take(0)?), starts, true).await
}

pub(crate) async fn drop(client: &impl GenericClient, name: &ConsumerName) -> Result<()> {
    let sql = include_str!("sql/subscription_drop.sql");
    let gone = client.query_one(sql, &[&name.as_str()]).await;
    found(gone.map_err(db)?.take(0)?, || words::no_subscription(name))
}

pub(crate) async fn pause(
    client: &impl GenericClient,
    name: &ConsumerName,
    reason: Option<&str>,
) -> Result<()> {
    let sql = include_str!("sql/subscription_pause.sql");
    let paused = client.query_one(sql, &[&name.as_str(), &reason]).await;
    found(paused.map_err(db)?.take(0)?, || {
        words::no_subscription(name)
    })
}

async fn create(
    client: &impl GenericClient,
    definition: &SubscriptionDefinition,
    feed: FeedId,
    starts: &[(ShardId, Option<Cursor>)],
    replace: bool,
) -> Result<()> {
    definition.validate()?;
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
        if known.take::<i16>(0)? != feed.0 {
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
            &[&name.as_str(), &feed.0, &text],
        )
        .await;
    created.map_err(|error| match error.code() {
        Some(code) if *code == SqlState::UNIQUE_VIOLATION => words::subscription_name_taken(name),
        Some(code) if *code == SqlState::FOREIGN_KEY_VIOLATION => {
            words::feed_gone(&definition.feed)
        }
        _ => db(error),
    })?;
    let taken = client
        .query_opt(
            "select 1 from changefeed.consumer where name = $1 and feed_id = $2 limit 1",
            &[&name.as_str(), &feed.0],
        )
        .await
        .map_err(db)?;
    if taken.is_some() {
        return Err(words::consumer_taken(name));
    }
    for (shard, start) in starts {
        let lane = Lane {
            name: name.clone(),
            feed,
            shard: *shard,
        };
        ensure(client, &lane).await?;
        // No consumer has this name.
        if let Some(start) = start {
            advance_consumer(client, name, feed, *shard, None, *start).await?;
        }
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
