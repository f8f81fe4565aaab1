//! The server, the database, its clock, and what this user may do: what keeps us from working, and
//! the statement that helps. Nothing of ours need be installed for that.

use std::time::SystemTime;

use changefeed_core::{Finding, Result, SchemaState, Severity, words};
use tiberius::Row;

use crate::connection::Connection;
use crate::platform::Platform;
use crate::quote;
use crate::row::Cells;

/// The oldest server and the oldest behaviour that our T-SQL runs on: SQL Server 2017, and a level
/// that has `openjson`.
const MAJOR_VERSION: u32 = 14;
const COMPATIBILITY: i32 = 130;
/// Azure SQL Database and Managed Instance, whose versions count differently.
const ALWAYS_NEW: [i32; 2] = [5, 8];

/// What `migrate` creates.
const CREATES: [&str; 6] = [
    "CREATE SCHEMA",
    "CREATE TABLE",
    "CREATE PROCEDURE",
    "CREATE FUNCTION",
    "CREATE VIEW",
    "CREATE ROLE",
];
/// What the program does with the schema.
const USES: [&str; 5] = ["SELECT", "INSERT", "UPDATE", "DELETE", "EXECUTE"];

/// Looks at everything.
pub(crate) async fn look(connection: &mut Connection, schema: SchemaState) -> Result<Vec<Finding>> {
    let platform = connection.platform();
    let asked = SystemTime::now();
    let row = connection.one(include_str!("sql/server.sql"), &[]).await?;
    let answered = SystemTime::now();
    let server = Server::read(&row)?;
    let mut findings = server.findings(platform);
    findings.push(Finding::of_clock(asked, answered, row.take::<i64>(8)?));
    findings.extend(match schema {
        SchemaState::Missing => {
            let rights = connection
                .one(include_str!("sql/rights_to_install.sql"), &[])
                .await?;
            may_install(&server.user, &denied(&rights, &CREATES)?)
        }
        SchemaState::At(_) | SchemaState::Changed(_) => {
            let rights = connection.one(include_str!("sql/rights.sql"), &[]).await?;
            let denied = match rights.maybe::<i32>(7)? {
                Some(1) => Vec::new(),
                _ => denied(&rights, &USES)?,
            };
            Some(may_work(
                &server.user,
                &denied,
                rights.maybe::<i32>(5)? == Some(1),
                rights.maybe::<i32>(6)? == Some(1),
            ))
        }
    });
    Ok(findings)
}

/// The rights that the server says this user does not have.
fn denied(row: &Row, rights: &[&'static str]) -> Result<Vec<&'static str>> {
    let mut denied = Vec::new();
    for (place, right) in rights.iter().enumerate() {
        if row.maybe::<i32>(place)? == Some(0) {
            denied.push(*right);
        }
    }
    Ok(denied)
}

/// What the server says about itself.
#[derive(Debug, Clone)]
struct Server {
    version: String,
    edition: i32,
    compatibility: i32,
    versioned: bool,
    snapshots: bool,
    tracking: bool,
    database: String,
    user: String,
    /// 0 not allowed, 1 allowed, 2 forced.
    delayed_durability: i32,
}

impl Server {
    fn read(row: &Row) -> Result<Self> {
        // What the server does not tell, it does not have.
        let number = |place: usize| Ok(row.maybe::<i32>(place)?.unwrap_or_default());
        let text = |place: usize| Ok(row.maybe_text(place)?.unwrap_or_default());
        Ok(Server {
            version: text(0)?,
            edition: number(1)?,
            compatibility: number(2)?,
            versioned: number(3)? == 1,
            snapshots: number(4)? == 1,
            tracking: number(5)? == 1,
            database: text(6)?,
            user: text(7)?,
            delayed_durability: number(9)?,
        })
    }

    fn findings(&self, platform: Platform) -> Vec<Finding> {
        let mut findings = vec![self.version(platform)];
        let alter = format!("alter database {}", quote::identifier(&self.database));
        let mut add = |severity, message: String, advice: String| {
            findings.push(Finding::new(severity, "database", message, advice));
        };
        if platform == Platform::SqlServer && self.compatibility < COMPATIBILITY {
            add(
                Severity::Problem,
                format!(
                    "its compatibility level is {}, and our procedures need {COMPATIBILITY} or more",
                    self.compatibility
                ),
                format!("{alter} set compatibility_level = 140"),
            );
        }
        if !self.versioned {
            let ids = match self.snapshots {
                true => "",
                false => ", and change ids must come from changefeed.change_id",
            };
            add(
                Severity::Warning,
                format!("READ_COMMITTED_SNAPSHOT is off: readers wait for writers{ids}"),
                format!("{alter} set read_committed_snapshot on with rollback after 10 seconds"),
            );
        }
        if !self.snapshots {
            add(
                Severity::Note,
                "ALLOW_SNAPSHOT_ISOLATION is off: transactions at the level SNAPSHOT are refused \
                 by the server, our sweeps' among them"
                    .to_owned(),
                format!("{alter} set allow_snapshot_isolation on"),
            );
        }
        if self.delayed_durability != 0 {
            add(
                if self.delayed_durability == 2 {
                    Severity::Problem
                } else {
                    Severity::Warning
                },
                words::numbers_at_risk("DELAYED_DURABILITY is on"),
                format!("{alter} set delayed_durability = disabled"),
            );
        }
        if platform.has_change_tracking() && !self.tracking {
            add(
                Severity::Note,
                "change tracking is off: watches track changes by triggers of ours".to_owned(),
                format!(
                    "{alter} set change_tracking = on (change_retention = 2 days, auto_cleanup = on)"
                ),
            );
        }
        findings
    }

    fn version(&self, platform: Platform) -> Finding {
        let say = |severity, message: String, advice: Option<&str>| {
            Finding::new(severity, "server", message, advice.map(str::to_owned))
        };
        let version = &self.version;
        if platform == Platform::Babelfish {
            return say(
                Severity::Note,
                "this is Babelfish for PostgreSQL: `longpoll` looks every 20 ms instead of being \
                 woken, and names of columns come in lower case"
                    .to_owned(),
                Some("docs/sqlserver.md tells what is different on it"),
            );
        }
        let major = version.split('.').next().and_then(|v| v.parse().ok());
        if ALWAYS_NEW.contains(&self.edition) || major >= Some(MAJOR_VERSION) {
            return say(Severity::Ok, format!("SQL Server {version}"), None);
        }
        say(
            Severity::Problem,
            format!("SQL Server {version} is too old for our procedures"),
            Some("use SQL Server 2017 or later"),
        )
    }
}

/// Whether this user can install our tables, where the server says that it cannot.
fn may_install(user: &str, denied: &[&str]) -> Option<Finding> {
    (!denied.is_empty()).then(|| {
        let rights = denied.join(", ");
        Finding::new(
            Severity::Problem,
            format!("user {user}"),
            format!("it may not {rights}, which `changefeed migrate` needs"),
            format!(
                "grant {} to {}; or give the output of `changefeed --db sqlserver: migrate \
                 --print` to somebody who may",
                rights.to_lowercase(),
                quote::identifier(user)
            ),
        )
    })
}

/// Whether this user can do the program's work, or at least what one of the smaller roles is for.
fn may_work(user: &str, denied: &[&str], reads: bool, writes: bool) -> Finding {
    let subject = format!("user {user}");
    if denied.is_empty() {
        return Finding::new(
            Severity::Ok,
            subject,
            "may do everything in the schema changefeed",
            None,
        );
    }
    let (severity, message) = match (reads, writes) {
        (true, true) => (
            Severity::Warning,
            "may read and publish, but not do the program's work",
        ),
        (true, false) => (Severity::Warning, "may read, but not do the program's work"),
        (false, true) => (
            Severity::Warning,
            "may publish, but not do the program's work",
        ),
        (false, false) => (Severity::Problem, "may do nothing in the schema changefeed"),
    };
    Finding::new(
        severity,
        subject,
        message,
        format!(
            "for `changefeed serve`: alter role changefeed_admin add member {}",
            quote::identifier(user)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Server {
        Server {
            version: "16.0.4135.4".to_owned(),
            edition: 3,
            compatibility: 160,
            versioned: true,
            snapshots: true,
            tracking: true,
            database: "shop \"2\"".to_owned(),
            user: "app".to_owned(),
            delayed_durability: 0,
        }
    }

    #[test]
    fn a_good_server_has_nothing_to_complain_about() {
        let findings = good().findings(Platform::SqlServer);
        assert!(findings.iter().all(|f| f.severity == Severity::Ok));
        let azure = Server {
            version: "12.0.2000.8".to_owned(),
            edition: 5,
            ..good()
        };
        let findings = azure.findings(Platform::SqlServer);
        assert!(findings.iter().all(|f| f.severity == Severity::Ok));
    }

    #[test]
    fn what_is_missing_is_said_with_the_statement_that_helps() {
        let bad = Server {
            version: "13.0.1601.5".to_owned(),
            compatibility: 120,
            versioned: false,
            snapshots: false,
            tracking: false,
            delayed_durability: 2,
            ..good()
        };
        let findings = bad.findings(Platform::SqlServer);
        let worst: Vec<Severity> = findings.iter().map(|f| f.severity).collect();
        use Severity::{Note, Problem, Warning};
        assert_eq!(worst, [Problem, Problem, Warning, Note, Problem, Note]);
        for finding in &findings[1..] {
            let advice = finding.advice.as_deref().unwrap();
            assert!(
                advice.starts_with("alter database [shop \"2\"] set "),
                "{advice}"
            );
        }
    }

    #[test]
    fn rights_are_told_apart() {
        assert_eq!(may_work("a", &[], true, true).severity, Severity::Ok);
        let reader = may_work("a b", &["INSERT", "EXECUTE"], true, false);
        assert_eq!(reader.severity, Severity::Warning);
        assert!(reader.advice.unwrap().ends_with("add member [a b]"));
        assert_eq!(
            may_work("a", &USES, false, false).severity,
            Severity::Problem
        );
        assert_eq!(may_install("a", &[]), None);
        let advice = may_install("a", &["CREATE ROLE"]).unwrap().advice.unwrap();
        assert!(advice.starts_with("grant create role to [a]"));
    }
}
