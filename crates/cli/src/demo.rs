//! `serve --demo`: a small shop that keeps writing orders to an SQLite database, and the feeds
//! that follow it, live in the terminal.

mod mail;
mod shop;

use std::time::Duration;

use changefeed::futures::StreamExt;
use changefeed::futures::stream::SelectAll;
use changefeed::{
    After, Backend, CancellationToken, Change, Changefeed, Content, Error, Kind, NewFeed, Result,
    ShardId, Source,
};
use serde::Deserialize;

use crate::output::Out;

pub(crate) async fn run(
    database: Option<&str>,
    duration: Option<Duration>,
    out: &mut Out,
    shutdown: CancellationToken,
) -> Result<()> {
    // Dropped, and so removed, when the demo ends.
    let scratch = tempfile::Builder::new()
        .prefix("changefeed-demo-")
        .tempdir()
        .map_err(|e| {
            Error::new(Kind::Unavailable, "no temporary directory can be made").caused_by(e)
        })?;
    let url = match database {
        Some(url) => url.to_owned(),
        None => format!("sqlite:{}", scratch.path().join("shop.db").display()),
    };
    let Backend::Sqlite { path } = Backend::parse(&url)? else {
        return Err(
            crate::usage("the demo brings its own database and runs on SQLite only")
                .advise("leave --db away, or use --db sqlite:PATH"),
        );
    };
    let db = changefeed::connect(&url).await?;
    db.migrate().await?;
    shop::open(&path)?;
    let feeds = [
        feed(&db, "orders", 2).await?,
        feed(&db, "order-log", 1).await?,
    ];
    welcome(&url, database.is_some(), out)?;

    if let Some(duration) = duration {
        let stop = shutdown.clone();
        tokio::spawn(async move {
            tokio::time::sleep(duration).await;
            stop.cancel();
        });
    }
    let stop = shutdown.clone();
    let shop = tokio::task::spawn_blocking(move || shop::run(&path, &stop));

    let mut changes = SelectAll::new();
    for feed in &feeds {
        for shard in &feed.definition().shards {
            let (name, shard) = (feed.name().to_owned(), shard.shard);
            let stream = feed.follow(shard, After::Last);
            changes.push(Box::pin(
                stream.map(move |change| (name.clone(), shard, change)),
            ));
        }
    }
    let (mail, mut letters) = mail::start(&db, &shutdown);
    let mut seen = 0;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some(letter) = letters.recv() => {
                if !out.is_json() {
                    out.line(format!("{:<12} {letter}", "watch mail"))?;
                }
            }
            Some((feed, shard, change)) = changes.next() => {
                if out.is_json() {
                    out.change(&feed.parse()?, shard, &change?)?;
                } else {
                    out.line(describe(&feed, shard, &change?))?;
                }
                seen += 1;
            }
        }
        out.flush()?;
    }
    mail.await.unwrap_or_else(|e| {
        Err(Error::new(Kind::Database, "the demo's watch broke down").caused_by(e))
    })?;
    shop.await.unwrap_or_else(|e| {
        Err(Error::new(Kind::Database, "the demo's shop broke down").caused_by(e))
    })?;
    out.say(format!("\nstopped after {seen} changes"))?;
    if database.is_none() {
        out.say("the demo's database is removed")?;
    }
    Ok(())
}

/// A feed of the shop's orders, new or from an earlier demo in the same file.
async fn feed(db: &Changefeed, name: &str, shards: i16) -> Result<changefeed::FeedHandle> {
    match db.feed(name).await {
        Err(error) if error.kind() == Kind::NotFound => {}
        found => return found,
    }
    let mut new = NewFeed::new(name.parse()?);
    new.shards = shards;
    new.comment = Some("made by changefeed serve --demo".to_owned());
    new.source = Some(Source::Captured {
        table: db.table("orders")?,
        shard_by: (shards > 1).then(|| "customer_id".to_owned()),
    });
    db.create_feed(&new).await
}

fn welcome(url: &str, kept: bool, out: &mut Out) -> Result<()> {
    // As it was started, so that the lines below can be copied.
    let program = std::env::args()
        .next()
        .unwrap_or_else(|| "changefeed".to_owned());
    out.say(format!(
        "\
A small shop writes orders to {url}{}
and knows nothing of changefeed: triggers publish every insert, update and delete to the feeds
  orders      2 shards, by customer: each customer's orders stay in order
  order-log   1 shard: everything in one order
Numbers are gapless in each shard, whatever the writers do. The watch
  mail        is handed the rows that have changed, net, in batches that any number of instances share

Try, in another terminal:
  {program} --db {url} status
  {program} --db {url} feed read orders --shard 0 --after first --limit 5
  {program} --db {url} feed tail order-log --consumer me
  {program} --db {url} watch orders --name mine --with-columns --json
  sqlite3 {} \"update orders set status = 'vip' where id = 1\"

Ctrl-C stops.
",
        if kept {
            ""
        } else {
            " (removed when the demo ends)"
        },
        url.trim_start_matches("sqlite:"),
    ))
}

/// The part of an order that fits a line.
#[derive(Deserialize)]
struct Order {
    id: i64,
    customer_id: i64,
    status: String,
    cents: i64,
}

fn describe(feed: &str, shard: ShardId, change: &Change) -> String {
    let place = format!("{feed}/{shard}");
    let what = match &change.content {
        Content::Row(row) => match serde_json::from_str::<Order>(row.get()) {
            Ok(o) => format!(
                "order {:>3}  customer {:<2}  {:>4}.{:02}  {}",
                o.id,
                o.customer_id,
                o.cents / 100,
                o.cents % 100,
                o.status
            ),
            Err(_) => row.get().to_owned(),
        },
        Content::Gone => "order cancelled, its row is gone".to_owned(),
        Content::Unknown | Content::Event { .. } => String::new(),
    };
    format!("{place:<12} {}  {what}", change.cursor)
}
