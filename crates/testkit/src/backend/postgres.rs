//! PostgreSQL.

use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use changefeed_core::{Store, Ulid, UlidOptions};
use changefeed_postgres::PostgresStore;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::{Backend, Rows, Session, SqlError, Words};
use crate::postgres::{Database, fresh_database, program};
use crate::ulids::{UlidWrite, insert};

/// A fresh database on a PostgreSQL server.
#[derive(Debug)]
pub struct PostgresBackend {
    database: Database,
}

impl PostgresBackend {
    /// On the server of this test run.
    pub async fn fresh() -> Self {
        PostgresBackend {
            database: fresh_database().await,
        }
    }

    /// On a server of the test's own.
    pub async fn on(server: &str) -> Self {
        PostgresBackend {
            database: Database::on(server).await,
        }
    }

    /// The database.
    pub fn database(&self) -> &Database {
        &self.database
    }
}

#[async_trait]
impl Backend for PostgresBackend {
    fn url(&self) -> String {
        self.database.url().to_owned()
    }

    fn words(&self) -> Words {
        Words {
            prefix: "changefeed.",
            begin: "begin",
            draw_change_id: "select nextval('changefeed.change_id')",
            draws_are_final: true,
            one_writer: false,
            beside_us: true,
            ulid_type: "bytea",
            install_newer: "insert into changefeed.schema_version (version, checksum) values (999, '')",
            keeps_case: true,
            two_phase: true,
            say: "set local \"changefeed.session_variables\" = '{variables}'; \
                  set local \"changefeed.trace_context\" = '{trace}'",
            said: "",
            guard: "create table stolen (change_id bigint, from_whom text, by_whom text); \
                    create function note_stolen() returns trigger language plpgsql as $$ begin \
                        insert into public.stolen \
                        values (old.change_id, old.locked_by, new.locked_by); \
                        return null; end $$; \
                    create trigger zz_stolen after update on changefeed.event for each row \
                    when (old.locked_by is not null and new.generation <> old.generation \
                          and old.due_at > clock_timestamp() and new.state = 'p') \
                    execute function note_stolen()",
            pairs_changed_keys: true,
            triggers_survive_renames: true,
            put_two: super::PUT_TWO,
            truncate: Some("truncate orders"),
            keep_foreign_keys: None,
            put_order: "insert into orders values ({id}, '{note}') \
                        on conflict (id) do update set note = excluded.note",
            puts_clash: false,
            hold_backlogs: "select pg_advisory_xact_lock(hashtextextended('changefeed/watch/{table_id}', 0))",
            columns_by_value: true,
            long_ago: "timestamptz '2020-01-01Z'",
            upsert: super::UPSERT,
            insert_missing: super::INSERT_MISSING,
        }
    }

    async fn store(&self) -> Arc<dyn Store> {
        // One connection: whoever holds it and asks for another waits for ever, and is found.
        let url = format!("{}?max_connections=1", self.database.url());
        Arc::new(PostgresStore::connect(&url).await.unwrap())
    }

    async fn write_ulids(
        &self,
        options: UlidOptions,
        write: UlidWrite,
    ) -> changefeed_core::Result<Vec<Ulid>> {
        let store = PostgresStore::connect(self.database.url()).await?;
        let mut transaction = store.begin_ulid(&options).await?;
        let mut given = Vec::new();
        for note in &write.notes {
            let ulid = transaction.next_ulid()?;
            let sql = insert(options.shard, ulid, note, |hex| format!("'\\x{hex}'"));
            transaction.batch_execute(&sql).await.unwrap();
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
        let session = PostgresSession::connect(self.database.url()).await?;
        Ok(Box::new(session))
    }

    fn shell(&self, sql: &str) -> Command {
        let mut psql = program("psql");
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", self.database.url()])
            .args(["-c", sql]);
        psql
    }

    async fn at_rest(&self) -> bool {
        let session = (self as &dyn Backend).session().await;
        // Prepared by a client that lost its connection: in doubt until now.
        let prepared = session
            .query("select gid from pg_prepared_xacts where database = current_database()")
            .await
            .unwrap();
        for gid in prepared.iter().filter_map(|row| row[0].as_deref()) {
            session.run(&format!("commit prepared '{gid}'")).await;
        }
        let at_work = session
            .number(
                "select count(*) from pg_stat_activity where datname = current_database() \
                 and pid <> pg_backend_pid() \
                 and (state like 'idle in transaction%' or state = 'active' and query = 'commit')",
            )
            .await;
        prepared.is_empty() && at_work == 0
    }
}

/// A connection by the driver alone.
#[derive(Debug)]
pub struct PostgresSession {
    client: Client,
    connection: JoinHandle<()>,
}

impl PostgresSession {
    /// Connects.
    pub async fn connect(url: &str) -> Result<Self, SqlError> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(error)?;
        let connection = tokio::spawn(async {
            // An error ends the session; whoever uses it next is told.
            let _ = connection.await;
        });
        Ok(PostgresSession { client, connection })
    }

    /// The driver's client.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

#[async_trait]
impl Session for PostgresSession {
    async fn execute(&self, sql: &str) -> Result<(), SqlError> {
        self.client.batch_execute(sql).await.map_err(error)
    }

    async fn query(&self, sql: &str) -> Result<Rows, SqlError> {
        let answer = self.client.simple_query(sql).await.map_err(error)?;
        Ok(answer
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(
                    (0..row.len())
                        .map(|column| row.get(column).map(str::to_owned))
                        .collect(),
                ),
                _ => None,
            })
            .collect())
    }

    async fn kill(self: Box<Self>) {
        // The task owns the socket: it closes without the message that says goodbye.
        self.connection.abort();
        let _ = self.connection.await;
    }
}

fn error(error: tokio_postgres::Error) -> SqlError {
    match error.as_db_error() {
        Some(db) => SqlError {
            message: format!("{}: {}", db.code().code(), db.message()),
            // The server was told to stop: what it was doing may have been done.
            connection_lost: db.code().code().starts_with("57P"),
        },
        None => SqlError {
            message: format!("{error}: {:?}", std::error::Error::source(&error)),
            connection_lost: true,
        },
    }
}
