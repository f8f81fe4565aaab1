//! A checker that cannot fail proves nothing: the reader that everybody writes first, `where id >
//! last`, is shown to it, on a real database, in the order of events that loses a change.

use std::collections::BTreeMap;
use std::sync::Arc;

use changefeed_core::ShardId;
use changefeed_testkit::backend::{Backend, PostgresBackend, Session};
use changefeed_testkit::history::{Following, PageRead, Recorder, Violation, check};
use changefeed_testkit::run;

const SHARD: (i16, i16) = (37, 0);

/// `select id from event where id > last`, as a reader that keeps `last` for itself.
async fn naive_page(session: &dyn Session, recorder: &Recorder, last: i64) -> i64 {
    let rows = session
        .query(&format!(
            "select id from event where id > {last} order by id limit 10"
        ))
        .await
        .unwrap();
    let changes: Vec<(i64, i64)> = rows
        .iter()
        .map(|row| row[0].as_ref().unwrap().parse().unwrap())
        .map(|id| (id, id))
        .collect();
    let next = changes.last().map_or(last, |(id, _)| *id);
    recorder.page(PageRead {
        reader: "naive".to_owned(),
        shard: SHARD,
        after: Some(last),
        limit: 10,
        changes,
        next,
    });
    next
}

/// A takes its id; B takes the next and commits; the reader reads; A commits; the reader reads
/// on. A's change is behind the reader for ever, and the checker says so.
#[test]
fn the_naive_reader_is_rejected_by_the_checker() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let (a, b, reader) = (
            backend.session().await,
            backend.session().await,
            backend.session().await,
        );
        a.run("create table event (id bigint generated always as identity primary key)")
            .await;
        let recorder = Recorder::new(BTreeMap::new());
        let insert = "insert into event default values returning id";

        let mut a_writes = recorder.begin("a");
        a.run("begin").await;
        let first = a.number(insert).await;
        a_writes.change(SHARD, first);

        let mut b_writes = recorder.begin("b");
        b.run("begin").await;
        let second = b.number(insert).await;
        b_writes.change(SHARD, second);
        b.run("commit").await;
        b_writes.committed();

        let last = naive_page(&*reader, &recorder, 0).await;
        a.run("commit").await;
        a_writes.committed();
        naive_page(&*reader, &recorder, last).await;
        recorder.finished("naive", SHARD);
        recorder.table(SHARD, vec![(first, first), (second, second)]);

        assert_eq!(
            check(&recorder.history()),
            [Violation::Skipped {
                reader: "naive".to_owned(),
                shard: SHARD,
                number: first,
                change_id: first,
            }]
        );
    });
}

/// The same order of events through a feed passes.
#[test]
fn our_reader_in_the_same_race_is_accepted() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let (store, feed) = backend.feed(37, 1).await;
        let words = backend.words();
        let (a, b) = (backend.session().await, backend.session().await);
        let recorder = Recorder::new(BTreeMap::from([(SHARD, 2_000_000_000_000_000)]));
        let mut reader = Following::new(&recorder, "ours", &feed, ShardId(0));

        let mut a_writes = recorder.begin("a");
        a.run("begin").await;
        let first = a.number(words.draw_change_id).await;
        a.run(&words.publish(37, 0, first)).await;
        a_writes.change(SHARD, first);

        let mut b_writes = recorder.begin("b");
        b.run("begin").await;
        let second = b.number(words.draw_change_id).await;
        b.run(&words.publish(37, 0, second)).await;
        b_writes.change(SHARD, second);
        b.run("commit").await;
        b_writes.committed();

        backend.settle(&*store).await;
        assert_eq!(reader.step(&*store, 10).await.unwrap(), 1);
        a.run("commit").await;
        a_writes.committed();
        backend.settle(&*store).await;
        reader.finish(&*store).await.unwrap();
        let table = changefeed_testkit::backend::numbers(&*store, &feed, 0).await;
        assert_eq!(
            table.iter().map(|(_, id)| *id).collect::<Vec<_>>(),
            [second, first]
        );
        recorder.table(SHARD, table);
        assert_eq!(check(&recorder.history()), []);
    });
}
