//! `changefeed doctor`

use changefeed::{
    Diagnosis, Error, Finding, Kind, Result, Severity, Variables, remove_dead_listeners,
    unique_name,
};

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
    // Whoever may not look for this may still be told everything else.
    if let Ok(count @ 1..) = remove_dead_listeners(&**db.store(), &unique_name()).await {
        out.say(format!(
            "removed what {} had left that was killed",
            counted(count, "listener")
        ))?;
    }
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
    let bad = |severity| findings.iter().filter(|f| f.severity == severity).count();
    let (problems, warnings) = (bad(Severity::Problem), bad(Severity::Warning));
    let found = match (problems, warnings) {
        (0, 0) => return Ok(()),
        (0, _) if !args.strict => return Ok(()),
        (0, warnings) => counted(warnings, "warning"),
        (problems, 0) => counted(problems, "problem"),
        (problems, _) if !args.strict => counted(problems, "problem"),
        (problems, warnings) => format!(
            "{} and {}",
            counted(problems, "problem"),
            counted(warnings, "warning")
        ),
    };
    Err(Error::new(Kind::Database, format!("{found} found")))
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
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
