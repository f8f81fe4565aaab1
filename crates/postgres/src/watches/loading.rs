//! Existing rows for a function that begins with them.

use changefeed_core::{Error, Kind, Result, Watch, crash_point};

use crate::backlog::explain;
use crate::error::db;
use crate::quote;
use crate::row::Cells;
use crate::session::Session;
use crate::template::fill;
use crate::tracking::{Tracked, begin, lock_table};
use crate::typed::NoValue;
use crate::watch_key::join;

/// Existing rows that are loaded at a time.
const LOAD: usize = 10_000;

impl Session {
    /// Puts existing rows into the backlog of a function that begins with them. Goes on where
    /// it was cut off.
    pub(super) async fn load(
        &mut self,
        watch: &Watch,
        tracked: &Tracked,
        leases: &str,
    ) -> Result<()> {
        loop {
            let client = &mut **self;
            let transaction = begin(client).await?;
            lock_table(&*transaction, watch.table_id).await?;
            // Nobody alters it from here on, and it is read as it is now.
            let oid = tracked.table.oid;
            let lock = format!(
                "set local row_security = off; {}; {}",
                tracked.lock_sql(),
                tracked.hold_sql(&format!("changefeed.table_signature({oid})"))
            );
            transaction.batch_execute(&lock).await.map_err(explain)?;
            let now = Tracked::load(&*transaction, watch.table_id, &watch.name).await?;
            if now.key != tracked.key {
                return Err(Error::new(
                    Kind::Busy,
                    format!("the key of {} was altered meanwhile", watch.table),
                )
                .advise("start the watch again: it goes on where it was"));
            }
            // Workers may write it, and nobody who comes after is to fail because of what it says.
            let types: Vec<&str> = now.key.iter().map(|c| c.type_sql.as_str()).collect();
            let forgotten = transaction
                .execute(
                    include_str!("../sql/watch_load_again.sql"),
                    &[&watch.name.as_str(), &types],
                )
                .await
                .map_err(explain)?;
            if forgotten > 0 {
                tracing::warn!(
                    watch = %watch.name,
                    "how far existing rows were loaded cannot be read: loading begins again"
                );
            }
            let sql = load_sql(watch, &now, leases);
            let more: bool = transaction
                .query_typed_one(&sql?, &[(&NoValue, now.row_type())])
                .await
                .map_err(explain)?
                .take(0)?;
            transaction.commit().await.map_err(db)?;
            crash_point("watch.loaded");
            if !more {
                return Ok(());
            }
        }
    }
}

/// The statement that loads the next existing rows.
fn load_sql(watch: &Watch, tracked: &Tracked, leases: &str) -> Result<String> {
    let key = &tracked.key;
    let resume = tracked.is_behind("t", |n| {
        format!("(state.loaded_to->>{})::{}", n - 1, key[n - 1].type_sql)
    });
    fill(
        include_str!("../sql/watch_load.sql"),
        &[
            ("leases", leases),
            ("name", &quote::literal(watch.name.as_str())),
            ("table", &tracked.rows_of()),
            (
                "t_as_k",
                &join(key, ", ", |n, c| format!("{} as k{n}", c.ours("t"))),
            ),
            ("t_keys", &tracked.keys("t.")),
            ("resume", &format!("state.loaded_to is null or {resume}")),
            ("chunk", &LOAD.to_string()),
            ("keys", &tracked.keys("")),
            ("p_k", &join(key, ", ", |n, _| format!("p.k{n}"))),
            (
                "p_texts",
                &join(key, ", ", |n, _| format!("format('%s', p.k{n})")),
            ),
            (
                "same_key",
                &join(key, " and ", |n, c| {
                    format!("q.{} operator(pg_catalog.=) p.k{n}", c.sql())
                }),
            ),
        ],
    )
}
