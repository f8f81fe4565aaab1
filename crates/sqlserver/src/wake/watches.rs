//! Waking watches: one statement looks for all of them which have something to do.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use changefeed_core::{Result, WatchPlace};

use crate::Inner;
use crate::row::Cells;
use crate::session::{Limit, Session};
use crate::tracking::leases_name;

/// How often a watch is woken whose rows wait for a time to come, or that was not looked at.
const SLOWLY: Duration = Duration::from_millis(250);

/// What is known of the watches.
pub(super) type States = HashMap<WatchPlace, State>;

/// What is known of a watch.
pub(super) struct State {
    /// Whether there are rows in its backlog that were tried before.
    waiting: bool,
    woken: Instant,
}

/// Looks, and wakes those for whom there may be something. Returns whether there were any.
pub(super) async fn look(
    inner: &Inner,
    places: &[WatchPlace],
    states: &mut States,
) -> Result<bool> {
    // What is asked depends on who notes the changes of a table, which a take finds out.
    let (mut lines, mut looked_at) = (Vec::new(), Vec::new());
    for place in places {
        let leases = leases_name(&place.function_id, place.table_id);
        if let Some(backlog) = (inner.known.backlogs).known(&format!("changefeed.{leases}")) {
            lines.push(backlog.look_all_sql(looked_at.len())?);
            looked_at.push(place);
        }
    }
    let mut found: HashMap<&WatchPlace, (bool, bool)> = HashMap::new();
    if !lines.is_empty() {
        let sql = lines.join(" union all ");
        let ask = async |session: &mut Session| session.connection.query(&sql, &[]).await;
        let rows = inner.door.call(&inner.known, Limit::BRIEF, ask).await?;
        for row in &rows {
            let number = row.maybe::<i32>(0)?.and_then(|n| usize::try_from(n).ok());
            if let Some(place) = number.and_then(|n| looked_at.get(n)) {
                found.insert(place, (row.says(1)?, row.says(2)?));
            }
        }
    }
    let now = Instant::now();
    let mut moved = false;
    for place in places {
        let (work, waiting) = found.get(place).copied().unwrap_or((false, true));
        // One that is looked at for the first time may have missed something.
        let other = states.get(place).is_none_or(|state| {
            state.waiting != waiting || waiting && now.duration_since(state.woken) >= SLOWLY
        });
        if work || other {
            states.insert(
                place.clone(),
                State {
                    waiting,
                    woken: now,
                },
            );
            inner.known.watches.wake(place);
        }
        moved |= work;
    }
    states.retain(|place, _| places.contains(place));
    Ok(moved)
}
