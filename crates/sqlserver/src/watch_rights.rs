//! What a database user must be allowed to do to make a watch, or to work on it. What would fail later is
//! refused, and what is missing named.

use changefeed_core::{Error, Kind, Result};

use crate::connection::Connection;
use crate::platform::Platform;
use crate::quote;
use crate::row::Cells;
use crate::source::Table;
use crate::tracking::Way;

/// What every instance must be allowed.
pub(crate) async fn check_work(connection: &mut Connection, table: &Table, way: Way) -> Result<()> {
    let row = connection
        .one(
            "select convert(int, has_perms_by_name(@P1, 'OBJECT', 'SELECT')), \
             convert(int, has_perms_by_name(@P1, 'OBJECT', 'VIEW CHANGE TRACKING')), \
             convert(nvarchar(128), user_name())",
            &[&table.sql],
        )
        .await?;
    // Babelfish does not find a table whose name has quotes in it.
    let asked = connection.platform() == Platform::SqlServer;
    let lacks = |at: usize| Ok(asked && row.maybe::<i32>(at)? == Some(0));
    let right = if lacks(0)? {
        "select"
    } else if way == Way::Native && lacks(1)? {
        "view change tracking"
    } else {
        return Ok(());
    };
    let user = quote::identifier(row.take::<&str>(2)?);
    let what = match right {
        "select" => "read",
        _ => "see the change tracking of",
    };
    Err(Error::new(
        Kind::Permission,
        format!("the database user may not {what} {}", table.name),
    )
    .advise(format!("grant {right} on {} to {user}", table.sql)))
}

/// Checks the further rights that creating a watch needs: it makes tables, a function and a view.
pub(crate) async fn check_make(connection: &mut Connection) -> Result<()> {
    let rows = connection
        .query(include_str!("sql/watch_rights.sql"), &[])
        .await?;
    if rows.is_empty() {
        return Ok(());
    }
    let missing = rows
        .iter()
        .map(|row| row.text(0))
        .collect::<Result<Vec<_>>>()?;
    Err(Error::new(
        Kind::Permission,
        "the database user may not make what a watch needs",
    )
    .advise(missing.join("; ")))
}
