//! `changefeed doctor`

use changefeed::{
    Changefeed, Error, Finding, Kind, Result, Severity, Sink, Variables, require_current,
};

use crate::connect;
use crate::output::Out;

mod numbering;

pub(crate) async fn run(database: &str, variables: &Variables, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    let mut findings = db.store().server_findings().await?;
    let schema = require_current(db.schema().await?);
    let rest = match schema {
        Ok(_) => work(&db, variables).await,
        Err(error) => Err(error),
    };
    let rest = rest.map(|more| findings.extend(more));
    findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
    for finding in &findings {
        if out.is_json() {
            out.object(finding)?;
            continue;
        }
        let mark = match finding.severity {
            Severity::Ok => "ok      ",
            Severity::Note => "note    ",
            Severity::Warning => "WARNING ",
            Severity::Problem => "PROBLEM ",
        };
        out.line(format!("{mark} {}: {}", finding.subject, finding.message))?;
        if let Some(advice) = &finding.advice {
            out.line(format!("          → {advice}"))?;
        }
    }
    // What the server lacks, or who has rights that nobody should have, may be why the rest could not be
    // looked at: it is told first.
    rest?;
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

/// What keeps feeds, triggers and watches from working.
async fn work(db: &Changefeed, variables: &Variables) -> Result<Vec<Finding>> {
    let mut findings = db.capture_findings().await?;
    findings.extend(deliveries(db, variables).await?);
    findings.extend(db.store().watch_findings().await?);
    findings.extend(backlogs(db, variables).await?);
    findings.extend(numbering::look(db).await?);
    Ok(findings)
}

/// What keeps captured events from arriving.
async fn deliveries(db: &Changefeed, variables: &Variables) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut add = |severity, subject: String, message: String, advice: String| {
        findings.push(Finding {
            severity,
            subject,
            message,
            advice: Some(advice),
        });
    };
    for trigger in db.triggers().await? {
        let trigger = trigger.definition();
        let subject = format!("trigger {}", trigger.definition.name);
        if let Some(why) = &trigger.paused {
            add(
                Severity::Warning,
                subject.clone(),
                format!("it is paused: {why}"),
                format!("`changefeed trigger resume {}`", trigger.definition.name),
            );
        }
        for (message, advice) in lacking(variables, &trigger.definition.delivery.sink) {
            add(Severity::Note, subject.clone(), message, advice);
        }
    }
    for state in db.trigger_states().await? {
        let subject = format!("trigger {}", state.name);
        if state.dead_letters > 0 {
            add(
                Severity::Warning,
                subject.clone(),
                format!("{} dead letters", state.dead_letters),
                format!(
                    "`changefeed event list --trigger {0} --status dead_letter` shows them, \
                     `changefeed event redeliver --trigger {0} --status dead_letter` tries again",
                    state.name
                ),
            );
        }
        if state.overdue_ms.is_some_and(|ms| ms > 60_000) {
            add(
                Severity::Warning,
                subject,
                format!("{} events wait, some of them for too long", state.pending),
                "run `changefeed serve` or `changefeed deliver`, or more of them".to_owned(),
            );
        }
    }
    Ok(findings)
}

/// Which variables of a sink could not be read here, and what helps.
fn lacking(variables: &Variables, sink: &Sink) -> Vec<(String, String)> {
    let granted = sink.as_webhook().map_or(&[][..], |w| &w.granted_env);
    let lacking = sink
        .variables()
        .filter_map(|name| match variables.read("it", name, granted) {
            Ok(Some(_)) => None,
            Ok(None) => Some((
                format!("it needs the environment variable {name}, which is not set here"),
                "set it where `changefeed serve` or `changefeed deliver` runs".to_owned(),
            )),
            Err(error) => {
                let advice = error.advice().unwrap_or_default().to_owned();
                Some((error.to_string(), advice))
            }
        });
    lacking.collect()
}

/// What keeps changes of watched tables from being processed.
async fn backlogs(db: &Changefeed, known: &Variables) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for watch in db.store().watches().await? {
        let status = db.watch_status(&watch, 0).await?;
        let name = &status.watch.name;
        let mut add = |message: String, advice: String| {
            findings.push(Finding {
                severity: Severity::Warning,
                subject: format!("watch {name}"),
                message,
                advice: Some(advice),
            });
        };
        if status.parked > 0 {
            add(
                format!("{} changes are parked", status.parked),
                format!(
                    "`changefeed watch show {name}` shows them, `changefeed watch retry {name}` \
                     tries again"
                ),
            );
        }
        if status.unprocessed > 0 && status.idle_ms.is_none_or(|ms| ms > 60_000) {
            add(
                format!("{} changes wait, and nobody is at work", status.unprocessed),
                match &status.watch.definition {
                    Some(_) => "run `changefeed serve`".to_owned(),
                    None => format!(
                        "run `changefeed watch {} --name {name} …`",
                        status.watch.table
                    ),
                },
            );
        }
        if let Some(definition) = &watch.definition {
            for (message, advice) in lacking(known, &definition.sink) {
                add(message, advice);
            }
        }
    }
    Ok(findings)
}
