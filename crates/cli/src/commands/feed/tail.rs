//! `changefeed feed tail`

use std::collections::HashMap;

use changefeed::futures::StreamExt;
use changefeed::futures::stream::SelectAll;
use changefeed::{After, Changefeed, ConsumerName, Cursor, FeedHandle, Result, ShardId};

use crate::args::TailFeed;
use crate::output::Out;
use crate::signals;

pub(super) async fn run(db: &Changefeed, args: TailFeed, out: &mut Out) -> Result<()> {
    let feed = db.feed(args.name.as_str()).await?;
    let definition = feed.definition();
    let shards = match args.shard {
        Some(shard) => vec![definition.shard(shard)?.shard],
        None => definition.shards.iter().map(|s| s.shard).collect(),
    };
    if let (After::Cursor(_), [_, _, ..]) = (args.after, shards.as_slice()) {
        return Err(crate::usage("a cursor belongs to one shard").advise("add --shard N"));
    }
    let shutdown = signals::shutdown()?;
    let mut changes = SelectAll::new();
    let mut stored = HashMap::new();
    for shard in shards {
        let after = match &args.consumer {
            Some(consumer) => {
                let cursor = resume(&feed, consumer, shard, args.after).await?;
                stored.insert(shard, cursor);
                After::Cursor(cursor)
            }
            None => args.after,
        };
        changes.push(Box::pin(
            feed.follow(shard, after).map(move |change| (shard, change)),
        ));
    }
    while let Some(Some((shard, change))) = shutdown.run_until_cancelled(changes.next()).await {
        let change = change?;
        out.change(&definition.name, shard, &change)?;
        out.flush()?;
        if let Some(consumer) = &args.consumer {
            // After printing: what was not stored is printed again, never lost.
            let from = stored.insert(shard, change.cursor);
            feed.store_cursor(consumer, shard, from, change.cursor)
                .await?;
        }
    }
    Ok(())
}

/// Where a consumer goes on. A new one is registered before it waits: otherwise what comes until
/// its first change would be lost when it starts again, and could be trimmed.
async fn resume(
    feed: &FeedHandle,
    consumer: &ConsumerName,
    shard: ShardId,
    after: After,
) -> Result<Cursor> {
    if let Some(cursor) = feed.consumer_cursor(consumer, shard).await? {
        return Ok(cursor);
    }
    let cursor = feed.position(shard, after).await?;
    feed.store_cursor(consumer, shard, None, cursor).await?;
    Ok(cursor)
}
