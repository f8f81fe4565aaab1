//! What keeps changes of watched tables from being noted or handed over.

use changefeed_core::{Finding, Result, Severity, Watch};
use tokio_postgres::{GenericClient, Row};

use crate::error::db;
use crate::row::Cells;

/// Looks at one watch.
pub(crate) async fn find(client: &impl GenericClient, watch: &Watch) -> Result<Vec<Finding>> {
    let row = client
        .query_opt(
            include_str!("sql/watch_findings.sql"),
            &[&watch.table_id, &watch.function_id],
        )
        .await
        .map_err(db)?;
    row.map_or_else(|| Ok(Vec::new()), |row| describe(watch, &row))
}

fn describe(watch: &Watch, row: &Row) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut add = |severity, message: String, advice: String| {
        findings.push(Finding {
            severity,
            subject: format!("watch {}", watch.name),
            message,
            advice: Some(advice),
        });
    };
    let name = &watch.name;
    let Some(table) = row.take::<Option<String>>("table")? else {
        add(
            Severity::Problem,
            "its table was dropped".to_owned(),
            format!("`changefeed watch drop {name}` removes the watch"),
        );
        return Ok(findings);
    };
    let restart = "start the watch, or restart it: what is missing is made again";
    for missing in row.take::<Vec<String>>("missing_tables")? {
        let message = format!("its table {missing} was deleted");
        add(Severity::Problem, message, restart.to_owned());
    }
    for missing in row.take::<Vec<String>>("missing_triggers")? {
        let message = format!("the trigger {missing} on {table} is missing: changes are not noted");
        add(Severity::Problem, message, restart.to_owned());
    }
    for disabled in row.take::<Vec<String>>("disabled_triggers")? {
        add(
            Severity::Problem,
            format!("the trigger {disabled} on {table} is disabled: changes are not noted"),
            format!("alter table {table} enable trigger {disabled}"),
        );
    }
    if !row.take::<bool>("same_key")? {
        let message = format!("the primary key of {table} is another than when it was watched");
        add(Severity::Problem, message, restart.to_owned());
    }
    for early in row.take::<Vec<String>>("earlier_triggers")? {
        add(
            Severity::Note,
            format!(
                "the trigger {early} on {table} runs before ours: if it writes to the row that was \
                 just inserted, that is an update to us"
            ),
            "give it a name that sorts behind '!'".to_owned(),
        );
    }
    if row.take::<bool>("has_heirs")? {
        add(
            Severity::Note,
            format!("other tables inherit from {table}, and what is in them is not watched"),
            "watch each of them, or use partitions".to_owned(),
        );
    }
    Ok(findings)
}
