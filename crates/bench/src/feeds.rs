//! Feeds on a server: publishing, sweeping, reading, whatever the server.

mod history;
mod publish;
mod read;
mod sweep;

use std::path::Path;

use changefeed::{FeedHandle, Result};

use crate::http::{self, PAGE, Subject};
use crate::idle::{self, Backends};
use crate::latency::{self, Publish};
use crate::report::Findings;
use crate::scale::Scale;
use crate::scratch::ScratchFeed;

/// Who takes turns at writing while somebody follows.
const TRICKLE: usize = 4;

/// With us or without.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Bare,
    Ours,
}

/// One of many who write rows.
pub(crate) trait Writer: Send + Sync + 'static {
    /// Writes a row of the application, and its change on our side, in a transaction of its own.
    fn write(&self, side: Side) -> impl Future<Output = Result<()>> + Send;
}

/// One who reads numbered changes without us.
pub(crate) trait Reader {
    /// The numbers and ids of the first shard's next changes.
    fn page(
        &mut self,
        feed: &FeedHandle,
        after: i64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(i64, i64)>>>;
}

/// Where somebody can hold a snapshot.
pub(crate) trait Snapshots {
    /// Somebody whose snapshot is held until this is dropped.
    type Snapshot;

    /// A snapshot that is older than everything that comes now; nothing where nobody can hold one.
    fn hold_snapshot(&self) -> impl Future<Output = Result<Option<Self::Snapshot>>>;
}

/// A server with a scratch feed, and with tables for the same work without us.
pub(crate) trait Server: Backends + Snapshots {
    type Writer: Writer;
    type Trickle: Publish;
    type Reader: Reader;

    fn scratch(&self) -> &ScratchFeed;

    /// A new scratch feed without any history; the one before is removed.
    fn new_feed(&self, shards: i16) -> impl Future<Output = Result<FeedHandle>>;

    fn writer(&self, feed: &FeedHandle, shard: i16) -> impl Future<Output = Result<Self::Writer>>;

    /// A writer of single changes.
    fn trickle(&self, feed: &FeedHandle) -> impl Future<Output = Result<Self::Trickle>>;

    fn reader(&self) -> impl Future<Output = Result<Self::Reader>>;

    /// The next value of the sequence.
    fn next_change_id(&self) -> impl Future<Output = Result<i64>>;

    /// Publishes so many changes, over all shards, in one transaction.
    fn add(&self, feed: &FeedHandle, changes: i64) -> impl Future<Output = Result<()>>;

    /// Several sessions write so many changes in many transactions, so that they are mixed as real
    /// ones are; on the bare side to an empty table without numbers.
    fn fill(&self, side: Side, feed: &FeedHandle, changes: i64)
    -> impl Future<Output = Result<()>>;

    /// Gives everything on the bare side some number, in one statement; returns how much that was.
    fn number_bare(&self) -> impl Future<Output = Result<u64>>;

    /// Gives the one shard of a feed a history of numbered changes, of which it has some already.
    fn extend(&self, feed: &FeedHandle, from: i64, to: i64) -> impl Future<Output = Result<()>>;

    /// Does what the server would do soon by itself with what was numbered.
    fn tidy(&self) -> impl Future<Output = Result<()>>;
}

pub(crate) async fn measure(
    server: &impl Server,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let scratch = server.scratch();
    // First what depends on the memory of this process, before the others have used some.
    let feed = server.new_feed(2).await?;
    idle::measure(&scratch.db, &feed, server, scale.idle, findings).await?;

    let feed = server.new_feed(1).await?;
    let mut writers = Vec::new();
    for _ in 0..TRICKLE {
        writers.push(server.trickle(&feed).await?);
    }
    let first_id = server.next_change_id().await?;
    latency::measure(
        &scratch.db,
        &feed,
        writers,
        first_id,
        scale.follow,
        findings,
    )
    .await?;
    scratch.take_lease().await?;

    publish::measure(server, scale, findings).await?;
    let feed = sweep::measure(server, scale, findings).await?;
    read::measure(server, &feed, scale, findings).await?;
    history::measure(server, scale, findings).await
}

/// What HTTP adds to a feed of the server.
pub(crate) async fn over_http(
    server: &impl Server,
    program: &Path,
    url: &str,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let scratch = server.scratch();
    let feed = server.new_feed(1).await?;
    let changes = (scale.pages * PAGE) as i64;
    findings.doing(&format!("writing {changes} changes"));
    server.add(&feed, changes).await?;
    scratch.drain().await?;
    server.tidy().await?;
    let subject = Subject {
        db: &scratch.db,
        writer: server.trickle(&feed).await?,
        first_id: server.next_change_id().await?,
        feed,
        program,
        url,
    };
    http::measure(subject, scale, findings).await
}
