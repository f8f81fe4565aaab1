//! `changefeed sweep`

use changefeed::{Result, SchemaState, SweepTotals, require_current};

use crate::args::Sweep;
use crate::connect;
use crate::output::Out;
use crate::signals;
use changefeed::unique_name;

pub(crate) async fn run(database: &str, args: Sweep, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    let state: SchemaState = db.schema().await?;
    require_current(state)?;
    if args.once {
        let mut totals = SweepTotals::default();
        loop {
            let report = db.sweep(args.group).await?;
            totals.add(&report);
            if !report.may_have_left_some() {
                return print(&totals, out);
            }
        }
    }
    let shutdown = signals::shutdown()?;
    if !db.needs_sweeping() {
        out.say("this database numbers changes as they are written; there is nothing to sweep")?;
        shutdown.cancelled().await;
        return print(&SweepTotals::default(), out);
    }
    out.say(format!("sweeping group {} until stopped", args.group))?;
    let totals = db
        .sweeper(args.group, unique_name())
        .run(|_| {}, shutdown)
        .await?;
    print(&totals, out)
}

fn print(totals: &SweepTotals, out: &mut Out) -> Result<()> {
    if out.is_json() {
        return out.object(totals);
    }
    out.line(format!(
        "{} numbered in {}, lag at most {} ms",
        counted(totals.changes, "change"),
        counted(totals.iterations, "sweep"),
        totals.lag_ms
    ))
}

fn counted(count: impl Into<i128>, what: &str) -> String {
    match count.into() {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}
