//! Whoever applies the events of a table, one after the other, has the table.

use std::collections::BTreeMap;

use changefeed_core::{EventStore, Operation, Verdict};
use changefeed_sqlite::rusqlite::Connection;

use crate::event_support::{LEASE, claim, everything, finished, wanted};
use crate::support::Lab;

/// A small generator that prints nothing but its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[usize::try_from(self.roll(from.len() as u64)).unwrap()]
    }

    fn statement(&mut self) -> String {
        let value = |dice: &mut Dice| {
            let n = dice.roll(4);
            dice.pick(&["null", "1", "2", "'x'", "'X'", "3.5", "x'00'"])
                .replace('1', &n.to_string())
        };
        let or = self.pick(&[
            "",
            "",
            " or replace",
            " or replace",
            " or ignore",
            " or fail",
        ]);
        let id = |dice: &mut Dice| match dice.roll(7) {
            0 => "null".to_owned(),
            n => n.to_string(),
        };
        let (k, u, a) = (id(self), value(self), value(self));
        let (lower, upper) = (self.roll(6), self.roll(7));
        match self.roll(9) {
            0 | 1 => format!("insert{or} into t (id, u, a, b) values ({k}, {u}, {a}, 1)"),
            2 => {
                let (k2, u2) = (id(self), value(self));
                format!(
                    "insert{or} into t (id, u, a, b) values ({k}, {u}, {a}, 2), ({k2}, {u2}, 1, 1)"
                )
            }
            3 => format!(
                "insert into t (id, u, a, b) values ({k}, {u}, {a}, 1) \
                 on conflict (u) do update set a = excluded.a, id = coalesce({k}, id)"
            ),
            4 => format!("update{or} t set u = {u} where id between {lower} and {upper}"),
            5 => format!("update{or} t set a = {a}, b = 1 where id between {lower} and {upper}"),
            6 => format!("update{or} t set id = id + 1 where id between {lower} and {upper}"),
            7 => format!("update{or} t set id = {k}, u = {u} where id = {lower}"),
            _ => format!("delete from t where id between {lower} and {upper}"),
        }
    }
}

fn rows(app: &Connection) -> BTreeMap<i64, String> {
    let mut statement = app
        .prepare(
            "select id, quote(id) || ',' || quote(u) || ',' || quote(a) || ',' || quote(b) from t",
        )
        .unwrap();
    let rows = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    rows.map(Result::unwrap).collect()
}

/// The same text of a row in an event.
fn row_of(event: &serde_json::value::RawValue) -> (i64, String) {
    let row: serde_json::Value = serde_json::from_str(event.get()).unwrap();
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::Null => "NULL".to_owned(),
        serde_json::Value::String(text) => match text.strip_prefix("\\x") {
            Some(hex) => format!("X'{hex}'"),
            None => format!("'{text}'"),
        },
        number => number.to_string(),
    };
    let columns = ["id", "u", "a", "b"].map(|c| text(&row[c]));
    (row["id"].as_i64().unwrap(), columns.join(","))
}

#[tokio::test]
async fn the_events_of_random_statements_make_the_table() {
    let tables = [
        "create table t (id integer primary key, u unique, a, b, unique (a, b))",
        "create table t (id int primary key not null, u unique collate nocase, a, b) without rowid",
        "create table t (id integer primary key, u unique, a, b);
         create unique index part on t (a) where b = 1;
         create trigger touch after insert on t when new.a = 2
           begin update t set b = 9 where id = new.id; end",
    ];
    for seed in 0..18 {
        let table = tables[seed % tables.len()];
        let recursive = ["off", "on"][seed / tables.len() % 2];
        let lab = Lab::new().await;
        let app = lab.app();
        app.execute_batch(&format!("pragma recursive_triggers = {recursive}; {table}"))
            .unwrap();
        lab.trigger(&everything("t")).await;
        let mut dice = Dice(seed as u64 * 7919 + 1);
        let (mut model, mut done) = (BTreeMap::new(), 0);
        for step in 0..120 {
            let statement = dice.statement();
            let _refused = app.execute_batch(&statement);
            let log = lab.log().await;
            let told = format!("seed {seed}, step {step}: {statement}");
            for logged in &log[done..] {
                let event = &logged.event;
                if let Some(old) = &event.old {
                    let (id, row) = row_of(old);
                    assert_eq!(model.remove(&id), Some(row), "{told}: {event:?}");
                }
                if let Some(new) = &event.new {
                    let (id, row) = row_of(new);
                    assert_eq!(model.insert(id, row), None, "{told}: {event:?}");
                }
                assert_ne!(event.op, Operation::Manual);
            }
            done = log.len();
            assert_eq!(model, rows(&app), "{told}");
        }
        assert!(done > 20, "seed {seed} did next to nothing");
    }
}

/// Writers in processes of their own, and instances that deliver meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn processes_write_while_instances_deliver() {
    let lab = std::sync::Arc::new(Lab::new().await);
    lab.shell("create table t (id integer primary key, writer);")
        .unwrap();
    let trigger = lab.trigger(&everything("t")).await;
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let lab = std::sync::Arc::clone(&lab);
            std::thread::spawn(move || {
                let rows = format!("insert into t (writer) values ({writer});\n").repeat(250);
                lab.shell(&rows).unwrap();
            })
        })
        .collect();
    let mut instances = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (store, trigger) = (lab.other().await, trigger.clone());
        instances.spawn(async move {
            let mut taken = Vec::new();
            let began = std::time::Instant::now();
            while taken.len() < 1000 && began.elapsed() < std::time::Duration::from_secs(60) {
                let held = claim(&store, &wanted(&trigger, 20), LEASE).await;
                let done: Vec<_> = held
                    .iter()
                    .map(|e| finished(e, Verdict::Delivered))
                    .collect();
                assert!(store.finish_events(&done).await.unwrap().is_empty());
                taken.extend(held.iter().map(|e| e.event.change_id));
                if held.is_empty() {
                    // In this order: what is written after the second look is not all.
                    let written: i64 = store
                        .connection()
                        .unwrap()
                        .query_row("select count(*) from t", [], |row| row.get(0))
                        .unwrap();
                    let states = store.trigger_states().await.unwrap();
                    if written == 1000 && states[0].pending == 0 {
                        break;
                    }
                }
            }
            taken
        });
    }
    let mut all: Vec<i64> = instances.join_all().await.concat();
    for writer in writers {
        writer.join().unwrap();
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 1000);
    let log = lab.log().await;
    assert!(log.iter().all(|e| e.tries == 1), "each was attempted once");
}
