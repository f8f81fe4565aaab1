//! `changefeed doctor`

use changefeed::{Diagnosis, Error, Finding, Kind, Result, Severity, Variables};

use crate::args::Doctor;
use crate::connect;
use crate::output::Out;

mod certify;

pub(crate) async fn run(
    database: &str,
    args: &Doctor,
    variables: &Variables,
    out: &mut Out,
) -> Result<()> {
    if args.certify {
        return certify::run(database, args, out).await;
    }
    let db = connect(database).await?;
    let Diagnosis { findings, cut_off } = Diagnosis::of(&db, variables).await?;
    for finding in &findings {
        match out.is_json() {
            true => out.object(finding)?,
            false => print(finding, out)?,
        }
    }
    if let Some(error) = cut_off {
        return Err(error);
    }
    let problems = findings
        .iter()
        .filter(|f| f.severity == Severity::Problem)
        .count();
    if problems > 0 {
        let what = if problems == 1 { "problem" } else { "problems" };
        return Err(Error::new(
            Kind::Database,
            format!("{problems} {what} found"),
        ));
    }
    Ok(())
}

/// A finding and what to do about it.
pub(super) fn print(finding: &Finding, out: &mut Out) -> Result<()> {
    let mark = match finding.severity {
        Severity::Ok => "ok      ",
        Severity::Note => "note    ",
        Severity::Warning => "WARNING ",
        Severity::Problem => "PROBLEM ",
    };
    out.line(format!("{mark} {}: {}", finding.subject, finding.message))?;
    match &finding.advice {
        Some(advice) => out.line(format!("          → {advice}")),
        None => Ok(()),
    }
}
