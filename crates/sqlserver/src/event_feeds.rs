//! Feeds that event triggers write to.

use changefeed_core::{FeedBinding, FeedId, NewFeed, Result, TriggerDefinition, words};

use crate::connection::Connection;
use crate::event_capture::Binding;
use crate::row::Cells;
use crate::{feeds, quote};

/// Finds or creates the feed that a trigger writes to, and marks it as one of events.
pub(crate) async fn attach(
    connection: &mut Connection,
    definition: &TriggerDefinition,
) -> Result<Option<Binding>> {
    let Some(bound) = &definition.capture.feed else {
        return Ok(None);
    };
    let found = connection
        .query(
            "select f.feed_id, s.kind from changefeed.feed f \
             left join changefeed.feed_source s on s.feed_id = f.feed_id where f.name = @P1",
            &[&bound.feed.as_str()],
        )
        .await?;
    let (feed, kind) = match found.first() {
        Some(row) => (FeedId(row.take(0)?), row.maybe_text(1)?),
        None => (create(connection, bound).await?, None),
    };
    let shards = shards(connection, bound, feed).await?;
    match kind.as_deref() {
        None => {
            connection
                .execute(
                    "insert into changefeed.feed_source (feed_id, kind, shards) \
                     values (@P1, 'events', @P2)",
                    &[&feed.0, &shards],
                )
                .await?;
        }
        Some("events") => {}
        Some(_) => {
            return Err(words::feed_has_table(&bound.feed));
        }
    }
    if shards > 1 && bound.shard_by.is_none() {
        return Err(words::shard_column_missing(&bound.feed, shards));
    }
    Ok(Some(Binding { feed, shards }))
}

async fn create(connection: &mut Connection, bound: &FeedBinding) -> Result<FeedId> {
    let new = NewFeed::new(bound.feed.clone());
    let id = feeds::insert_feed(connection, &new).await?;
    connection
        .execute(
            "insert into changefeed.shard (feed_id, shard) values (@P1, 0)",
            &[&id.0],
        )
        .await?;
    Ok(id)
}

/// How many shards there are. The shard of a value is counted from 0.
async fn shards(connection: &mut Connection, bound: &FeedBinding, feed: FeedId) -> Result<i16> {
    let row = connection
        .one(
            "select convert(smallint, count(*)), convert(smallint, isnull(min(shard), -1)), \
                    convert(smallint, isnull(max(shard), -1)) \
             from changefeed.shard where feed_id = @P1",
            &[&feed.0],
        )
        .await?;
    let (count, lowest, highest): (i16, i16, i16) = (row.take(0)?, row.take(1)?, row.take(2)?);
    if count == 0 || lowest != 0 || highest != count - 1 {
        return Err(words::shards_with_gaps(&bound.feed));
    }
    Ok(count)
}

/// The feed of a trigger that is there already.
pub(crate) async fn binding(
    connection: &mut Connection,
    definition: &TriggerDefinition,
    feed: Option<i16>,
) -> Result<Option<Binding>> {
    let (Some(bound), Some(feed)) = (&definition.capture.feed, feed) else {
        return Ok(None);
    };
    let feed = FeedId(feed);
    let shards = shards(connection, bound, feed).await?;
    Ok(Some(Binding { feed, shards }))
}

/// What a page of events has beside numbers.
pub(crate) fn page() -> (String, &'static str) {
    let columns = ["op", "old", "new"].map(|name| format!("e.{}", quote::identifier(name)));
    (
        format!(", {}", columns.join(", ")),
        "left join changefeed.event e with (forceseek) \
         on e.change_id = p.change_id and e.feed_id = @feed_id",
    )
}
