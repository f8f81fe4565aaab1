//! SQL Server, or what speaks its language.

use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use changefeed_core::{Store, Ulid, UlidOptions};
use changefeed_sqlserver::tiberius::{self, Client, ColumnData};
use changefeed_sqlserver::{Connection, Platform, SqlServerStore, Target};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, OnceCell};
use tokio_util::compat::Compat;

use super::{Backend, Rows, Session, SqlError, Words};
use crate::sqlserver::SqlServerDatabase;
use crate::ulids::{UlidWrite, insert};

/// What every driver of this world sets for its sessions, and filtered indexes need.
const USUAL: &str = "set ansi_nulls on; set ansi_padding on; set ansi_warnings on; \
     set arithabort on; set concat_null_yields_null on; set quoted_identifier on; \
     set numeric_roundabort off";

/// A fresh database on a SQL Server.
#[derive(Debug)]
pub struct SqlServerBackend {
    /// Writes ULIDs, with connections that are used again: Babelfish reads every procedure anew on
    /// each. It is closed before the database is dropped.
    writer: OnceCell<SqlServerStore>,
    database: SqlServerDatabase,
    platform: Platform,
}

impl SqlServerBackend {
    /// On the server of this test run.
    pub async fn fresh() -> Self {
        let database = SqlServerDatabase::fresh().await;
        let target = Target::parse(database.url()).unwrap();
        let platform = Connection::open(&target).await.unwrap().platform();
        SqlServerBackend {
            writer: OnceCell::new(),
            database,
            platform,
        }
    }
}

#[async_trait]
impl Backend for SqlServerBackend {
    fn url(&self) -> String {
        self.database.url().to_owned()
    }

    fn words(&self) -> Words {
        Words {
            prefix: "changefeed.",
            begin: "begin transaction",
            draw_change_id: "select next value for changefeed.change_id",
            draws_are_final: true,
            one_writer: false,
            beside_us: false,
            ulid_type: "binary(16)",
            install_newer: "insert into changefeed.schema_version (version, checksum) values (999, '')",
            keeps_case: self.platform == Platform::SqlServer,
            two_phase: false,
            say: "exec sp_set_session_context 'changefeed.session_variables', '{variables}'; \
                  exec sp_set_session_context 'changefeed.trace_context', '{trace}'",
            // A session keeps what it has said until it says something else.
            said: "exec sp_set_session_context 'changefeed.session_variables', null; \
                   exec sp_set_session_context 'changefeed.trace_context', null",
            guard: "create table stolen (change_id bigint, from_whom nvarchar(400), \
                                         by_whom nvarchar(400)); \
                    exec('create trigger changefeed.zz_stolen on changefeed.event after update as \
                          begin set nocount on; insert into dbo.stolen \
                          select d.change_id, d.locked_by, i.locked_by from deleted d \
                          join inserted i on i.change_id = d.change_id \
                          where d.locked_by is not null and i.generation <> d.generation \
                            and d.due_at > sysutcdatetime() and i.state = ''p''; end')",
            pairs_changed_keys: false,
            triggers_survive_renames: false,
            put_two: "merge orders as t \
                      using (values ({a}, {b}, '{note}'), ({c}, {b}, '{note}')) as s (id, customer_id, note) on t.id = s.id \
                      when matched then update set note = s.note \
                      when not matched then insert (id, customer_id, note) values (s.id, s.customer_id, s.note);",
            truncate: None,
            keep_foreign_keys: None,
            put_order: "update orders set note = '{note}' where id = {id}; \
                        insert into orders select {id}, '{note}' \
                        where not exists (select 1 from orders where id = {id})",
            puts_clash: true,
            hold_backlogs: "update changefeed.watched_table set table_id = table_id \
                            where table_id = {table_id}",
            columns_by_value: false,
            long_ago: "'2020-01-01'",
            upsert: "merge orders as t \
                     using (values (1, 'b', 2), (2, 'c', 3)) as s (id, customer, total) \
                     on t.id = s.id \
                     when matched then update set total = s.total \
                     when not matched then insert (id, customer, total) \
                          values (s.id, s.customer, s.total);",
            insert_missing: "merge orders as t \
                     using (values (1, 'z', 9), (3, 'd', 4)) as s (id, customer, total) \
                     on t.id = s.id \
                     when not matched then insert (id, customer, total) \
                          values (s.id, s.customer, s.total);",
        }
    }

    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(SqlServerStore::connect(self.database.url()).await.unwrap())
    }

    async fn write_ulids(
        &self,
        options: UlidOptions,
        write: UlidWrite,
    ) -> changefeed_core::Result<Vec<Ulid>> {
        let connect = || SqlServerStore::connect(self.database.url());
        let store = self.writer.get_or_try_init(connect).await?;
        let mut transaction = store.begin_ulid(&options).await?;
        let mut given = Vec::new();
        for note in &write.notes {
            let ulid = transaction.next_ulid()?;
            let sql = insert(options.shard, ulid, note, |hex| format!("0x{hex}"));
            transaction.batch(&sql).await.unwrap();
            given.push(ulid);
        }
        if write.commit {
            transaction.commit().await?;
        } else {
            transaction.rollback().await?;
        }
        Ok(given)
    }

    async fn try_session(&self) -> Result<Box<dyn Session>, SqlError> {
        let session = SqlServerSession::connect(self.database.url()).await?;
        Ok(Box::new(session))
    }

    fn shell(&self, sql: &str) -> Command {
        let mut python = Command::new(
            std::env::var("CHANGEFEED_TEST_PYTHON").unwrap_or_else(|_| "python3".into()),
        );
        python
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/python/sqlserver_shell.py"
            ))
            .args([self.database.url(), &tsql(sql)]);
        python
    }
}

/// A connection by the driver alone.
pub struct SqlServerSession {
    client: Mutex<Client<Compat<TcpStream>>>,
}

impl SqlServerSession {
    /// Connects.
    pub async fn connect(url: &str) -> Result<Self, SqlError> {
        let lost = |error: changefeed_core::Error| SqlError {
            message: format!("{error:?}"),
            connection_lost: true,
        };
        let target = Target::parse(url).map_err(lost)?;
        let session = SqlServerSession {
            client: Mutex::new(target.connect().await.map_err(lost)?),
        };
        session.execute(USUAL).await?;
        Ok(session)
    }
}

#[async_trait]
impl Session for SqlServerSession {
    async fn execute(&self, sql: &str) -> Result<(), SqlError> {
        self.query(sql).await.map(drop)
    }

    async fn query(&self, sql: &str) -> Result<Rows, SqlError> {
        let mut client = self.client.lock().await;
        let stream = client.simple_query(tsql(sql)).await.map_err(error)?;
        let results = stream.into_results().await.map_err(error)?;
        Ok(results
            .into_iter()
            .rfind(|rows| !rows.is_empty())
            .unwrap_or_default()
            .iter()
            .map(|row| row.cells().map(|(_, value)| text(value)).collect())
            .collect())
    }

    async fn kill(self: Box<Self>) {
        // The socket closes without a goodbye.
        drop(self);
    }
}

/// The suite's SQL in the words of this dialect. Texts become texts of any characters; quoted names
/// stay as they are.
fn tsql(sql: &str) -> String {
    // An error may have ended the transaction already.
    if sql == "rollback" {
        return "if @@trancount > 0 rollback".to_owned();
    }
    // There is no upsert. One writer at a time is all that the suite needs of this.
    if let Some(insert) = sql.strip_suffix(" on conflict (id) do update set note = excluded.note")
        && let Some((table, row)) = insert.split_once(" values (")
        && let Some((id, note)) = row.trim_end_matches(')').split_once(", ")
    {
        let table = table.trim_start_matches("insert into ");
        return tsql(&format!(
            "update {table} set note = {note} where id = {id}; if @@rowcount = 0 {insert}"
        ));
    }
    // A view must be alone in its batch.
    if let Some((view, rest)) = sql.split_once(';')
        && view.starts_with("create view ")
    {
        return format!("exec('{}'); {}", view.replace('\'', "''"), tsql(rest));
    }
    let mut out = String::with_capacity(sql.len() + 32);
    let mut rest = sql;
    while let Some(at) = rest.find(['\'', '"']) {
        out.push_str(&replaced(&rest[..at]));
        let quote = &rest[at..=at];
        let length = quoted(&rest[at..]);
        let already = out.ends_with('N') || out.ends_with("N'");
        let (text, after) = rest[at..].split_at(length);
        rest = after;
        if quote == "'"
            && let Some(after) = rest.strip_prefix(" || ")
        {
            let (operand, after) = after.split_at(operand(after));
            out.push_str(&format!("concat(N{text}, {operand})"));
            rest = after;
            continue;
        }
        if quote == "'" && !already {
            out.push('N');
        }
        out.push_str(text);
    }
    out.push_str(&replaced(rest));
    if let (Some(at), Some(condition)) = (out.find(" returning "), out.find(" where ")) {
        let column = out.split_off(at).replace(" returning ", "");
        out.insert_str(condition, &format!(" output inserted.{column}"));
    }
    if sql.contains("with recursive") {
        out.push_str(" option (maxrecursion 0)");
    }
    out
}

/// The length of a quoted text or name, whose quotes are doubled within.
fn quoted(sql: &str) -> usize {
    let bytes = sql.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        if bytes[at] == bytes[0] {
            if bytes.get(at + 1) != Some(&bytes[0]) {
                return at + 1;
            }
            at += 1;
        }
        at += 1;
    }
    bytes.len()
}

/// The length of the word or the parenthesis that a text begins with.
fn operand(text: &str) -> usize {
    if text.starts_with('(') {
        return text.find(')').map_or(text.len(), |n| n + 1);
    }
    text.find(|c: char| !c.is_alphanumeric())
        .unwrap_or(text.len())
}

/// What has another word here, outside of quotes.
fn replaced(part: &str) -> String {
    const WORDS: [(&str, &str); 17] = [
        ("rollback to savepoint ", "rollback transaction "),
        ("rollback to ", "rollback transaction "),
        ("release savepoint ", "select 1 as "),
        ("release ", "select 1 as "),
        (" integer generated always as ", " as "),
        (" stored", " persisted"),
        (" add column ", " add "),
        ("savepoint ", "save transaction "),
        ("with recursive ", "with "),
        ("double precision", "float"),
        (" text", " nvarchar(400)"),
        (" boolean", " bit"),
        (" bytea", " varbinary(400)"),
        ("returning cursor", "returning [cursor]"),
        (" cursor ", " [cursor] "),
        (" cursor,", " [cursor],"),
        (" cursor)", " [cursor])"),
    ];
    let mut part = part.to_owned();
    for (theirs, ours) in WORDS {
        part = part.replace(theirs, ours);
    }
    if let Some(table) = part.strip_prefix("create table if not exists ") {
        let name = table.split_whitespace().next().unwrap_or_default();
        part = format!("if object_id(N'{name}') is null create table {table}");
    }
    if let Some(rename) = part.strip_prefix("alter table ")
        && let Some((what, name)) = rename.split_once(" to ")
        && let Some((table, column)) = what.split_once(" rename")
    {
        return match column.strip_prefix(" column ") {
            Some(column) => format!("exec sp_rename '{table}.{column}', '{name}', 'COLUMN'"),
            None => format!("exec sp_rename '{table}', '{name}', 'OBJECT'"),
        };
    }
    match part.rsplit_once(" limit ") {
        Some((before, count)) => format!("{before} offset 0 rows fetch next {count} rows only"),
        None => part,
    }
}

fn text(value: &ColumnData<'_>) -> Option<String> {
    Some(match value {
        ColumnData::U8(v) => v.as_ref()?.to_string(),
        ColumnData::I16(v) => v.as_ref()?.to_string(),
        ColumnData::I32(v) => v.as_ref()?.to_string(),
        ColumnData::I64(v) => v.as_ref()?.to_string(),
        ColumnData::F32(v) => v.as_ref()?.to_string(),
        ColumnData::F64(v) => v.as_ref()?.to_string(),
        ColumnData::Bit(v) => u8::from(*v.as_ref()?).to_string(),
        ColumnData::String(v) => v.as_ref()?.to_string(),
        ColumnData::Guid(v) => v.as_ref()?.to_string(),
        ColumnData::Binary(v) => v.as_ref()?.iter().map(|b| format!("{b:02x}")).collect(),
        ColumnData::Numeric(v) => v.as_ref()?.to_string(),
        other => format!("{other:?}"),
    })
}

fn error(error: tiberius::error::Error) -> SqlError {
    match &error {
        tiberius::error::Error::Server(reported) => SqlError {
            message: format!("{}: {}", reported.code(), reported.message()),
            connection_lost: false,
        },
        _ => SqlError {
            message: error.to_string(),
            connection_lost: true,
        },
    }
}
