//! Many writers at once, for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed::{Error, Kind, Result};
use tokio::task::JoinSet;

/// Everybody writes for a while; transactions per second.
pub(crate) async fn transactions<W, F>(
    writers: &[Arc<W>],
    length: Duration,
    write: impl Fn(Arc<W>) -> F + Copy + Send + 'static,
) -> Result<f64>
where
    W: Send + Sync + 'static,
    F: Future<Output = Result<()>> + Send,
{
    let began = Instant::now();
    let end = began + length;
    let mut tasks = JoinSet::new();
    for writer in writers {
        let writer = writer.clone();
        tasks.spawn(async move {
            let mut transactions = 0_u64;
            while Instant::now() < end {
                write(writer.clone()).await?;
                transactions += 1;
            }
            Ok::<_, Error>(transactions)
        });
    }
    let mut transactions = 0_u64;
    while let Some(ended) = tasks.join_next().await {
        transactions += ended
            .map_err(|e| Error::new(Kind::Database, "a writer was cut off").caused_by(e))??;
    }
    Ok(transactions as f64 / began.elapsed().as_secs_f64())
}
