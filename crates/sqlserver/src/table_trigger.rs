//! Triggers of ours on tables of the application: putting them there, and taking them off.
//!
//! From when a trigger is dropped or made until the transaction ends nobody can touch its table, not
//! even whoever reads without locks. So all that is done to it is one message, and whoever asks for it
//! commits as soon as it can: a process that is stopped in between would stop the application.

use std::fmt::Display;

use changefeed_core::{Error, Kind, Result, words};

use crate::connection::Connection;
use crate::platform::Platform;
use crate::quote;
use crate::row::{self, Cells};
use crate::source::Table;

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
    const USUAL: u32 = 30_000;

    fn milliseconds(self) -> u32 {
        match self {
            Patience::Person => 5000,
            Patience::Moment => 200,
        }
    }
}

/// Creates a trigger, in place of the one of that name, wherever that is, and then does something else while
/// nobody can use the table.
pub(crate) async fn put(
    connection: &mut Connection,
    table: &Table,
    name: &str,
    create: &str,
    then: &[String],
    patience: Patience,
) -> Result<()> {
    let there = There::look(connection, name, table.id)
        .await
        .map_err(|error| match error.kind() {
            Kind::Permission => may_not_create(table, error),
            _ => error,
        })?;
    let mut statements = there.removal;
    statements.push(format!("exec sys.sp_executesql {}", quote::literal(create)));
    statements.extend_from_slice(then);
    send(connection, &statements, patience)
        .await
        .map_err(|error| match error.kind() {
            Kind::Permission => may_not_create(table, error),
            _ => in_use(error, &table.name),
        })
}

/// Drops a trigger, wherever its table is by now.
pub(crate) async fn remove(
    connection: &mut Connection,
    name: &str,
    table_id: i32,
    patience: Patience,
) -> Result<()> {
    let there = There::look(connection, name, table_id).await?;
    if there.removal.is_empty() {
        return Ok(());
    }
    send(connection, &there.removal, patience)
        .await
        .map_err(|error| in_use(error, &there.table))
}

/// A trigger that is there already, if one is.
struct There {
    /// The statements that drop it.
    removal: Vec<String>,
    table: String,
}

impl There {
    /// One that this user may not see is not taken for one that is not there: it would go on for ever.
    async fn look(connection: &mut Connection, name: &str, table_id: i32) -> Result<Self> {
        let found = connection
            .query(include_str!("sql/table_trigger.sql"), &[&table_id, &name])
            .await?;
        let mut removal = Vec::new();
        let mut hidden = false;
        for row in &found {
            hidden |= row.says(1)?;
            if let Some(schema) = row.maybe::<&str>(0)? {
                let (schema, name) = (quote::identifier(schema), quote::identifier(name));
                removal.push(format!("drop trigger {schema}.{name}"));
            }
        }
        if hidden {
            return Err(Error::new(
                Kind::Permission,
                format!("the database user may not see whether there is a trigger {name}"),
            )
            .advise(
                "grant alter on its table to this user; if the table is gone, ask somebody who has \
                 VIEW DEFINITION on the database",
            ));
        }
        let table = row::first::<&str>(&found, 2)?;
        Ok(There {
            table: table.unwrap_or("its table").to_owned(),
            removal,
        })
    }
}

/// A trigger of the application's that changes the same row must come after ours, or the log
/// would tell the second change before the first. A table can have one first trigger: if the
/// application has chosen its own, ours comes later.
pub(crate) fn first(
    platform: Platform,
    table: &Table,
    name: &str,
    operations: &[&str],
) -> Vec<String> {
    // Babelfish has no order of triggers.
    let operations = operations
        .iter()
        .filter(|_| platform == Platform::SqlServer);
    operations.map(|o| first_for(table, name, o)).collect()
}

fn first_for(table: &Table, name: &str, operation: &str) -> String {
    let schema = table.name.schema.as_deref().unwrap_or("dbo");
    let name = format!("[{}].[{name}]", schema.replace(']', "]]"));
    format!(
        "if not exists (select 1 from sys.triggers t \
             join sys.trigger_events e on e.object_id = t.object_id \
             where t.parent_id = {} and e.type_desc = N'{operation}' and e.is_first = 1) \
         exec sys.sp_settriggerorder @triggername = {}, @order = 'First', @stmttype = '{operation}'",
        table.id,
        quote::literal(&name)
    )
}

async fn send(
    connection: &mut Connection,
    statements: &[String],
    patience: Patience,
) -> Result<()> {
    connection
        .batch(&format!(
            "set lock_timeout {};\n{};\nset lock_timeout {}",
            patience.milliseconds(),
            statements.join(";\n"),
            Patience::USUAL
        ))
        .await
}

/// Undoes what was begun, so that the connection can be used again.
pub(crate) async fn give_up(connection: &mut Connection) {
    let undone = match connection.rollback().await {
        Ok(()) => {
            let usual = format!("set lock_timeout {}", Patience::USUAL);
            connection.batch(&usual).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = undone {
        tracing::debug!(%error, "a connection is lost");
    }
}

/// Adds the table whose lock was not granted to an error, unless it names one.
pub(crate) fn in_use(error: Error, table: &dyn Display) -> Error {
    if error.kind() != Kind::Busy || error.advice().is_some() {
        return error;
    }
    words::table_in_use(table).caused_by(error)
}

fn may_not_create(table: &Table, error: Error) -> Error {
    words::trigger_right_missing(&table.name)
        .advise(format!("grant alter on {} to this user", table.sql))
        .caused_by(error)
}
