//! Writers that keep the order of a shard, so that the rows themselves are the feed.
//!
//! `cargo run -p changefeed --example ulid_writer -- shop.db`
#![allow(clippy::print_stdout, reason = "it is for people to look at")]

use std::error::Error;

use changefeed::sqlite::{SqliteStore, begin_ulid};
use changefeed::{After, Changefeed, NewFeed, ShardId, Source, UlidOptions, Uuid};

/// Made once, and kept in the source code.
const SHOE_SIZES: &str = "80270756-deeb-11ed-91f2-4f03a365d3f8";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "shop.db".to_owned());
    let store = SqliteStore::open(&path).await?;
    let mut app = store.connection()?;
    let db = Changefeed::new(std::sync::Arc::new(store));
    db.migrate().await?;
    app.execute_batch(
        "create table if not exists shoe_size_changed ( \
           shard integer not null, ulid blob not null, customer integer, size integer, \
           primary key (shard, ulid)) without rowid",
    )?;
    let feed: Uuid = SHOE_SIZES.parse()?;
    if db.feeds().await?.is_empty() {
        db.create_feed(&NewFeed {
            shards: 4,
            source: Some(Source::Ulid {
                feed,
                table: db.table("shoe_size_changed")?,
                shard_column: "shard".to_owned(),
                ulid_column: "ulid".to_owned(),
            }),
            ..NewFeed::new("shoe-sizes".parse()?)
        })
        .await?;
    }

    // Writers of shard 3 take turns; those of other shards do not wait for them.
    let mut transaction = begin_ulid(&mut app, &UlidOptions::new(feed, 3))?;
    for (customer, size) in [(7, 42), (11, 39)] {
        let ulid = transaction.next_ulid()?;
        transaction.execute(
            "insert into shoe_size_changed values (3, ?1, ?2, ?3)",
            (ulid.to_bytes(), customer, size),
        )?;
    }
    transaction.commit()?;

    let sizes = db.feed("shoe-sizes").await?;
    let page = sizes.read(ShardId(3), After::First, 100).await?;
    for change in &page.changes {
        println!(
            "{} {}",
            change.cursor,
            change.content.row().map_or("", |row| row.get())
        );
    }
    Ok(())
}
