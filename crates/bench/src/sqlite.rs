//! The measures on SQLite.

mod events;
mod publish;
mod read;
mod scratch;
mod ulids;
mod watches;

use std::path::Path;

use changefeed::sqlite::rusqlite::Connection;
use changefeed::{Error, Kind, Result};

use crate::Capability;
use crate::http::{self, PAGE, Subject};
use crate::idle::{self, Backends};
use crate::latency::{self, Publish};
use crate::report::Findings;
use crate::scale::Scale;
pub(crate) use scratch::Scratch;
use scratch::{blocking, db};

pub(crate) async fn measure(
    scratch: &Scratch,
    path: &str,
    what: Capability<'_>,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    match what {
        Capability::Feeds => feeds(scratch, scale, findings).await,
        Capability::Ulids => ulids::measure(scratch, scale, findings).await,
        Capability::Events(_) => events::measure(scratch, scale, findings).await,
        Capability::Watches => watches::measure(scratch, scale, findings).await,
        Capability::Subscriptions(_) => Err(Error::new(
            Kind::Unsupported,
            "subscriptions are measured on a database server, and not on SQLite",
        )
        .advise("name a PostgreSQL or SQL Server with --db")),
        Capability::Http(program) => over_http(scratch, program, path, scale, findings).await,
    }
}

/// What HTTP adds to a feed of the file.
async fn over_http(
    scratch: &Scratch,
    program: &Path,
    path: &str,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let feed = scratch.new_feed().await?;
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
        db: &scratch.feed.db,
        feed,
        writer: Trickle {
            connection: Some(connection),
            feed_id,
        },
        first_id: changes + 1,
        program,
        url: &format!("sqlite:{path}"),
    };
    http::measure(subject, scale, findings).await
}

/// Publishing and reading; there is nothing to sweep.
async fn feeds(scratch: &Scratch, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    // First what depends on the memory of this process, before the others have used some.
    let feed = scratch.new_feed().await?;
    idle::measure(&scratch.feed.db, &feed, &NoServer, scale.idle, findings).await?;

    let feed = scratch.new_feed().await?;
    let writer = Trickle {
        connection: Some(scratch.store.connection()?),
        feed_id: feed.definition().id.0,
    };
    latency::measure(
        &scratch.feed.db,
        &feed,
        vec![writer],
        1,
        scale.follow,
        findings,
    )
    .await?;

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
