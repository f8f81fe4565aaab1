//! Rows that a policy hides from us are an error, and never "gone".

use changefeed_core::{After, FeedStore, Kind, ShardId};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::postgres::as_role;
use changefeed_testkit::run;
use serde_json::json;

use crate::attacks::reading::{Scene, row};

#[test]
fn hidden_rows_are_an_error_and_not_gone() {
    run(async {
        let scene = Scene::new("create table t (id integer primary key, owner text)").await;
        let feed = scene.captured("t").await;
        let role = format!("cf_reader_{:016x}", fastrand::u64(..));
        let session = &scene.session;
        session
            .run(&format!(
                "insert into t values (1, 'a'); \
                 create role {role} login password 'secret'; \
                 grant usage on schema changefeed to {role}; \
                 grant select on all tables in schema changefeed to {role}; \
                 grant execute on all functions in schema changefeed to {role}; \
                 grant select on t to {role}; \
                 alter table t enable row level security; \
                 create policy mine on t using (owner = 'nobody')"
            ))
            .await;
        scene.sweep().await;
        let reader = PostgresStore::connect(&as_role(scene.database.url(), &role, "secret"))
            .await
            .unwrap();
        let read = || reader.read(&feed, ShardId(0), After::First, 10);
        let error = read().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        assert!(error.message().contains("row-level security"), "{error}");
        session.run(&format!("alter role {role} bypassrls")).await;
        let page = read().await.unwrap();
        assert_eq!(row(&page.changes[0]), json!({"id": 1, "owner": "a"}));
        drop(reader);
        session
            .run(&format!("drop owned by {role} cascade; drop role {role}"))
            .await;
    });
}
