//! Feeds that event triggers write to.

use changefeed_core::{FeedId, FeedName, NewFeed, Result, TriggerDefinition, words};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::row::Cells;

/// Finds or creates the feed that a trigger writes to, and marks it as one of events.
pub(crate) async fn attach(
    client: &impl GenericClient,
    definition: &TriggerDefinition,
) -> Result<Option<FeedId>> {
    let Some(binding) = &definition.capture.feed else {
        return Ok(None);
    };
    let found = client
        .query_opt(
            include_str!("sql/event_feed.sql"),
            &[&binding.feed.as_str()],
        )
        .await
        .map_err(db)?;
    let (feed, kind, shards): (FeedId, Option<String>, i64) = match found {
        Some(row) => (FeedId(row.take(0)?), row.take(1)?, row.take(2)?),
        None => (create(client, &binding.feed).await?, None, 1),
    };
    match kind.as_deref() {
        None => {
            client
                .execute(
                    "insert into changefeed.feed_source (feed_id, kind, shards) \
                     values ($1, 'events', $2::bigint::smallint)",
                    &[&feed.0, &shards],
                )
                .await
                .map_err(db)?;
        }
        Some("events") => {}
        Some(_) => {
            return Err(words::feed_has_table(&binding.feed));
        }
    }
    // The shard of a value is counted from 0.
    let dense: bool = client
        .query_one(
            "select count(*) > 0 and min(shard) = 0 and max(shard) = count(*) - 1 \
             from changefeed.shard_definition where feed_id = $1",
            &[&feed.0],
        )
        .await
        .map_err(db)?
        .take(0)?;
    if !dense {
        return Err(words::shards_with_gaps(&binding.feed));
    }
    if shards > 1 && binding.shard_by.is_none() {
        return Err(words::shard_column_missing(&binding.feed, shards));
    }
    Ok(Some(feed))
}

async fn create(client: &impl GenericClient, name: &FeedName) -> Result<FeedId> {
    let new = NewFeed::new(name.clone());
    let id = crate::feeds::insert_feed(client, &new).await?;
    client
        .execute(
            "insert into changefeed.shard (feed_id, shard) values ($1, 0)",
            &[&id.0],
        )
        .await
        .map_err(db)?;
    Ok(id)
}
