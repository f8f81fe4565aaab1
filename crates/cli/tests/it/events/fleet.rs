//! `changefeed deliver` processes of one database, and the receiver that they deliver to.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use changefeed::{EventStatus, EventTrigger, LoggedEvent, Store, TriggerDefinition};
use changefeed_testkit::backend::{Backend, Session, eventually_true};
use changefeed_testkit::events::checker::{Account, audit, guard, nothing_was_stolen, seen_by};
use changefeed_testkit::events::writers::ORDERS;
use changefeed_testkit::events::{log, to_webhook};
use changefeed_testkit::patience;
use changefeed_testkit::process::Running;
use changefeed_testkit::receiver::{Receiver, Request};
use serde_json::Value;

/// How long a dead instance keeps its events here.
pub(crate) fn lease() -> Duration {
    Duration::from_secs(1) * patience()
}

pub(crate) struct Scene {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) session: Box<dyn Session>,
    pub(crate) receiver: Receiver,
    pub(crate) trigger: EventTrigger,
}

impl Scene {
    pub(crate) async fn new(
        backend: Arc<dyn Backend>,
        change: impl FnOnce(&mut TriggerDefinition),
    ) -> Self {
        let store = backend.installed().await;
        let session = backend.session().await;
        session.run(ORDERS).await;
        guard(&*backend).await;
        let receiver = Receiver::start().await.unwrap();
        let mut definition = to_webhook("t", "orders", &receiver.url("/t"));
        definition.delivery.retry.interval = Duration::from_millis(50);
        definition.delivery.retry.timeout = Duration::from_secs(20);
        change(&mut definition);
        let trigger = store.create_trigger(&definition, false).await.unwrap();
        Scene {
            backend,
            store,
            session,
            receiver,
            trigger,
        }
    }

    pub(crate) fn deliver(&self, crash_at: Option<&str>) -> Running {
        self.deliver_with(lease(), crash_at)
    }

    /// With a lease that lasts, however slow the machine is.
    pub(crate) fn deliver_patiently(&self) -> Running {
        self.deliver_with(Duration::from_secs(120), None)
    }

    /// Returns when it has found the server.
    pub(crate) fn deliver_at_work(&self) -> Running {
        let mut command = self.delivering(lease(), None);
        tokio::task::block_in_place(|| Running::start(&mut command).heard("delivering events"))
    }

    fn deliver_with(&self, lease: Duration, crash_at: Option<&str>) -> Running {
        Running::start(self.delivering(lease, crash_at).arg("--json"))
    }

    fn delivering(&self, lease: Duration, crash_at: Option<&str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
        command
            .args(["--db", &self.backend.url(), "deliver"])
            .args(["--lease", &format!("{}s", lease.as_secs())])
            .args(["--fetch-interval", "50ms"])
            .env_remove("CHANGEFEED_CRASH_AT")
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(place) = crash_at {
            command.env("CHANGEFEED_CRASH_AT", place);
        }
        command
    }

    /// Another command of the program.
    pub(crate) fn run(&self, arguments: &[&str]) -> Running {
        self.run_until(None, arguments)
    }

    pub(crate) fn run_until(&self, crash_at: Option<&str>, arguments: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
        command
            .args(["--db", &self.backend.url()])
            .args(arguments)
            .env_remove("CHANGEFEED_CRASH_AT")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(place) = crash_at {
            command.env("CHANGEFEED_CRASH_AT", place);
        }
        Running::start(&mut command)
    }

    pub(crate) async fn insert(&self, from: usize, count: usize) {
        let rows: Vec<String> = (from..from + count)
            .map(|id| format!("({id}, 'c', 0)"))
            .collect();
        self.session
            .run(&format!("insert into orders values {}", rows.join(", ")))
            .await;
    }

    pub(crate) async fn is_settled(&self) {
        eventually_true("nothing is pending", async || {
            let states = self.store.trigger_states().await;
            states.is_ok_and(|states| states.iter().all(|s| s.pending == 0))
        })
        .await;
    }

    pub(crate) async fn account(&self) -> Account {
        nothing_was_stolen(&*self.session).await;
        let retry = &self.trigger.definition.delivery.retry;
        audit(&*self.store, retry, &seen_by(&[&self.receiver])).await
    }

    pub(crate) async fn delivered(&self) -> Vec<LoggedEvent> {
        let mut all = log(&*self.store).await;
        all.retain(|e| e.status == EventStatus::Delivered);
        all
    }
}

/// The row behind a request, and how many attempts were made before it.
pub(crate) fn row_and_retry(request: &Request) -> (u64, u64) {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let data = &body["event"]["data"];
    let row = if data["new"].is_null() {
        &data["old"]
    } else {
        &data["new"]
    };
    (
        row["id"].as_u64().unwrap(),
        body["delivery_info"]["current_retry"].as_u64().unwrap(),
    )
}
