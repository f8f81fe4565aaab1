//! What keeps changes of watched tables from being noted or handed over.

use changefeed_core::{Finding, Kind, Result, Severity, Watch};

use crate::connection::Connection;
use crate::platform::Platform;
use crate::quote;
use crate::row::Cells;
use crate::tracking::{Tracked, trigger_name, trigger_state};

const RESTART: &str = "start the watch, or restart it: what is missing is made again";

struct Findings<'a> {
    watch: &'a Watch,
    found: Vec<Finding>,
}

impl Findings<'_> {
    fn add(&mut self, severity: Severity, message: impl Into<String>, advice: impl Into<String>) {
        self.found.push(Finding {
            severity,
            subject: format!("watch {}", self.watch.name),
            message: message.into(),
            advice: Some(advice.into()),
        });
    }

    fn problem(&mut self, message: impl Into<String>, advice: impl Into<String>) {
        self.add(Severity::Problem, message, advice);
    }
}

/// Looks at one watch.
pub(crate) async fn find(connection: &mut Connection, watch: &Watch) -> Result<Vec<Finding>> {
    let table_id = i32::try_from(watch.table_id).unwrap_or(-1);
    let mut findings = Findings {
        watch,
        found: Vec::new(),
    };
    let rows = connection
        .query(
            include_str!("sql/watch_findings.sql"),
            &[&table_id, &watch.function_id],
        )
        .await?;
    let Some(row) = rows.first() else {
        return Ok(findings.found);
    };
    let says = |at: usize| row.says(at);
    let table = &watch.table;
    if !says(0)? {
        let name = &watch.name;
        findings.problem(
            "its table was dropped",
            format!("`changefeed watch drop {name}` removes the watch"),
        );
        return Ok(findings.found);
    }
    let native = says(1)?;
    for (there, name) in [
        (says(2)?, watch.leases_table.clone()),
        (native || says(3)?, format!("changefeed.changes_{table_id}")),
        (says(4)?, "changefeed.global_state".to_owned()),
    ] {
        if !there {
            findings.problem(format!("its table {name} was deleted"), RESTART);
        }
    }
    if let Some(missed) = row.maybe::<&str>(5)? {
        findings.add(
            Severity::Warning,
            format!("changes of {table} were missed ({missed}): all rows were handed over again"),
            "of rows that were deleted meanwhile no function was told: compare with the table \
             whatever must not have them any more",
        );
    }
    let database = quote::identifier(row.take::<&str>(8)?);
    if !says(7)? {
        findings.add(
            Severity::Warning,
            format!(
                "instances wait for sessions that are writing to the rows of {table} that they read"
            ),
            format!("alter database {database} set allow_snapshot_isolation on"),
        );
    }
    match native {
        true => tracked(connection, table_id, &database, &mut findings).await?,
        false => {
            if says(6)? && connection.platform() == Platform::SqlServer {
                findings.problem(
                    format!(
                        "{table} and the schema changefeed have different owners: writers need \
                         rights on changefeed.changes_{table_id}, or their writes fail"
                    ),
                    "alter authorization on schema::changefeed to the owner of the table",
                );
            }
            noted(connection, table_id, &mut findings).await?;
        }
    }
    if let Err(error) = Tracked::load(connection, table_id, &watch.name).await
        && error.kind() == Kind::NotFound
    {
        findings.problem(
            format!("the primary key of {table} is another than when it was watched"),
            RESTART,
        );
    }
    Ok(findings.found)
}

async fn noted(
    connection: &mut Connection,
    table_id: i32,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let (table, trigger) = (&findings.watch.table, trigger_name(table_id));
    match trigger_state(connection, table_id).await? {
        Some(true) => {}
        Some(false) => findings.problem(
            format!("the trigger {trigger} on {table} is disabled: changes are not noted"),
            format!("enable trigger {trigger} on {table}"),
        ),
        None => findings.problem(
            format!("the trigger {trigger} on {table} is missing: changes are not noted"),
            RESTART,
        ),
    }
    Ok(())
}

async fn tracked(
    connection: &mut Connection,
    table_id: i32,
    database: &str,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let row = connection
        .one(include_str!("sql/watch_tracked.sql"), &[&table_id])
        .await?;
    let says = |at: usize| row.says(at);
    let table = &findings.watch.table;
    if !says(0)? {
        findings.problem(
            format!("change tracking of {table} was switched off: changes are not noted"),
            "start the watch again: a trigger of ours notes its changes then, and all rows are \
             handed over again",
        );
        return Ok(());
    }
    if !says(1)? {
        findings.problem(
            format!("the database user may not see the change tracking of {table}"),
            format!("grant view change tracking on {table} to this user"),
        );
    }
    if !says(2)? {
        findings.problem(
            "the database does not allow snapshot isolation: changes cannot be read",
            format!("alter database {database} set allow_snapshot_isolation on"),
        );
    }
    if says(3)? {
        findings.problem(
            format!(
                "it has fallen behind what change tracking of {table} retains: changes are lost"
            ),
            format!(
                "start the watch: it is handed all rows anew, but not which ones were deleted; and \
                 alter database {database} set change_tracking (change_retention = 7 days)"
            ),
        );
    }
    Ok(())
}
