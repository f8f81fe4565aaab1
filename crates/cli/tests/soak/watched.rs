//! Promise 10: a table that is written to all the time, and a watch whose function is a webhook.
//!
//! An instance that was frozen may send late what another has sent long since, so the order of
//! requests alone proves nothing. What is proved: the last state of every row was handed over, and
//! for a row that is gone a deletion, after it was deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use changefeed::{ParkedRows, Store, Watch};
use changefeed_testkit::backend::{Backend, Session};
use changefeed_testkit::receiver::Reply;
use fastrand::Rng;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::receiving::Receiving;
use crate::{PACE, patiently};

pub(crate) struct Watched {
    watch: Watch,
    stop: Arc<AtomicBool>,
    writer: JoinHandle<(u64, BTreeMap<i64, Instant>)>,
}

pub(crate) struct Written {
    watch: Watch,
    pub(crate) writes: u64,
    /// Since when a row may be gone: before the first deletion that was sent after the last write
    /// that is known to be committed.
    gone_since: BTreeMap<i64, Instant>,
}

impl Watched {
    pub(crate) async fn start(
        backend: &Arc<dyn Backend>,
        store: &dyn Store,
        receiving: &Receiving,
        seed: u64,
    ) -> Self {
        let session = backend.session().await;
        session
            .run("create table shelf (id integer primary key, note text)")
            .await;
        let created = Command::new(env!("CARGO_BIN_EXE_changefeed"))
            .args(["--db", &backend.url(), "watch", "create", "w"])
            .args(["--table", "shelf", "--webhook", &receiving.rows.url("/w")])
            .args(["--batch", "10", "--lease", "4s", "--attempts", "20"])
            .output()
            .unwrap();
        assert!(created.status.success(), "{created:?}");
        let watches = store.watches().await.unwrap();
        let watch = watches.into_iter().find(|w| w.name.as_str() == "w");
        let stop = Arc::new(AtomicBool::new(false));
        let rng = Rng::with_seed(seed ^ 0x5e1f);
        let writer = tokio::spawn(write(Arc::clone(backend), Arc::clone(&stop), rng));
        Watched {
            watch: watch.unwrap(),
            stop,
            writer,
        }
    }

    pub(crate) async fn stop(self) -> Written {
        self.stop.store(true, Ordering::SeqCst);
        let (writes, gone_since) = self.writer.await.unwrap();
        Written {
            watch: self.watch,
            writes,
            gone_since,
        }
    }
}

/// One session at a time, so that the notes of a row increase. Every note is another.
async fn write(
    backend: Arc<dyn Backend>,
    stop: Arc<AtomicBool>,
    mut rng: Rng,
) -> (u64, BTreeMap<i64, Instant>) {
    let mut writes = 0;
    let mut gone_since = BTreeMap::new();
    let mut session: Option<Box<dyn Session>> = None;
    while !stop.load(Ordering::SeqCst) {
        tokio::time::sleep(PACE.mul_f64(2.0 * rng.f64())).await;
        let usable = match session.take() {
            Some(session) => session,
            None => match backend.try_session().await {
                Ok(session) => session,
                Err(_) => continue,
            },
        };
        let id = rng.i64(0..200);
        writes += 1;
        let delete = rng.u8(..4) == 0;
        let sql = if delete {
            gone_since.entry(id).or_insert_with(Instant::now);
            format!("delete from shelf where id = {id}")
        } else {
            format!(
                "insert into shelf values ({id}, '{writes}') \
                 on conflict (id) do update set note = excluded.note"
            )
        };
        match usable.execute(&sql).await {
            Ok(()) => {
                if !delete {
                    gone_since.remove(&id);
                }
                session = Some(usable);
            }
            // SQLite's writers wait for each other, and not for ever: nothing was written then.
            Err(error) if error.message.contains("database is locked") => session = Some(usable),
            Err(error) => assert!(error.connection_lost, "a write failed: {error}"),
        }
    }
    (writes, gone_since)
}

impl Written {
    /// Returns how many changes were handed over.
    pub(crate) async fn judge(
        &self,
        store: &dyn Store,
        session: &dyn Session,
        receiving: &Receiving,
    ) -> usize {
        // What was tried too often is parked, and can be tried again.
        patiently("every changed row is processed", async || {
            let Ok(status) = store.watch_status(&self.watch, 0).await else {
                return false;
            };
            if status.unprocessed == 0 && status.parked > 0 {
                store
                    .retry_parked(&self.watch, ParkedRows::All)
                    .await
                    .unwrap();
                return false;
            }
            status.unprocessed == 0
        })
        .await;
        let mut handed = HandedOver::default();
        for request in receiving.rows.requests() {
            let accepted = matches!(
                request.reply,
                Reply::Accept | Reply::AcceptAndClose | Reply::Hang
            );
            if request.complete && accepted {
                handed.note(&request.body, request.arrived);
            }
        }
        let rows = session.query("select id, note from shelf").await.unwrap();
        let table = rows
            .into_iter()
            .map(|row| {
                (
                    row[0].as_deref().unwrap().parse().unwrap(),
                    row[1].clone().unwrap(),
                )
            })
            .collect();
        let missing = handed.missing(&table, &self.gone_since);
        assert!(missing.is_empty(), "{missing:#?}");
        assert!(handed.changes > 0, "nothing was handed over");
        handed.changes
    }
}

/// What the function was given and accepted.
#[derive(Debug, Default)]
struct HandedOver {
    changes: usize,
    /// Every state of a row.
    notes: BTreeSet<(i64, String)>,
    /// The last deletion of a row.
    deletions: BTreeMap<i64, Instant>,
}

impl HandedOver {
    fn note(&mut self, body: &[u8], arrived: Instant) {
        let batch: Vec<Value> = serde_json::from_slice(body).unwrap();
        self.changes += batch.len();
        for change in batch {
            let id = change["Item"]["id"].as_i64().unwrap();
            if change["Operation"] == 2 {
                let last = self.deletions.entry(id).or_insert(arrived);
                *last = arrived.max(*last);
            } else {
                let note = change["Item"]["note"].as_str().unwrap();
                self.notes.insert((id, note.to_owned()));
            }
        }
    }

    /// Net changes that were not handed over, in words.
    fn missing(
        &self,
        table: &BTreeMap<i64, String>,
        gone_since: &BTreeMap<i64, Instant>,
    ) -> Vec<String> {
        let mut missing = Vec::new();
        for (id, note) in table {
            if !self.notes.contains(&(*id, note.clone())) {
                missing.push(format!("row {id} with note {note}"));
            }
        }
        // A row that was never handed over need not be told to be gone.
        let known: BTreeSet<i64> = self.notes.iter().map(|(id, _)| *id).collect();
        for id in known.iter().filter(|id| !table.contains_key(id)) {
            match (gone_since.get(id), self.deletions.get(id)) {
                (None, _) => missing.push(format!("row {id} is gone, and nobody deleted it")),
                (Some(since), Some(last)) if last >= since => {}
                _ => missing.push(format!("the deletion of row {id}")),
            }
        }
        missing
    }
}

#[test]
fn the_judge_of_watches_knows_right_from_wrong() {
    let early = Instant::now();
    let late = early + std::time::Duration::from_secs(1);
    let mut handed = HandedOver::default();
    handed.note(
        br#"[{"Operation":0,"Item":{"id":1,"note":"a"}},{"Operation":1,"Item":{"id":2,"note":"b"}}]"#,
        early,
    );
    handed.note(br#"[{"Operation":2,"Item":{"id":2}}]"#, early);
    let table = |rows: &[(i64, &str)]| -> BTreeMap<i64, String> {
        rows.iter().map(|(id, n)| (*id, (*n).to_owned())).collect()
    };
    let found = |rows: &[(i64, &str)], gone: &[(i64, Instant)]| {
        handed.missing(&table(rows), &gone.iter().copied().collect())
    };
    assert!(found(&[(1, "a")], &[(2, early)]).is_empty());
    assert_eq!(
        found(&[(1, "b")], &[(2, early)]),
        ["row 1 with note b"],
        "a later state"
    );
    assert_eq!(found(&[(1, "a"), (3, "c")], &[(2, early)]).len(), 1);
    assert_eq!(
        found(&[(1, "a")], &[(2, late)]),
        ["the deletion of row 2"],
        "an earlier deletion is not this one"
    );
    assert_eq!(
        found(&[], &[(1, early), (2, early)]),
        ["the deletion of row 1"]
    );
    assert_eq!(found(&[(1, "a")], &[]).len(), 1);
}
