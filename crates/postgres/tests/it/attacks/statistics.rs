//! Statistics that lie: a page takes milliseconds whatever the planner believes.

use std::time::{Duration, Instant};

use changefeed_core::{After, ShardId};
use changefeed_testkit::run;

use crate::attacks::reading::Scene;

const ROWS: i64 = 200_000;

/// Generous, because machines are loaded: what was found took 12 seconds a page.
const LONGEST: Duration = Duration::from_secs(2);

#[test]
fn a_page_after_a_bulk_load_takes_no_longer() {
    run(async {
        let scene = Scene::new(
            "create table t (id integer primary key, v text); \
             alter table t set (autovacuum_enabled = off); \
             alter table changefeed.change_row set (autovacuum_enabled = off); \
             alter table changefeed.numbered set (autovacuum_enabled = off); \
             analyze t, changefeed.change_row, changefeed.numbered",
        )
        .await;
        let feed = scene.captured("t").await;
        scene.session.run("insert into t values (0, 'first')").await;
        scene.sweep().await;
        let store = &scene.store;
        // Whatever is kept about these statements is made now, on empty tables.
        for _ in 0..20 {
            store
                .read(&feed, ShardId(0), After::First, 1000)
                .await
                .unwrap();
        }
        scene
            .session
            .run(&format!(
                "insert into t select g, 'row ' || g from generate_series(1, {ROWS}) g"
            ))
            .await;
        scene.sweep().await;
        let lies = [
            "select 1",
            "update pg_class set reltuples = 0, relpages = 1 \
             where oid in ('t'::regclass, 'changefeed.change_row'::regclass, 'changefeed.numbered'::regclass)",
            "update pg_class set reltuples = 1e12, relpages = 1000000 \
             where oid in ('t'::regclass, 'changefeed.change_row'::regclass, 'changefeed.numbered'::regclass)",
        ];
        for lie in lies {
            scene.session.run(lie).await;
            let end = store.shard_states(&feed).await.unwrap()[0].last;
            let middle = changefeed_core::Cursor::Number(end.number().unwrap() - ROWS / 2);
            for after in [After::First, After::Cursor(middle)] {
                let began = Instant::now();
                let page = store.read(&feed, ShardId(0), after, 1000).await.unwrap();
                assert_eq!(page.changes.len(), 1000);
                assert!(page.more);
                assert!(
                    began.elapsed() < LONGEST,
                    "{:?} after {lie}",
                    began.elapsed()
                );
            }
        }
    });
}
