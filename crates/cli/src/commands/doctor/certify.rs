//! `changefeed doctor --certify`

use std::path::Path;

use changefeed::{Error, Kind, Result};
use changefeed_certify::{Options, Report, certify};
use indicatif::ProgressBar;

use super::print;
use crate::args::Doctor;
use crate::commands::bench::spinner;
use crate::output::Out;
use crate::signals;

pub(super) async fn run(database: &str, args: &Doctor, out: &mut Out) -> Result<()> {
    let bar = match out.is_terminal() {
        true => spinner(),
        false => ProgressBar::hidden(),
    };
    let tell = |what: &str| bar.set_message(what.to_owned());
    let options = Options {
        duration: args.duration,
    };
    let shutdown = signals::shutdown()?;
    let report = certify(database, options, tell, shutdown.cancelled()).await?;
    bar.finish_and_clear();
    write(&report, &args.report)?;
    if out.is_json() {
        out.object(&report)?;
    } else {
        show(&report, args, out)?;
    }
    let failures = report.failures().count();
    if failures > 0 {
        return Err(Error::new(
            Kind::Database,
            format!("{failures} of {} parts do not hold", report.parts.len()),
        )
        .advise(format!(
            "please send {} to those who make changefeed",
            args.report.display()
        )));
    }
    Ok(())
}

fn write(report: &Report, path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|e| Error::new(Kind::Database, "the report cannot be written").caused_by(e))?;
    std::fs::write(path, text).map_err(|e| {
        Error::new(
            Kind::Permission,
            format!("the report cannot be written to {}", path.display()),
        )
        .advise("name another file with --report")
        .caused_by(e)
    })
}

fn show(report: &Report, args: &Doctor, out: &mut Out) -> Result<()> {
    if let Some(version) = report.facts.get("version") {
        out.line(version.lines().next().unwrap_or_default())?;
    }
    for finding in &report.findings {
        print(finding, out)?;
    }
    for part in &report.parts {
        match &part.failure {
            None => out.line(format!("holds    {} ({:.1} s)", part.name, part.seconds))?,
            Some(why) => {
                out.line(format!("FAILS    {}", part.name))?;
                out.line(format!("          {why}"))?;
            }
        }
    }
    if let Some(history) = &report.history {
        out.line(format!(
            "history  {} transactions committed and {} rolled back, {} changes, {} pages, {} ULID transactions in {:.0} s",
            history.committed,
            history.rolled_back,
            history.changes,
            history.pages,
            history.ulid_transactions,
            history.seconds
        ))?;
        if let Some((median, slowest)) = history.latency_ms {
            out.line(format!(
                "latency  {median:.1} ms from a commit to its reader, {slowest:.1} ms at most"
            ))?;
        }
    }
    for note in &report.notes {
        out.line(format!("note     {note}"))?;
    }
    out.line(format!(
        "report   {}, with {} plans and all settings; it holds nothing of your tables, and no password",
        args.report.display(),
        report.plans.len()
    ))
}
