//! Events of rows that are older than their trigger.
//!
//! Rows come in the order of their rowid (of their primary key, where there is none), in batches;
//! the position is kept in the same transaction as the events, so a batch happens once or not at
//! all. The row condition counts here too, with `old` empty.

use changefeed_core::{Backfill, Error, EventTrigger, Kind, Result, TriggerId, crash_point};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use crate::error::Explain;
use crate::event_capture::Plan;
use crate::source::MAX_KEY;
use crate::{event_drift, quote, triggers};

struct State {
    total: i64,
    done: i64,
    finished: bool,
    position: Option<Vec<Value>>,
}

/// Makes events of the next `batch` rows.
pub(crate) fn step(tx: &Connection, trigger: &EventTrigger, batch: usize) -> Result<Backfill> {
    if batch == 0 {
        return Err(Error::invalid("a backfill batch needs at least one row"));
    }
    let trigger = triggers::current(tx, trigger)?;
    let table = event_drift::table_of(tx, &trigger)?;
    let plan = Plan::of(tx, trigger.id, &trigger.definition, table)?;
    let rows = plan.existing()?;
    let width = rows.identity.len();
    if width == 0 {
        return Err(Error::new(
            Kind::Unsupported,
            format!("the rows of table {} cannot be told apart", plan.table.name),
        )
        .advise("give the table a primary key"));
    }
    let mut state = match State::load(tx, &plan, width)? {
        Some(state) => state,
        None => State::begin(tx, &plan)?,
    };
    if state.finished {
        return Ok(state.report(0));
    }
    let names = rows.identity.join(", ");
    let resume = match &state.position {
        None => String::new(),
        Some(key) => {
            let places: Vec<String> = (1..=key.len()).map(|n| format!("?{n}")).collect();
            format!("where ({names}) > ({})", places.join(", "))
        }
    };
    let feed = plan
        .binding
        .as_ref()
        .map_or_else(|| "null".to_owned(), |binding| binding.feed.to_string());
    let fill = |template: &str| {
        quote::fill(
            template,
            &[
                ("id", &trigger.id.0.to_string()),
                ("new", &rows.new),
                ("order_key", &rows.order_key),
                ("feed", &feed),
                ("shard", &rows.shard),
                ("table", &rows.table),
                ("identity", &names),
                ("wanted", &rows.wanted),
                ("resume", &resume),
                ("batch", &batch.to_string()),
            ],
        )
    };
    let position = state.position.clone().unwrap_or_default();
    let seen: Vec<Vec<Value>> = tx
        .prepare_cached(&fill(include_str!("sql/event_backfill_keys.sql"))?)
        .and_then(|mut s| {
            s.query_map(params_from_iter(&position), |row| {
                (0..width).map(|n| row.get(n)).collect()
            })?
            .collect()
        })
        .explained()?;
    // What goes through a view is not counted by SQLite, but every event takes a number.
    let before = newest_change(tx)?;
    tx.prepare_cached(&fill(include_str!("sql/event_backfill.sql"))?)
        .and_then(|mut s| s.execute(params_from_iter(&position)))
        .explained()?;
    let added = newest_change(tx)? - before;
    state.finished = seen.len() < batch;
    state.done += i64::try_from(seen.len()).unwrap_or(i64::MAX);
    if let Some(last) = seen.into_iter().last() {
        state.position = Some(last);
    }
    state.save(tx, &plan)?;
    crash_point("backfill.before_commit");
    Ok(state.report(added))
}

fn newest_change(tx: &Connection) -> Result<i64> {
    tx.prepare_cached("select value from changefeed_change_id")
        .and_then(|mut s| s.query_row([], |row| row.get(0)))
        .explained()
}

/// Forgets how far a backfill came, so that it begins anew.
pub(crate) fn forget(tx: &Connection, trigger: TriggerId) -> Result<()> {
    tx.execute(
        "delete from changefeed_event_backfill where trigger_id = ?1",
        [trigger.0],
    )
    .explained()?;
    Ok(())
}

impl State {
    fn load(tx: &Connection, plan: &Plan, width: usize) -> Result<Option<State>> {
        tx.query_row(
            "select total, done, finished, key1, key2, key3, key4, key5, key6, key7, key8 \
             from changefeed_event_backfill where trigger_id = ?1",
            [plan.id.0],
            |row| {
                let key: Vec<Value> = (3..3 + width)
                    .map(|n| row.get(n))
                    .collect::<rusqlite::Result<_>>()?;
                Ok(State {
                    total: row.get(0)?,
                    done: row.get(1)?,
                    finished: row.get(2)?,
                    position: (key.first() != Some(&Value::Null)).then_some(key),
                })
            },
        )
        .optional()
        .explained()
    }

    fn begin(tx: &Connection, plan: &Plan) -> Result<State> {
        let count = format!("select count(*) from {}", plan.table.sql());
        let total = tx.query_row(&count, [], |row| row.get(0)).explained()?;
        tx.execute(
            "insert into changefeed_event_backfill (trigger_id, total) values (?1, ?2)",
            params![plan.id.0, total],
        )
        .explained()?;
        Ok(State {
            total,
            done: 0,
            finished: false,
            position: None,
        })
    }

    fn save(&self, tx: &Connection, plan: &Plan) -> Result<()> {
        let mut values = vec![
            Value::Integer(plan.id.0.into()),
            Value::Integer(self.done),
            Value::Integer(self.finished.into()),
        ];
        values.extend(self.position.iter().flatten().cloned());
        values.resize(3 + MAX_KEY, Value::Null);
        tx.execute(
            "update changefeed_event_backfill set done = ?2, finished = ?3, key1 = ?4, key2 = ?5, \
             key3 = ?6, key4 = ?7, key5 = ?8, key6 = ?9, key7 = ?10, key8 = ?11 \
             where trigger_id = ?1",
            params_from_iter(values),
        )
        .explained()?;
        Ok(())
    }

    fn report(&self, added: i64) -> Backfill {
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        Backfill {
            added: count(added),
            done: count(self.done),
            total: count(self.total),
            finished: self.finished,
        }
    }
}
