//! Waiting for states, never for time to pass.

use std::future::Future;
use std::time::{Duration, Instant};

use crate::sqlserver::given_server;

/// How long a test may take before it is considered hung.
const CASE_DEADLINE: Duration = Duration::from_secs(300);

/// How long a state may take to come true. Generous, because a loaded machine is no bug; tests
/// that promise a time measure it themselves.
const STATE_DEADLINE: Duration = Duration::from_secs(90);

/// How many times longer everything may take than on the databases that run beside the tests. A
/// server somewhere else may be slow, and Babelfish reads each of our procedures anew for every
/// session, which takes seconds. No promise depends on this: tests that promise a time measure it
/// themselves.
pub fn patience() -> u32 {
    if given_server().is_some() { 6 } else { 1 }
}

/// Whether the long runs were asked for (`./test --soak`).
pub fn soaking() -> bool {
    std::env::var_os("CHANGEFEED_SOAK").is_some_and(|v| !v.is_empty() && v != "0")
}

/// How long the chaos of `./test --soak` lasts: `CHANGEFEED_SOAK` in seconds, and at least as long as
/// it takes to be more than nothing.
pub fn soak_duration() -> Duration {
    let asked = std::env::var("CHANGEFEED_SOAK")
        .ok()
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(0);
    Duration::from_secs(asked).max(Duration::from_secs(20))
}

/// Runs one test case on a runtime of its own and fails it when it hangs.
pub fn run<F: Future>(case: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let deadline = if soaking() {
        CASE_DEADLINE * 30 + 2 * soak_duration()
    } else {
        CASE_DEADLINE * patience()
    };
    let outcome = runtime.block_on(async {
        tokio::time::timeout(deadline, case)
            .await
            .unwrap_or_else(|_| panic!("the case did not end within {deadline:?}"))
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    outcome
}

/// Asks again and again until the answer is `Some`, and returns it; panics with `what` when it
/// takes too long.
pub async fn eventually<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let began = Instant::now();
    let deadline = STATE_DEADLINE * patience();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(
            began.elapsed() < deadline,
            "waited {deadline:?} in vain: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
