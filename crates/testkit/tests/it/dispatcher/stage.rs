//! A database, a trigger, a receiver, and dispatchers between them.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{EventStatus, EventTrigger, LoggedEvent, Result, Store, TriggerDefinition};
use changefeed_engine::sinks::webhook::{WebhookClient, WebhookOptions, Webhooks};
use changefeed_engine::{
    CancellationToken, Deliverer, DispatchOptions, DispatchTotals, Dispatcher,
};
use changefeed_receiver::{Receiver, Reply, Request};
use changefeed_testkit::backend::{Backend, Session, eventually_true};
use changefeed_testkit::events::checker::{Account, audit, guard, nothing_was_stolen, seen_by};
use changefeed_testkit::events::{log, to_webhook};
use serde_json::Value;
use tokio::task::JoinHandle;

pub(crate) struct Stage {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) session: Box<dyn Session>,
    pub(crate) receiver: Receiver,
    pub(crate) trigger: EventTrigger,
}

/// A dispatcher at work.
pub(crate) struct AtWork {
    stop: CancellationToken,
    task: JoinHandle<Result<DispatchTotals>>,
}

impl AtWork {
    pub(crate) fn start(dispatcher: Dispatcher) -> Self {
        let stop = CancellationToken::new();
        AtWork {
            task: tokio::spawn(dispatcher.run(|_| {}, stop.clone())),
            stop,
        }
    }

    /// Says that it should stop, without waiting for it.
    pub(crate) fn tell_to_stop(&self) {
        self.stop.cancel();
    }

    /// Stops it and returns what it did.
    pub(crate) async fn stop(self) -> DispatchTotals {
        self.stop.cancel();
        self.task.await.unwrap().unwrap()
    }
}

impl Stage {
    /// A trigger `t` on the table `orders` with quick retries, changed as a test needs it.
    pub(crate) async fn new(
        backend: Arc<dyn Backend>,
        change: impl FnOnce(&mut TriggerDefinition),
    ) -> Self {
        let store = backend.installed().await;
        let session = backend.session().await;
        session
            .run("create table orders (id integer primary key, customer text, total integer)")
            .await;
        guard(&*backend).await;
        let receiver = Receiver::start().await.unwrap();
        let mut definition = to_webhook("t", "orders", &receiver.url("/t"));
        definition.delivery.retry.interval = Duration::from_millis(20);
        definition.delivery.retry.timeout = Duration::from_secs(20);
        change(&mut definition);
        let trigger = store.create_trigger(&definition, false).await.unwrap();
        Stage {
            backend,
            store,
            session,
            receiver,
            trigger,
        }
    }

    /// Rows with ids from `from`, in one statement.
    pub(crate) async fn insert(&self, from: usize, count: usize) {
        let rows: Vec<String> = (from..from + count)
            .map(|id| format!("({id}, 'c{}', {id})", id % 5))
            .collect();
        self.session
            .run(&format!("insert into orders values {}", rows.join(", ")))
            .await;
    }

    /// A dispatcher of webhooks, as another process would have it.
    pub(crate) async fn dispatch(&self, change: impl FnOnce(&mut DispatchOptions)) -> AtWork {
        let client = WebhookClient::new(WebhookOptions::default()).unwrap();
        self.dispatch_to(Arc::new(Webhooks::new(client)), change)
            .await
    }

    pub(crate) async fn dispatch_to(
        &self,
        deliverer: Arc<dyn Deliverer>,
        change: impl FnOnce(&mut DispatchOptions),
    ) -> AtWork {
        let mut options = DispatchOptions::new(format!("instance-{}", fastrand::u32(..)));
        options.fetch_interval = Duration::from_millis(50);
        change(&mut options);
        let store = self.backend.store().await;
        AtWork::start(Dispatcher::new(store, deliverer, options))
    }

    /// Waits until nothing is pending any more.
    pub(crate) async fn is_settled(&self) {
        eventually_true("nothing is pending", async || {
            let states = self.store.trigger_states().await.unwrap();
            states.iter().all(|s| s.pending == 0)
        })
        .await;
    }

    /// Checks everything that the promises say about this log and this receiver.
    pub(crate) async fn account(&self) -> Account {
        nothing_was_stolen(&*self.session).await;
        let retry = &self.trigger.definition.delivery.retry;
        audit(&*self.store, retry, &seen_by(&[&self.receiver])).await
    }

    /// Events in this state.
    pub(crate) async fn in_state(&self, status: EventStatus) -> Vec<LoggedEvent> {
        let mut all = log(&*self.store).await;
        all.retain(|e| e.status == status);
        all
    }
}

/// The body of a request.
pub(crate) fn body(request: &Request) -> Value {
    serde_json::from_slice(&request.body).unwrap()
}

/// The row behind a request.
pub(crate) fn row_id(request: &Request) -> u64 {
    body(request)["event"]["data"]["new"]["id"]
        .as_u64()
        .unwrap()
}

/// How many attempts were made before this request, as it says.
pub(crate) fn retry(request: &Request) -> u64 {
    body(request)["delivery_info"]["current_retry"]
        .as_u64()
        .unwrap()
}

/// Ways in which an attempt surely fails, if its timeout is less than a second.
pub(crate) fn faults() -> Vec<Reply> {
    vec![
        Reply::Status(500),
        Reply::Status(404),
        Reply::Status(304),
        Reply::Redirect("http://127.0.0.1:1/".into()),
        Reply::Hang,
        Reply::AcceptAfter(Duration::from_secs(5)),
        Reply::Garbage,
        Reply::ResetBeforeReading,
        Reply::DropAfterReading,
        Reply::StatusWithRetryAfter(503, "0".into()),
        Reply::StatusWithRetryAfter(429, "nonsense".into()),
    ]
}
