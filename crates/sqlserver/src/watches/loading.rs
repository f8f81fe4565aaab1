//! Existing rows for a function that begins with them, or that has missed something.

use changefeed_core::{Result, Watch, crash_point, fill};

use crate::backfill::resume_after;
use crate::backlog::{lock, send};
use crate::json;
use crate::row::first;
use crate::session::Session;
use crate::tracking::{Tracked, function_sql, leases_name};
use crate::watch_key::{names, numbered, numbered_types, same_numbered};

/// Existing rows that are loaded at a time.
const LOAD: &str = "10000";

impl Session {
    /// Puts existing rows into the backlog of a function. Goes on where it was cut off.
    pub(crate) async fn load(&mut self, watch: &Watch) -> Result<()> {
        let connection = &mut *self.connection;
        let table_id = i32::try_from(watch.table_id).unwrap_or(-1);
        let loading = connection
            .query(
                "select 1 from changefeed.watch \
                 where function_id = convert(varchar(16), @P1) and loading is not null",
                &[&watch.function_id],
            )
            .await?;
        if loading.is_empty() {
            return Ok(());
        }
        let (tracked, _) = Tracked::load(connection, table_id, &watch.name).await?;
        let sql = load_sql(&tracked, &watch.function_id)?;
        loop {
            let rows = match send(connection, &sql).await {
                Ok(rows) => rows,
                Err(error) => {
                    connection.tidy().await;
                    return Err(error);
                }
            };
            crash_point("watch.loaded");
            if first::<bool>(&rows, 0)? != Some(true) {
                return Ok(());
            }
        }
    }
}

/// The statement that loads the next existing rows.
pub(crate) fn load_sql(tracked: &Tracked, function_id: &str) -> Result<String> {
    let key = &tracked.table.key;
    let table = &tracked.table;
    let resume = resume_after(&table.key, "t");
    fill(
        include_str!("../sql/watch_load.sql"),
        &[
            ("declare", &resume.declare),
            ("k_types", &numbered_types(key)),
            ("function_id", &function_sql(function_id)),
            ("position", &resume.position),
            ("k", &numbered(key, "")),
            ("chunk", LOAD),
            ("t_keys", &names(key, "t.")),
            ("key_array", &json::array(&table.key, "t")),
            ("table", &table.sql),
            ("resume", &resume.condition),
            ("lock", &lock(tracked.id())),
            ("table_id", &tracked.id().to_string()),
            ("leases", &leases_name(function_id, i64::from(tracked.id()))),
            ("keys", &names(key, "")),
            ("p_k", &numbered(key, "p.")),
            ("same_key", &same_numbered(key, "q", "p")),
        ],
    )
}
