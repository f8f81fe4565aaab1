//! Writers who hide what they do to a ULID transaction.

use changefeed_core::SchemaStore;
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{Backend, PostgresBackend, Session};
use changefeed_testkit::run;
use changefeed_testkit::ulids::FEED;

const COMMIT: &str = "select changefeed.commit_ulid_transaction()";

fn begin() -> String {
    format!("select changefeed.begin_ulid_transaction('{FEED}', 0)")
}

async fn scene(case: impl AsyncFnOnce(&dyn Session, &dyn Session)) {
    let backend = PostgresBackend::fresh().await;
    let store = PostgresStore::connect(&backend.url()).await.unwrap();
    store.migrate().await.unwrap();
    let session = (&backend as &dyn Backend).session().await;
    let other = (&backend as &dyn Backend).session().await;
    case(&*session, &*other).await;
}

/// Runs statements of which the last one must fail with this text.
async fn refused(session: &dyn Session, statements: &[&str], with: &str) {
    let (last, before) = statements.split_last().unwrap();
    for statement in before {
        session.execute(statement).await.unwrap();
    }
    let error = match session.execute(last).await {
        Ok(()) => panic!("not refused: {statements:?}"),
        Err(error) => error.message,
    };
    assert!(error.contains(with), "{statements:?}: {error}");
    session.execute("rollback").await.unwrap();
}

/// The shard is free: somebody else can write to it at once.
async fn goes_on(other: &dyn Session) {
    other.run("set lock_timeout = '10s'").await;
    for statement in ["begin", &begin(), COMMIT, "commit"] {
        other.run(statement).await;
    }
}

/// A prepared transaction would hold the shard with no session to be judged. However the statement is
/// written: the refusal must not depend on its text.
#[test]
fn a_ulid_transaction_cannot_be_prepared_however_it_is_written() {
    run(scene(async |session, other| {
        for prepare in [
            "prepare transaction 'x'",
            "/* c */ prepare transaction 'x'",
            "-- c\nprepare transaction 'x'",
            "prepare/**/transaction 'x'",
            "reset all; prepare transaction 'x'",
            "unlisten *; prepare transaction 'x'",
            "close all; deallocate all; unlisten *; select 1; /* */ prepare transaction 'x'",
            "prepare transaction 'x'",
        ] {
            refused(
                session,
                &["begin", &begin(), COMMIT, prepare],
                "cannot PREPARE a transaction",
            )
            .await;
            goes_on(other).await;
        }
        // In a savepoint, too; and one that was taken back does not count.
        refused(
            session,
            &[
                "begin",
                "savepoint a",
                &begin(),
                COMMIT,
                "release a",
                "prepare transaction 'x'",
            ],
            "cannot PREPARE a transaction",
        )
        .await;
        for statement in [
            "begin",
            "savepoint a",
            &begin(),
            "rollback to a",
            "prepare transaction 'x'",
            "rollback prepared 'x'",
        ] {
            session.execute(statement).await.unwrap();
        }
        goes_on(other).await;
    }));
}

/// Settings are anybody's: whatever is done to them, nothing is committed without its verification, and what it drew is
/// never given again.
#[test]
fn a_commit_is_verified_whatever_is_done_to_settings() {
    run(scene(async |session, other| {
        let moved =
            format!("select max(ulid_low) from changefeed.shard_ulid where feed_id = '{FEED}'");
        let guards = "select count(*) from changefeed.ulid_guard";
        for hiding in [
            "select 1",
            "reset all",
            "set local changefeed.ulid_guard = ''",
            "set local changefeed.ulid_guard = '{}'; set local changefeed.ulid_state = ''",
            "set changefeed.ulid_base = '1'",
            "select set_config('changefeed.ulid_guard', null, false)",
            // One who may disable triggers for the session does not disable this one.
            "set local session_replication_role = replica",
        ] {
            let hint = format!(
                "select changefeed.begin_ulid_transaction('{FEED}', 0, time_hint => '2020-01-01Z')"
            );
            session
                .run(&format!("begin; {hint}; {COMMIT}; commit"))
                .await;
            let before = session.number(&moved).await;
            for statement in [
                "begin",
                &hint,
                "select changefeed.new_ulid()",
                hiding,
                "commit",
            ] {
                session.execute(statement).await.unwrap();
            }
            assert!(session.number(&moved).await > before, "{hiding}");
            session.run("reset all").await;
            // Its lock is burned meanwhile, and that is found at the commit.
            let burn = format!(
                "insert into changefeed.incident (feed_id, shard_id, count) values ('{FEED}', 0, 1) \
                 on conflict (feed_id, shard_id) do update set count = incident.count + 1"
            );
            for statement in ["begin", &begin(), hiding] {
                session.execute(statement).await.unwrap();
            }
            other.run(&burn).await;
            let error = session.execute("commit").await.unwrap_err();
            assert!(
                error.message.contains("its lock was burned"),
                "{hiding}: {error}"
            );
            session.run("reset all").await;
            goes_on(other).await;
        }
        // Somebody who begins a second one, and hides the first.
        let second = format!("select changefeed.begin_ulid_transaction('{FEED}', 1)");
        for statement in ["begin", &begin(), "reset all", &second, COMMIT, "commit"] {
            session.execute(statement).await.unwrap();
        }
        // What says another guard than its own leaves a row behind, which harms nobody.
        assert!(session.number(guards).await < 4);
        goes_on(other).await;
    }));
}

/// A number that was published must not be given again after a crash, also if the session asks for
/// commits that are not waited for when everything is verified.
#[test]
fn a_ulid_commit_is_waited_for_whatever_the_session_sets() {
    run(scene(async |session, other| {
        for (before, after) in [
            ("set synchronous_commit = off", "select 1"),
            ("select 1", "set synchronous_commit = off"),
        ] {
            session.execute("reset synchronous_commit").await.unwrap();
            for statement in [before, "begin", &begin(), after, COMMIT] {
                session.execute(statement).await.unwrap();
            }
            session
                .execute("set constraints all immediate")
                .await
                .unwrap();
            let waited = session
                .value("select current_setting('synchronous_commit')")
                .await;
            assert_eq!(waited, "on");
            session.execute("commit").await.unwrap();
        }
        goes_on(other).await;
    }));
}

/// Nothing is left in the session: it listens to nothing, and what it listened to is still heard.
#[test]
fn a_ulid_transaction_leaves_a_session_as_it_was() {
    run(scene(async |session, _| {
        session.execute("listen mine").await.unwrap();
        for statement in [
            "begin",
            &begin(),
            COMMIT,
            "commit",
            "begin",
            &begin(),
            "rollback",
        ] {
            session.execute(statement).await.unwrap();
        }
        let channels = "select string_agg(c, ',') from pg_listening_channels() c";
        assert_eq!(session.value(channels).await, "mine");
    }));
}
