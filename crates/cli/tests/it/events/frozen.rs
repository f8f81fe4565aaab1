//! The worst kind of dead: one that wakes up again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_testkit::backend::{Backend, eventually_true};
use changefeed_testkit::events::attempts;
use changefeed_testkit::receiver::Reply;

use crate::events::fleet::{Scene, lease};

/// One instance is frozen with requests under way; another takes over after the lease. Awake
/// again, the first one has a success and a failure to tell: both are logged as late, and neither
/// decides anything.
pub(crate) async fn promise_9_a_frozen_instance_cannot_write_over_the_new_owner(
    backend: Arc<dyn Backend>,
) {
    let timeout = lease() * 4;
    let scene = Scene::new(backend, |d| d.delivery.retry.timeout = timeout).await;
    scene.receiver.otherwise(Reply::Hang);
    scene.insert(0, 6).await;
    let zombie = scene.deliver(None);
    scene
        .receiver
        .wait_until(|_, seen| seen.hanging == 6)
        .await
        .unwrap();
    zombie.freeze();
    let frozen = Instant::now();
    scene.receiver.otherwise(Reply::Accept);
    // On a loaded machine a lease of a second may end while its holder lives.
    let heir = scene.deliver_patiently();
    scene.is_settled().await;
    let waited = frozen.elapsed();
    assert!(
        waited + Duration::from_millis(50) >= lease() / 2,
        "taken over before the lease was over: {waited:?}"
    );
    for event in scene.delivered().await {
        assert_eq!(
            attempts(&*scene.store, event.event.id).await,
            ["1 unknown", "2 success 200"]
        );
    }
    // Past its timeout it has six failures to tell; nothing was answered to it.
    eventually_true("the zombie's requests are past their timeout", async || {
        frozen.elapsed() > timeout
    })
    .await;
    zombie.thaw();
    eventually_true("what the zombie has to tell is in the log", async || {
        let mut late = 0;
        for event in scene.delivered().await {
            let attempts = attempts(&*scene.store, event.event.id).await;
            late += usize::from(attempts == ["1 failure late", "2 success 200"]);
        }
        late == 6
    })
    .await;
    // It is as good as any other from then on.
    drop(heir);
    scene.insert(100, 3).await;
    scene.is_settled().await;
    drop(zombie);
    let account = scene.account().await;
    assert_eq!((account.delivered, account.dead), (9, 0));
    assert!(account.late >= 6, "{account:?}");
}
