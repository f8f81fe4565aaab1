//! `changefeed bench`: us and the bare database in one run.
//!
//! Everything is measured against the same work done without us, on the same server, through the
//! same driver, in slices that alternate: what a busy machine takes from one side it takes from
//! the other. A ratio is the median of the ratios of the rounds, and its spread is reported with
//! it, so that a figure that cannot be trusted says so.
//!
//! The measures work in the database that they are given, in a feed, an event trigger and a schema
//! of their own that are removed at the end, also after an error.

mod events;
mod feeds;
mod http;
mod idle;
mod latency;
mod machine;
mod postgres;
mod rate;
mod report;
mod sample;
mod scale;
mod scratch;
mod sqlite;
mod sqlserver;
mod subscriptions;
mod sweeping;
mod ulids;
mod watches;

pub use report::{Bound, Budget, Measure, Report, Row};
pub use scale::Options;
pub use subscriptions::Brokers;

use std::path::Path;
use std::time::Instant;

use changefeed::{Backend, Result};
use machine::Machine;
use report::Findings;
use scale::Scale;
use scratch::within;

/// What is measured. A path is that of the program that is looked at from outside.
#[derive(Clone, Copy)]
enum Capability<'a> {
    Feeds,
    Ulids,
    Events(&'a Path),
    Watches,
    Http(&'a Path),
    Subscriptions(&'a Brokers),
}

/// Measures feeds in the database that a URL names. `progress` is told what is going on, for a
/// person who waits.
pub async fn feeds(url: &str, options: Options, progress: impl Fn(&str)) -> Result<Report> {
    measured(url, Capability::Feeds, options, &progress).await
}

/// Measures ULID transactions in the database that a URL names.
pub async fn ulids(url: &str, options: Options, progress: impl Fn(&str)) -> Result<Report> {
    measured(url, Capability::Ulids, options, &progress).await
}

/// Measures event triggers in the database that a URL names. `program` is the program whose
/// `deliver` is looked at from outside.
pub async fn events(
    url: &str,
    program: &Path,
    options: Options,
    progress: impl Fn(&str),
) -> Result<Report> {
    measured(url, Capability::Events(program), options, &progress).await
}

/// Measures watches in the database that a URL names.
pub async fn watches(url: &str, options: Options, progress: impl Fn(&str)) -> Result<Report> {
    measured(url, Capability::Watches, options, &progress).await
}

/// Measures subscriptions to these brokers, of a feed in the database that a URL names.
pub async fn subscriptions(
    url: &str,
    brokers: &Brokers,
    options: Options,
    progress: impl Fn(&str),
) -> Result<Report> {
    measured(url, Capability::Subscriptions(brokers), options, &progress).await
}

/// Measures what HTTP adds, in the database that a URL names. `program` is the program whose `serve`
/// is looked at from outside.
pub async fn http(
    url: &str,
    program: &Path,
    options: Options,
    progress: impl Fn(&str),
) -> Result<Report> {
    measured(url, Capability::Http(program), options, &progress).await
}

async fn measured(
    url: &str,
    what: Capability<'_>,
    options: Options,
    progress: &dyn Fn(&str),
) -> Result<Report> {
    let scale = &Scale::of(options);
    let machine = Machine::look();
    let began = Instant::now();
    let mut findings = Findings::new(progress);
    if let Some(complaint) = machine.complaint() {
        findings.disturbed(complaint);
    }
    let into = &mut findings;
    let database = match Backend::parse(url)? {
        Backend::Postgres { url } => {
            within(&url, into, async |server: &postgres::Scratch, findings| {
                on_server(server, what, scale, findings).await
            })
            .await
        }
        Backend::SqlServer { url } => {
            within(&url, into, async |server: &sqlserver::Scratch, findings| {
                on_server(server, what, scale, findings).await
            })
            .await
        }
        Backend::Sqlite { path } => {
            within(&path, into, async |file: &sqlite::Scratch, findings| {
                sqlite::measure(file, &path, what, scale, findings).await
            })
            .await
        }
    }?;
    Ok(findings.into_report(database, machine.cores, options, began.elapsed()))
}

/// The measures of every server are the same.
async fn on_server<S>(
    server: &S,
    what: Capability<'_>,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()>
where
    S: feeds::Server + ulids::Server + events::Server + watches::Server,
{
    match what {
        Capability::Feeds => feeds::measure(server, scale, findings).await,
        Capability::Ulids => ulids::measure(server, scale, findings).await,
        Capability::Events(program) => events::measure(server, program, scale, findings).await,
        Capability::Watches => watches::measure(server, scale, findings).await,
        Capability::Subscriptions(brokers) => {
            subscriptions::measure(server, brokers, scale, findings).await
        }
        Capability::Http(program) => {
            feeds::over_http(server, program, server.url(), scale, findings).await
        }
    }
}
