//! A sweeper with nothing to do waits to be told of commits by a session that watches for them. What if that session is
//! frozen, cut off or forbidden: a lost wake-up may cost a second, and never a change.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::SweepGroup;
use changefeed_engine::{CancellationToken, Sweeper};
use changefeed_testkit::backend::{Backend, PostgresBackend, Session};
use changefeed_testkit::{eventually, run};

use crate::attacks::pools::Frozen;

/// Who waits for commits on behalf of others.
const WAITING: &str = "select coalesce(max(pid), 0)::bigint from pg_stat_activity \
     where datname = current_database() and state = 'active' and query like 'call changefeed.await_commit%'";

async fn waiting(session: &dyn Session) -> i32 {
    eventually("a session waits for commits", || async {
        let pid = session.number(WAITING).await;
        (pid > 0).then(|| i32::try_from(pid).unwrap())
    })
    .await
}

#[test]
fn a_sweeper_numbers_what_it_was_not_told_of() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let (store, _feed) = backend.feed(37, 1).await;
        let (session, words) = (backend.session().await, backend.words());
        let stop = CancellationToken::new();
        let sweeper = Sweeper::new(store, SweepGroup(0), "told");
        let sweeping = tokio::spawn(sweeper.run(|_| {}, stop.clone()));
        let mut last = 0;
        let mut numbered = async || {
            last += 1;
            session.run(&words.publish(37, 0, last)).await;
            let began = Instant::now();
            let ask = format!("select count(*) from changefeed.numbered where change_id = {last}");
            eventually("the change has its number", || async {
                (session.number(&ask).await == 1).then_some(())
            })
            .await;
            began.elapsed()
        };
        numbered().await;

        let frozen = Frozen::stop(waiting(&*session).await);
        for _ in 0..3 {
            let took = numbered().await;
            assert!(took < Duration::from_secs(5), "frozen: {took:?}");
        }
        drop(frozen);

        for _ in 0..3 {
            let pid = waiting(&*session).await;
            let cut = format!("select pg_terminate_backend({pid})");
            session.run(&cut).await;
            let took = numbered().await;
            assert!(took < Duration::from_secs(5), "cut off: {took:?}");
        }

        session
            .run("drop procedure changefeed.await_commit(text, integer, integer)")
            .await;
        let took = numbered().await;
        assert!(took < Duration::from_secs(5), "not there: {took:?}");
        stop.cancel();
        let swept = sweeping.await.unwrap().unwrap();
        assert_eq!(swept.changes, 8);
    });
}
