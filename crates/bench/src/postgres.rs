//! The measures on PostgreSQL.

mod events;
mod history;
mod publish;
mod read;
mod scratch;
mod session;
mod sweep;
mod ulids;
mod watches;

use std::path::Path;

use changefeed::Result;
use changefeed::postgres::tokio_postgres;

use crate::http::{PAGE, Subject, measure as over_http};
use crate::idle::{self, Backends};
use crate::latency::{self, Publish};
use crate::report::Findings;
use crate::scale::Scale;
use scratch::Scratch;
use session::{Session, Target, db};

/// Who takes turns at writing while somebody follows.
const TRICKLE: usize = 4;

/// Measures feeds and returns the server's name and version.
pub(crate) async fn feeds(url: &str, scale: &Scale, findings: &mut Findings<'_>) -> Result<String> {
    let scratch = Scratch::prepare(Target::parse(url)?).await?;
    let measured = measures(&scratch, scale, findings).await;
    finish(scratch, measured, findings).await
}

/// Measures ULID transactions and returns the server's name and version.
pub(crate) async fn ulids(url: &str, scale: &Scale, findings: &mut Findings<'_>) -> Result<String> {
    let scratch = Scratch::prepare(Target::parse(url)?).await?;
    let measured = ulids::measure(&scratch, scale, findings).await;
    finish(scratch, measured, findings).await
}

/// Measures event triggers and returns the server's name and version.
pub(crate) async fn events(
    url: &str,
    program: &Path,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let scratch = Scratch::prepare(Target::parse(url)?).await?;
    let measured = events::measure(&scratch, program, scale, findings).await;
    finish(scratch, measured, findings).await
}

/// Measures watches and returns the server's name and version.
pub(crate) async fn watches(
    url: &str,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let scratch = Scratch::prepare(Target::parse(url)?).await?;
    let measured = watches::measure(&scratch, scale, findings).await;
    finish(scratch, measured, findings).await
}

/// Measures what HTTP adds and returns the server's name and version.
pub(crate) async fn http(
    url: &str,
    program: &Path,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let scratch = Scratch::prepare(Target::parse(url)?).await?;
    let measured = served(&scratch, program, url, scale, findings).await;
    finish(scratch, measured, findings).await
}

async fn served(
    scratch: &Scratch,
    program: &Path,
    url: &str,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let version = scratch.version().await?;
    let feed = scratch.feed(1).await?;
    let changes = scale.pages * PAGE;
    findings.doing(&format!("writing {changes} changes"));
    let first_id = scratch.next_change_id().await?;
    let last_id = first_id + changes as i64 - 1;
    let feed_id = feed.definition().id.0;
    scratch
        .run(&format!(
            "insert into changefeed.change (feed_id, shard, change_id) \
             select {feed_id}, 0, i from generate_series({first_id}, {last_id}) i"
        ))
        .await?;
    scratch.drain().await?;
    scratch
        .run("vacuum analyze changefeed.numbered, changefeed.progress")
        .await?;
    let subject = Subject {
        db: &scratch.db,
        writer: Trickle::new(scratch, feed_id).await?,
        feed,
        first_id: last_id + 1,
        program,
        url,
    };
    over_http(subject, scale, findings).await?;
    Ok(version)
}

/// Removes what was written, also after an error.
async fn finish(
    scratch: Scratch,
    measured: Result<String>,
    findings: &mut Findings<'_>,
) -> Result<String> {
    findings.doing("removing what the measures have written");
    let removed = scratch.remove().await;
    let version = measured?;
    removed?;
    Ok(version)
}

async fn measures(scratch: &Scratch, scale: &Scale, findings: &mut Findings<'_>) -> Result<String> {
    let version = scratch.version().await?;
    for note in scratch.settings().await? {
        findings.note(note);
    }
    // First what depends on the memory of this process, before the others have used some.
    let feed = scratch.feed(2).await?;
    idle::measure(&scratch.db, &feed, scratch, scale.idle, findings).await?;

    let feed = scratch.feed(1).await?;
    let mut writers = Vec::new();
    for _ in 0..TRICKLE {
        writers.push(Trickle::new(scratch, feed.definition().id.0).await?);
    }
    let first_id = scratch.next_change_id().await?;
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

    publish::measure(scratch, scale, findings).await?;
    let feed = sweep::measure(scratch, scale, findings).await?;
    read::measure(scratch, &feed, scale, findings).await?;
    history::measure(scratch, scale, findings).await?;
    Ok(version)
}

impl Backends for Scratch {
    async fn backends(&self) -> Result<Option<Vec<String>>> {
        self.server_processes(&self.target.application_name).await
    }
}

/// A writer of single changes.
struct Trickle {
    session: Session,
    statement: tokio_postgres::Statement,
    feed_id: i16,
}

impl Trickle {
    async fn new(scratch: &Scratch, feed_id: i16) -> Result<Self> {
        let session = scratch.target.session().await?;
        let statement = session
            .prepare("insert into changefeed.change (feed_id, shard, change_id) values ($1, 0, $2)")
            .await
            .map_err(db)?;
        Ok(Trickle {
            session,
            statement,
            feed_id,
        })
    }
}

impl Publish for Trickle {
    async fn publish(&mut self, change_id: i64) -> Result<()> {
        self.session
            .execute(&self.statement, &[&self.feed_id, &change_id])
            .await
            .map_err(db)?;
        Ok(())
    }
}
