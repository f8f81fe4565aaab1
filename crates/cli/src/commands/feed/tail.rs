//! `changefeed feed tail`

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use changefeed::futures::StreamExt;
use changefeed::futures::stream::SelectAll;
use changefeed::{After, Changefeed, ConsumerName, Cursor, FeedHandle, FeedName, Result, ShardId};

use crate::args::TailFeed;
use crate::output::Out;
use crate::signals;

/// The times between two looks whether somebody sweeps.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_secs(60);

pub(super) async fn run(db: &Changefeed, args: TailFeed, out: &mut Out) -> Result<()> {
    let feed = db.feed(args.name.as_str()).await?;
    let feed = feed.expecting(args.incarnation);
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
    let json = out.is_json();
    let printed = async {
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
    };
    tokio::select! {
        ended = printed => ended,
        never = tell_once_if_unswept(db, &definition.name, json) => match never {},
    }
}

/// Says once that changes wait and nobody sweeps. Looks less and less often: somebody may have stopped sweeping in
/// the meantime, but that a sweeper has to run is news in the beginning only.
async fn tell_once_if_unswept(db: &Changefeed, feed: &FeedName, json: bool) -> Infallible {
    let mut pause = FIRST_LOOK;
    while !super::tell_if_unswept(db, feed, json).await {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_LOOK);
    }
    std::future::pending().await
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
