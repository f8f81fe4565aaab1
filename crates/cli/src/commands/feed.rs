//! `changefeed feed`

mod backfill;
mod create;
mod list;
mod read;
mod tail;

pub(crate) use create::new_feed;

use changefeed::{Changefeed, FeedName, Result, Retention, Source, Step, format_span};

use crate::args::{DropFeed, Feed, FeedImages, FeedRetention, ReshardFeed, Switch, TrimFeed};
use crate::connect;
use crate::output::{Out, confirm, warn};

pub(crate) async fn run(database: &str, args: Feed, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    match args {
        Feed::Create(args) => create::run(&db, *args, out).await,
        Feed::List => list::run(&db, out).await,
        Feed::Read(args) => read::run(&db, args, out).await,
        Feed::Tail(args) => tail::run(&db, args, out).await,
        Feed::Backfill(args) => backfill::run(&db, args, out).await,
        Feed::Reshard(args) => reshard(&db, args, out).await,
        Feed::Images(args) => images(&db, args, out).await,
        Feed::Retention(args) => retention(&db, args, out).await,
        Feed::Trim(args) => trim(&db, args, out).await,
        Feed::Drop(args) => drop_feed(&db, args, out).await,
    }
}

/// Says on standard error that changes of a feed wait for their numbers and nobody sweeps. Returns whether there was
/// anything to say. Reading goes on in any case: whoever may read a feed need not see who sweeps.
async fn tell_if_unswept(db: &Changefeed, feed: &FeedName, json: bool) -> bool {
    let found = changefeed::unswept(db, feed).await.unwrap_or_default();
    found.iter().for_each(|finding| warn(finding, json));
    !found.is_empty()
}

async fn reshard(db: &Changefeed, args: ReshardFeed, out: &mut Out) -> Result<()> {
    let feed = db.feed(args.name.as_str()).await?;
    feed.definition().check_reshard(args.shards)?;
    let name = &args.name;
    if feed.definition().open_shards().count() == usize::try_from(args.shards).unwrap_or(0) {
        return match out.is_json() {
            true => out.object(feed.definition()),
            false => out.line(format!("feed {name} has {} shards already", args.shards)),
        };
    }
    confirm(
        &format!(
            "This closes the shards of feed '{name}'. Its readers have to go on in the new ones when they have read \
             the old ones to their ends: docs/feeds.md says how."
        ),
        args.yes,
    )?;
    let feed = feed.reshard(args.shards).await?;
    if out.is_json() {
        return out.object(feed.definition());
    }
    let mut open = feed.definition().open_shards();
    let first = open
        .next()
        .map_or_else(String::new, |s| s.shard.to_string());
    let last = open
        .last()
        .map_or_else(String::new, |s| format!(" to {}", s.shard));
    out.line(format!(
        "feed {name} goes on in shard {first}{last}; those before are closed"
    ))
}

async fn images(db: &Changefeed, args: FeedImages, out: &mut Out) -> Result<()> {
    let keep = args.keep == Switch::On;
    let mut feed = db.feed(args.name.as_str()).await?.definition().clone();
    feed.keep_images(keep)?;
    db.store().apply(&[Step::ChangeFeed(feed.clone())]).await?;
    if out.is_json() {
        return out.object(&feed);
    }
    let table = feed.source.as_ref().and_then(Source::table);
    let table = table.map_or_else(String::new, ToString::to_string);
    out.line(match keep {
        true => format!("changes of {table} keep the row before and after from now on"),
        false => format!("changes of {table} no longer keep rows; rows that were kept stay until they are trimmed"),
    })
}

async fn retention(db: &Changefeed, args: FeedRetention, out: &mut Out) -> Result<()> {
    let mut feed = db.feed(args.name.as_str()).await?.definition().clone();
    feed.keep_changes(create::retention(args.trim_after, args.trim_unread_after))?;
    db.store().apply(&[Step::ChangeFeed(feed.clone())]).await?;
    if out.is_json() {
        return out.object(&feed);
    }
    let name = &feed.name;
    out.line(match feed.retention {
        None => format!("feed {name} keeps all changes"),
        Some(Retention {
            trim_after,
            trim_unread_after,
        }) => {
            let after = format_span(trim_after);
            let unread = trim_unread_after.map_or_else(
                || "and what a consumer has not read for ever".to_owned(),
                |unread| {
                    let unread = format_span(unread);
                    format!("and what a consumer has not read for {unread}")
                },
            );
            format!("feed {name} keeps changes for {after}, {unread}")
        }
    })
}

async fn trim(db: &Changefeed, args: TrimFeed, out: &mut Out) -> Result<()> {
    let feed = db.feed(args.name.as_str()).await?;
    let retention = Retention {
        trim_after: args.older_than,
        trim_unread_after: args.unread_older_than,
    };
    let mut removed = 0;
    let held_back_by = loop {
        let step = feed.trim(retention, args.batch).await?;
        removed += step.removed;
        if step.removed == 0 {
            break step.held_back_by;
        }
    };
    if out.is_json() {
        return out.object(&changefeed::Trimmed {
            removed,
            held_back_by,
        });
    }
    out.line(format!("{removed} changes removed"))?;
    if !held_back_by.is_empty() {
        out.line(format!(
            "held back by consumers that have not read: {}",
            held_back_by.join(", ")
        ))?;
    }
    Ok(())
}

async fn drop_feed(db: &Changefeed, args: DropFeed, out: &mut Out) -> Result<()> {
    let feed = db.feed(args.name.as_str()).await?;
    confirm(
        &format!(
            "This removes feed '{}' with all its changes and cursors.",
            args.name
        ),
        args.yes,
    )?;
    feed.drop_feed().await?;
    out.say(format!("feed {} is gone", args.name))
}
