//! What somebody could do to a ULID transaction on purpose, or by an honest mistake.

use changefeed_testkit::backend::{PostgresSession, Session};
use changefeed_testkit::run;
use changefeed_testkit::ulids::FEED;

use crate::ulids::support::{scene, write};

const COMMIT: &str = "select changefeed.commit_ulid_transaction()";

fn begin() -> String {
    format!("select changefeed.begin_ulid_transaction('{FEED}', 0)")
}

async fn refused(session: &PostgresSession, sql: &str, with: &str) {
    let error = match session.execute(sql).await {
        Ok(()) => panic!("not refused: {sql}"),
        Err(error) => error.message,
    };
    assert!(error.contains(with), "{sql}: {error}");
}

/// Settings are anybody's. Believed, they could turn the shard's state back, and every innocent
/// writer after that would publish behind the readers' cursors.
#[test]
fn forged_settings_do_not_turn_a_shard_back() {
    run(async {
        let scene = scene().await;
        write(&scene.store, "before").await;
        let session = scene.session().await;
        for statement in [
            "begin",
            &begin(),
            "select set_config('changefeed.ulid_high', '0000000000000000', true), \
             set_config('changefeed.ulid_low', '0', true), \
             set_config('changefeed.ulid_state', 'verified', true)",
            COMMIT,
            "commit",
        ] {
            session.execute(statement).await.unwrap();
        }
        write(&scene.store, "after").await;
        let order = scene
            .admin
            .query("select string_agg(note, ',' order by ulid) from event")
            .await
            .unwrap();
        assert_eq!(order[0][0].as_deref(), Some("before,after"));
    });
}

/// Any other number would be a ULID behind the cursor of a reader.
#[test]
fn ulid_sequence_takes_nothing_but_its_sequence() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        for value in ["1", "null", "9223372036854775807", "-9223372036854775808"] {
            session.execute("begin").await.unwrap();
            session.execute(&begin()).await.unwrap();
            let sql = format!("select changefeed.ulid_sequence({value})");
            refused(&session, &sql, "takes nextval('changefeed.sequence')").await;
            session.execute("rollback").await.unwrap();
        }
    });
}

/// Nulls and nonsense are named, and burn nobody.
#[test]
fn nulls_and_nonsense_are_refused() {
    run(async {
        let scene = scene().await;
        let (holder, session) = (scene.session().await, scene.session().await);
        holder.execute("begin").await.unwrap();
        holder.execute(&begin()).await.unwrap();
        for timeout in ["null", "0", "-1"] {
            let report = format!("select changefeed.report_incident('{FEED}', 0, {timeout})");
            refused(&session, &report, "at least 10 ms").await;
        }
        for (feed, shard) in [("null", "0"), (&*format!("'{FEED}'"), "null")] {
            let begin = format!("select changefeed.begin_ulid_transaction({feed}, {shard})");
            refused(&session, &begin, "needs a feed and a shard").await;
        }
        holder.execute(COMMIT).await.unwrap();
        holder.execute("commit").await.unwrap();
    });
}
