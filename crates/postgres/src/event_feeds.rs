//! Feeds that event triggers write to.

use changefeed_core::{Error, FeedId, FeedName, NewFeed, Result, TriggerDefinition};
use tokio_postgres::GenericClient;

use crate::error::db;

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
            "select f.feed_id, s.kind, \
                    (select count(*) from changefeed.shard_definition d \
                     where d.feed_id = f.feed_id), \
                    (select count(*) from changefeed.shard_definition d \
                     where d.feed_id = f.feed_id and d.shard >= 0) \
             from changefeed.feed f \
             left join changefeed.feed_source s on s.feed_id = f.feed_id \
             where f.name = $1",
            &[&binding.feed.as_str()],
        )
        .await
        .map_err(db)?;
    let (feed, kind, shards): (FeedId, Option<String>, i64) = match found {
        Some(row) => (FeedId(row.get(0)), row.get(1), row.get(2)),
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
            return Err(Error::invalid(format!(
                "feed '{}' has a table of its own, so events cannot enter it",
                binding.feed
            ))
            .advise("name a feed without a table, or one that does not exist yet"));
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
        .get(0);
    if !dense {
        return Err(Error::invalid(format!(
            "the shards of feed '{}' are not numbered from 0 without gaps",
            binding.feed
        )));
    }
    if shards > 1 && binding.shard_by.is_none() {
        return Err(Error::invalid(format!(
            "feed '{}' has {shards} shards and needs a column that decides the shard",
            binding.feed
        ))
        .advise("add --shard-by COLUMN"));
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
