//! `changefeed serve` seen by its clients, as a process of its own: pages against the library's own
//! reading, the way of a change to a stream, a thousand who wait, and what two thousand cost.

mod client;
mod server;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed::{
    After, Changefeed, Cursor, DEFAULT_START, Error, FeedHandle, Kind, Result, ShardId,
};
use tokio::task::JoinSet;

use crate::latency::{Log, Publish, judge_rate, publish};
use crate::machine;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;
use crate::sweeping::Sweeping;
use client::{Connection, Stream};
use server::Server;

/// Changes per page.
pub(crate) const PAGE: usize = 1000;
/// Changes per second, while a stream is followed.
const RATE: u32 = 100;
/// Clients who wait for one change, and clients who cost memory.
const WAITERS: usize = 1000;
const CROWD: usize = 2000;
/// How long anything may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is measured.
pub(crate) struct Subject<'a, P> {
    pub(crate) db: &'a Changefeed,
    /// A feed of one shard that holds as many pages as are read.
    pub(crate) feed: FeedHandle,
    /// One that writes to it.
    pub(crate) writer: P,
    /// An id that no change has yet, nor any above it.
    pub(crate) first_id: i64,
    pub(crate) program: &'a Path,
    pub(crate) url: &'a str,
}

pub(crate) async fn measure<P: Publish>(
    mut subject: Subject<'_, P>,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let server = Server::start(subject.program, subject.url)?;
    pages(&subject, &server, scale, findings).await?;
    let sweeping = Sweeping::start(subject.db, &subject.feed);
    wake(&mut subject, &server, scale, findings).await?;
    crowd(&subject, &server, findings).await?;
    stream(subject, &server, scale, findings).await?;
    sweeping.stop().await;
    Ok(())
}

fn path(feed: &FeedHandle) -> String {
    format!("/api/feeds/{}/shards/0/changes", feed.name())
}

/// The same pages by the library and over HTTP, in turns.
async fn pages<P>(
    subject: &Subject<'_, P>,
    server: &Server,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let (feed, path) = (&subject.feed, path(&subject.feed));
    let mut connection = Connection::open(server.address()).await?;
    let (mut ours, mut library) = (Sample::default(), Sample::default());
    for round in 0..=scale.rounds {
        findings.doing(&format!(
            "pages of {PAGE} over HTTP, round {round} of {}",
            scale.rounds
        ));
        let began = Instant::now();
        let mut after = After::Cursor(Cursor::Number(DEFAULT_START));
        for _ in 0..scale.pages {
            let page = feed.read(ShardId(0), after, PAGE).await?;
            after = After::Cursor(page.next);
        }
        let library_took = began.elapsed();

        let began = Instant::now();
        let mut after = DEFAULT_START.to_string();
        for _ in 0..scale.pages {
            let page = connection
                .get(&format!("{path}?after={after}&limit={PAGE}"))
                .await?;
            after = next(&page)?;
        }
        let ours_took = began.elapsed();
        let read = DEFAULT_START + (scale.pages * PAGE) as i64;
        if after != read.to_string() {
            return Err(lost(format!("pages end at {after} instead of {read}")));
        }
        // Round 0 only warms both up.
        if round > 0 {
            let changes = (scale.pages * PAGE) as f64;
            library.add(changes / library_took.as_secs_f64());
            ours.add(changes / ours_took.as_secs_f64());
        }
    }
    let least = Some(Budget::at_least(0.5));
    findings.add(Measure::compared(
        "pages of 1,000 over HTTP, against the library's own",
        "changes/s",
        &ours,
        &library,
        least,
    ));
    Ok(())
}

/// Where the next page begins; it stands at the end of this one.
fn next(page: &str) -> Result<String> {
    page.rsplit_once("\"next\":\"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(next, _)| next.to_owned())
        .ok_or_else(|| lost("a page does not say where the next one begins".to_owned()))
}

fn lost(what: String) -> Error {
    Error::new(Kind::Database, what)
}

/// Many wait for one change.
async fn wake<P: Publish>(
    subject: &mut Subject<'_, P>,
    server: &Server,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let path = format!("{}?after=last&wait=60000", path(&subject.feed));
    let mut times = Sample::default();
    let mut connections = Vec::new();
    for _ in 0..WAITERS {
        connections.push(Connection::open(server.address()).await?);
    }
    for round in 0..=scale.rounds {
        findings.doing(&format!(
            "{WAITERS} clients wait for one change, round {round} of {}",
            scale.rounds
        ));
        let mut waiting = JoinSet::new();
        for mut connection in connections.drain(..) {
            let path = path.clone();
            waiting.spawn(async move {
                let page = connection.get(&path).await?;
                let answered = Instant::now();
                if !page.contains("\"change_id\"") {
                    return Err(lost("a client was answered with nothing".to_owned()));
                }
                Ok((connection, answered))
            });
        }
        server.waiting(WAITERS).await?;
        subject.writer.publish(subject.first_id).await?;
        subject.first_id += 1;
        let committed = Instant::now();
        while let Some(ended) = waiting.join_next().await {
            let (connection, answered) =
                ended.map_err(|e| lost("a client was cut off".to_owned()).caused_by(e))??;
            connections.push(connection);
            if round > 0 {
                // An answer can overtake the one that the writer gets.
                times.add_millis(answered.saturating_duration_since(committed));
            }
        }
    }
    for (name, part, most) in [
        ("1,000 clients who wait, p50", 0.5, None),
        ("1,000 clients who wait, p99", 0.99, Some(150.0)),
        ("1,000 clients who wait, the last", 1.0, None),
    ] {
        let budget = most.map(Budget::at_most);
        findings.add(Measure::alone(name, "ms", times.quantile(part), budget));
    }
    Ok(())
}

/// What it costs when many wait.
async fn crowd<P>(
    subject: &Subject<'_, P>,
    server: &Server,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing(&format!("{CROWD} clients wait"));
    let path = path(&subject.feed);
    let mut streams = Vec::new();
    let mut polls = JoinSet::new();
    for _ in 0..CROWD / 2 {
        streams.push(Stream::open(server.address(), &path).await?);
        let mut connection = Connection::open(server.address()).await?;
        let path = format!("{path}?after=last&wait=60000");
        polls.spawn(async move { connection.get(&path).await });
    }
    server.waiting(CROWD).await?;
    let open = server
        .metric("changefeed_connections{state=\"open\"}")
        .await?;
    match machine::peak_mebibytes(server.id()) {
        Some(memory) => {
            let most = Some(Budget::at_most(150.0));
            findings.add(Measure::alone(
                "memory with 2,000 clients",
                "MiB",
                memory,
                most,
            ));
        }
        None => findings.note("memory: this system does not tell what processes use (no /proc)"),
    }
    findings.add(Measure::alone(
        "connections to the database with 2,000 clients",
        "connections",
        open,
        None,
    ));
    polls.shutdown().await;
    drop(streams);
    server.waiting(0).await
}

/// From the commit to a client of server-sent events.
async fn stream<P: Publish>(
    subject: Subject<'_, P>,
    server: &Server,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing("from the commit to a stream of events");
    let changes = (scale.follow.as_secs_f64() * f64::from(RATE)) as usize;
    let log = Arc::new(Log::new(subject.first_id, changes));
    let mut stream = Stream::open(server.address(), &path(&subject.feed)).await?;
    let seen = log.clone();
    let following = tokio::spawn(async move {
        let mut left = changes;
        while left > 0 {
            let change_id = stream.change_id().await?;
            if seen.saw(change_id) {
                left -= 1;
            }
        }
        Ok::<_, Error>(())
    });
    let could = publish(vec![subject.writer], &log, RATE).await?;
    tokio::time::timeout(PATIENCE, following)
        .await
        .map_err(|e| lost("changes did not reach their stream".to_owned()).caused_by(e))?
        .map_err(|e| lost("the stream was cut off".to_owned()).caused_by(e))??;
    judge_rate(could, RATE, findings);
    let latencies = log.latencies();
    for (name, part, most) in [
        ("commit to a stream of events, p50", 0.5, Some(15.0)),
        ("commit to a stream of events, p99", 0.99, None),
    ] {
        let budget = most.map(Budget::at_most);
        findings.add(Measure::alone(name, "ms", latencies.quantile(part), budget));
    }
    Ok(())
}
