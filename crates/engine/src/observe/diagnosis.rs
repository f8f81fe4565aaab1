//! Everything that `changefeed doctor` has to say. The dashboard, the HTTP interface and `status` say the same: whatever
//! else is found out about a database belongs here.

use changefeed_core::{Error, Finding, Result, Severity, Sink, require_current};

use crate::Changefeed;
use crate::sinks::webhook::Variables;

mod numbering;
mod pushing;

pub use numbering::unswept;

/// What was found, worst first.
#[derive(Debug, Default)]
pub struct Diagnosis {
    /// What was found.
    pub findings: Vec<Finding>,
    /// Why there was more to look at, but no way to.
    pub cut_off: Option<Error>,
}

impl Diagnosis {
    /// Looks at everything. Definitions name variables, which are looked up here.
    pub async fn of(db: &Changefeed, variables: &Variables) -> Result<Self> {
        // What the server lacks, or who has rights that nobody should have, may be why the rest cannot be
        // looked at.
        let mut findings = db.store().server_findings().await?;
        let cut_off = match work(db, variables).await {
            Ok(more) => {
                findings.extend(more);
                None
            }
            Err(error) => Some(error),
        };
        findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
        Ok(Diagnosis { findings, cut_off })
    }

    /// What should be looked at.
    pub fn urgent(&self) -> Vec<Finding> {
        let urgent = self.findings.iter();
        urgent
            .filter(|f| f.severity >= Severity::Warning)
            .cloned()
            .collect()
    }
}

/// What keeps feeds, triggers, watches and subscriptions from working.
async fn work(db: &Changefeed, variables: &Variables) -> Result<Vec<Finding>> {
    require_current(db.schema().await?)?;
    let mut findings = db.capture_findings().await?;
    findings.extend(deliveries(db, variables).await?);
    findings.extend(db.store().watch_findings().await?);
    findings.extend(backlogs(db, variables).await?);
    findings.extend(expired(db).await?);
    findings.extend(numbering::look(db).await?);
    findings.extend(pushing::look(db).await?);
    Ok(findings)
}

/// Consumers that stand at changes which were trimmed: what they have missed is gone.
async fn expired(db: &Changefeed) -> Result<Vec<Finding>> {
    let consumers = db.consumers().await?;
    let expired = consumers.iter().filter(|c| c.expired).map(|c| {
        Finding::new(
            Severity::Warning,
            format!("feed {}", c.feed),
            format!(
                "consumer {} stands at changes of shard {} that were trimmed",
                c.name, c.shard
            ),
            format!(
                "let it read the rows themselves, and then `changefeed consumer set {} --feed {} --shard {} \
                 --cursor` with the newest one; or `changefeed consumer drop {0} --feed {1}`",
                c.name, c.feed, c.shard
            ),
        )
    });
    Ok(expired.collect())
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
        // An instance looks as rarely as it was told to.
        let polling = (status.watch.definition.as_ref()).map_or(0, |definition| {
            i64::try_from(definition.settings.polling_interval.as_millis()).unwrap_or(i64::MAX / 2)
        });
        if status.unprocessed > 0 && status.idle_ms.is_none_or(|ms| ms > 60_000 + 2 * polling) {
            add(
                format!(
                    "{} changes wait, and no instance processes them",
                    status.unprocessed
                ),
                match &status.watch.definition {
                    Some(_) => "run `changefeed serve`".to_owned(),
                    None => format!(
                        "run `changefeed watch {} --name {name} …`",
                        status.watch.table
                    ),
                },
            );
        }
        if let Some(error) = status.last_error.filter(|_| status.unprocessed > 0) {
            add(
                format!("changes wait for another attempt; the last one has failed: {error}"),
                "see to the function; --timeout says how long it may take".to_owned(),
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
