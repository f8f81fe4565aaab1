//! Calls whose outcome the caller does not know: the connection breaks while the server works, and
//! the server commits.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::Store;
use changefeed_engine::sinks::webhook::{WebhookClient, WebhookOptions, Webhooks};
use changefeed_engine::{CancellationToken, DispatchOptions, Dispatcher};
use changefeed_postgres::PostgresStore;
use changefeed_receiver::Receiver;
use changefeed_testkit::backend::{PostgresSession, Session};
use changefeed_testkit::events::{attempts, log, to_webhook};
use changefeed_testkit::postgres::{Relay, fresh_database};
use changefeed_testkit::{eventually, run};

/// The claim is committed and its answer lost. The lease lasts ten minutes, so that only a dispatcher
/// which looks for what it was never given delivers the event now; and it was no attempt.
#[test]
fn a_claim_whose_answer_is_lost_is_no_attempt_and_delays_nothing() {
    run(async {
        let database = fresh_database().await;
        let store: Arc<dyn Store> = Arc::new(PostgresStore::connect(database.url()).await.unwrap());
        store.migrate().await.unwrap();
        let app = session(database.url()).await;
        app.run("create table orders (id int primary key)").await;
        let receiver = Receiver::start().await.unwrap();
        let definition = to_webhook("t", "orders", &receiver.url("/t"));
        let trigger = store.create_trigger(&definition, false).await.unwrap();

        let relay = Relay::to(database.url()).await;
        let far: Arc<dyn Store> = Arc::new(PostgresStore::connect(&relay.url).await.unwrap());
        let client = WebhookClient::new(WebhookOptions::default()).unwrap();
        let mut options = DispatchOptions::new("far");
        options.fetch_interval = Duration::from_millis(20);
        options.lease = Duration::from_secs(600);
        let stop = CancellationToken::new();
        let dispatcher = Dispatcher::new(far, Arc::new(Webhooks::new(client)), options);
        let working = tokio::spawn(dispatcher.run(|_| {}, stop.clone()));

        // It has begun, and has looked after everything that it looks after now and then.
        app.run("insert into orders values (0)").await;
        eventually("the first event is delivered", async || {
            let delivered = "select count(*) from changefeed.event where state = 'd'";
            (app.value(delivered).await == "1").then_some(())
        })
        .await;
        // A row that is due and that nobody can update until this is over: the claim waits in the
        // middle of its work, not before it.
        store
            .pause_trigger(&trigger, Some("for a moment"))
            .await
            .unwrap();
        app.run("insert into orders values (1)").await;
        app.run("begin; select from changefeed.event where state = 'p' for update")
            .await;
        store.pause_trigger(&trigger, None).await.unwrap();
        let watcher = session(database.url()).await;
        eventually("a claim waits", async || {
            let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                 and datname = current_database() and query like '-- Takes what is due%'";
            (watcher.value(waiting).await == "1").then_some(())
        })
        .await;
        relay.sever();
        app.run("commit").await;
        eventually("the event is delivered", async || {
            (receiver.requests().len() == 2).then_some(())
        })
        .await;
        stop.cancel();
        working.await.unwrap().unwrap();
        let id = log(&*store).await[1].event.id;
        assert_eq!(attempts(&*store, id).await, ["1 success 200"]);
        // Claimed twice and sent once.
        let event = "select concat_ws(' ', generation > 1, tries, cut_off) from changefeed.event \
             order by change_id desc limit 1";
        assert_eq!(app.value(event).await, "t 1 0");
    });
}

async fn session(url: &str) -> Box<dyn Session> {
    Box::new(PostgresSession::connect(url).await.unwrap())
}
