//! Watches on SQL Server that its trigger serves: what `doctor` finds, what a writer must not notice, and
//! transactions that commit late. On the server of `CHANGEFEED_TEST_SQLSERVER_URL`.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::RowOperation::{Delete, Insert, Update};
use changefeed_core::{BatchOutcome, Kind, ParkedRows, Step, WatchFrom, WatchSettings, WatchSpec};
use changefeed_testkit::backend::{Session, SqlServerBackend, eventually_true};
use changefeed_testkit::watching::{Scene, failed, ids, quick, seen, spec, take_all};
use serde_json::json;

async fn scene() -> Scene {
    Scene::new(Arc::new(SqlServerBackend::fresh().await)).await
}

/// What `doctor` says about a watch; and a table whose changes nobody has noted for a while is handed
/// over anew when the watch is started.
#[tokio::test]
async fn what_is_wrong_with_a_watch_is_found_and_mended() {
    let scene = scene().await;
    let app = &scene.app;
    let ours = format!("changefeed_watch_{}", scene.watch.table_id);
    let found = async || {
        let findings = scene.store.watch_findings().await.unwrap();
        let about = findings.iter().all(|f| f.subject == "watch f");
        assert!(about && findings.iter().all(|f| f.advice.is_some()));
        let messages: Vec<String> = findings.into_iter().map(|f| f.message).collect();
        messages.join("; ")
    };
    assert_eq!(found().await, "");
    app.run(&format!("drop trigger dbo.{ours}")).await;
    let said = found().await;
    assert!(
        said.contains(&format!("{ours} on dbo.orders is missing")),
        "{said}"
    );
    app.run("insert into orders values (1, 'unseen')").await;
    assert!(scene.all(100).await.is_empty());
    scene.store.open_watch(&spec("f", "orders")).await.unwrap();
    assert_eq!(
        scene.all(100).await,
        [[(Update, json!({"id": 1, "note": "unseen"}))]]
    );
    let said = found().await;
    assert!(said.contains("changes of dbo.orders were missed"), "{said}");
    assert!(!said.contains("is missing"), "{said}");
    app.run(&format!("drop table {}", scene.watch.leases_table))
        .await;
    let said = found().await;
    assert!(said.contains("was deleted"), "{said}");
    app.run("drop table orders").await;
    assert_eq!(found().await, "its table was dropped");
}

/// It would be the same as none.
#[tokio::test]
async fn a_trigger_that_was_disabled_is_made_again_and_the_table_read() {
    let scene = scene().await;
    let app = &scene.app;
    let ours = format!("changefeed_watch_{}", scene.watch.table_id);
    app.run(&format!("disable trigger {ours} on dbo.orders"))
        .await;
    app.run("insert into orders values (1, 'unseen')").await;
    assert!(scene.all(100).await.is_empty());
    scene.store.open_watch(&spec("f", "orders")).await.unwrap();
    assert_eq!(
        scene.all(100).await,
        [[(Update, json!({"id": 1, "note": "unseen"}))]]
    );
    app.run("insert into orders values (2, 'seen')").await;
    assert_eq!(
        scene.all(100).await,
        [[(Insert, json!({"id": 2, "note": "seen"}))]]
    );
    // Once is enough.
    scene.store.open_watch(&spec("f", "orders")).await.unwrap();
    assert!(scene.all(100).await.is_empty());
}

/// Settings with a lease that does not end while a test looks elsewhere.
fn patient() -> WatchSettings {
    WatchSettings {
        lease: Duration::from_secs(60),
        ..quick()
    }
}

/// As a table is left when change tracking, which has noted its changes, is switched off.
async fn noted_by_change_tracking(scene: &Scene) {
    let id = scene.watch.table_id;
    scene
        .app
        .run(&format!(
            "drop trigger dbo.changefeed_watch_{id}; drop table changefeed.changes_{id}; \
             update changefeed.watched_table set native = 1, tracked_version = 500000 \
             where table_id = {id}; \
             update {} set _changefeed_order = 500000",
            scene.watch.leases_table
        ))
        .await;
}

/// Versions of change tracking and numbers of our trigger have nothing to do with each other.
#[tokio::test]
async fn a_change_is_newer_than_all_that_change_tracking_has_noted() {
    let scene = scene().await;
    let app = &scene.app;
    app.run("insert into orders values (1, 'a'), (2, 'a')")
        .await;
    let once = WatchSettings {
        attempts: 1,
        ..patient()
    };
    let first = scene.take("me", &once).await.unwrap();
    assert_eq!(ids(&first), [1, 2]);
    scene
        .store
        .settle(&scene.watch, &first, &failed("no"), &once)
        .await
        .unwrap();
    scene
        .store
        .retry_parked(&scene.watch, ParkedRows::All)
        .await
        .unwrap();
    noted_by_change_tracking(&scene).await;
    scene.store.open_watch(&spec("f", "orders")).await.unwrap();
    let held = scene.take("me", &patient()).await.unwrap();
    assert_eq!(ids(&held), [1, 2]);
    app.run("update orders set note = 'b' where id = 2").await;
    // Moves the change while the rows are in process.
    assert!(scene.take("you", &quick()).await.is_none());
    assert_eq!(scene.settle(&held, BatchOutcome::Done).await, 2);
    assert_eq!(
        scene.all(100).await,
        [[(Update, json!({"id": 2, "note": "b"}))]]
    );
}

/// Those that wait, those in process, even if they are gone meanwhile, and those that were parked.
#[tokio::test]
async fn all_rows_are_handed_over_after_a_loss() {
    let scene = scene().await;
    let app = &scene.app;
    app.run("insert into orders values (1, 'parked')").await;
    let once = WatchSettings {
        attempts: 1,
        ..patient()
    };
    let parked = scene.take("me", &once).await.unwrap();
    let settled = scene
        .store
        .settle(&scene.watch, &parked, &failed("no"), &once)
        .await;
    assert_eq!(settled.unwrap().parked, 1);
    app.run("insert into orders values (2, 'done')").await;
    assert_eq!(
        scene.all(100).await,
        [[(Insert, json!({"id": 2, "note": "done"}))]]
    );
    app.run("insert into orders values (3, 'held'), (4, 'held')")
        .await;
    let held = scene.take("me", &patient()).await.unwrap();
    assert_eq!(ids(&held), [3, 4]);
    app.run("insert into orders values (5, 'waits')").await;
    // Moves it.
    let waits = scene.take("you", &patient()).await.unwrap();
    assert_eq!(ids(&waits), [5]);
    assert_eq!(scene.settle(&waits, BatchOutcome::Released).await, 1);
    noted_by_change_tracking(&scene).await;
    app.run("delete from orders where id = 4; update orders set note = 'unseen'")
        .await;
    scene.store.open_watch(&spec("f", "orders")).await.unwrap();
    let unseen = |id: i64| json!({"id": id, "note": "unseen"});
    assert_eq!(
        scene.all(100).await.concat(),
        [
            (Insert, unseen(5)),
            (Insert, unseen(1)),
            (Update, unseen(2)),
        ]
    );
    assert_eq!(scene.settle(&held, BatchOutcome::Done).await, 2);
    let again = scene.take("me", &patient()).await.unwrap();
    assert_eq!(
        seen(&again),
        [(Update, unseen(3)), (Delete, json!({"id": 4}))]
    );
    assert_eq!(scene.settle(&again, BatchOutcome::Done).await, 2);
    let status = scene.store.watch_status(&scene.watch, 10).await.unwrap();
    assert_eq!((status.unprocessed, status.parked), (0, 0));
}

/// How many wait for a session: Babelfish says it as PostgreSQL does.
async fn waiting_for(app: &dyn Session, session: i64) -> i64 {
    let version = app.value("select convert(varchar(300), @@version)").await;
    let sql = if version.contains("Babelfish") {
        format!(
            "select count(*) from pg_catalog.pg_locks w join pg_catalog.pg_locks h \
             on convert(varchar(20), h.transactionid) = convert(varchar(20), w.transactionid) \
             where w.granted = 0 and h.granted = 1 and h.pid = {session}"
        )
    } else {
        format!(
            "select count(*) from sys.dm_os_waiting_tasks where blocking_session_id = {session}"
        )
    };
    app.number(&sql).await
}

/// The trigger comes last: from then until the commit nobody can touch the table.
#[tokio::test]
async fn the_application_goes_on_while_a_watch_is_made() {
    let scene = scene().await;
    let app = &scene.app;
    app.run("create table others (id integer primary key, note text)")
        .await;
    let spec = spec("g", "others");
    let slow = scene.backend.session().await;
    slow.run(&format!(
        "begin transaction; insert into changefeed.global_state (function_id, table_id) \
         values ('{}', object_id('dbo.others'))",
        spec.name.function_id()
    ))
    .await;
    let session = slow.number("select @@spid").await;
    let store = scene.store.clone();
    let making = tokio::spawn(async move { store.open_watch(&spec).await });
    eventually_true("somebody makes the watch", async || {
        waiting_for(&**app, session).await > 0
    })
    .await;
    app.run("set lock_timeout 5000; insert into others values (1, 'meanwhile')")
        .await;
    slow.run("rollback").await;
    let watch = making.await.unwrap().unwrap();
    app.run("insert into others values (2, 'afterwards')").await;
    assert_eq!(
        take_all(&*scene.store, &watch, &quick()).await,
        [[(Insert, json!({"id": 2, "note": "afterwards"}))]]
    );
}

/// They share its trigger, which comes when all of them are made; and what was noted for one that is dropped
/// is not for one that comes in its place.
#[tokio::test]
async fn watches_of_one_table_come_and_go_together() {
    let scene = scene().await;
    let (app, store) = (&scene.app, &scene.store);
    app.run("insert into orders values (1, 'for nobody any more')")
        .await;
    let put = |name: &str, columns: bool| {
        Step::PutWatch(WatchSpec {
            columns,
            ..spec(name, "orders")
        })
    };
    let dropped = Step::DropWatch(scene.watch.clone());
    store
        .apply(&[dropped, put("g", false), put("h", true)])
        .await
        .unwrap();
    app.run("insert into orders values (2, 'a')").await;
    let watches = store.watches().await.unwrap();
    let names: Vec<&str> = watches.iter().map(|w| w.name.as_str()).collect();
    assert_eq!(names, ["g", "h"]);
    for watch in &watches {
        assert_eq!(
            take_all(&**store, watch, &quick()).await,
            [[(Insert, json!({"id": 2, "note": "a"}))]]
        );
    }
    assert!(store.watch_findings().await.unwrap().is_empty());
    let all: Vec<Step> = watches.into_iter().map(Step::DropWatch).collect();
    store.apply(&all).await.unwrap();
    app.run("insert into orders values (3, 'b')").await;
    let ours = "select count(*) from sys.objects where name like 'changes_%' \
                and schema_id = schema_id('changefeed')";
    assert_eq!(app.number(ours).await, 0);
}

/// Some at a time, until nothing is left.
#[tokio::test]
async fn what_was_noted_for_nobody_is_forgotten_however_much_it_is() {
    let scene = scene().await;
    let app = &scene.app;
    app.run(&format!("drop table {}", scene.watch.leases_table))
        .await;
    app.run(
        "insert into orders select top (20001) row_number() over (order by a.object_id), 'x' \
         from sys.all_columns a cross join sys.all_columns b",
    )
    .await;
    let log = format!(
        "select count(*) from changefeed.changes_{}",
        scene.watch.table_id
    );
    assert_eq!(app.number(&log).await, 20001);
    scene.store.open_watch(&spec("f", "orders")).await.unwrap();
    assert_eq!(app.number(&log).await, 0);
    assert!(scene.all(100).await.is_empty());
    app.run("delete from orders where id > 1").await;
    scene
        .store
        .reset_watch(&scene.watch, WatchFrom::Beginning)
        .await
        .unwrap();
    assert_eq!(
        scene.all(100).await,
        [[(Insert, json!({"id": 1, "note": "x"}))]]
    );
}

/// Where a key could not be noted, the application's write would fail.
#[tokio::test]
async fn a_key_that_our_tables_could_not_hold_is_refused_at_the_start() {
    let scene = scene().await;
    for (table, length) in [("fits", 448), ("long", 449)] {
        scene
            .app
            .run(&format!(
                "create table {table} (a int not null, b nvarchar({length}) not null, note text, \
                 primary key (a, b))"
            ))
            .await;
    }
    scene.store.open_watch(&spec("a", "fits")).await.unwrap();
    let error = scene
        .store
        .open_watch(&spec("b", "long"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("902 bytes"), "{error}");
    scene.app.run("insert into long values (1, 'x', 'y')").await;
}

/// Neither how many rows it has written, nor the identity it was given. (Not @@identity: on Babelfish any
/// sequence moves it.)
#[tokio::test]
async fn a_writer_does_not_notice_that_it_is_watched() {
    let scene = scene().await;
    let app = &scene.app;
    app.run("create table numbered (id integer identity(5, 1) primary key, note text)")
        .await;
    let watch = scene
        .store
        .open_watch(&spec("n", "numbered"))
        .await
        .unwrap();
    let told = app
        .query(
            "insert into numbered (note) values ('a'), ('b'); \
             select @@rowcount, convert(int, scope_identity())",
        )
        .await
        .unwrap();
    let text = |n: &str| Some(n.to_owned());
    assert_eq!(told, [[text("2"), text("6")]]);
    let told = app
        .query("update numbered set note = 'c'; select @@rowcount")
        .await
        .unwrap();
    assert_eq!(told, [[text("2")]]);
    assert_eq!(
        take_all(&*scene.store, &watch, &quick()).await,
        [[
            (Insert, json!({"id": 5, "note": "c"})),
            (Insert, json!({"id": 6, "note": "c"}))
        ]]
    );
}

/// A change that was noted before another and committed after it was handed over; nobody waits for it.
#[tokio::test]
async fn a_change_that_commits_late_is_not_missed() {
    let scene = scene().await;
    let late = scene.backend.session().await;
    late.run("begin transaction; insert into orders values (1, 'late')")
        .await;
    scene
        .app
        .run("insert into orders values (2, 'early')")
        .await;
    assert_eq!(
        scene.all(100).await,
        [[(Insert, json!({"id": 2, "note": "early"}))]]
    );
    late.run("commit").await;
    assert_eq!(
        scene.all(100).await,
        [[(Insert, json!({"id": 1, "note": "late"}))]]
    );
}

/// As the table does, and not as the database would.
#[tokio::test]
async fn keys_that_differ_in_case_are_told_apart() {
    let scene = scene().await;
    scene
        .app
        .run(
            "create table cased (k nvarchar(20) collate Latin1_General_BIN2 primary key, note text)",
        )
        .await;
    let watch = scene.store.open_watch(&spec("c", "cased")).await.unwrap();
    scene
        .app
        .run("insert into cased values ('a', 'small'), ('A', 'large')")
        .await;
    let changes = take_all(&*scene.store, &watch, &quick()).await.concat();
    assert_eq!(changes.len(), 2, "{changes:?}");
    scene
        .app
        .run("update cased set note = 'x' where k = 'A'")
        .await;
    assert_eq!(
        take_all(&*scene.store, &watch, &quick()).await,
        [[(Update, json!({"k": "A", "note": "x"}))]]
    );
}
