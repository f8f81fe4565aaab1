//! The demo's watch: a function that would write to customers.

use std::convert::Infallible;

use changefeed::{CancellationToken, Changefeed, Result, RowChange, RowOperation};
use serde::Deserialize;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

/// A deleted row has only its key.
#[derive(Deserialize)]
struct Order {
    id: i64,
    status: Option<String>,
}

/// Starts the watch; what it is handed is told a line per batch.
pub(super) fn start(
    db: &Changefeed,
    shutdown: &CancellationToken,
) -> (JoinHandle<Result<()>>, UnboundedReceiver<String>) {
    let (told, letters) = unbounded_channel();
    let watch = db.watch("orders").name("mail");
    let stop = shutdown.clone();
    let task = tokio::spawn(async move {
        let function = move |changes: Vec<RowChange<Order>>| {
            let orders: Vec<String> = changes.iter().map(describe).collect();
            // Nobody listens any more when the demo ends.
            let _ = told.send(orders.join(", "));
            std::future::ready(Ok::<(), Infallible>(()))
        };
        watch.run(function, stop).await.map(drop)
    });
    (task, letters)
}

fn describe(change: &RowChange<Order>) -> String {
    let order = &change.item;
    match (change.operation, &order.status) {
        (RowOperation::Delete, _) | (_, None) => format!("order {} cancelled", order.id),
        (RowOperation::Insert, Some(status)) => format!("order {} is new, {status}", order.id),
        (RowOperation::Update, Some(status)) => format!("order {} is {status}", order.id),
    }
}
