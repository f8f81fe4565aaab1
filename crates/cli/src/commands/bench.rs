//! `changefeed bench`

use std::path::PathBuf;
use std::time::Duration;

use changefeed::{Backend, Error, Kind, Result};
use changefeed_bench::{Brokers, Options};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Bench;
use crate::commands::serve::files;
use crate::output::Out;

pub(crate) async fn run(database: &str, args: Bench, out: &mut Out) -> Result<()> {
    Backend::parse(database)?;
    let bar = if out.is_terminal() {
        spinner()
    } else {
        ProgressBar::hidden()
    };
    let tell = |what: &str| bar.set_message(what.to_owned());
    let report = match args {
        Bench::Feeds { quick } => {
            changefeed_bench::feeds(database, Options { quick }, tell).await?
        }
        Bench::Events { quick } => {
            changefeed_bench::events(database, &itself()?, Options { quick }, tell).await?
        }
        Bench::Http { quick } => {
            files::allow_many();
            changefeed_bench::http(database, &itself()?, Options { quick }, tell).await?
        }
        Bench::Ulids { quick } => {
            changefeed_bench::ulids(database, Options { quick }, tell).await?
        }
        Bench::Subscriptions { quick, nats, redis } => {
            let brokers = Brokers { nats, redis };
            changefeed_bench::subscriptions(database, &brokers, Options { quick }, tell).await?
        }
        Bench::Watches { quick } => {
            changefeed_bench::watches(database, Options { quick }, tell).await?
        }
    };
    bar.finish_and_clear();
    if out.is_json() {
        return out.object(&report);
    }
    let rows = report
        .rows()
        .into_iter()
        .map(|row| {
            vec![
                row.measure,
                row.ours,
                row.bare,
                row.ratio,
                row.budget,
                row.verdict,
            ]
        })
        .collect();
    out.line(format!(
        "{}, {} cores, {:.0} s",
        report.database, report.cores, report.seconds
    ))?;
    out.table(&["MEASURE", "OURS", "BARE", "RATIO", "BUDGET", ""], rows)?;
    report
        .notes
        .iter()
        .try_for_each(|note| out.line(format!("note: {note}")))
}

/// The program that is looked at from outside.
fn itself() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| {
        Error::new(Kind::Unavailable, "this program does not find itself").caused_by(e)
    })
}

pub(super) fn spinner() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {elapsed}  {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner().with_style(style);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}
