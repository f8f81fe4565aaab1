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
mod sweeping;
mod watches;

pub use report::{Bound, Budget, Measure, Report, Row};
pub use scale::Options;

use std::path::Path;
use std::time::Instant;

use changefeed::{Backend, Result};
use machine::Machine;
use report::Findings;
use scale::Scale;

/// Measures feeds in the database that a URL names. `progress` is told what is going on, for a
/// person who waits.
pub async fn feeds(url: &str, options: Options, progress: impl Fn(&str)) -> Result<Report> {
    measured(
        options,
        &progress,
        async |scale, findings| match Backend::parse(url)? {
            Backend::Postgres { url } => postgres::feeds(&url, scale, findings).await,
            Backend::Sqlite { path } => sqlite::feeds(&path, scale, findings).await,
            Backend::SqlServer { url } => sqlserver::feeds(&url, scale, findings).await,
        },
    )
    .await
}

/// Measures ULID transactions in the database that a URL names.
pub async fn ulids(url: &str, options: Options, progress: impl Fn(&str)) -> Result<Report> {
    measured(
        options,
        &progress,
        async |scale, findings| match Backend::parse(url)? {
            Backend::Postgres { url } => postgres::ulids(&url, scale, findings).await,
            Backend::Sqlite { path } => sqlite::ulids(&path, scale, findings).await,
            Backend::SqlServer { url } => sqlserver::ulids(&url, scale, findings).await,
        },
    )
    .await
}

/// Measures event triggers in the database that a URL names. `program` is the program whose
/// `deliver` is looked at from outside.
pub async fn events(
    url: &str,
    program: &Path,
    options: Options,
    progress: impl Fn(&str),
) -> Result<Report> {
    measured(
        options,
        &progress,
        async |scale, findings| match Backend::parse(url)? {
            Backend::Postgres { url } => postgres::events(&url, program, scale, findings).await,
            Backend::Sqlite { path } => sqlite::events(&path, scale, findings).await,
            Backend::SqlServer { url } => sqlserver::events(&url, program, scale, findings).await,
        },
    )
    .await
}

/// Measures watches in the database that a URL names.
pub async fn watches(url: &str, options: Options, progress: impl Fn(&str)) -> Result<Report> {
    measured(
        options,
        &progress,
        async |scale, findings| match Backend::parse(url)? {
            Backend::Postgres { url } => postgres::watches(&url, scale, findings).await,
            Backend::Sqlite { path } => sqlite::watches(&path, scale, findings).await,
            Backend::SqlServer { url } => sqlserver::watches(&url, scale, findings).await,
        },
    )
    .await
}

/// Measures what HTTP adds, in the database that a URL names. `program` is the program whose `serve`
/// is looked at from outside.
pub async fn http(
    url: &str,
    program: &Path,
    options: Options,
    progress: impl Fn(&str),
) -> Result<Report> {
    measured(
        options,
        &progress,
        async |scale, findings| match Backend::parse(url)? {
            Backend::Postgres { url } => postgres::http(&url, program, scale, findings).await,
            Backend::Sqlite { path } => sqlite::http(&path, program, scale, findings).await,
            Backend::SqlServer { url } => sqlserver::http(&url, program, scale, findings).await,
        },
    )
    .await
}

/// Runs measures, which return the name of the database, and reports them.
async fn measured(
    options: Options,
    progress: &dyn Fn(&str),
    measures: impl AsyncFnOnce(&Scale, &mut Findings<'_>) -> Result<String>,
) -> Result<Report> {
    let scale = Scale::of(options);
    let machine = Machine::look();
    let began = Instant::now();
    let mut findings = Findings::new(progress);
    if let Some(complaint) = machine.complaint() {
        findings.disturbed(complaint);
    }
    let database = measures(&scale, &mut findings).await?;
    Ok(findings.into_report(database, machine.cores, options, began.elapsed()))
}
