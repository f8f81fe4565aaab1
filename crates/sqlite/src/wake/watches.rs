//! Waking watches: after a commit the thread looks for all of them which have something to do.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use changefeed_core::{Result, WatchPlace, fill};
use rusqlite::Connection;

use crate::error::Explain;
use crate::tracking::{leases_name, log_name, schema_version};

/// How often a watch is woken whose rows wait for a time to come, or that cannot be looked at.
const SLOWLY: Duration = Duration::from_millis(250);

/// What was seen last.
#[derive(Default)]
pub(super) struct Looks {
    schema: Option<i64>,
    watches: HashMap<WatchPlace, State>,
}

/// What is known of a watch.
struct State {
    /// Whether there are rows in its backlog.
    rows: bool,
    woken: Instant,
}

impl Looks {
    /// Those for whom there may be something after a commit. Where the schema was changed everybody looks:
    /// the table, or what tracks it, may not be what it was.
    pub(super) fn look(
        &mut self,
        connection: &Connection,
        places: Vec<WatchPlace>,
    ) -> Result<Vec<WatchPlace>> {
        let schema = schema_version(connection)?;
        let altered = self.schema.replace(schema) != Some(schema);
        let now = Instant::now();
        self.watches.retain(|place, _| places.contains(place));
        let mut news = Vec::new();
        for place in places {
            // One whose tables were deleted finds that out for itself.
            let (work, rows) = look_at(connection, &place).unwrap_or((false, true));
            let other = (self.watches.get(&place)).is_none_or(|state| state.rows != rows);
            if altered || work || other {
                self.watches
                    .insert(place.clone(), State { rows, woken: now });
                news.push(place);
            }
        }
        Ok(news)
    }

    /// Those who have to look because time has passed.
    pub(super) fn due(&mut self) -> Vec<WatchPlace> {
        let now = Instant::now();
        let mut due = Vec::new();
        for (place, state) in &mut self.watches {
            if state.rows && now.duration_since(state.woken) >= SLOWLY {
                state.woken = now;
                due.push(place.clone());
            }
        }
        due
    }
}

fn look_at(connection: &Connection, place: &WatchPlace) -> Result<(bool, bool)> {
    let sql = fill(
        include_str!("../sql/watch_look_all.sql"),
        &[
            ("log", &log_name(place.table_id)),
            ("leases", &leases_name(&place.function_id, place.table_id)),
        ],
    )?;
    connection
        .prepare_cached(&sql)
        .and_then(|mut s| s.query_row([], |row| Ok((row.get(0)?, row.get(1)?))))
        .explained()
}
