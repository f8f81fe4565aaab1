//! What keeps subscriptions from pushing.

use std::time::Duration;

use changefeed_core::{Finding, Result, Severity, Sink, format_span};

use crate::Changefeed;

/// Subscriptions that are paused or stopped, that nobody runs, or whose sink lost or refused changes.
pub(super) async fn look(db: &Changefeed) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for view in db.subscriptions().await? {
        let name = view.definition.name.clone();
        let mut add = |severity, message: String, advice: String| {
            let subject = format!("subscription {name}");
            findings.push(Finding::new(severity, subject, message, advice));
        };
        if let Some(why) = &view.paused {
            let held = match view.definition.max_backlog {
                None => "; retention of its feed waits for it",
                Some(_) => "",
            };
            add(
                Severity::Warning,
                format!("it is paused: {why}{held}"),
                format!("`changefeed subscription resume {name}`"),
            );
        }
        for shard in &view.shards {
            if let Some(why) = &shard.stopped {
                add(
                    Severity::Problem,
                    format!("shard {} is stopped: {why}", shard.shard),
                    format!("`changefeed subscription show {name}`"),
                );
            }
            if let Some(failing) = &shard.failing {
                let since = Duration::from_millis(u64::try_from(failing.since_ms).unwrap_or(0));
                add(
                    Severity::Problem,
                    format!(
                        "the sink of shard {} has taken nothing for {}: {}",
                        shard.shard,
                        format_span(Duration::from_secs(since.as_secs())),
                        failing.error
                    ),
                    "see to it that the sink answers; nothing is skipped meanwhile, and retention waits"
                        .to_owned(),
                );
            }
            if shard.lost > 0 {
                add(
                    Severity::Warning,
                    format!(
                        "its sink lost {} changes of shard {}, which were sent again",
                        shard.lost, shard.shard
                    ),
                    "have the sink sync what it acknowledges, or replicate it".to_owned(),
                );
            }
            if shard.parked > 0 {
                add(
                    Severity::Warning,
                    format!(
                        "its sink refused {} changes of shard {}, which were left out",
                        shard.parked, shard.shard
                    ),
                    format!("`changefeed subscription show {name}` lists them"),
                );
            }
        }
        // A program of somebody's runs those.
        let ours = view.definition.sink != Sink::InProcess;
        if ours && view.state == "waiting" && view.lag_changes > 0 {
            add(
                Severity::Warning,
                format!("no instance runs it; it is {} changes behind", view.lag_changes),
                "start `changefeed serve`; for files and commands with --allow-files or --allow-exec"
                    .to_owned(),
            );
        }
    }
    Ok(findings)
}
