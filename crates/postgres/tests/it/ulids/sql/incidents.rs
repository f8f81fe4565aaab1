//! Writers who are silent, late or too patient, told by the pure SQL interface.

use std::time::{Duration, Instant};

use changefeed_testkit::backend::{PostgresSession, Session};
use changefeed_testkit::run;
use changefeed_testkit::ulids::FEED;

use super::{COMMIT, begin, refused, row, run_all};
use crate::ulids::support::scene;

/// The whole protocol by hand: CF001, the report, the retry; a zombie gets CF003.
#[test]
fn an_incident_is_reported_once_and_never_for_the_living() {
    run(async {
        let scene = scene().await;
        let begin = format!("select changefeed.begin_ulid_transaction('{FEED}', 0, 300)");
        let report = format!("select changefeed.report_incident('{FEED}', 0, 300)");
        let (zombie, one, two) = (
            scene.session().await,
            scene.session().await,
            scene.session().await,
        );
        let reported = async |session: &PostgresSession| {
            let rows = session.query(&report).await.unwrap();
            rows[0][0].clone().unwrap()
        };
        assert_eq!(reported(&one).await, "f", "nobody holds the lock");
        run_all(&zombie, &["begin", &begin, &row("zombie")]).await;
        assert_eq!(reported(&one).await, "f", "the holder has just spoken");
        for waiter in [&one, &two] {
            waiter.execute("begin").await.unwrap();
            let answer = refused(waiter, &begin).await;
            assert_eq!(
                answer,
                format!(
                    "CF001: changefeed: the holder of feed {FEED} shard 0 has been silent for \
                     300 ms"
                )
            );
            waiter.execute("rollback").await.unwrap();
        }
        assert_eq!(reported(&one).await, "t");
        assert_eq!(reported(&two).await, "f", "it has been counted");
        assert_eq!(scene.incidents().await, 1);
        run_all(&one, &["begin", &begin]).await;
        assert_eq!(reported(&two).await, "f", "the new holder lives");
        // The zombie fails while the new holder has not committed, and also afterwards.
        let answer = refused(&zombie, COMMIT).await;
        assert_eq!(
            answer,
            format!(
                "CF003: changefeed: this transaction of feed {FEED} shard 0 was silent for too \
                 long, and its lock was burned"
            )
        );
        run_all(&one, &[&row("living"), COMMIT, "commit"]).await;
        assert_eq!(scene.notes().await, ["living"]);
        assert_eq!(scene.incidents().await, 1);
    });
}

/// They are asleep while it is burned, and have to come again.
#[test]
fn whoever_waits_while_the_lock_is_burned_is_sent_back() {
    run(async {
        let scene = scene().await;
        let (zombie, waiter, reporter) = (
            scene.session().await,
            scene.session().await,
            scene.session().await,
        );
        let begin = |timeout: u32| {
            format!("select changefeed.begin_ulid_transaction('{FEED}', 0, {timeout})")
        };
        run_all(&zombie, &["begin", &begin(10_000)]).await;
        // Its own patience is longer than that of the one who reports.
        let waiting = tokio::spawn(async move {
            waiter.execute("begin").await.unwrap();
            refused(&waiter, &begin(10_000)).await
        });
        scene.queued(1).await;
        let began = Instant::now();
        loop {
            let report = format!("select changefeed.report_incident('{FEED}', 0, 100)");
            if reporter.query(&report).await.unwrap()[0][0].as_deref() == Some("t") {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        let answer = waiting.await.unwrap();
        assert_eq!(
            answer,
            format!(
                "CF001: changefeed: the lock of feed {FEED} shard 0 was burned while waiting for it"
            )
        );
        assert!(began.elapsed() < Duration::from_secs(5));
    });
}

/// Living writers held the shard for the whole wait.
#[test]
fn a_wait_that_runs_out_is_busy() {
    run(async {
        let scene = scene().await;
        let (holder, waiter) = (scene.session().await, scene.session().await);
        run_all(&holder, &["begin", &begin(0)]).await;
        waiter.execute("begin").await.unwrap();
        let began = Instant::now();
        let answer = refused(
            &waiter,
            &format!("select changefeed.begin_ulid_transaction('{FEED}', 0, wait => 200)"),
        )
        .await;
        assert_eq!(
            answer,
            format!("CF002: changefeed: feed {FEED} shard 0 is busy: others held it for 200 ms")
        );
        assert!(began.elapsed() >= Duration::from_millis(200));
        assert_eq!(scene.incidents().await, 0);
        // What the application had set for itself is as it was.
        waiter.execute("rollback").await.unwrap();
        let kept = waiter.query("show lock_timeout").await.unwrap();
        assert_eq!(kept[0][0].as_deref(), Some("0"));
    });
}

/// In the same instant, before anybody could be judged dead: the state decides.
#[test]
fn whoever_finds_a_newer_state_cannot_commit() {
    run(async {
        let scene = scene().await;
        for first_ever in [true, false] {
            let (late, quick) = (scene.session().await, scene.session().await);
            run_all(&late, &["begin", &begin(0), &row("late")]).await;
            // Somebody throws away the lock, by whatever bug or unlucky hand.
            run_all(
                &quick,
                &[
                    &format!(
                        "begin; select changefeed.ulid_enter('{FEED}', 0, 0, 1000, null, 0); {}",
                        row("quick")
                    ),
                    COMMIT,
                    "commit",
                ],
            )
            .await;
            let answer = refused(&late, COMMIT).await;
            assert_eq!(
                answer,
                format!(
                    "CF003: changefeed: feed {FEED} shard 0 was moved by somebody else during \
                     this transaction"
                ),
                "{first_ever}"
            );
        }
        assert_eq!(scene.notes().await, ["quick", "quick"]);
    });
}
