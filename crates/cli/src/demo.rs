//! `serve --demo`: a small shop that keeps writing orders to an SQLite database, and everything that
//! can follow it: feeds, a consumer, an event trigger and a watch whose receiver sometimes fails. The
//! feeds appear in the terminal, and all of it on the dashboard.

mod receiver;
mod report;
mod shop;

use std::time::Duration;

use changefeed::futures::StreamExt;
use changefeed::futures::stream::SelectAll;
use changefeed::server::Server;
use changefeed::{
    After, Backend, CancellationToken, Capture, Change, Changefeed, Delivery, Error, FeedHandle,
    Kind, NewFeed, Op, Result, Retry, Service, ShardId, Sink, Source, TriggerDefinition,
    WatchDefinition, WatchSpec,
};
use changefeed_receiver::Receiver;
use serde::Deserialize;

use crate::args::Serve;
use crate::commands::serve::{prepare, run_until};
use crate::output::Out;
use crate::signals::Hangups;

/// How long an order waits for its next attempt: a dead letter is to be seen within seconds.
const RETRY_AFTER: Duration = Duration::from_secs(3);

pub(crate) async fn run(
    database: Option<&str>,
    args: Serve,
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
    shop::open(&path)?;
    let db = changefeed::connect(&url).await?;
    db.migrate().await?;
    let receiver = receiver::start().await?;
    let feeds = define(&db, &receiver).await?;
    let hangups = Hangups::new()?;
    let (service, args) = listen(&db, args, &shutdown).await?;
    let address = service.server().map(Server::url);
    welcome(&url, address.as_deref(), database.is_some(), out)?;

    if let Some(duration) = args.duration {
        let stop = shutdown.clone();
        tokio::spawn(async move {
            tokio::time::sleep(duration).await;
            stop.cancel();
        });
    }
    let stop = shutdown.clone();
    let shop = tokio::task::spawn_blocking(move || shop::run(&path, &stop));
    let reading = feeds[0].clone();
    let stop = shutdown.clone();
    let report = tokio::spawn(async move { report::run(&reading, &stop).await });
    let stop = shutdown.clone();
    let serving = tokio::spawn(async move { run_until(service, hangups, &stop).await });

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
    let mut seen = 0;
    while let Some(Some((feed, shard, change))) = shutdown.run_until_cancelled(changes.next()).await
    {
        if out.is_json() {
            out.change(&feed.parse()?, shard, &change?)?;
        } else {
            out.line(describe(&feed, shard, &change?))?;
        }
        out.flush()?;
        seen += 1;
    }
    for part in [shop, report, serving] {
        part.await.unwrap_or_else(|e| {
            Err(Error::new(Kind::Database, "a part of the demo broke down").caused_by(e))
        })?;
    }
    out.say(format!("\nstopped after {seen} changes"))?;
    if database.is_none() {
        out.say("the demo's database is removed")?;
    }
    Ok(())
}

/// Everything that follows the shop. What an earlier demo in the same file has defined stays, but the
/// receiver has a new address.
async fn define(db: &Changefeed, receiver: &Receiver) -> Result<[FeedHandle; 2]> {
    let feeds = [
        feed(db, "orders", 2).await?,
        feed(db, "order-log", 1).await?,
    ];
    let shipping = TriggerDefinition {
        name: "shipping".parse()?,
        table: db.table("orders")?,
        capture: Capture {
            manual: true,
            ..Capture::everything()
        },
        delivery: Delivery {
            sink: Sink::webhook(receiver.url("/shipping")),
            retry: Retry {
                num_retries: receiver::REFUSALS - 1,
                interval: RETRY_AFTER,
                timeout: Duration::from_secs(10),
                ..Retry::default()
            },
            ..Delivery::default()
        },
    };
    db.create_trigger(&shipping, true).await?;
    let mut posting = WatchDefinition::new(Sink::webhook(receiver.url("/mail")));
    posting.settings.batch = 10;
    posting.settings.attempts = receiver::REFUSALS;
    let mail = WatchSpec {
        // A second start finds the receiver at another address.
        replace: true,
        ..WatchSpec::served("mail".parse()?, db.table("orders")?, posting)
    };
    db.store().open_watch(&mail).await?;
    Ok(feeds)
}

/// Listens at the given address, or at another port if that is taken.
async fn listen(
    db: &Changefeed,
    mut args: Serve,
    shutdown: &CancellationToken,
) -> Result<(Service, Serve)> {
    let service = match prepare(db, &args, shutdown).await {
        Err(error) if error.kind() == Kind::Unavailable => {
            args.http.listen.set_port(0);
            prepare(db, &args, shutdown).await
        }
        prepared => prepared,
    };
    Ok((service?, args))
}

/// A feed of the shop's orders, new or from an earlier demo in the same file.
async fn feed(db: &Changefeed, name: &str, shards: i16) -> Result<FeedHandle> {
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
        images: shards == 1,
        when: None,
        columns: None,
    });
    db.create_feed(&new).await
}

fn welcome(url: &str, dashboard: Option<&str>, kept: bool, out: &mut Out) -> Result<()> {
    // As it was started, so that the lines below can be copied.
    let program = std::env::args()
        .next()
        .unwrap_or_else(|| "changefeed".to_owned());
    out.say(format!(
        "\
A small shop writes orders to {url}{}
and knows nothing of changefeed: triggers publish every insert, update and delete to the feeds
  orders      2 shards, by customer: each customer's orders stay in order
  order-log   1 shard: everything in one order, with the row before and after
Numbers are gapless in each shard, whatever the writers do.
  shipping    is an event trigger: every change is posted to a receiver that sometimes fails
  mail        is a watch: rows that have changed, net, in batches; some are refused and parked
  report      is a consumer that reads every now and then, and lags behind in between

See all of it at {}

Try, in another terminal:
  {program} --db {url} status
  {program} --db {url} feed read orders --shard 0 --after first --limit 5
  {program} --db {url} feed tail order-log --consumer me
  sqlite3 {} \"update orders set status = 'vip' where id = 1\"

Ctrl-C stops.
",
        if kept {
            ""
        } else {
            " (removed when the demo ends)"
        },
        dashboard.unwrap_or("no address, because of --only"),
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
    let op = change.op.map_or("", Op::as_str);
    let what = match (change.row::<Order>(), &change.key) {
        (Ok(Some(o)), _) => format!(
            "order {:>3}  customer {:<2}  {:>4}.{:02}  {}",
            o.id,
            o.customer_id,
            o.cents / 100,
            o.cents % 100,
            o.status
        ),
        (_, Some(key)) => key.to_string(),
        _ => String::new(),
    };
    format!("{place:<12} {}  {op:<8}  {what}", change.cursor)
}
