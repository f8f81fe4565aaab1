//! What a watched table gets: what notes changed keys, and where they wait.
//! `migrations/0001/watches.sql` tells how it works.

use changefeed_core::{Error, Kind, Result, TableName, WatchName, fill, words};

use crate::connection::Connection;
use crate::row::Cells;
use crate::source::Table;
use crate::table_trigger::{self, Patience};
use crate::watch_key::{self, StoredKey, names, same};
use crate::{capture, quote, watch_rights};

/// Who notes the changes of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The server itself: change tracking is on for the table.
    Native,
    /// A trigger of ours.
    Trigger,
}

/// A table that can be watched, as it is now.
#[derive(Debug, Clone)]
pub(crate) struct Tracked {
    pub(crate) table: Table,
    pub(crate) way: Way,
    /// Whether the columns that were changed are noted.
    pub(crate) columns: bool,
}

/// What is remembered of a watched table.
pub(crate) struct Stored {
    pub(crate) generation: i64,
    pub(crate) way: Way,
    pub(crate) key: Vec<StoredKey>,
    pub(crate) columns: bool,
}

impl Stored {
    pub(crate) async fn load(connection: &mut Connection, table_id: i32) -> Result<Option<Self>> {
        let rows = connection
            .query(
                "select generation, native, [key], [columns] from changefeed.watched_table \
                 where table_id = @P1",
                &[&table_id],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let key = serde_json::from_str(row.maybe::<&str>(2)?.unwrap_or("[]")).map_err(|e| {
            Error::new(Kind::Database, "the key of a watched table makes no sense").caused_by(e)
        })?;
        Ok(Some(Stored {
            generation: row.take(0)?,
            way: match row.maybe::<bool>(1)? {
                Some(true) => Way::Native,
                _ => Way::Trigger,
            },
            key,
            columns: row.says(3)?,
        }))
    }
}

impl Tracked {
    /// Looks at a table and says why it cannot be watched. Who notes its changes is decided once.
    pub(crate) async fn find(
        connection: &mut Connection,
        name: &TableName,
    ) -> Result<(Tracked, Option<Stored>)> {
        let table = Table::find(connection, name).await?;
        capture::check(&table)?;
        watch_key::check(&table)?;
        let stored = Stored::load(connection, table.id).await?;
        let way = match &stored {
            Some(stored) if stored.way == Way::Trigger => Way::Trigger,
            _ if connection.platform().has_change_tracking() => native(connection, &table).await?,
            _ => Way::Trigger,
        };
        if way == Way::Trigger {
            capture::check_owner(&table)?;
        }
        watch_rights::check_work(connection, &table, way).await?;
        watch_key::check_length(&table)?;
        Ok((Tracked::of(table, way), stored))
    }

    /// The table behind a number of ours, and what is remembered of it.
    pub(crate) async fn load(
        connection: &mut Connection,
        table_id: i32,
        name: &WatchName,
    ) -> Result<(Tracked, Stored)> {
        let stored = Stored::load(connection, table_id).await?;
        let stored = stored.ok_or_else(|| name.unknown())?;
        let table = Table::load(connection, table_id).await?;
        let table = table.ok_or_else(|| words::watch_table_dropped(name))?;
        let tracked = Tracked {
            columns: stored.columns,
            ..Tracked::of(table, stored.way)
        };
        if tracked.stored_key() != stored.key {
            return Err(words::watch_key_altered(&tracked.table.name));
        }
        Ok((tracked, stored))
    }

    fn of(table: Table, way: Way) -> Tracked {
        Tracked {
            table,
            way,
            columns: false,
        }
    }

    pub(crate) fn id(&self) -> i32 {
        self.table.id
    }

    pub(crate) fn stored_key(&self) -> Vec<StoredKey> {
        self.table.key.iter().map(StoredKey::from).collect()
    }

    pub(crate) fn log(&self) -> String {
        log_name(self.table.id)
    }

    fn columns_sql(&self) -> String {
        watch_key::join(&self.table.key, ",\n    ", |_, c| {
            format!("{} {} not null", quote::identifier(&c.name), c.our_type())
        })
    }

    /// The table where the trigger notes changed keys.
    pub(crate) fn log_sql(&self) -> Result<String> {
        fill(
            include_str!("sql/watch_log.sql"),
            &[("log", &self.log()), ("columns", &self.columns_sql())],
        )
    }

    /// A function's backlog.
    pub(crate) fn leases_sql(&self, leases: &str) -> Result<String> {
        fill(
            include_str!("sql/watch_leases.sql"),
            &[
                ("leases", leases),
                ("columns", &self.columns_sql()),
                ("keys", &names(&self.table.key, "")),
            ],
        )
    }

    /// The trigger that notes changed keys.
    pub(crate) fn trigger_sql(&self) -> Result<String> {
        let schema = self.table.name.schema.as_deref().unwrap_or("dbo");
        fill(
            include_str!("sql/watch_trigger.sql"),
            &[
                ("schema", &quote::identifier(schema)),
                ("trigger", &trigger_name(self.table.id)),
                ("table", &self.table.sql),
                ("log", &self.log()),
                ("keys", &names(&self.table.key, "")),
                ("d_keys", &names(&self.table.key, "d.")),
                ("i_keys", &names(&self.table.key, "i.")),
                ("same_key", &same(&self.table.key, "i", "d")),
                // Nobody pays for what nobody wants to know.
                (
                    "written",
                    if self.columns {
                        "columns_updated()"
                    } else {
                        "null"
                    },
                ),
            ],
        )
    }

    /// Puts the trigger on the table, in place of the one that is there. Its writers wait for that,
    /// so it does not take long.
    pub(crate) async fn put_trigger(&self, connection: &mut Connection) -> Result<()> {
        let (table, name) = (&self.table, trigger_name(self.table.id));
        let writes = ["INSERT", "UPDATE", "DELETE"];
        let first = table_trigger::first(connection.platform(), table, &name, &writes);
        let create = self.trigger_sql()?;
        table_trigger::put(connection, table, &name, &create, &first, Patience::Person).await
    }
}

/// The name of the trigger; `uninstall` knows it by its beginning.
pub(crate) fn trigger_name(table_id: i32) -> String {
    format!("changefeed_watch_{table_id}")
}

/// Whether the trigger is on its table; nothing if it is not, and otherwise whether it is switched on.
pub(crate) async fn trigger_state(
    connection: &mut Connection,
    table_id: i32,
) -> Result<Option<bool>> {
    let rows = connection
        .query(
            "select convert(bit, case when t.is_disabled = 1 then 0 else 1 end) from sys.triggers t \
             where t.name = @P1 and t.parent_id = @P2",
            &[&trigger_name(table_id), &table_id],
        )
        .await?;
    rows.first().map(|row| row.says(0)).transpose()
}

pub(crate) async fn remove_trigger(connection: &mut Connection, table_id: i32) -> Result<()> {
    let name = trigger_name(table_id);
    table_trigger::remove(connection, &name, table_id, Patience::Person).await
}

/// Whether there is a table, view or function of ours.
pub(crate) async fn exists(connection: &mut Connection, name: &str) -> Result<bool> {
    let row = connection
        .one(
            "select convert(bit, case when exists (select 1 from sys.objects o \
               where o.schema_id = schema_id(N'changefeed') and o.name = @P1) then 1 else 0 end)",
            &[&name],
        )
        .await?;
    row.says(0)
}

/// The server's own table that it notes the changes of a table in (that is what 209 stands for), and the version
/// that it began with, as SQL.
pub(crate) fn tracked_in(table_id: i32) -> String {
    format!(
        "(select concat(i.object_id, '/', c.begin_version) from sys.internal_tables i, \
          sys.change_tracking_tables c where i.parent_id = {table_id} and c.object_id = {table_id} \
          and i.internal_type = 209)"
    )
}

/// A function, as SQL: of our column's type, because a text of another one may not be found by its index.
pub(crate) fn function_sql(function_id: &str) -> String {
    format!("convert(varchar(16), {})", quote::literal(function_id))
}

/// Where the trigger of a table notes its changes.
pub(crate) fn log_name(table_id: i32) -> String {
    format!("changes_{table_id}")
}

/// The backlog of a function on a table.
pub(crate) fn leases_name(function_id: &str, table_id: i64) -> String {
    format!("leases_{function_id}_{table_id}")
}

/// Whether the server's change tracking can be used. Where it is on, but without the isolation that
/// makes it sound, a trigger would not be what was asked for: it makes `OUTPUT` without `INTO` fail.
async fn native(connection: &mut Connection, table: &Table) -> Result<Way> {
    let row = connection
        .one(
            "select convert(bit, case when exists (select 1 from sys.change_tracking_tables t \
               where t.object_id = @P1) then 1 else 0 end), \
             convert(bit, case when d.snapshot_isolation_state = 1 then 1 else 0 end), \
             convert(nvarchar(128), d.name) \
             from sys.databases d where d.name = db_name()",
            &[&table.id],
        )
        .await?;
    if !row.says(0)? {
        return Ok(Way::Trigger);
    }
    if !row.says(1)? {
        let database = quote::identifier(row.take::<&str>(2)?);
        return Err(Error::invalid(format!(
            "change tracking is on for {}, but the database does not allow snapshot isolation, \
             without which changes of change tracking can be missed",
            table.name
        ))
        .advise(format!(
            "alter database {database} set allow_snapshot_isolation on; or switch change tracking of \
             the table off, and a trigger of ours notes its changes"
        )));
    }
    Ok(Way::Native)
}
