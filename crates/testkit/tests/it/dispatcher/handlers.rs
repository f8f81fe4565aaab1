//! Events to a function in this process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use changefeed_core::{Event, EventStatus, Sink};
use changefeed_engine::sinks::Handler;
use changefeed_testkit::backend::Backend;
use changefeed_testkit::events::{row, shown};

use crate::dispatcher::stage::Stage;

/// The same events, with the same log.
pub(crate) async fn an_event_goes_to_a_function(backend: Arc<dyn Backend>) {
    let stage = Stage::new(backend, |d| d.delivery.sink = Sink::InProcess).await;
    let seen: Arc<Mutex<Vec<Event>>> = Arc::default();
    let handler = Handler::new(stage.trigger.definition.name.clone(), {
        let seen = seen.clone();
        move |event: Event| {
            let seen = seen.clone();
            async move {
                seen.lock().unwrap().push(event);
                Ok::<(), String>(())
            }
        }
    });
    let work = stage.dispatch_to(Arc::new(handler), |_| {}).await;
    stage.insert(0, 10).await;
    stage.session.run("update orders set total = 100").await;
    stage.session.run("delete from orders").await;
    stage.is_settled().await;
    let totals = work.stop().await;
    assert_eq!(totals.delivered, 30);
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.sort_by_key(|e| e.change_id);
    let ops: Vec<&str> = seen.iter().map(|e| e.op.as_str()).collect();
    assert_eq!(ops[0], "INSERT");
    assert_eq!(ops[29], "DELETE");
    assert_eq!(row(seen[10].new.as_deref())["total"], 100);
    for event in stage.in_state(EventStatus::Delivered).await {
        let (_, attempts) = shown(&*stage.store, event.event.id).await;
        assert_eq!(attempts.len(), 1);
    }
}

/// An error, a panic and too much time are failed attempts, each with its sentence.
pub(crate) async fn a_function_that_fails_panics_or_hangs_is_tried_again(
    backend: Arc<dyn Backend>,
) {
    let stage = Stage::new(backend, |d| {
        d.delivery.sink = Sink::InProcess;
        d.delivery.retry.num_retries = 3;
        d.delivery.retry.timeout = Duration::from_millis(200);
    })
    .await;
    let calls = Arc::new(AtomicU32::new(0));
    let handler = Handler::new(stage.trigger.definition.name.clone(), {
        let calls = calls.clone();
        move |_| {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            async move {
                match call {
                    0 => Err("no such customer"),
                    1 => panic!("at the disco"),
                    2 => std::future::pending().await,
                    _ => Ok(()),
                }
            }
        }
    });
    stage.insert(0, 1).await;
    let work = stage.dispatch_to(Arc::new(handler), |_| {}).await;
    stage.is_settled().await;
    let totals = work.stop().await;
    assert_eq!((totals.delivered, totals.retried), (1, 3));
    let event = &stage.in_state(EventStatus::Delivered).await[0];
    let (_, attempts) = shown(&*stage.store, event.event.id).await;
    let errors: Vec<&str> = attempts
        .iter()
        .filter_map(|a| a.attempt.error.as_deref())
        .collect();
    assert_eq!(errors.len(), 3);
    assert!(errors[0].contains("no such customer"), "{errors:?}");
    assert!(errors[1].contains("panicked"), "{errors:?}");
    assert!(errors[2].contains("timeout"), "{errors:?}");
}
