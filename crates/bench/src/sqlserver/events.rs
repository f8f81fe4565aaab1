//! Event triggers, on SQL Server's own terms.

use changefeed::sqlserver::Connection;
use changefeed::{Changefeed, EventTrigger, Result, TableName};
use tokio::sync::Mutex;

use super::scratch::{Scratch, series};
use crate::events::{Client, Orders, Server, Side};
use crate::latency::Publish;

/// Not an identity but a default: the writers of the measures also give ids of their own.
const TABLES: &str = "
create table changefeed_bench.orders (
    id bigint not null primary key default next value for changefeed_bench.order_id,
    customer int not null, note nvarchar(400) not null, amount decimal(12, 2) not null,
    ordered_at datetime2(3) not null default sysutcdatetime());
create table changefeed_bench.bare_orders (
    id bigint not null primary key default next value for changefeed_bench.order_id,
    customer int not null, note nvarchar(400) not null, amount decimal(12, 2) not null,
    ordered_at datetime2(3) not null default sysutcdatetime());";

/// A payload of the usual size.
const NEW: &str = "concat(N'{\"id\":', s.i, N',\"customer\":', s.i % 1000, \
     N',\"note\":\"a note of the customer about order ', s.i, N'\",\"amount\":', s.i, \
     N'.00,\"ordered_at\":\"2026-01-01T12:00:00.000\"}')";

impl Orders for Scratch {
    fn db(&self) -> &Changefeed {
        &self.feed.db
    }

    fn table(&self) -> TableName {
        TableName::qualified("changefeed_bench", "orders")
    }

    async fn order(&self, count: u64) -> Result<()> {
        self.run(&insert("orders", count)).await
    }

    async fn tidy(&self) -> Result<()> {
        self.update_statistics("changefeed.event").await?;
        self.update_statistics("changefeed.event_attempt").await
    }
}

/// A statement that inserts so many rows.
fn insert(table: &str, rows: u64) -> String {
    format!(
        "insert into changefeed_bench.{table} (customer, note, amount) \
         select s.i % 1000, concat(N'a note of the customer about order ', s.i), s.i / 100.0 \
         from {}",
        series(i64::try_from(rows).unwrap_or(1))
    )
}

impl Server for Scratch {
    type Client = Writer;
    type Trickle = Trickle;

    async fn make_orders(&self) -> Result<()> {
        self.run("create sequence changefeed_bench.order_id as bigint start with 1 increment by 1")
            .await?;
        self.run(TABLES).await
    }

    async fn client(&self) -> Result<Writer> {
        Ok(Writer(Mutex::new(self.session().await?)))
    }

    async fn trickle(&self) -> Result<Trickle> {
        Ok(Trickle(self.session().await?))
    }

    async fn order_bare(&self, count: u64) -> Result<()> {
        self.run(&insert("bare_orders", count)).await
    }

    async fn clear_orders(&self) -> Result<()> {
        self.run(
            "truncate table changefeed_bench.orders; truncate table changefeed_bench.bare_orders",
        )
        .await
    }

    /// Unless it also holds what is not ours, it is emptied at once.
    async fn clear_log(&self) -> Result<()> {
        self.run(
            "if exists (select 1 from changefeed.event e \
                        join changefeed.event_trigger t on t.trigger_id = e.trigger_id \
                        where t.schema_name <> N'changefeed_bench') \
             begin \
                 delete from changefeed.event_attempt where trigger_id in \
                     (select trigger_id from changefeed.event_trigger \
                      where schema_name = N'changefeed_bench'); \
                 delete from changefeed.event where trigger_id in \
                     (select trigger_id from changefeed.event_trigger \
                      where schema_name = N'changefeed_bench'); \
             end \
             else \
             begin \
                 truncate table changefeed.event_attempt; \
                 truncate table changefeed.event; \
             end",
        )
        .await
    }

    async fn come_to_rest(&self) -> Result<()> {
        Orders::tidy(self).await
    }

    async fn fill_log(&self, trigger: &EventTrigger, events: i64) -> Result<()> {
        self.run(&format!(
            "insert into changefeed.event \
                 (trigger_id, state, due_at, op, generation, tries, new) \
             select {}, 'd', null, 'I', 1, 1, {NEW} from {}",
            trigger.id.0,
            series(events)
        ))
        .await
    }

    async fn live(&self, trigger: &EventTrigger, events: i64) -> Result<()> {
        // The life of an event: captured, taken, delivered. The leases are short, so that what is
        // left of them in the index lies in the past, as it does half a minute later.
        self.run(&format!(
            "insert into changefeed.event (trigger_id, op, new) select {}, 'I', {NEW} from {}; \
             update changefeed.event set due_at = sysutcdatetime(), locked_by = N'bench', \
                 generation = 1, tries = 1; \
             update changefeed.event set due_at = null, locked_by = null, state = 'd'",
            trigger.id.0,
            series(events)
        ))
        .await
    }

    async fn remove_orders(&self) -> Result<()> {
        for statement in [
            "delete from changefeed.event_trigger where schema_name = N'changefeed_bench'",
            "drop table if exists changefeed_bench.orders",
            "drop table if exists changefeed_bench.bare_orders",
            "drop sequence if exists changefeed_bench.order_id",
        ] {
            self.run(statement).await?;
        }
        Ok(())
    }

    fn url(&self) -> &str {
        &self.url
    }
}

/// One that writes single orders with and without a trigger.
pub(crate) struct Writer(Mutex<Connection>);

impl Client for Writer {
    async fn order(&self, side: Side) -> Result<()> {
        let table = match side {
            Side::Bare => "bare_orders",
            Side::Ours => "orders",
        };
        let insert = format!(
            "insert into changefeed_bench.{table} (customer, note, amount) \
             values (7, N'a note of the customer about an order', 12.34)"
        );
        self.0.lock().await.batch(&insert).await
    }
}

/// A writer of orders whose ids are known.
pub(crate) struct Trickle(Connection);

impl Publish for Trickle {
    async fn publish(&mut self, change_id: i64) -> Result<()> {
        self.0
            .batch(&format!(
                "insert into changefeed_bench.orders (id, customer, note, amount) \
                 values ({change_id}, 7, N'a note of the customer', 12.34)"
            ))
            .await
    }
}
