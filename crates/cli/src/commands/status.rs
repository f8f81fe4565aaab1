//! `changefeed status`

use changefeed::view::{FeedStatus, Status};
use changefeed::{Diagnosis, Looks, Result, Variables};

use crate::commands::{consumer, doctor, subscription, watch};
use crate::connect;
use crate::output::{Out, human_ms};

pub(crate) async fn run(database: &str, variables: &Variables, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    let mut status = Looks::default().look(&db).await?;
    // Whoever may see how things stand need not be allowed to look at everything.
    let cut_off = match Diagnosis::of(&db, variables).await {
        Ok(diagnosis) => {
            status.findings = Some(diagnosis.urgent());
            diagnosis.cut_off
        }
        Err(error) => Some(error),
    };
    if let Some(error) = cut_off {
        tracing::warn!(%error, "`changefeed doctor` could not look at everything");
    }
    if out.is_json() {
        return out.object(&status);
    }
    feeds(&status.feeds, out)?;
    if !status.consumers.is_empty() {
        out.line("")?;
        consumer::table(&status.consumers, out)?;
    }
    triggers(&status, out)?;
    if !status.watches.is_empty() {
        out.line("")?;
        watch::table(status.watches.iter().map(|w| &w.status), out)?;
    }
    let subscriptions = db.subscriptions().await?;
    if !subscriptions.is_empty() {
        out.line("")?;
        subscription::table(&subscriptions, out)?;
    }
    leases(&status, out)?;
    incidents(&status, out)?;
    if let Some(incarnation) = status.database.incarnation {
        out.line(format!("\nincarnation {incarnation}"))?;
    }
    findings(&status, out)
}

fn feeds(feeds: &[FeedStatus], out: &mut Out) -> Result<()> {
    if feeds.is_empty() {
        return out.line("no feeds yet; `changefeed feed create NAME --from TABLE` makes one");
    }
    for feed in feeds {
        // One feed that is broken must not hide the others.
        if let Some(error) = &feed.error {
            tracing::warn!(feed = feed.name.as_str(), %error, "the state of this feed cannot be read");
        }
    }
    let rows = feeds
        .iter()
        .flat_map(|feed| feed.shards.iter().map(move |s| (feed, &s.state)))
        .map(|(feed, s)| {
            vec![
                format!("{}/{}", feed.name, s.shard),
                s.sweep_group.to_string(),
                s.last.to_string(),
                s.pending.to_string(),
                format!("{} ago", human_ms(s.since_ms)),
            ]
        })
        .collect();
    out.table(&["SHARD", "GROUP", "LAST", "PENDING", "AT"], rows)
}

fn triggers(status: &Status, out: &mut Out) -> Result<()> {
    if status.triggers.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let rows = status
        .triggers
        .iter()
        .map(|t| &t.state)
        .map(|t| {
            vec![
                t.name.to_string(),
                t.pending.to_string(),
                t.in_flight.to_string(),
                t.dead_letters.to_string(),
                t.overdue_ms.map_or_else(String::new, human_ms),
            ]
        })
        .collect();
    out.table(
        &["TRIGGER", "PENDING", "IN FLIGHT", "DEAD LETTERS", "OVERDUE"],
        rows,
    )
}

fn leases(status: &Status, out: &mut Out) -> Result<()> {
    if status.leases.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let rows = status
        .leases
        .iter()
        .map(|h| {
            let state = if h.expires_in_ms > 0 {
                format!("for {}", human_ms(h.expires_in_ms))
            } else {
                "free".to_owned()
            };
            vec![
                h.name.clone(),
                h.owner.clone(),
                h.generation.to_string(),
                state,
            ]
        })
        .collect();
    out.table(&["LEASE", "HOLDER", "GENERATION", "HELD"], rows)
}

fn incidents(status: &Status, out: &mut Out) -> Result<()> {
    if status.incidents.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let rows = status
        .incidents
        .iter()
        .map(|i| {
            let ago = format!("{} ago", human_ms(i.since_ms));
            vec![format!("{}/{}", i.feed, i.shard), i.count.to_string(), ago]
        })
        .collect();
    out.table(&["ULID SHARD", "LOST WRITERS", "LAST"], rows)
}

fn findings(status: &Status, out: &mut Out) -> Result<()> {
    let findings = status.findings.as_deref().unwrap_or_default();
    if !findings.is_empty() {
        out.line("")?;
    }
    findings
        .iter()
        .try_for_each(|finding| doctor::print(finding, out))
}
