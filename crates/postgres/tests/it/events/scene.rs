//! A database with a store, a session, and a trigger.

use std::sync::Arc;

use changefeed_core::{EventTrigger, Finding, Severity, Store, TriggerDefinition};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{PostgresSession, Session};
use changefeed_testkit::events::everything;
use changefeed_testkit::postgres::{Database, as_role, fresh_database};

pub(crate) struct Scene {
    pub(crate) database: Database,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) session: Box<dyn Session>,
}

impl Scene {
    pub(crate) async fn new(setup: &str) -> Self {
        Scene::on(fresh_database().await, setup).await
    }

    pub(crate) async fn on(database: Database, setup: &str) -> Self {
        let store: Arc<dyn Store> = Arc::new(PostgresStore::connect(database.url()).await.unwrap());
        store.migrate().await.unwrap();
        let session: Box<dyn Session> =
            Box::new(PostgresSession::connect(database.url()).await.unwrap());
        session.run(setup).await;
        Scene {
            database,
            store,
            session,
        }
    }

    /// A trigger `t` on the table `orders` for everything.
    pub(crate) async fn trigger(&self) -> EventTrigger {
        self.trigger_with(|_| {}).await
    }

    pub(crate) async fn trigger_with(
        &self,
        change: impl FnOnce(&mut TriggerDefinition),
    ) -> EventTrigger {
        let mut definition = everything("t", "orders");
        change(&mut definition);
        self.store.create_trigger(&definition, true).await.unwrap()
    }

    pub(crate) async fn another_session(&self) -> Box<dyn Session> {
        Box::new(PostgresSession::connect(self.database.url()).await.unwrap())
    }

    /// A session of a role of its own, which disappears with its privileges at the end.
    pub(crate) async fn as_role(&self, role: &Role) -> Box<dyn Session> {
        let url = as_role(self.database.url(), &role.name, "secret");
        Box::new(PostgresSession::connect(&url).await.unwrap())
    }

    /// What is worse than a note.
    pub(crate) async fn complaints(&self) -> Vec<Finding> {
        let mut found = self.store.capture_findings().await.unwrap();
        found.retain(|f| f.severity > Severity::Note);
        found
    }
}

/// A role of the server, dropped at the end of its test.
pub(crate) struct Role {
    pub(crate) name: String,
    server: String,
}

impl Role {
    pub(crate) async fn new(scene: &Scene, what: &str) -> Self {
        let name = format!("cf_{what}_{:016x}", fastrand::u64(..));
        scene
            .session
            .run(&format!(
                "create role {name} login password 'secret'; \
                 grant all on schema public to {name}; \
                 grant temporary on database {} to {name}",
                scene.database.name()
            ))
            .await;
        Role {
            name,
            server: scene.database.url().to_owned(),
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let (name, url) = (self.name.clone(), self.server.clone());
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                if let Ok(session) = PostgresSession::connect(&url).await {
                    let _ = session
                        .execute(&format!("drop owned by {name} cascade; drop role {name}"))
                        .await;
                }
            });
            std::io::Result::Ok(())
        });
        let _ = cleaner.join();
    }
}
