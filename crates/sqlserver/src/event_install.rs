//! Putting the database triggers of event triggers on tables, and taking them off.

use changefeed_core::{Error, Kind, Result, TriggerId, Updates};

use crate::capture;
use crate::connection::Connection;
use crate::event_capture::{Plan, trigger_name};
use crate::platform::Platform;
use crate::quote;
use crate::source::{Column, Table};

/// How long to wait for writers to finish before a trigger is created on their table, in
/// milliseconds. Later writers wait behind us meanwhile, so nobody but a person may ask for more
/// than a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// Somebody asked for it.
    Person,
    /// We noticed that it would be good.
    Moment,
}

impl Patience {
    /// What the session waits at other times.
    pub(crate) const USUAL: u32 = 30_000;

    pub(crate) fn milliseconds(self) -> u32 {
        match self {
            Patience::Person => 5000,
            Patience::Moment => 200,
        }
    }
}

/// The identity column of a table, if no two rows can have the same: nobody can change it, so it
/// tells which row is which whatever an update does.
pub(crate) async fn identity_of(
    connection: &mut Connection,
    table: &Table,
) -> Result<Option<Column>> {
    let rows = connection
        .query(include_str!("sql/event_identity.sql"), &[&table.id])
        .await?;
    let place = rows.first().and_then(|row| row.get::<i32, _>(0));
    Ok(table
        .columns
        .iter()
        .find(|column| Some(column.place) == place)
        .cloned())
}

/// Creates the database trigger in place of the one that is there.
pub(crate) async fn install(
    connection: &mut Connection,
    plan: &Plan<'_>,
    platform: Platform,
    patience: Patience,
) -> Result<()> {
    check_times(connection, plan).await?;
    let trigger = plan.trigger()?;
    uninstall(connection, plan.id, patience).await?;
    let Some(trigger) = trigger else {
        connection
            .execute(
                "update changefeed.event_trigger set capture_sql = null where trigger_id = @P1",
                &[&plan.id.0],
            )
            .await?;
        return Ok(());
    };
    // As a parameter: a statement may be changed for its server, and this is compared later.
    connection
        .execute(
            "update changefeed.event_trigger set capture_sql = @P2 where trigger_id = @P1",
            &[&plan.id.0, &trigger],
        )
        .await?;
    wait_for_writers(connection, patience.milliseconds()).await?;
    connection
        .batch(&trigger)
        .await
        .map_err(|error| explain(plan, error))?;
    if platform == Platform::SqlServer {
        let capture = &plan.definition.capture;
        let operations: Vec<&str> = [
            (capture.insert, "INSERT"),
            (capture.update != Updates::Ignored, "UPDATE"),
            (capture.delete, "DELETE"),
        ]
        .into_iter()
        .filter_map(|(wanted, operation)| wanted.then_some(operation))
        .collect();
        run_first(connection, plan.table, &trigger_name(plan.id), &operations).await?;
    }
    wait_for_writers(connection, Patience::USUAL).await
}

/// Undoes what was begun, so that the connection can be used again.
pub(crate) async fn give_up(connection: &mut Connection) {
    let undone = match connection.rollback().await {
        Ok(()) => wait_for_writers(connection, Patience::USUAL).await,
        Err(error) => Err(error),
    };
    if let Err(error) = undone {
        tracing::debug!(%error, "a connection is lost");
    }
}

pub(crate) async fn wait_for_writers(connection: &mut Connection, milliseconds: u32) -> Result<()> {
    connection
        .batch(&format!("set lock_timeout {milliseconds}"))
        .await
}

fn explain(plan: &Plan<'_>, error: Error) -> Error {
    let table = plan.table;
    match error.kind() {
        Kind::Permission => capture::may_not_create_trigger(table, error),
        Kind::Busy => capture::written_to(&table.name.to_string(), error),
        Kind::Database if plan.condition.is_some() => {
            Error::invalid(format!("the server does not accept the condition: {error}"))
                .caused_by(error)
        }
        _ => error,
    }
}

/// Texts that are compared with times must be times.
async fn check_times(connection: &mut Connection, plan: &Plan<'_>) -> Result<()> {
    for (kind, text) in plan.condition.iter().flat_map(|c| &c.times) {
        let style = if kind == "date" { 23 } else { 126 };
        let sql = format!(
            "select convert(bit, case when try_convert({kind}, @P1, {style}) is null \
             then 0 else 1 end)"
        );
        let readable = connection.tried(&sql, &[&text.as_str()]).await;
        let readable = readable
            .ok()
            .and_then(|rows| rows.first()?.get::<bool, _>(0));
        if readable != Some(true) {
            return Err(
                crate::condition::refused(format!("'{text}' is not a {kind}"))
                    .advise("write times as 2024-12-31T23:59:59, and dates as 2024-12-31"),
            );
        }
    }
    Ok(())
}

/// A trigger of the application's that changes the same row must come after ours, or the log
/// would tell the second change before the first. There can be one first trigger: if the
/// application has chosen its own, that is so.
pub(crate) async fn run_first(
    connection: &mut Connection,
    table: &Table,
    trigger: &str,
    operations: &[&str],
) -> Result<()> {
    let schema = table.name.schema.as_deref().unwrap_or("dbo");
    let name = format!("[{}].[{trigger}]", schema.replace(']', "]]"));
    for operation in operations {
        let sql = format!(
            "if not exists (select 1 from sys.triggers t \
                 join sys.trigger_events e on e.object_id = t.object_id \
                 where t.parent_id = {} and e.type_desc = N'{operation}' and e.is_first = 1) \
             exec sys.sp_settriggerorder @triggername = {}, @order = 'First', \
                 @stmttype = '{operation}'",
            table.id,
            quote::literal(&name)
        );
        connection.batch(&sql).await?;
    }
    Ok(())
}

/// Removes the database trigger, wherever its table is by now.
pub(crate) async fn uninstall(
    connection: &mut Connection,
    id: TriggerId,
    patience: Patience,
) -> Result<()> {
    let rows = connection
        .query(
            "select schema_name(o.schema_id) from sys.triggers t \
             join sys.objects o on o.object_id = t.object_id where t.name = @P1",
            &[&trigger_name(id)],
        )
        .await?;
    if rows.is_empty() {
        return Ok(());
    }
    wait_for_writers(connection, patience.milliseconds()).await?;
    for row in rows {
        let schema = row.get::<&str, _>(0).unwrap_or("dbo");
        let drop = format!(
            "drop trigger {}.{}",
            quote::identifier(schema),
            quote::identifier(&trigger_name(id))
        );
        connection.batch(&drop).await?;
    }
    wait_for_writers(connection, Patience::USUAL).await
}
