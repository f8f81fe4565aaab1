//! Tables that are altered after their event trigger was made: no write fails, and capture follows.

use std::sync::Arc;

use changefeed_core::{EventTrigger, Severity, Store, TriggerDefinition, Updates};
use serde_json::{Value, json};

use crate::backend::{Backend, Session};
use crate::events::{everything, log, told};

async fn scene(
    backend: &Arc<dyn Backend>,
    change: impl FnOnce(&mut TriggerDefinition),
) -> (Arc<dyn Store>, Box<dyn Session>, EventTrigger) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run("create table orders (id integer primary key, customer text, total integer)")
        .await;
    let mut definition = everything("t", "orders");
    change(&mut definition);
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    (store, session, trigger)
}

async fn write_everything(session: &dyn Session, table: &str, id: i64) {
    session
        .run(&format!("insert into {table} (id, total) values ({id}, 1)"))
        .await;
    session
        .run(&format!("update {table} set total = 2 where id = {id}"))
        .await;
    session
        .run(&format!("delete from {table} where id = {id}"))
        .await;
}

/// Nothing is wrong any more after a refresh, and the next one finds nothing to do.
async fn is_well_after_refresh(store: &dyn Store) {
    store.refresh_triggers().await.unwrap();
    let again = store.refresh_triggers().await.unwrap();
    assert!(again.is_empty(), "{again:?}");
    let bad: Vec<_> = store
        .capture_findings()
        .await
        .unwrap()
        .into_iter()
        .filter(|f| f.severity > Severity::Note)
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
}

/// Where a trigger names its columns, it must be made anew before the next write.
async fn before_the_next_write(backend: &Arc<dyn Backend>, store: &dyn Store) {
    if !backend.words().triggers_survive_renames {
        let findings = store.capture_findings().await.unwrap();
        assert!(
            findings.iter().any(|f| f.severity == Severity::Problem),
            "it is said: {findings:?}"
        );
        store.refresh_triggers().await.unwrap();
    }
}

/// The application's own write goes on before anybody follows; afterwards the column is there.
pub async fn a_new_column_is_followed(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, |_| {}).await;
    session
        .run("alter table orders add column note text default 'n'")
        .await;
    write_everything(&*session, "orders", 1).await;
    assert_eq!(log(&*store).await.len(), 3, "captured all the same");
    is_well_after_refresh(&*store).await;
    session
        .run("insert into orders values (2, 'c', 1, 'x')")
        .await;
    session.run("update orders set note = 'y'").await;
    let row = |note: &str| json!({"id": 2, "customer": "c", "total": 1, "note": note});
    assert_eq!(
        told(&*store).await[3..],
        [
            ("INSERT", Value::Null, row("x")),
            ("UPDATE", row("x"), row("y")),
        ]
    );
}

/// Also where the definition names it.
pub async fn a_renamed_column_is_followed(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, |_| {}).await;
    session
        .run("alter table orders rename column customer to buyer")
        .await;
    before_the_next_write(&backend, &*store).await;
    write_everything(&*session, "orders", 1).await;
    assert_eq!(log(&*store).await.len(), 3, "captured all the same");
    is_well_after_refresh(&*store).await;
    session.run("insert into orders values (2, 'c', 1)").await;
    assert_eq!(
        told(&*store).await[3..],
        [(
            "INSERT",
            Value::Null,
            json!({"id": 2, "buyer": "c", "total": 1})
        )]
    );
}

/// A definition that names the column either follows the rename or says that somebody must look;
/// it never breaks a write and never loses a change.
pub async fn a_renamed_column_that_is_named_is_followed_or_said(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, |d| {
        d.capture.update = Updates::Of(vec!["customer".into()]);
        d.capture.payload = Some(vec!["id".into(), "customer".into()]);
    })
    .await;
    session
        .run("alter table orders rename column customer to buyer")
        .await;
    before_the_next_write(&backend, &*store).await;
    session.run("insert into orders values (1, 'a', 1)").await;
    session.run("update orders set buyer = 'b'").await;
    store.refresh_triggers().await.unwrap();
    session.run("update orders set buyer = 'c'").await;
    let ops: Vec<&str> = told(&*store).await.iter().map(|(op, ..)| *op).collect();
    assert_eq!(ops, ["INSERT", "UPDATE", "UPDATE"]);
    let definition = &store.triggers().await.unwrap()[0].definition;
    let findings = store.capture_findings().await.unwrap();
    let said = findings.iter().any(|f| f.severity > Severity::Note);
    let followed = definition.capture.update == Updates::Of(vec!["buyer".into()]);
    assert!(followed != said, "{definition:?} {findings:?}");
    if followed {
        let last = told(&*store).await.pop().unwrap();
        assert_eq!(last.2, json!({"id": 1, "buyer": "c"}));
    }
}

/// Where the database lets it be dropped at all.
pub async fn a_dropped_column_is_followed(backend: Arc<dyn Backend>) {
    let (store, session, trigger) = scene(&backend, |_| {}).await;
    let dropped = session
        .execute("alter table orders drop column customer")
        .await
        .is_ok();
    if dropped {
        before_the_next_write(&backend, &*store).await;
    }
    write_everything(&*session, "orders", 1).await;
    assert_eq!(log(&*store).await.len(), 3, "captured all the same");
    if !dropped {
        // SQLite refuses it while a trigger names the column: the way is to drop and create.
        store.drop_trigger(&trigger).await.unwrap();
        session.run("alter table orders drop column customer").await;
        store
            .create_trigger(&everything("t", "orders"), false)
            .await
            .unwrap();
    }
    is_well_after_refresh(&*store).await;
    session.run("insert into orders values (2, 1)").await;
    assert_eq!(
        told(&*store).await[3..],
        [("INSERT", Value::Null, json!({"id": 2, "total": 1}))]
    );
}

/// Events name the table as it is called from then on.
pub async fn a_renamed_table_is_followed(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, |_| {}).await;
    session.run("insert into orders values (1, 'a', 1)").await;
    session.run("alter table orders rename to purchases").await;
    write_everything(&*session, "purchases", 2).await;
    assert_eq!(log(&*store).await.len(), 4, "captured all the same");
    is_well_after_refresh(&*store).await;
    write_everything(&*session, "purchases", 3).await;
    let log = log(&*store).await;
    assert_eq!(log.len(), 7);
    assert_eq!(log[6].event.table.name, "purchases");
    let trigger = &store.triggers().await.unwrap()[0];
    assert_eq!(trigger.definition.table.name, "purchases");
    store.drop_trigger(trigger).await.unwrap();
    write_everything(&*session, "purchases", 4).await;
}

/// The trigger of a table that is gone is no obstacle, and is shown.
pub async fn a_dropped_table_is_said(backend: Arc<dyn Backend>) {
    let (store, session, trigger) = scene(&backend, |_| {}).await;
    session.run("insert into orders values (1, 'a', 1)").await;
    session.run("drop table orders").await;
    let before = log(&*store).await.len();
    assert!(before >= 1);
    store.refresh_triggers().await.unwrap();
    let findings = store.capture_findings().await.unwrap();
    assert!(
        findings.iter().any(|f| f.severity == Severity::Problem),
        "{findings:?}"
    );
    // What waits can still be delivered.
    let seen = store.triggers().await.unwrap();
    assert_eq!(seen.len(), 1);
    let held = crate::events::claim(&*store, &trigger, 10, "me", crate::events::LEASE).await;
    assert_eq!(held.len(), before);
    store.drop_trigger(&trigger).await.unwrap();
    assert!(store.triggers().await.unwrap().is_empty());
}

/// A condition is looked at again after a change; until then nothing is held back and no write fails.
pub async fn a_condition_survives_a_new_column(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, |d| {
        d.capture.condition = Some("new.total > 10".into());
    })
    .await;
    session.run("alter table orders add column note text").await;
    write_everything(&*session, "orders", 1).await;
    is_well_after_refresh(&*store).await;
    let before = log(&*store).await.len();
    session
        .run("insert into orders values (2, 'c', 10, 'x'), (3, 'c', 11, 'x')")
        .await;
    let told = told(&*store).await;
    assert_eq!(
        told[before..],
        [(
            "INSERT",
            Value::Null,
            json!({"id": 3, "customer": "c", "total": 11, "note": "x"})
        )]
    );
}

/// Many instances that follow at the same time do it once, and nobody fails.
pub async fn promise_12_many_instances_follow_at_once(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, |_| {}).await;
    session.run("alter table orders add column note text").await;
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let store = backend.store().await;
        tasks.push(tokio::spawn(async move {
            store.refresh_triggers().await.unwrap();
        }));
    }
    for n in 0..20 {
        write_everything(&*session, "orders", n).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(log(&*store).await.len(), 60, "each once");
    is_well_after_refresh(&*store).await;
}
