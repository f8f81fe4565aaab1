//! Backups that run beside a sweep, and databases that were restored from them.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use changefeed_core::{DEFAULT_START, Feed, Store, SweepGroup};
use changefeed_testkit::backend::{Backend, PostgresBackend, Session, numbers, settle};
use changefeed_testkit::postgres::{empty_database, program};
use changefeed_testkit::{eventually, run};

const GROUP: SweepGroup = SweepGroup(0);
const CHANGES: i64 = 350_000;

/// A database with more committed changes than a segment is allowed to keep, none of which has its
/// number yet, and writers that have gone on to the next segment.
struct Scene {
    backend: Arc<dyn Backend>,
    store: Arc<dyn Store>,
    feed: Feed,
    admin: Box<dyn Session>,
    published: AtomicI64,
}

const SIZE: &str = "select sum(pg_relation_size(c.oid))::bigint from pg_class c \
                    where relnamespace = 'changefeed'::regnamespace and relkind = 'r' \
                    and relname ~ '^inbox_[0-3]$'";
/// Uses up transaction ids until writers have left the segments that are full. Other tests use them
/// up as well, and might have brought the writers round to these segments again.
const LEAVE_FULL_SEGMENTS: &str = "do $$ begin loop \
        for i in 1..2048 loop perform pg_current_xact_id(); commit; end loop; \
        exit when pg_relation_size(format('changefeed.inbox_%s', \
            (pg_snapshot_xmax(pg_current_snapshot())::text::bigint >> 13) & 3)) < 8388608; \
    end loop; end $$";

impl Scene {
    async fn new() -> Scene {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let admin = backend.session().await;
        // Older than ours, so that a dump wants it first.
        admin.run("create table wanted_first (id int)").await;
        let (store, feed) = backend.feed(37, 1).await;
        let publish = backend.words().publish_range(37, 0, 1, CHANGES);
        admin.run(&publish).await;
        admin.run(LEAVE_FULL_SEGMENTS).await;
        Scene {
            backend,
            store,
            feed,
            admin,
            published: AtomicI64::new(CHANGES),
        }
    }

    /// Sweeps everything, and then something in a new session, which also tidies up.
    async fn sweep(&self) {
        settle(&*self.store, GROUP).await;
        let id = self.published.fetch_add(1, Ordering::Relaxed) + 1;
        let publish = self.backend.words().publish(37, 0, id);
        self.admin.run(&publish).await;
        self.admin.run(LEAVE_FULL_SEGMENTS).await;
        let session = self.backend.session().await;
        let swept = "select sum(change_count)::bigint from changefeed.sweep(0)";
        assert_eq!(session.number(swept).await, 1);
    }

    /// All that was committed before the dump's snapshot is in its copy, once.
    async fn assert_restored(&self, restore: impl FnOnce(&str)) {
        let target = empty_database().await;
        restore(target.url());
        let store = changefeed_postgres::PostgresStore::connect(target.url())
            .await
            .unwrap();
        settle(&store, GROUP).await;
        let found = numbers(&store, &self.feed, 0).await;
        let ids: Vec<i64> = found.iter().map(|(_, id)| *id).collect();
        assert!(
            ids.len() >= usize::try_from(CHANGES).unwrap(),
            "{}",
            ids.len()
        );
        assert_eq!(ids, (1..=ids.len() as i64).collect::<Vec<_>>());
        let gapless = (DEFAULT_START + 1..).zip(&found).all(|(n, (m, _))| n == *m);
        assert!(gapless);
    }

    /// Nobody looks back any more: what was kept goes.
    async fn assert_emptied(&self) {
        eventually("the segment is emptied", || async {
            self.sweep().await;
            (self.admin.number(SIZE).await < 8 * 1024 * 1024).then_some(())
        })
        .await;
    }
}

fn pg_dump(url: &str, options: &[&str], to: &Path) -> Child {
    program("pg_dump")
        .args(options)
        .arg("-f")
        .arg(to)
        .args(["-d", url])
        .spawn()
        .unwrap()
}

fn finish(command: &mut Command) {
    let status = command.stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

async fn waits(session: &dyn Session) {
    eventually("pg_dump waits for a lock", || async {
        let waiting = "select count(*) from pg_stat_activity where application_name = 'pg_dump' \
                       and datname = current_database() and wait_event_type = 'Lock'";
        (session.number(waiting).await > 0).then_some(())
    })
    .await;
}

/// A dump takes its snapshot, and only then its locks.
async fn dumped_while_sweeps_run(options: &[&str], restore: impl FnOnce(&str, &Path)) {
    let scene = Scene::new().await;
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("dump");
    let holder = scene.backend.session().await;
    holder
        .run("begin; lock table wanted_first in access exclusive mode")
        .await;
    let mut dump = pg_dump(&scene.backend.url(), options, &to);
    waits(&*scene.admin).await;
    for _ in 0..5 {
        scene.sweep().await;
    }
    holder.run("commit").await;
    let status = tokio::task::spawn_blocking(move || dump.wait().unwrap())
        .await
        .unwrap();
    assert!(status.success());
    scene.assert_restored(|url| restore(url, &to)).await;
    scene.assert_emptied().await;
}

/// 400,000 changes were lost, with exit code 0.
#[test]
fn a_dump_loses_nothing_when_sweeps_run_between_its_snapshot_and_its_locks() {
    run(dumped_while_sweeps_run(&[], |url, from| {
        finish(
            program("psql")
                .args(["-X", "-q", "-d", url, "-f"])
                .arg(from),
        );
    }));
}

#[test]
fn a_parallel_dump_loses_nothing_either() {
    run(dumped_while_sweeps_run(
        &["--format=directory", "--jobs=2"],
        |url, from| finish(program("pg_restore").args(["-d", url]).arg(from)),
    ));
}

/// The session that exported a snapshot keeps it for the dump.
#[test]
fn a_dump_with_an_exported_snapshot_loses_nothing() {
    run(async {
        let scene = Scene::new().await;
        let exporter = scene.backend.session().await;
        exporter.run("begin isolation level repeatable read").await;
        let snapshot = exporter.value("select pg_export_snapshot()").await;
        for _ in 0..5 {
            scene.sweep().await;
        }
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("dump");
        let option = format!("--snapshot={snapshot}");
        let mut dump = pg_dump(&scene.backend.url(), &[&option], &to);
        let status = tokio::task::spawn_blocking(move || dump.wait().unwrap())
            .await
            .unwrap();
        assert!(status.success());
        exporter.run("commit").await;
        scene
            .assert_restored(|url| {
                finish(program("psql").args(["-X", "-q", "-d", url, "-f"]).arg(&to));
            })
            .await;
        scene.assert_emptied().await;
    });
}

/// The owner of the schema is anybody; what the server shows of other sessions must suffice.
#[test]
fn the_oldest_snapshot_is_seen_without_rights() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        backend.installed().await;
        let (admin, reader) = (backend.session().await, backend.session().await);
        let role = format!("cf_nobody_{}", std::process::id());
        admin
            .run(&format!(
                "drop role if exists {role}; create role {role}; \
                 alter function changefeed.oldest_snapshot() owner to {role}"
            ))
            .await;
        reader.run("begin isolation level repeatable read").await;
        let began = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
        let began = reader.number(began).await;
        admin.run("select pg_current_xact_id()").await;
        admin.run("select pg_current_xact_id()").await;
        let oldest = "select changefeed.oldest_snapshot()::text::bigint";
        assert!(admin.number(oldest).await <= began);
        reader.run("commit").await;
        eventually("the old snapshot is gone", || async {
            (admin.number(oldest).await > began).then_some(())
        })
        .await;
        admin
            .run(&format!(
                "reassign owned by {role} to current_user; drop role {role}"
            ))
            .await;
    });
}
