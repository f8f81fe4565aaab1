//! `changefeed feed tail`

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use changefeed::futures::stream::SelectAll;
use changefeed::futures::{StreamExt, TryStreamExt};
use changefeed::{
    After, CancellationToken, Changefeed, ConsumerName, Cursor, Error, FeedHandle, FeedName,
    Generation, Result, ShardId,
};

use crate::args::TailFeed;
use crate::output::Out;
use crate::signals;

/// The times between two looks whether somebody sweeps.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_secs(60);

pub(super) async fn run(db: &Changefeed, args: TailFeed, out: &mut Out) -> Result<()> {
    let feed = db.feed(args.name.as_str()).await?;
    let feed = feed.expecting(args.incarnation);
    if let Some(shard) = args.shard {
        feed.definition().shard(shard)?;
    } else if let (After::Cursor(_), [_, _, ..]) = (args.after, &feed.definition().shards[..]) {
        return Err(crate::usage("a cursor belongs to one shard").advise("add --shard N"));
    }
    let shutdown = signals::shutdown()?;
    let name = feed.definition().name.clone();
    let json = out.is_json();
    let printed = async {
        let mut generations = pin!(feed.clone().generations());
        let cancelled = || Ok::<_, Error>(None);
        loop {
            let generation = match args.shard {
                Some(shard) => Generation {
                    feed: feed.clone(),
                    shards: vec![shard],
                    is_later: false,
                },
                None => {
                    let next = shutdown.run_until_cancelled(generations.try_next());
                    match next.await.unwrap_or_else(cancelled)? {
                        Some(generation) => generation,
                        None => return Ok(()),
                    }
                }
            };
            let ended = print(&generation, &args, &shutdown, out).await?;
            match (ended, args.shard) {
                (true, Some(shard)) => {
                    return out.say(format!(
                        "shard {shard} is closed: the feed goes on in others"
                    ));
                }
                (true, None) => {}
                (false, _) => return Ok(()),
            }
        }
    };
    tokio::select! {
        ended = printed => ended,
        never = tell_once_if_unswept(db, &name, json) => match never {},
    }
}

/// Prints what is in some shards until they are closed, which returns true, or until we are to stop.
async fn print(
    generation: &Generation,
    args: &TailFeed,
    shutdown: &CancellationToken,
    out: &mut Out,
) -> Result<bool> {
    let feed = &generation.feed;
    let begin = generation.begin(args.after);
    let mut changes = SelectAll::new();
    let mut stored = HashMap::new();
    for shard in generation.shards.iter().copied() {
        let after = match &args.consumer {
            Some(consumer) => {
                let cursor = resume(feed, consumer, shard, begin).await?;
                stored.insert(shard, cursor);
                After::Cursor(cursor)
            }
            None => begin,
        };
        changes.push(Box::pin(
            feed.follow(shard, after).map(move |change| (shard, change)),
        ));
    }
    while let Some(next) = shutdown.run_until_cancelled(changes.next()).await {
        let Some((shard, change)) = next else {
            return Ok(true);
        };
        let change = change?;
        out.change(&feed.definition().name, shard, &change)?;
        out.flush()?;
        if let Some(consumer) = &args.consumer {
            // After printing: what was not stored is printed again, never lost.
            let from = stored.insert(shard, change.cursor);
            feed.store_cursor(consumer, shard, from, change.cursor)
                .await?;
        }
    }
    Ok(false)
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
