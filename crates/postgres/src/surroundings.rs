//! The server, its settings and its clock: what keeps us from working well.

use std::time::SystemTime;

use changefeed_core::{Error, Finding, Kind, Result, Severity, words};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::row::Cells;

/// The oldest server that our functions run on.
const OLDEST: i32 = 130_000;

/// An inbox that is larger than this is kept by somebody.
const MUCH: i64 = 1 << 30;

/// Looks at everything.
pub(crate) async fn look(client: &impl GenericClient) -> Result<Vec<Finding>> {
    let asked = SystemTime::now();
    let row = client
        .query_one(include_str!("sql/server.sql"), &[])
        .await
        .map_err(db)?;
    let answered = SystemTime::now();
    let mut findings = vec![
        version(row.take(0)?, row.take(1)?),
        Finding::of_clock(asked, answered, row.take(2)?),
    ];
    let off: Vec<String> = row.take(3)?;
    findings.extend(off.into_iter().map(|setting| {
        Finding::new(
            Severity::Warning,
            "server",
            words::numbers_at_risk(format_args!("{setting} is off")),
            format!("alter system set {setting} = on; select pg_reload_conf()"),
        )
    }));
    let kept = client
        .query_opt(include_str!("sql/inbox_kept.sql"), &[])
        .await
        .map_err(db)?;
    if let Some(row) = kept {
        let holder = if row.take(3)? {
            let holder = include_str!("sql/oldest_snapshot.sql");
            client.query_opt(holder, &[]).await.map_err(db)?
        } else {
            None
        };
        let holder = holder.map(|row| Ok((row.take(0)?, row.take(1)?)));
        let holder = holder.transpose()?;
        findings.extend(inbox(row.take(0)?, row.take(1)?, row.take(2)?, holder));
    }
    findings.extend(strangers(client).await?);
    Ok(findings)
}

/// Whether changes that have their numbers are removed from the inbox, and if not, why.
fn inbox(bytes: i64, owner: &str, seen: bool, holder: Option<(String, String)>) -> Option<Finding> {
    if !seen {
        return Some(Finding::new(
            Severity::Warning,
            "inbox",
            format!(
                "{owner} may not see who has an old snapshot, so the inbox is never emptied: a dump \
                 that runs meanwhile could lose changes"
            ),
            format!(
                "grant select on pg_stat_activity, pg_replication_slots to {owner}; \
                 grant execute on function pg_stat_clear_snapshot() to {owner}"
            ),
        ));
    }
    (bytes > MUCH).then(|| {
        let (who, advice) = match holder {
            Some((who, advice)) => (format!("; the oldest snapshot is that of {who}"), advice),
            None => (
                String::new(),
                "look whether a sweeper is running".to_owned(),
            ),
        };
        Finding::new(
            Severity::Warning,
            "inbox",
            format!(
                "the inbox has {} MiB: changes stay there until they have their numbers and every \
                 snapshot of the database shows these{who}",
                bytes >> 20
            ),
            advice,
        )
    })
}

/// Who could have us run their code; nobody, where only the owner has rights that matter.
pub(crate) async fn strangers(client: &impl GenericClient) -> Result<Vec<Finding>> {
    let rows = client
        .query(include_str!("sql/foreign_rights.sql"), &[])
        .await
        .map_err(db)?;
    let findings = rows.iter().map(|row| {
        Ok(Finding::new(
            Severity::Problem,
            "rights",
            format!(
                "{}: they could run anything with our rights",
                row.take::<String>(0)?
            ),
            row.take::<String>(1)?,
        ))
    });
    findings.collect()
}

/// Refuses to work where somebody could have us run their code.
pub(crate) async fn refuse_strangers(client: &impl GenericClient) -> Result<()> {
    match strangers(client).await?.into_iter().next() {
        None => Ok(()),
        Some(finding) => Err(Error::new(Kind::Permission, finding.message)
            .advise(finding.advice.unwrap_or_default())),
    }
}

fn version(name: &str, number: i32) -> Finding {
    if number >= OLDEST {
        return Finding::new(Severity::Ok, "server", format!("PostgreSQL {name}"), None);
    }
    Finding::new(
        Severity::Problem,
        "server",
        format!("PostgreSQL {name} is too old for our functions"),
        "use PostgreSQL 13 or later".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_a_problem() {
        assert_eq!(version("15.9", 150_009).severity, Severity::Ok);
        assert_eq!(version("12.2", 120_002).severity, Severity::Problem);
    }

    #[test]
    fn an_inbox_that_cannot_be_emptied_is_told_of() {
        assert_eq!(inbox(MUCH, "me", true, None), None);
        let blind = inbox(0, "me", false, None).unwrap();
        assert!(blind.advice.unwrap().contains("to me"));
        let holder = ("session 7 of ann (pg_dump)".to_owned(), "end it".to_owned());
        let kept = inbox(2 * MUCH, "me", true, Some(holder)).unwrap();
        assert!(kept.message.contains("2048 MiB"), "{}", kept.message);
        assert!(kept.message.ends_with("session 7 of ann (pg_dump)"));
    }
}
