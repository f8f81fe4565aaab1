//! A consumer whose effects happen exactly once: balances and cursor change in one transaction.
//!
//! `cargo run -p changefeed --example exactly_once -- shop.db`
//!
//! Kill it wherever you like and start it again: the balances are right.
#![allow(clippy::print_stdout, reason = "it is for people to look at")]

use std::error::Error;

use changefeed::sqlite::rusqlite::Connection;
use changefeed::sqlite::{SqliteStore, consume};
use changefeed::{Changefeed, NewFeed, ShardId};
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

    let payments = db.feed("payments").await?;
    let balances = payments.consumer("balances".parse()?, ShardId(0));
    loop {
        let taken = balances.next(100).await?;
        if taken.page.changes.is_empty() {
            break;
        }
        // Fails if another instance has taken this page meanwhile; then nothing is committed.
        consume(&mut app, &taken, |effects| {
            for change in &taken.page.changes {
                // A row that was deleted since has no content any more.
                let Some(payment) = change.row::<Payment>()? else {
                    continue;
                };
                effects.execute(
                    "insert into balance values (?1, ?2) \
                     on conflict (customer) do update set cents = cents + excluded.cents",
                    (payment.customer, payment.cents),
                )?;
            }
            Ok::<_, Box<dyn Error>>(())
        })?;
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
            name: "payments".parse()?,
            ..NewFeed::captured("payment")?
        })
        .await?;
    }
    app.execute_batch(
        "insert into payment (customer, cents) values (7, 1000), (8, 500), (7, 250)",
    )?;
    Ok(())
}
