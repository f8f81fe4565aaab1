//! Existing rows for a function that begins with them: in chunks, so that the application's writers
//! never wait for long. How far it has come is in a table of its own, as a key like any other, so
//! that a load that was cut off goes on.

use changefeed_core::{Result, Watch, crash_point};
use rusqlite::Connection;

use crate::SqliteStore;
use crate::error::Explain;
use crate::quote::fill;
use crate::tracking::{Tracked, exists};

/// Existing rows that are loaded at a time.
const CHUNK: i64 = 10_000;

fn bookmark(watch: &Watch) -> String {
    format!(
        "changefeed_loading_{}_{}",
        watch.function_id, watch.table_id
    )
}

/// From here on there is something to load.
pub(super) fn begin(tx: &Connection, watch: &Watch, tracked: &Tracked) -> Result<()> {
    tx.execute_batch(&format!(
        "create table {} (_changefeed_place integer primary key, {})",
        bookmark(watch),
        tracked.keys("").join(", ")
    ))
    .explained()
}

/// There is nothing to load any more.
pub(super) fn forget(tx: &Connection, watch: &Watch) -> Result<()> {
    tx.execute_batch(&format!("drop table if exists {}", bookmark(watch)))
        .explained()
}

impl SqliteStore {
    /// Puts existing rows into the backlog of a function that begins with them. Goes on where it was
    /// cut off.
    pub(crate) async fn load(&self, watch: &Watch) -> Result<()> {
        loop {
            let looking = watch.clone();
            let loading = self
                .reading(move |tx| exists(tx, &bookmark(&looking)))
                .await?;
            if !loading {
                return Ok(());
            }
            let watch = watch.clone();
            self.writing(move |tx| chunk(tx, &watch)).await?;
            crash_point("watch.loaded");
        }
    }
}

/// The next existing rows, in order of their key, as inserts.
fn chunk(tx: &Connection, watch: &Watch) -> Result<()> {
    let bookmark = bookmark(watch);
    // Another instance may have been quicker.
    if !exists(tx, &bookmark)? {
        return Ok(());
    }
    let tracked = Tracked::load(tx, watch.table_id, &watch.name)?;
    let begun: bool = tx
        .query_row(
            &format!("select exists (select 1 from {bookmark})"),
            [],
            |row| row.get(0),
        )
        .explained()?;
    let keys = tracked.keys("").join(", ");
    let not_null: Vec<String> = tracked
        .keys("")
        .into_iter()
        .map(|key| format!("{key} is not null"))
        .collect();
    let not_null = not_null.join(" and ");
    let behind = format!(
        "{not_null} and ({keys}) > \
         (select {keys} from {bookmark} order by _changefeed_place desc limit 1)"
    );
    let sql = fill(
        include_str!("../sql/watch_load.sql"),
        &[
            ("bookmark", &bookmark),
            ("leases", &watch.leases_table),
            ("table", &tracked.table.sql()),
            ("keys", &keys),
            ("behind", if begun { &behind } else { &not_null }),
            ("chunk", &CHUNK.to_string()),
        ],
    )?;
    tx.execute_batch(&sql).explained()?;
    let more: bool = tx
        .query_row(
            &format!(
                "select exists (select 1 from {} where {behind})",
                tracked.table.sql()
            ),
            [],
            |row| row.get(0),
        )
        .explained()?;
    match more {
        true => Ok(()),
        false => forget(tx, watch),
    }
}
