//! A scratch database on a SQL Server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed::sqlserver::tiberius::{self, ColumnData, Row};
use changefeed::sqlserver::{Connection, Platform, Target};
use changefeed::{Error, Kind, Result};
use changefeed_core::Store;
use tokio::sync::Mutex;

use crate::change_tracking;
use crate::place::{
    Deadlocks, MAY_CREATE, OwnCase, Place, Rows, Session, Words, fresh_name, pairs, with_database,
};
use crate::plans::Plan;
use crate::showplan;

const WORDS: Words = Words {
    prefix: "changefeed.",
    begin: "begin transaction",
    savepoint: "save transaction s",
    rollback_to: "rollback transaction s",
    draw: "select next value for changefeed.change_id",
    draws_are_final: true,
    text: "nvarchar(400)",
    ulid: "binary(16)",
    begin_ulids: Some(
        "set xact_abort on; begin transaction; exec changefeed.begin_ulid_transaction '{feed}', 0, 30000",
    ),
    write_ulid: "declare @ulid binary(16); exec changefeed.new_ulid @ulid = @ulid output; \
                 insert into event (shard, ulid, note) values (0, @ulid, N'{note}')",
    commit_ulids: "exec changefeed.commit_ulid_transaction; commit transaction",
    growing: &[
        "change",
        "change_row",
        "event",
        "event_attempt",
        "changes_",
        "leases_",
    ],
    calls: &[
        "exec changefeed.[read] {feed}, 0, {cursor}, 100",
        "exec changefeed.sweep 0",
        "insert into item values (-1, N'a')",
        "update item set note = N'b' where id = -1",
        "delete from item where id = -1",
    ],
    fill: "with d as (select n from (values (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) v (n)) \
           insert into item select top ({count}) {first} + a.n + 10 * b.n + 100 * c.n, N'note' \
           from d a cross join d b cross join d c order by a.n + 10 * b.n + 100 * c.n",
};

/// What every driver of this world sets for its sessions, and filtered indexes need.
const USUAL: &str = "set ansi_nulls on; set ansi_padding on; set ansi_warnings on; set arithabort on; \
     set concat_null_yields_null on; set quoted_identifier on; set numeric_roundabort off";

const FACTS: &str = include_str!("sql/facts.sql");

const DEADLOCKS: &str = include_str!("sql/deadlocks.sql");

const CACHED: &str = include_str!("sql/cached_plans.sql");

pub(crate) struct Scratch {
    server: String,
    url: String,
    name: String,
    platform: Platform,
}

impl Scratch {
    pub(crate) async fn create(server: &str) -> Result<Self> {
        let name = fresh_name();
        let mut connection = Connection::open(&Target::parse(server)?).await?;
        connection
            .batch(&format!("create database {name}"))
            .await
            .map_err(|e| e.advise(MAY_CREATE))?;
        let platform = connection.platform();
        if platform == Platform::SqlServer {
            // As documentation advises. Change tracking needs the second.
            for setting in ["read_committed_snapshot on", "allow_snapshot_isolation on"] {
                connection
                    .batch(&format!("alter database {name} set {setting}"))
                    .await?;
            }
        }
        let url = match server.contains("://") {
            true => with_database(server, &name),
            false => format!("{};Database={name}", server.trim_end_matches(';')),
        };
        Ok(Scratch {
            server: server.to_owned(),
            url,
            name,
            platform,
        })
    }

    async fn open(&self) -> Result<SqlServerSession> {
        let client = Target::parse(&self.url)?.connect().await?;
        let session = SqlServerSession {
            client: Mutex::new(client),
        };
        session.run(USUAL).await?;
        Ok(session)
    }
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
        Ok(Box::new(self.open().await?))
    }

    async fn facts(&self) -> Result<BTreeMap<String, String>> {
        Ok(pairs(self.open().await?.rows(FACTS).await?))
    }

    async fn deadlocks(&self) -> Result<Option<Deadlocks>> {
        if self.platform == Platform::Babelfish {
            return Ok(None);
        }
        let rows = self.open().await?.rows(DEADLOCKS).await?;
        let told: Vec<String> = rows.into_iter().flatten().flatten().collect();
        Ok(Some(Deadlocks {
            count: i64::try_from(told.len()).unwrap_or(i64::MAX),
            told,
        }))
    }

    async fn plans(&self, calls: &[String]) -> Result<Vec<Plan>> {
        if self.platform == Platform::Babelfish {
            return Ok(Vec::new());
        }
        let session = self.open().await?;
        session.run("exec sp_updatestats").await?;
        session.run("set statistics xml on").await?;
        let mut plans = Vec::new();
        for call in calls {
            // A statement's plan follows its own rows, as a row of one column.
            for row in session.rows(call).await? {
                if let [Some(xml)] = &row[..]
                    && xml.starts_with("<ShowPlanXML")
                {
                    plans.push(showplan::plan(call, xml, WORDS.growing));
                }
            }
        }
        Ok(plans)
    }

    async fn plans_of_store(&self) -> Result<Vec<Plan>> {
        if self.platform == Platform::Babelfish {
            return Ok(Vec::new());
        }
        // Needs VIEW SERVER STATE. Whoever lacks it has the plans of what was called.
        let Ok(rows) = self.open().await?.rows(CACHED).await else {
            return Ok(Vec::new());
        };
        let plans = rows.iter().filter_map(|row| match &row[..] {
            [Some(statement), Some(xml)] => Some(showplan::plan(statement, xml, WORDS.growing)),
            _ => None,
        });
        Ok(plans.collect())
    }

    async fn own_cases(&self, store: &Arc<dyn Store>) -> Vec<OwnCase> {
        let mut done = Vec::new();
        let name = "procedures are right under implicit transactions";
        let began = Instant::now();
        done.push((name, implicit_transactions(self).await, began.elapsed()));
        if self.platform == Platform::SqlServer {
            let name = "change tracking feeds a watch, and a TRUNCATE is noticed";
            let began = Instant::now();
            let outcome = change_tracking::case(self, store).await;
            done.push((name, outcome, began.elapsed()));
        }
        done
    }

    async fn remove(&self) -> Result<()> {
        let mut connection = Connection::open(&Target::parse(&self.server)?).await?;
        if self.platform == Platform::SqlServer {
            let alone = "set single_user with rollback immediate";
            let alone = format!("alter database {} {alone}", self.name);
            // Azure SQL Database has no such thing, and needs none.
            let _ = connection.batch(&alone).await;
        }
        let drop = format!("drop database {}", self.name);
        for _ in 0..50 {
            if connection.batch(&drop).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        connection.batch(&drop).await
    }
}

/// What drivers do that turn off auto-commit.
async fn implicit_transactions(place: &Scratch) -> Result<()> {
    let session = place.open().await?;
    let open = "if @@trancount > 0 throw 50000, 'a transaction was left open', 1";
    session.run("set implicit_transactions on").await?;
    for call in [
        "exec changefeed.sweep 0",
        "exec changefeed.sweep_loop 0, 1000, 0",
        "exec changefeed.report_incident '80270756-deeb-11ed-91f2-4f03a365d3f8', 9",
        "exec changefeed.rollback_ulid_transaction",
    ] {
        session.run(call).await?;
        session.run(open).await?;
    }
    session
        .run("exec changefeed.begin_ulid_transaction '80270756-deeb-11ed-91f2-4f03a365d3f8', 9")
        .await?;
    session.run(WORDS.commit_ulids).await?;
    session.run(open).await
}

struct SqlServerSession {
    client: Mutex<Client>,
}

type Client = tiberius::Client<tokio_util::compat::Compat<tokio::net::TcpStream>>;

#[async_trait]
impl Session for SqlServerSession {
    async fn run(&self, sql: &str) -> Result<()> {
        self.rows(sql).await.map(drop)
    }

    async fn rows(&self, sql: &str) -> Result<Rows> {
        let mut client = self.client.lock().await;
        let answer = client.simple_query(sql).await.map_err(said)?;
        let results = answer.into_results().await.map_err(said)?;
        Ok(results.into_iter().flatten().map(texts).collect())
    }
}

fn texts(row: Row) -> Vec<Option<String>> {
    row.cells().map(|(_, value)| text(value)).collect()
}

fn text(value: &ColumnData<'_>) -> Option<String> {
    Some(match value {
        ColumnData::U8(v) => v.as_ref()?.to_string(),
        ColumnData::I16(v) => v.as_ref()?.to_string(),
        ColumnData::I32(v) => v.as_ref()?.to_string(),
        ColumnData::I64(v) => v.as_ref()?.to_string(),
        ColumnData::Bit(v) => u8::from(*v.as_ref()?).to_string(),
        ColumnData::String(v) => v.as_ref()?.to_string(),
        ColumnData::Xml(v) => v.as_ref()?.as_ref().as_ref().to_owned(),
        ColumnData::Guid(v) => v.as_ref()?.to_string(),
        other => format!("{other:?}"),
    })
}

fn said(error: tiberius::error::Error) -> Error {
    match &error {
        tiberius::error::Error::Server(reported) => Error::new(
            Kind::Database,
            format!("{} ({})", reported.message(), reported.code()),
        ),
        _ => Error::new(Kind::Unavailable, error.to_string()),
    }
    .caused_by(error)
}
