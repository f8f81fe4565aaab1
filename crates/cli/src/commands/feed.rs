//! `changefeed feed`

mod backfill;
mod create;
mod list;
mod read;
mod tail;

pub(crate) use create::new_feed;

use changefeed::{Changefeed, Result};

use crate::args::{DropFeed, Feed, TrimFeed};
use crate::connect;
use crate::output::{Out, confirm};

pub(crate) async fn run(database: &str, args: Feed, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    match args {
        Feed::Create(args) => create::run(&db, args, out).await,
        Feed::List => list::run(&db, out).await,
        Feed::Read(args) => read::run(&db, args, out).await,
        Feed::Tail(args) => tail::run(&db, args, out).await,
        Feed::Backfill(args) => backfill::run(&db, args, out).await,
        Feed::Trim(args) => trim(&db, args, out).await,
        Feed::Drop(args) => drop_feed(&db, args, out).await,
    }
}

async fn trim(db: &Changefeed, args: TrimFeed, out: &mut Out) -> Result<()> {
    let feed = db.feed(args.name.as_str()).await?;
    let mut removed = 0;
    let held_back_by = loop {
        let step = feed.trim(args.older_than, args.batch).await?;
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
