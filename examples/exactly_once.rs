//! A consumer whose effects happen exactly once: balances and cursor change in one transaction.
//!
//! `cargo run -p changefeed --example exactly_once -- shop.db`
//!
//! Kill it wherever you like and start it again: the balances are right.
#![allow(clippy::print_stdout, reason = "it is for people to look at")]

use std::error::Error;

use changefeed::sqlite::rusqlite::{Connection, TransactionBehavior};
use changefeed::sqlite::{SqliteStore, advance_consumer};
use changefeed::{After, Changefeed, ConsumerName, NewFeed, ShardId, Source};
use serde::Deserialize;

#[derive(Deserialize)]
struct Payment {
    customer: i64,
    cents: i64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "shop.db".to_owned());
    let store = SqliteStore::open(&path).await?;
    let mut app = store.connection()?;
    let db = Changefeed::new(std::sync::Arc::new(store));
    db.migrate().await?;
    prepare(&db, &app).await?;

    let (feed, shard) = (db.feed("payments").await?, ShardId(0));
    let me: ConsumerName = "balances".parse()?;
    loop {
        let from = feed.consumer_cursor(&me, shard).await?;
        let page = feed
            .read(shard, from.map_or(After::First, After::Cursor), 100)
            .await?;
        if page.changes.is_empty() {
            break;
        }
        let effects = app.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for change in &page.changes {
            // A row that was deleted since has no content any more.
            let Some(row) = change.content.row() else {
                continue;
            };
            let payment: Payment = serde_json::from_str(row.get())?;
            effects.execute(
                "insert into balance values (?1, ?2) \
                 on conflict (customer) do update set cents = cents + excluded.cents",
                (payment.customer, payment.cents),
            )?;
        }
        // Fails if another instance has taken this page meanwhile; then nothing is committed.
        advance_consumer(&effects, &me, feed.definition().id, shard, from, page.next)?;
        effects.commit()?;
    }

    let mut balances = app.prepare("select customer, cents from balance order by customer")?;
    let mut rows = balances.query(())?;
    while let Some(row) = rows.next()? {
        println!(
            "customer {} has paid {}",
            row.get::<_, i64>(0)?,
            row.get::<_, i64>(1)?
        );
    }
    Ok(())
}

/// An application with a table, a feed of it, and some payments.
async fn prepare(db: &Changefeed, app: &Connection) -> Result<(), Box<dyn Error>> {
    app.execute_batch(
        "create table if not exists payment (id integer primary key, customer integer, cents integer); \
         create table if not exists balance (customer integer primary key, cents integer not null);",
    )?;
    if db.feeds().await?.is_empty() {
        db.create_feed(&NewFeed {
            source: Some(Source::Captured {
                table: db.table("payment")?,
                shard_by: None,
            }),
            ..NewFeed::new("payments".parse()?)
        })
        .await?;
    }
    app.execute_batch(
        "insert into payment (customer, cents) values (7, 1000), (8, 500), (7, 250)",
    )?;
    Ok(())
}
