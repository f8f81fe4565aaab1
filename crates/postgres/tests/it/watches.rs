//! What watches promise on PostgreSQL in particular: the application is never held up, failed or
//! attacked by what is for workers, and nothing that commits late is lost. One test per trap.

mod order;
mod rights;
mod rows;
mod swaps;
mod tables;
mod writers;

use std::sync::Arc;

use changefeed_testkit::backend::{Backend, PostgresBackend};
use changefeed_testkit::run;
use changefeed_testkit::watching::Scene;

fn scene(case: impl AsyncFnOnce(Scene)) {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        case(Scene::new(backend).await).await;
    });
}
