//! The server, its settings and its clock: what keeps us from working well.

use std::time::SystemTime;

use changefeed_core::{Finding, Result, Severity};
use tokio_postgres::GenericClient;

use crate::error::db;

/// The oldest server that our functions run on.
const OLDEST: i32 = 130_000;

/// Looks at everything.
pub(crate) async fn look(client: &impl GenericClient) -> Result<Vec<Finding>> {
    let asked = SystemTime::now();
    let row = client
        .query_one(include_str!("sql/server.sql"), &[])
        .await
        .map_err(db)?;
    let answered = SystemTime::now();
    let mut findings = vec![
        version(row.get(0), row.get(1)),
        Finding::of_clock(asked, answered, row.get(2)),
    ];
    let off: Vec<String> = row.get(3);
    findings.extend(off.into_iter().map(|setting| {
        Finding::new(
            Severity::Warning,
            "server",
            format!("{setting} is off: a crash may take back numbers that somebody has read"),
            format!("alter system set {setting} = on; select pg_reload_conf()"),
        )
    }));
    Ok(findings)
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
}
