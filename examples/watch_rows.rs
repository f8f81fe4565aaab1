//! Changed rows of a table, as values of a type, in leased batches.
//!
//! `cargo run -p changefeed --example watch_rows -- shop.db`
//!
//! Start it twice at the same time: the instances share the work.
#![allow(clippy::print_stdout, reason = "it is for people to look at")]

use std::error::Error;

use changefeed::sqlite::rusqlite::Connection;
use changefeed::{CancellationToken, RowChange};
use serde::Deserialize;

#[derive(Deserialize)]
struct Order {
    id: i64,
    // A deleted row has only its key.
    status: Option<String>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "shop.db".to_owned());
    let db = changefeed::connect(&format!("sqlite:{path}")).await?;
    db.migrate().await?;
    let app = Connection::open(&path)?;
    app.execute_batch(
        "pragma busy_timeout = 5000; \
         create table if not exists orders (id integer primary key, status text); \
         insert or replace into orders values (1, 'new'), (2, 'paid');",
    )?;

    let enough = CancellationToken::new();
    let totals = db
        .watch("orders")
        .name("mail")
        .from_beginning()
        .run(
            |changes: Vec<RowChange<Order>>| {
                let enough = enough.clone();
                async move {
                    for change in &changes {
                        let status = change.item.status.as_deref().unwrap_or("gone");
                        println!("{} of order {}: {status}", change.operation, change.item.id);
                    }
                    // An error here would be a failed batch, tried again after a second.
                    enough.cancel();
                    Ok::<(), std::io::Error>(())
                }
            },
            enough.clone(),
        )
        .await?;
    println!("{} rows were handed over", totals.changes);
    Ok(())
}
