//! The measures on SQLite.

mod events;
mod publish;
mod read;
mod scratch;
mod ulids;
mod watches;

use std::path::Path;

use changefeed::Result;
use changefeed::sqlite::rusqlite::Connection;

use crate::http::{PAGE, Subject, measure as over_http};
use crate::idle::{self, Backends};
use crate::latency::{self, Publish};
use crate::report::Findings;
use crate::scale::Scale;
use scratch::{Scratch, blocking, db};

/// Measures everything and returns the engine's name and version.
pub(crate) async fn feeds(
    path: &str,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let scratch = Scratch::prepare(path).await?;
    let measured = measures(&scratch, scale, findings).await;
    findings.doing("removing what the measures have written");
    finish(scratch, measured).await
}

/// Measures ULID transactions and returns the engine's name and version.
pub(crate) async fn ulids(
    path: &str,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let scratch = Scratch::prepare(path).await?;
    let measured = ulids::measure(&scratch, scale, findings).await;
    finish(scratch, measured).await
}

/// Measures event triggers and returns the engine's name and version.
pub(crate) async fn events(
    path: &str,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let scratch = Scratch::prepare(path).await?;
    let measured = events::measure(&scratch, scale, findings).await;
    findings.doing("removing what the measures have written");
    finish(scratch, measured).await
}

/// Measures watches and returns the engine's name and version.
pub(crate) async fn watches(
    path: &str,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let scratch = Scratch::prepare(path).await?;
    let measured = watches::measure(&scratch, scale, findings).await;
    finish(scratch, measured).await
}

/// Measures what HTTP adds and returns the engine's name and version.
pub(crate) async fn http(
    path: &str,
    program: &Path,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let scratch = Scratch::prepare(path).await?;
    let url = format!("sqlite:{path}");
    let measured = served(&scratch, program, &url, scale, findings).await;
    findings.doing("removing what the measures have written");
    finish(scratch, measured).await
}

async fn served(
    scratch: &Scratch,
    program: &Path,
    url: &str,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let feed = scratch.feed().await?;
    let feed_id = feed.definition().id.0;
    let changes = (scale.pages * PAGE) as i64;
    findings.doing(&format!("writing {changes} changes"));
    let connection = scratch.store.connection()?;
    let connection = blocking(move || {
        connection
            .execute(read::FILL, (feed_id, changes))
            .map_err(db)?;
        Ok(connection)
    })
    .await?;
    let subject = Subject {
        db: &scratch.db,
        feed,
        writer: Trickle {
            connection: Some(connection),
            feed_id,
        },
        first_id: changes + 1,
        program,
        url,
    };
    over_http(subject, scale, findings).await
}

async fn measures(scratch: &Scratch, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    // First what depends on the memory of this process, before the others have used some.
    let feed = scratch.feed().await?;
    idle::measure(&scratch.db, &feed, &NoServer, scale.idle, findings).await?;

    let feed = scratch.feed().await?;
    let writer = Trickle {
        connection: Some(scratch.store.connection()?),
        feed_id: feed.definition().id.0,
    };
    latency::measure(&scratch.db, &feed, vec![writer], 1, scale.follow, findings).await?;

    publish::measure(scratch, scale, findings).await?;
    read::measure(scratch, scale, findings).await
}

/// Everything happens in this process.
struct NoServer;

impl Backends for NoServer {
    async fn backends(&self) -> Result<Option<Vec<String>>> {
        Ok(Some(Vec::new()))
    }
}

/// A writer of single changes that, like one in another process, tells nobody.
struct Trickle {
    /// Missing only while a thread works with it.
    connection: Option<Connection>,
    feed_id: i16,
}

impl Publish for Trickle {
    async fn publish(&mut self, change_id: i64) -> Result<()> {
        let feed_id = self.feed_id;
        let Some(connection) = self.connection.take() else {
            return Ok(());
        };
        let connection = blocking(move || {
            connection
                .prepare_cached(
                    "insert into changefeed_change (feed_id, shard, change_id) values (?1, 0, ?2)",
                )
                .and_then(|mut insert| insert.execute((feed_id, change_id)))
                .map_err(db)?;
            Ok(connection)
        })
        .await?;
        self.connection = Some(connection);
        Ok(())
    }
}

/// Removes what was written, whether the measures worked or not, and names the engine.
async fn finish(scratch: Scratch, measured: Result<()>) -> Result<String> {
    let removed = scratch.remove().await;
    measured?;
    removed?;
    Ok(format!(
        "SQLite {}",
        changefeed::sqlite::rusqlite::version()
    ))
}
