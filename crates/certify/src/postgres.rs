//! A scratch database on a PostgreSQL server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use changefeed::postgres::tokio_postgres::{self, Client, SimpleQueryMessage};
use changefeed::{Error, Kind, Result};
use serde_json::Value;

use crate::place::{
    Deadlocks, MAY_CREATE, Place, Rows, Session, Words, fresh_name, pairs, with_database,
};
use crate::plans::{Access, Plan};

const WORDS: Words = Words {
    prefix: "changefeed.",
    begin: "begin",
    savepoint: "savepoint s",
    rollback_to: "rollback to savepoint s",
    draw: "select nextval('changefeed.change_id')",
    draws_are_final: true,
    text: "text",
    ulid: "bytea",
    begin_ulids: Some("begin; select changefeed.begin_ulid_transaction('{feed}', 0, 30000)"),
    write_ulid: "insert into event (shard, ulid, note) values (0, changefeed.new_ulid(), '{note}')",
    commit_ulids: "select changefeed.commit_ulid_transaction(); commit",
    // The segments of the inbox are not among them: a sweep takes all of one.
    growing: &[
        "numbered",
        "change_row",
        "event",
        "event_attempt",
        "changes_",
        "leases_",
    ],
    calls: &[
        "select * from changefeed.read({feed}, 0, {cursor}, 100)",
        "select * from changefeed.sweep(0)",
        "insert into item values (-1, 'a')",
        "update item set note = 'b' where id = -1",
        "delete from item where id = -1",
    ],
    fill: "insert into item select i, 'note ' || i \
           from generate_series({first}, {first} + {count} - 1) i",
};

/// Settings that decide how much a commit is worth, and how many there can be.
const FACTS: &str = "select name, setting || coalesce(' ' || unit, '') from pg_settings where name in \
     ('server_version', 'fsync', 'full_page_writes', 'synchronous_commit', 'max_connections', 'shared_buffers', \
      'default_transaction_isolation', 'server_encoding', 'lc_collate', 'wal_level', 'max_prepared_transactions', \
      'autovacuum', 'jit') union all select 'version', version() \
     union all select 'collation', datcollate from pg_database where datname = current_database() order by 1";

/// The server tells the plan of everything that this session executes, that in functions included.
const EXPLAINING: &str = "load 'auto_explain'; set auto_explain.log_min_duration = 0; \
     set auto_explain.log_nested_statements = on; set auto_explain.log_format = 'json'; \
     set auto_explain.log_level = 'notice'; set client_min_messages = 'notice'";

pub(crate) struct Scratch {
    /// Where it was made from.
    server: String,
    url: String,
    name: String,
}

impl Scratch {
    pub(crate) async fn create(server: &str) -> Result<Self> {
        let name = fresh_name();
        connect(server)
            .await?
            .run(&format!("create database {name}"))
            .await
            .map_err(|e| e.advise(MAY_CREATE))?;
        Ok(Scratch {
            server: server.to_owned(),
            url: with_database(server, &name),
            name,
        })
    }
}

async fn connect(url: &str) -> Result<PostgresSession> {
    Ok(PostgresSession {
        client: changefeed::postgres::session(url, |_| {}).await?,
    })
}

#[async_trait]
impl Place for Scratch {
    fn name(&self) -> &str {
        &self.name
    }

    fn url(&self) -> &str {
        &self.url
    }

    fn words(&self) -> &'static Words {
        &WORDS
    }

    async fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(connect(&self.url).await?))
    }

    async fn facts(&self) -> Result<BTreeMap<String, String>> {
        Ok(pairs(connect(&self.url).await?.rows(FACTS).await?))
    }

    async fn deadlocks(&self) -> Result<Option<Deadlocks>> {
        let session: Box<dyn Session> = self.session().await?;
        let asked = "select deadlocks from pg_stat_database where datname = current_database()";
        let count = session.number(asked).await?;
        Ok(Some(Deadlocks {
            count,
            told: Vec::new(),
        }))
    }

    async fn plans(&self, calls: &[String]) -> Result<Vec<Plan>> {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = told.clone();
        let hear = move |message: &str| {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.push(message.to_owned());
        };
        let client = changefeed::postgres::session(&self.url, hear).await?;
        let session = PostgresSession { client };
        // Statistics as a server in use has them.
        session.run("analyze").await?;
        if session.run(EXPLAINING).await.is_err() {
            // Only for those who may load it.
            return Ok(Vec::new());
        }
        for call in calls {
            session.run(call).await?;
        }
        // The last notice comes before this answer.
        session
            .run("set client_min_messages = 'error'; select 1")
            .await?;
        let told = told.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(told.iter().filter_map(|message| plan(message)).collect())
    }

    async fn remove(&self) -> Result<()> {
        let session = connect(&self.server).await?;
        session
            .run(&format!(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{}'",
                self.name
            ))
            .await?;
        // Those whom we have ended may need a moment.
        let drop = format!("drop database if exists {}", self.name);
        for _ in 0..50 {
            if session.run(&drop).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        session.run(&drop).await
    }
}

struct PostgresSession {
    client: Client,
}

#[async_trait]
impl Session for PostgresSession {
    async fn run(&self, sql: &str) -> Result<()> {
        self.client.batch_execute(sql).await.map_err(said)
    }

    async fn rows(&self, sql: &str) -> Result<Rows> {
        let answer = self.client.simple_query(sql).await.map_err(said)?;
        let rows = answer.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(
                (0..row.len())
                    .map(|at| row.get(at).map(str::to_owned))
                    .collect(),
            ),
            _ => None,
        });
        Ok(rows.collect())
    }
}

fn said(error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(db) => Error::new(
            Kind::Database,
            format!("{} ({})", db.message(), db.code().code()),
        ),
        None => Error::new(Kind::Unavailable, error.to_string()),
    }
    .caused_by(error)
}

/// What `auto_explain` tells: `duration: … plan: {"Query Text": …, "Plan": …}`.
fn plan(message: &str) -> Option<Plan> {
    let text = &message[message.find('{')?..];
    let said: Value = serde_json::from_str(text).ok()?;
    let mut access = Vec::new();
    walk(&said["Plan"], &mut access);
    let statement = said["Query Text"].as_str().unwrap_or_default();
    (!access.is_empty()).then(|| Plan::judged(statement, access, WORDS.growing, text.to_owned()))
}

fn walk(node: &Value, access: &mut Vec<Access>) {
    let kind = node["Node Type"].as_str().unwrap_or_default();
    if let Some(table) = node["Relation Name"].as_str()
        && kind.contains("Scan")
    {
        access.push(Access {
            table: table.to_owned(),
            how: kind.to_owned(),
            whole: kind == "Seq Scan",
        });
    }
    for inner in node["Plans"].as_array().into_iter().flatten() {
        walk(inner, access);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_through_a_growing_table_is_found() {
        let told = |table: &str, kind: &str| {
            format!(
                "duration: 0.1 ms  plan:\n{{\"Query Text\": \"select  1\", \"Plan\": {{\"Node Type\": \
                 \"Limit\", \"Plans\": [{{\"Node Type\": \"{kind}\", \"Relation Name\": \"{table}\"}}]}}}}"
            )
        };
        let bad = plan(&told("numbered", "Seq Scan")).unwrap();
        assert_eq!(bad.complaints, ["Seq Scan of numbered"]);
        assert_eq!(bad.statement, "select 1");
        for (table, kind) in [
            ("numbered", "Index Scan"),
            ("feed", "Seq Scan"),
            ("event_trigger", "Seq Scan"),
        ] {
            assert!(plan(&told(table, kind)).unwrap().complaints.is_empty());
        }
    }
}
