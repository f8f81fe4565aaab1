//! What roles need to write in ULID transactions, and what the owner of the schema needs.

use std::time::{Duration, Instant};

use changefeed_core::{SchemaStore, TriggerStore, UlidStore};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{Backend, PostgresBackend, PostgresSession, Session};
use changefeed_testkit::postgres::as_role;
use changefeed_testkit::run;
use changefeed_testkit::ulids::FEED;

use super::{COMMIT, begin, refused, row, run_all};
use crate::ulids::support::scene;

/// The grants of docs/postgres.md are enough, and each is needed.
#[test]
fn a_role_with_the_documented_grants_can_write_and_no_more() {
    run(async {
        let scene = scene().await;
        let role = format!("cf_ulid_{:08x}", std::process::id());
        let grants = [
            "usage on schema changefeed",
            "usage on sequence changefeed.sequence",
            "execute on function changefeed.begin_ulid_transaction(uuid, integer, integer, \
             timestamptz, integer)",
            "execute on function changefeed.new_ulid",
            "execute on function changefeed.ulid_sequence",
            "execute on function changefeed.ulid_misuse(text)",
            "execute on function changefeed.commit_ulid_transaction()",
            "execute on function changefeed.report_incident(uuid, integer, integer)",
        ];
        scene
            .admin
            .run(&format!(
                "drop role if exists {role}; create role {role} login password 'secret'; \
                 grant insert on event to {role}"
            ))
            .await;
        for grant in grants {
            scene.admin.run(&format!("grant {grant} to {role}")).await;
        }
        let url = as_role(&scene.backend.url(), &role, "secret");
        let session = PostgresSession::connect(&url).await.unwrap();
        let everything = format!(
            "begin; {}; {}; insert into event values (0, \
             changefeed.ulid_sequence(nextval('changefeed.sequence')), 'b'); {COMMIT}; commit; \
             select changefeed.report_incident('{FEED}', 0)",
            begin(0),
            row("a")
        );
        run_all(&session, &[&everything]).await;
        assert_eq!(scene.notes().await, ["a", "b"]);
        // What is raised for it is ours, not "permission denied".
        for misuse in [COMMIT, "select changefeed.new_ulid()"] {
            let answer = refused(&session, misuse).await;
            assert!(answer.starts_with("CF004: "), "{answer}");
        }
        for forbidden in [
            "select * from changefeed.shard_ulid",
            "update changefeed.incident set count = 0",
            "delete from changefeed.ulid_guard",
            "select changefeed.ulid_take(gen_random_uuid(), 0, 1000, 0, true, false)",
        ] {
            let answer = refused(&session, forbidden).await;
            assert!(answer.starts_with("42501: "), "{forbidden}: {answer}");
        }
        for grant in grants {
            scene
                .admin
                .run(&format!("revoke {grant} from {role}"))
                .await;
            let answers = [
                session.execute(&everything).await,
                session.execute("rollback").await,
                session.execute("select changefeed.new_ulid()").await,
            ];
            assert!(
                answers
                    .iter()
                    .any(|a| matches!(a, Err(e) if e.message.starts_with("42501: "))),
                "not needed: {grant}"
            );
            scene.admin.run(&format!("grant {grant} to {role}")).await;
        }
        drop(session);
        scene
            .admin
            .run(&format!("drop owned by {role}; drop role {role}"))
            .await;
    });
}

/// What docs/ulids.md says of the owner of the schema: without the right to see the sessions of
/// the writers nobody is judged dead, and the server ends the silent one later.
#[test]
fn the_owner_must_see_the_sessions_of_writers() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let admin = (&backend as &dyn Backend).session().await;
        let owner = format!("cf_ulid_owner_{:08x}", std::process::id());
        let writer = format!("cf_ulid_writer_{:08x}", std::process::id());
        let database = backend.database().name();
        admin
            .run(&format!(
                "drop role if exists {owner}; drop role if exists {writer}; \
                 create role {owner} login password 'o'; create role {writer} login password 'w'; \
                 grant create on database {database} to {owner}"
            ))
            .await;
        let store = PostgresStore::connect(&as_role(&backend.url(), &owner, "o"))
            .await
            .unwrap();
        store.migrate().await.unwrap();
        admin
            .run(&format!(
                "grant usage on schema changefeed to {writer}; \
                 grant execute on all functions in schema changefeed to {writer}"
            ))
            .await;
        let url = as_role(&backend.url(), &writer, "w");
        let begin = format!("begin; select changefeed.begin_ulid_transaction('{FEED}', 0, 300)");
        let count = async || {
            store
                .incidents()
                .await
                .unwrap()
                .iter()
                .map(|i| i.count)
                .sum()
        };
        let mut expected: i64 = 0;
        for seen in [false, true] {
            if seen {
                admin
                    .run(&format!("grant pg_read_all_stats to {owner}"))
                    .await;
                expected += 1;
            }
            let silent = PostgresSession::connect(&url).await.unwrap();
            silent.execute(&begin).await.unwrap();
            let waiter = PostgresSession::connect(&url).await.unwrap();
            let began = Instant::now();
            let waited = waiter.execute(&begin).await;
            let _ = waiter.execute("rollback").await;
            let report = format!("select changefeed.report_incident('{FEED}', 0, 300)");
            waiter.query(&report).await.unwrap();
            if seen {
                let error = waited.unwrap_err();
                assert!(error.message.starts_with("CF001: "), "{error}");
            } else {
                waited.unwrap();
                assert!(began.elapsed() >= Duration::from_millis(800), "ended early");
            }
            assert!(began.elapsed() < Duration::from_secs(5));
            let now: i64 = count().await;
            assert_eq!(now, expected, "{seen}");
            // The doctor says so, and names the grant, as soon as there were such transactions.
            let commit = format!("{begin}; {COMMIT}; commit");
            waiter
                .execute(&commit.replace("0, 300", "1, 300"))
                .await
                .unwrap();
            let said = store.capture_findings().await.unwrap();
            let advice = format!("grant pg_read_all_stats to {owner}");
            let found: Vec<_> = said
                .iter()
                .filter(|f| f.advice.as_ref() == Some(&advice))
                .collect();
            assert_eq!(found.len(), usize::from(!seen), "{found:?}");
            assert!(found.iter().all(|f| f.message.contains(&writer)));
        }
        drop(store);
        admin
            .run(&format!(
                "drop schema changefeed cascade; drop owned by {owner}; drop owned by {writer}; \
                 drop role {owner}; drop role {writer}"
            ))
            .await;
    });
}
