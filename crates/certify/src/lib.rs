//! `changefeed doctor --certify`: do the promises hold on this very server?
//!
//! Everything happens in a database of its own, which is made on the server that the URL names and dropped at the end: cases
//! that need nothing but SQL and a store, a history of writers, readers and sweepers with a checker that knows
//! nothing of the store, the plans of the statements that have to stay quick, and what the server says about deadlocks.
//! All of it becomes one report that its user can send to somebody.

mod cases;
mod change_tracking;
pub mod history;
mod load;
mod place;
mod plans;
mod postgres;
mod report;
mod showplan;
mod sqlite;
mod sqlserver;

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed::{Backend, Result};
pub use place::with_database;
pub use plans::{Access, Plan};
pub use report::{HistoryReport, Part, Report};

use crate::place::Place;

/// How thorough it is.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How long the history is.
    pub duration: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            duration: Duration::from_secs(120),
        }
    }
}

/// Examines the server that a URL names. `progress` is told what is going on. What does not hold is in the report; an
/// error is what kept us from looking at all. Stopping to poll leaves the scratch database behind, so whoever wants to
/// end it early makes `stop` ready.
pub async fn certify(
    url: &str,
    options: Options,
    progress: impl Fn(&str),
    stop: impl Future<Output = ()>,
) -> Result<Report> {
    let place: Arc<dyn Place> = match Backend::parse(url)? {
        Backend::Postgres { url } => Arc::new(postgres::Scratch::create(&url).await?),
        Backend::SqlServer { url } => Arc::new(sqlserver::Scratch::create(&url).await?),
        Backend::Sqlite { path } => Arc::new(sqlite::Scratch::create(&path)?),
    };
    progress(&format!("working in the scratch database {}", place.name()));
    let began = Instant::now();
    let mut report = Report::new(place.name());
    let examined = tokio::select! {
        examined = examine(&place, options, &progress, &mut report) => examined,
        () = stop => {
            report.failed("the whole", "it was stopped before its end", began.elapsed());
            Ok(())
        }
    };
    progress("dropping the scratch database");
    let removed = place.remove().await;
    report.seconds = began.elapsed().as_secs_f64();
    examined?;
    removed?;
    Ok(report)
}

async fn examine(
    place: &Arc<dyn Place>,
    options: Options,
    progress: &dyn Fn(&str),
    report: &mut Report,
) -> Result<()> {
    report.facts = place.facts().await?;
    let before = place.deadlocks().await;
    let backend = Backend::parse(place.url())?;
    let store = backend.open().await?;
    store.migrate().await?;
    report.findings = store.server_findings().await?;
    for case in cases::all() {
        progress(case.name);
        let began = Instant::now();
        let outcome = (case.run)(place.clone(), store.clone()).await;
        report.outcome(case.name, outcome, began.elapsed());
    }
    progress("what only this kind of database has");
    for (name, outcome, took) in place.own_cases(&store).await {
        report.outcome(name, outcome, took);
    }
    progress("a history of writers, readers and sweepers");
    let began = Instant::now();
    match load::run(place, &store, options.duration).await {
        Ok(history) => {
            let worst = history.worst();
            report.history = Some(history);
            let name = "promises 1 to 6 hold in a history";
            match worst {
                None => report.passed(name, began.elapsed()),
                Some(violation) => report.failed(name, &violation, began.elapsed()),
            }
        }
        Err(error) => report.failed("a history can be made", &error.to_string(), began.elapsed()),
    }
    progress("plans");
    let began = Instant::now();
    match plans::look(place, &store).await {
        Ok(plans) => report.judge_plans(plans, began.elapsed()),
        Err(error) => report.failed("plans can be seen", &error.to_string(), began.elapsed()),
    }
    progress("uninstalling");
    let began = Instant::now();
    let uninstalled = cases::uninstalls(place, &store).await;
    report.outcome(cases::UNINSTALLS, uninstalled, began.elapsed());
    match (before, place.deadlocks().await) {
        (Ok(Some(before)), Ok(Some(after))) => report.judge_deadlocks(before, after),
        (Err(error), _) | (_, Err(error)) => {
            report.note(&format!("deadlocks cannot be counted here: {error}"));
        }
        _ => report.note("this database has no deadlocks to count"),
    }
    Ok(())
}
