//! Putting the database triggers of event triggers on tables, and taking them off.

use changefeed_core::{Error, Kind, Result, Updates};

use crate::condition::Condition;
use crate::connection::Connection;
use crate::event_capture::{Plan, trigger_name};
use crate::row::first;
use crate::source::{Column, Table};
use crate::table_trigger::{self, Patience};

/// The identity column of a table, if no two rows can have the same: nobody can change it, so it
/// tells which row is which whatever an update does.
pub(crate) async fn identity_of(
    connection: &mut Connection,
    table: &Table,
) -> Result<Option<Column>> {
    let rows = connection
        .query(include_str!("sql/event_identity.sql"), &[&table.id])
        .await?;
    let place = first::<i32>(&rows, 0)?;
    Ok(table
        .columns
        .iter()
        .find(|column| Some(column.place) == place)
        .cloned())
}

/// Creates the database trigger in place of the one that is there, as the last thing that is done.
pub(crate) async fn install(
    connection: &mut Connection,
    plan: &Plan<'_>,
    patience: Patience,
) -> Result<()> {
    check_times(connection, plan.condition.as_ref()).await?;
    let trigger = plan.trigger()?;
    let name = trigger_name(plan.id);
    let Some(trigger) = trigger else {
        let captured = connection
            .execute(
                "update changefeed.event_trigger set capture_sql = null \
                 where trigger_id = @P1 and capture_sql is not null",
                &[&plan.id.0],
            )
            .await?;
        return match captured {
            0 => Ok(()),
            _ => table_trigger::remove(connection, &name, plan.table.id, patience).await,
        };
    };
    // As a parameter: a statement may be changed for its server, and this is compared later.
    connection
        .execute(
            "update changefeed.event_trigger set capture_sql = @P2 where trigger_id = @P1",
            &[&plan.id.0, &trigger],
        )
        .await?;
    let capture = &plan.definition.capture;
    let operations: Vec<&str> = [
        (capture.insert, "INSERT"),
        (capture.update != Updates::Ignored, "UPDATE"),
        (capture.delete, "DELETE"),
    ]
    .into_iter()
    .filter_map(|(wanted, operation)| wanted.then_some(operation))
    .collect();
    let first = table_trigger::first(connection.platform(), plan.table, &name, &operations);
    table_trigger::put(connection, plan.table, &name, &trigger, &first, patience)
        .await
        .map_err(|error| explain(plan, error))
}

fn explain(plan: &Plan<'_>, error: Error) -> Error {
    match error.kind() {
        Kind::Database if plan.condition.is_some() => {
            Error::invalid(format!("the server does not accept the condition: {error}"))
                .caused_by(error)
        }
        _ => error,
    }
}

/// Texts that are compared with times must be times.
pub(crate) async fn check_times(
    connection: &mut Connection,
    condition: Option<&Condition>,
) -> Result<()> {
    for (kind, text) in condition.iter().flat_map(|c| &c.times) {
        let style = if kind == "date" { 23 } else { 126 };
        let sql = format!(
            "select convert(bit, case when try_convert({kind}, @P1, {style}) is null \
             then 0 else 1 end)"
        );
        let readable = connection.tried(&sql, &[&text.as_str()]).await;
        let readable = readable.map_or(Ok(None), |rows| first(&rows, 0))?;
        if readable != Some(true) {
            return Err(
                crate::condition::refused(format!("'{text}' is not a {kind}"))
                    .advise("write times as 2024-12-31T23:59:59, and dates as 2024-12-31"),
            );
        }
    }
    Ok(())
}
