//! Every change with its old and new row, to a function of this program instead of a webhook.
//!
//! `cargo run -p changefeed --example handle_events -- shop.db`
#![allow(clippy::print_stdout, reason = "it is for people to look at")]

use std::error::Error;

use changefeed::sqlite::rusqlite::Connection;
use changefeed::{
    CancellationToken, Capture, Delivery, DispatchOptions, TriggerDefinition, Updates,
};

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
         create table if not exists orders (id integer primary key, status text);",
    )?;
    let definition = TriggerDefinition {
        name: "shipping".parse()?,
        table: db.table("orders")?,
        capture: Capture {
            insert: true,
            update: Updates::Any,
            ..Capture::default()
        },
        delivery: Delivery::default(),
    };
    let trigger = db.create_trigger(&definition, true).await?;

    app.execute_batch(
        "delete from orders; \
         insert into orders values (1, 'new'); \
         update orders set status = 'paid' where id = 1;",
    )?;

    let enough = CancellationToken::new();
    let done = enough.clone();
    trigger
        .handler(DispatchOptions::new("shipping-1"), move |event| {
            let done = done.clone();
            async move {
                let before = event.old.as_deref().map_or("nothing", |row| row.get());
                let after = event.new.as_deref().map_or("nothing", |row| row.get());
                println!("{}: {before} -> {after}", event.op.as_str());
                if event.op.as_str() == "UPDATE" {
                    done.cancel();
                }
                // An error here would be a failed attempt, retried as the trigger says.
                Ok::<(), String>(())
            }
        })
        .run(|_| {}, enough)
        .await?;
    Ok(())
}
