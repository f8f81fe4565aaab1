//! The Rust client: every way a transaction ends, isolation levels, waits and hints.

use std::time::{Duration, Instant};

use changefeed_core::{Kind, UlidOptions};
use changefeed_postgres::PostgresStore;
use changefeed_postgres::tokio_postgres::IsolationLevel;
use changefeed_testkit::backend::{Backend, Session};
use changefeed_testkit::postgres::as_role;
use changefeed_testkit::run;
use changefeed_testkit::ulids::FEED;

use crate::ulids::support::{Scene, insert, options, patience, scene, write};

const LEVELS: [IsolationLevel; 3] = [
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];

/// Another client gets the shard at once, and no session is left with a transaction or a lock.
async fn free_at_once(scene: &Scene, after: &str) {
    let other = scene.other_store().await;
    let began = Instant::now();
    write(&other, after).await;
    let waited = began.elapsed();
    assert!(
        waited < Duration::from_millis(900),
        "after {after}: {waited:?}"
    );
    scene.unlocked().await;
    changefeed_testkit::eventually(&format!("no open transaction after {after}"), || async {
        let open = scene
            .admin
            .number(
                "select count(*) from pg_stat_activity where datname = current_database() \
                 and pid <> pg_backend_pid() and (xact_start is not null or state <> 'idle')",
            )
            .await;
        (open == 0).then_some(())
    })
    .await;
}

/// By commit, rollback, drop, error, panic, cancellation.
#[test]
fn the_lock_is_freed_however_a_transaction_ends() {
    run(async {
        let scene = scene().await;
        for level in LEVELS {
            let begin = async || {
                scene
                    .store
                    .begin_ulid_with(&options(), level)
                    .await
                    .unwrap()
            };
            let mut transaction = begin().await;
            insert(&mut transaction, "committed").await;
            transaction.commit().await.unwrap();
            free_at_once(&scene, "commit").await;

            let mut transaction = begin().await;
            insert(&mut transaction, "no").await;
            transaction.rollback().await.unwrap();
            free_at_once(&scene, "rollback").await;

            let mut transaction = begin().await;
            insert(&mut transaction, "no").await;
            drop(transaction);
            free_at_once(&scene, "drop").await;

            // An error of the application's SQL, then each way to end.
            for end in ["commit", "rollback", "drop"] {
                let mut transaction = begin().await;
                insert(&mut transaction, "no").await;
                transaction.batch_execute("select 1/0").await.unwrap_err();
                match end {
                    "commit" => {
                        transaction.commit().await.unwrap_err();
                    }
                    "rollback" => transaction.rollback().await.unwrap(),
                    _ => drop(transaction),
                }
                free_at_once(&scene, &format!("error and {end}")).await;
            }

            // A commit that the database refuses.
            scene
                .admin
                .run("create table if not exists strict (n int unique deferrable initially deferred)")
                .await;
            let transaction = begin().await;
            transaction
                .batch_execute("insert into strict values (1), (1)")
                .await
                .unwrap();
            let error = transaction.commit().await.unwrap_err();
            assert_eq!(error.kind(), Kind::Database, "{error}");
            free_at_once(&scene, "refused commit").await;

            // A commit or rollback behind our back.
            let mut transaction = begin().await;
            insert(&mut transaction, "committed").await;
            // That is verified, too.
            transaction.batch_execute("commit").await.unwrap();
            let error = transaction.commit().await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{error}");
            free_at_once(&scene, "raw commit").await;

            let mut transaction = begin().await;
            insert(&mut transaction, "no").await;
            let store = scene.store.clone();
            let panicked = tokio::spawn(async move {
                let _kept = (store, transaction);
                panic!("on purpose");
            });
            assert!(panicked.await.unwrap_err().is_panic());
            free_at_once(&scene, "panic").await;

            // Cancelled while a statement runs.
            let transaction = begin().await;
            let slow = transaction.batch_execute("select pg_sleep(0.3)");
            let cut = tokio::time::timeout(Duration::from_millis(20), slow).await;
            assert!(cut.is_err());
            drop(transaction);
            free_at_once(&scene, "cancellation").await;

            // The session dies under it.
            let transaction = begin().await;
            transaction
                .batch_execute("select pg_terminate_backend(pg_backend_pid())")
                .await
                .unwrap_err();
            transaction.commit().await.unwrap_err();
            free_at_once(&scene, "the death of its session").await;
        }
        let notes = scene.notes().await;
        assert!(!notes.iter().any(|note| note == "no"), "{notes:?}");
        assert_eq!(notes.iter().filter(|n| *n == "committed").count(), 6);
        assert_eq!(scene.incidents().await, 0);
    });
}

/// Cancelled while it queues: it must not take the lock for nobody.
#[test]
fn a_begin_that_is_given_up_holds_nobody_up() {
    run(async {
        let scene = scene().await;
        for level in LEVELS {
            let other = scene.other_store().await;
            let mut holder = scene.store.begin_ulid(&options()).await.unwrap();
            let asked = options();
            let begin = other.begin_ulid_with(&asked, level);
            let given_up = tokio::time::timeout(Duration::from_millis(50), begin).await;
            assert!(given_up.is_err());
            insert(&mut holder, "held").await;
            holder.commit().await.unwrap();
            let began = Instant::now();
            write(&scene.store, "next").await;
            assert!(began.elapsed() < Duration::from_millis(900));
            scene.unlocked().await;
        }
        assert_eq!(scene.incidents().await, 0);
    });
}

/// Connections that come back to the pool are used again, and are as good as new.
#[test]
fn connections_are_used_again() {
    run(async {
        let scene = scene().await;
        for level in LEVELS {
            for n in 0..20 {
                let mut transaction = scene
                    .store
                    .begin_ulid_with(&options(), level)
                    .await
                    .unwrap();
                insert(&mut transaction, "x").await;
                if n % 2 == 0 {
                    transaction.commit().await.unwrap();
                } else {
                    transaction.rollback().await.unwrap();
                }
            }
        }
        assert_eq!(scene.notes().await.len(), 30);
        let open = scene
            .admin
            .number(
                "select count(*) from pg_stat_activity where datname = current_database() \
                 and pid <> pg_backend_pid()",
            )
            .await;
        assert!(open <= 3, "{open} connections for one writer at a time");
    });
}

/// Each sees what the one before has committed; nobody gets "could not serialize".
#[test]
fn writers_with_a_snapshot_see_fresh_state() {
    run(async {
        let scene = scene().await;
        scene
            .admin
            .run("create table total (n int); insert into total values (0)")
            .await;
        for level in &LEVELS[1..] {
            scene.admin.run("update total set n = 0").await;
            let mut writers = tokio::task::JoinSet::new();
            for writer in 0..8 {
                let (store, level) = (scene.store.clone(), *level);
                writers.spawn(async move {
                    for n in 0..5 {
                        let mut transaction =
                            store.begin_ulid_with(&options(), level).await.unwrap();
                        insert(&mut transaction, &format!("{writer} {n}")).await;
                        // The sum of all that came before.
                        let row = transaction
                            .query_one("update total set n = n + 1 returning n", &[])
                            .await
                            .unwrap();
                        assert!(row.get::<_, i32>(0) > 0);
                        transaction.commit().await.unwrap();
                    }
                });
            }
            writers.join_all().await;
            assert_eq!(scene.admin.number("select n from total").await, 40);
        }
        // Two in sequence while the second waits for the first.
        let level = IsolationLevel::RepeatableRead;
        let mut first = scene
            .store
            .begin_ulid_with(&options(), level)
            .await
            .unwrap();
        let store = scene.store.clone();
        let second = tokio::spawn(async move {
            let transaction = store.begin_ulid_with(&options(), level).await.unwrap();
            let row = transaction
                .query_one("select count(*) from event where note = 'first'", &[])
                .await
                .unwrap();
            transaction.commit().await.unwrap();
            row.get::<_, i64>(0)
        });
        scene.queued(1).await;
        insert(&mut first, "first").await;
        first.commit().await.unwrap();
        assert_eq!(second.await.unwrap(), 1, "a snapshot older than the lock");
        assert_eq!(scene.incidents().await, 0);
        scene.unlocked().await;
    });
}

/// The client goes on by itself.
#[test]
fn begin_goes_on_after_an_incident() {
    run(async {
        let scene = scene().await;
        for (round, level) in LEVELS.into_iter().enumerate() {
            let silent = scene.session().await;
            silent
                .execute(&format!(
                    "begin; select changefeed.begin_ulid_transaction('{FEED}', 0, 60000)"
                ))
                .await
                .unwrap();
            let quick = patience(Duration::from_millis(300));
            let began = Instant::now();
            let mut transaction = scene.store.begin_ulid_with(&quick, level).await.unwrap();
            assert!(began.elapsed() >= Duration::from_millis(250));
            insert(&mut transaction, "living").await;
            transaction.commit().await.unwrap();
            let count = i64::try_from(round).unwrap() + 1;
            assert_eq!(scene.incidents().await, count);
            let dead = silent
                .execute("select changefeed.commit_ulid_transaction()")
                .await
                .unwrap_err();
            assert!(dead.message.starts_with("CF003: "), "{dead}");
        }
    });
}

/// Busy, with the sentence of the server.
#[test]
fn a_wait_that_runs_out_is_busy() {
    run(async {
        let scene = scene().await;
        let holder = scene.store.begin_ulid(&options()).await.unwrap();
        for level in LEVELS {
            let other = scene.other_store().await;
            let asked = UlidOptions {
                wait: Duration::from_millis(100),
                ..options()
            };
            let began = Instant::now();
            let error = other.begin_ulid_with(&asked, level).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Busy);
            let said = error.to_string();
            assert!(
                said.starts_with(&format!(
                    "changefeed: feed {FEED} shard 0 is busy: others held it for "
                )),
                "{said}"
            );
            assert!(began.elapsed() >= Duration::from_millis(90));
            assert!(began.elapsed() < Duration::from_millis(900));
        }
        holder.rollback().await.unwrap();
        // To wait for ever is possible.
        for wait in [Duration::MAX, Duration::ZERO] {
            let asked = UlidOptions {
                wait,
                timeout: Duration::from_secs(86400 * 30),
                ..options()
            };
            let transaction = scene.store.begin_ulid(&asked).await.unwrap();
            transaction.rollback().await.unwrap();
        }
        let asked = patience(Duration::from_millis(9));
        let error = scene.store.begin_ulid(&asked).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert_eq!(scene.incidents().await, 0);
    });
}

/// ULIDs counted by the client and by the server in one transaction, and many at once.
#[test]
fn client_and_server_count_together() {
    run(async {
        let scene = scene().await;
        let mut transaction = scene.store.begin_ulid(&options()).await.unwrap();
        let first = transaction.next_ulid().unwrap();
        let row = transaction
            .query_one("select changefeed.new_ulid()", &[])
            .await
            .unwrap();
        let by_server: Vec<u8> = row.get(0);
        let second = transaction.next_ulid().unwrap();
        let many: Vec<_> = transaction.ulids(1_000_000).unwrap().collect();
        assert!(first < second && second < many[0]);
        assert!(many.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(many[999_999].to_bytes().as_slice() < by_server.as_slice());
        assert_eq!(many[999_999].time(), transaction.time());
        transaction.commit().await.unwrap();
        let next = write(&scene.store, "next").await;
        assert!(next.to_bytes().as_slice() > by_server.as_slice());
    });
}

/// Whoever may not see our functions is told which grant is missing.
#[test]
fn a_database_without_our_schema_names_the_command() {
    run(async {
        let backend = changefeed_testkit::backend::PostgresBackend::fresh().await;
        let store = PostgresStore::connect(&backend.url()).await.unwrap();
        let error = store.begin_ulid(&options()).await.unwrap_err();
        assert!(
            error
                .advice()
                .is_some_and(|a| a.contains("changefeed migrate")),
            "{error:?}"
        );
    });
}

/// What a role needs that writes through this library.
#[test]
fn a_role_with_the_documented_grants_can_write() {
    run(async {
        let scene = scene().await;
        let role = format!("cf_ulid_rust_{:08x}", std::process::id());
        scene
            .admin
            .run(&format!(
                "drop role if exists {role}; create role {role} login password 'secret'; \
                 grant insert on event to {role}; grant usage on schema changefeed to {role}; \
                 grant select on changefeed.schema_version to {role}; \
                 grant execute on function \
                   changefeed.ulid_begin, changefeed.ulid_add, changefeed.ulid_shards, \
                   changefeed.ulid_lock_session, changefeed.ulid_begin_locked, \
                   changefeed.commit_ulid_transaction, \
                   changefeed.report_incident(uuid, integer, integer) to {role}"
            ))
            .await;
        let store = PostgresStore::connect(&as_role(&scene.backend.url(), &role, "secret"))
            .await
            .unwrap();
        for level in LEVELS {
            let silent = scene.session().await;
            silent
                .execute(&format!(
                    "begin; select changefeed.begin_ulid_transaction('{FEED}', 0, 60000)"
                ))
                .await
                .unwrap();
            let quick = patience(Duration::from_millis(100));
            let mut transaction = store.begin_ulid_with(&quick, level).await.unwrap();
            insert(&mut transaction, "x").await;
            transaction.commit().await.unwrap();
        }
        let mut transaction = store.begin_ulid(&options()).await.unwrap();
        let wait = Duration::from_secs(5);
        transaction.add(FEED, 1, wait).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(scene.notes().await.len(), 3);
        assert_eq!(scene.incidents().await, 3);
        drop(store);
        scene
            .admin
            .run(&format!("drop owned by {role}; drop role {role}"))
            .await;
    });
}
