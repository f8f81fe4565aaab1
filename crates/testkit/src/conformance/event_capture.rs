//! What becomes an event, and what the event says.

use std::sync::Arc;

use changefeed_core::{EventTrigger, FeedBinding, Store, TableName, TriggerDefinition, Updates};
use serde_json::{Value, json};

use crate::backend::{Backend, Session, name};
use crate::events::{everything, log, told, told_by};

const ORDERS: &str = "create table orders (id integer primary key, customer text, total integer)";

/// A store with one trigger on one table.
async fn scene(
    backend: &Arc<dyn Backend>,
    table: &str,
    change: impl FnOnce(&mut TriggerDefinition),
) -> (Arc<dyn Store>, Box<dyn Session>, EventTrigger) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(table).await;
    let mut definition = everything("t", "orders");
    change(&mut definition);
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    (store, session, trigger)
}

fn order(id: i64, customer: impl Into<Value>, total: impl Into<Value>) -> Value {
    json!({"id": id, "customer": customer.into(), "total": total.into()})
}

/// Insert, update and delete, with exactly the rows before and after, NULL columns included.
pub async fn promise_8_every_change_is_an_event_with_its_rows(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |_| {}).await;
    session.run("insert into orders values (1, null, 5)").await;
    session
        .run("update orders set customer = 'a' where id = 1")
        .await;
    session
        .run("update orders set customer = null where id = 1")
        .await;
    session
        .run("update orders set total = 5 where id = 1")
        .await;
    session.run("delete from orders where id = 1").await;
    session.run("delete from orders where id = 1").await;
    let (none, a) = (order(1, Value::Null, 5), order(1, "a", 5));
    assert_eq!(
        told(&*store).await,
        [
            ("INSERT", Value::Null, none.clone()),
            ("UPDATE", none.clone(), a.clone()),
            ("UPDATE", a, none.clone()),
            ("DELETE", none, Value::Null),
        ]
    );
    for logged in log(&*store).await {
        let event = &logged.event;
        let column_order = event.new.as_ref().or(event.old.as_ref()).unwrap().get();
        let places = ["\"id\"", "\"customer\"", "\"total\""].map(|c| column_order.find(c));
        assert!(
            places.is_sorted(),
            "in the order of the table: {column_order}"
        );
        assert_eq!(event.table.name, "orders");
        assert_eq!(event.trigger.as_str(), "t");
        assert!(event.session_variables.is_none() && event.trace_context.is_none());
        assert!(event.created_at.ends_with('Z'), "{}", event.created_at);
        assert_eq!(logged.tries, 0);
    }
}

/// Only what was asked for.
pub async fn operations_that_nobody_asked_for_make_no_event(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |_| {}).await;
    let mut only = everything("deletes", "orders");
    only.capture.insert = false;
    only.capture.update = Updates::Ignored;
    store.create_trigger(&only, false).await.unwrap();
    let mut only = everything("inserts", "orders");
    only.capture.delete = false;
    only.capture.update = Updates::Ignored;
    store.create_trigger(&only, false).await.unwrap();
    let mut only = everything("updates", "orders");
    only.capture.insert = false;
    only.capture.delete = false;
    store.create_trigger(&only, false).await.unwrap();
    session.run("insert into orders values (1, 'a', 5)").await;
    session.run("update orders set total = 6").await;
    session.run("delete from orders").await;
    for (trigger, expected) in [
        ("t", vec!["INSERT", "UPDATE", "DELETE"]),
        ("inserts", vec!["INSERT"]),
        ("updates", vec!["UPDATE"]),
        ("deletes", vec!["DELETE"]),
    ] {
        let ops: Vec<&str> = told_by(&*store, trigger)
            .await
            .iter()
            .map(|(op, ..)| *op)
            .collect();
        assert_eq!(ops, expected, "{trigger}");
    }
}

/// Only updates that change a column that is listened to; NULL is as good as any value.
pub async fn an_update_of_other_columns_makes_no_event(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |d| {
        d.capture.update = Updates::Of(vec!["customer".into()]);
    })
    .await;
    session.run("insert into orders values (1, null, 5)").await;
    session.run("update orders set total = 6").await;
    session
        .run("update orders set customer = null, total = 7")
        .await;
    session
        .run("update orders set customer = 'a', total = 8")
        .await;
    session
        .run("update orders set customer = 'a', total = 9")
        .await;
    session.run("update orders set customer = null").await;
    assert_eq!(
        told(&*store).await[1..],
        [
            ("UPDATE", order(1, Value::Null, 7), order(1, "a", 8)),
            ("UPDATE", order(1, "a", 9), order(1, Value::Null, 9)),
        ]
    );
}

/// The payload names what is delivered; what is listened to is another matter.
pub async fn events_carry_the_columns_of_the_payload(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |d| {
        d.capture.payload = Some(vec!["total".into(), "id".into()]);
        d.capture.update = Updates::Of(vec!["customer".into()]);
    })
    .await;
    session.run("insert into orders values (1, 'a', 5)").await;
    session.run("update orders set customer = 'b'").await;
    session.run("delete from orders").await;
    let row = json!({"id": 1, "total": 5});
    assert_eq!(
        told(&*store).await,
        [
            ("INSERT", Value::Null, row.clone()),
            ("UPDATE", row.clone(), row.clone()),
            ("DELETE", row, Value::Null),
        ]
    );
}

/// Only true lets a change pass: neither false nor NULL does.
pub async fn a_condition_over_old_and_new_decides(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |d| {
        d.capture.condition = Some("new.total > 10 or old.total > 100".into());
    })
    .await;
    session
        .run("insert into orders values (1, 'a', 5), (2, 'b', 50), (3, 'c', null), (4, 'd', 500)")
        .await;
    session
        .run("update orders set total = 11 where id = 1")
        .await;
    session
        .run("update orders set total = null where id = 2")
        .await;
    session
        .run("update orders set total = 1 where id = 4")
        .await;
    session
        .run("update orders set total = 101 where id = 3")
        .await;
    session.run("delete from orders").await;
    assert_eq!(
        told(&*store).await,
        [
            ("INSERT", Value::Null, order(2, "b", 50)),
            ("INSERT", Value::Null, order(4, "d", 500)),
            ("UPDATE", order(1, "a", 5), order(1, "a", 11)),
            ("UPDATE", order(4, "d", 500), order(4, "d", 1)),
            ("UPDATE", order(3, "c", Value::Null), order(3, "c", 101)),
            ("DELETE", order(3, "c", 101), Value::Null),
        ]
    );
}

/// An event too many is better than a write that fails, and than an event too few.
pub async fn a_condition_that_fails_at_run_time_does_not_fail_the_write(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |d| {
        d.capture.condition = Some("9 / new.total > 2".into());
    })
    .await;
    session
        .run("insert into orders values (1, 'a', 3), (2, 'b', 9), (3, 'c', 4)")
        .await;
    session.run("insert into orders values (4, 'd', 0)").await;
    assert_eq!(
        session.number("select count(*) from orders").await,
        4,
        "the writes are done"
    );
    let ids: Vec<i64> = told(&*store)
        .await
        .iter()
        .map(|(_, _, new)| new["id"].as_i64().unwrap())
        .collect();
    // Where a division by zero is an error the event is kept; where it is NULL it is not true.
    assert!(ids == [1, 4] || ids == [1], "{ids:?}");
}

/// One event with both rows.
pub async fn a_changed_primary_key_is_an_update_with_both_rows(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |_| {}).await;
    session
        .run("insert into orders values (1, 'a', 1), (2, 'b', 2)")
        .await;
    session.run("update orders set id = 7 where id = 1").await;
    // All keys change places in one statement.
    session.run("update orders set id = -id").await;
    let told = told(&*store).await;
    assert_eq!(told[2], ("UPDATE", order(1, "a", 1), order(7, "a", 1)));
    assert_eq!(told.len(), 5);
    for (op, old, new) in &told[3..] {
        assert_eq!(*op, "UPDATE");
        // Where the database does not say which row was which, nothing is guessed.
        if !backend.words().pairs_changed_keys {
            assert_eq!((old, new["id"].as_i64() < Some(0)), (&Value::Null, true));
            continue;
        }
        assert_eq!(
            old["customer"], new["customer"],
            "rows that belong together"
        );
        assert_eq!(old["id"].as_i64().unwrap(), -new["id"].as_i64().unwrap());
    }
}

/// Rows that nothing tells apart are events all the same.
pub async fn a_table_without_a_primary_key_is_captured(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run("create table orders (customer text, total integer)")
        .await;
    let mut definition = everything("t", "orders");
    let updates = backend.words().pairs_changed_keys;
    if !updates {
        // Refused with a reason, rather than rows that do not belong together.
        let error = store.create_trigger(&definition, false).await.unwrap_err();
        assert!(error.message().contains("no primary key"), "{error}");
        definition.capture.update = Updates::Ignored;
    }
    store.create_trigger(&definition, false).await.unwrap();
    session
        .run("insert into orders values ('a', 1), ('a', 1)")
        .await;
    session.run("update orders set total = 2").await;
    session.run("delete from orders").await;
    let (one, two) = (
        json!({"customer": "a", "total": 1}),
        json!({"customer": "a", "total": 2}),
    );
    let mut expected = vec![("INSERT", Value::Null, one.clone()); 2];
    if updates {
        expected.extend(vec![("UPDATE", one, two.clone()); 2]);
    }
    expected.extend(vec![("DELETE", two, Value::Null); 2]);
    assert_eq!(told(&*store).await, expected);
}

/// Reserved words, quotes, spaces, mixed case, and names that other things of ours have.
pub async fn names_that_need_quotes(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run(
            "create table \"Order \"\"x\"\" of 'me'\" (\"select\" integer primary key, \
             \"Mixed Case\" text, \"we\"\"ird]`'name\" integer, \"old\" text, \"new\" text, \
             \"c\" text, \"after\" text, \"changed\" text, \"%s\" text, \"{after}\" text)",
        )
        .await;
    let mut definition = everything("t", "orders");
    definition.table = TableName::unqualified("Order \"x\" of 'me'");
    definition.capture.update = Updates::Of(vec!["we\"ird]`'name".into(), "old".into()]);
    definition.capture.order_by = Some(changefeed_core::OrderBy::Column("Mixed Case".into()));
    definition.capture.feed = Some(FeedBinding {
        feed: name("f"),
        shard_by: Some("select".into()),
    });
    store.create_trigger(&definition, false).await.unwrap();
    definition.name = "payload".parse().unwrap();
    definition.capture.payload = Some(vec!["Mixed Case".into(), "new".into()]);
    store.create_trigger(&definition, false).await.unwrap();
    let table = "\"Order \"\"x\"\" of 'me'\"";
    session
        .run(&format!(
            "insert into {table} values (1, 'M', 2, 'o', 'n', 'c', 'a', 'ch', 's', 'br')"
        ))
        .await;
    session
        .run(&format!("update {table} set \"new\" = 'nn'"))
        .await;
    session
        .run(&format!("update {table} set \"we\"\"ird]`'name\" = 3"))
        .await;
    session.run(&format!("delete from {table}")).await;
    let folded = told_by(&*store, "payload").await[0]
        .2
        .get("mixed case")
        .is_some();
    let mixed = match folded && !backend.words().keeps_case {
        true => "mixed case",
        false => "Mixed Case",
    };
    let row = |new: &str, n: i64| {
        json!({"select": 1, mixed: "M", "we\"ird]`'name": n, "old": "o", "new": new,
               "c": "c", "after": "a", "changed": "ch", "%s": "s", "{after}": "br"})
    };
    assert_eq!(
        told_by(&*store, "t").await,
        [
            ("INSERT", Value::Null, row("n", 2)),
            ("UPDATE", row("nn", 2), row("nn", 3)),
            ("DELETE", row("nn", 3), Value::Null),
        ]
    );
    let short = |new: &str| json!({mixed: "M", "new": new});
    assert_eq!(
        told_by(&*store, "payload").await,
        [
            ("INSERT", Value::Null, short("n")),
            ("UPDATE", short("nn"), short("nn")),
            ("DELETE", short("nn"), Value::Null),
        ]
    );
}

/// They are part of the row, and can be listened to.
pub async fn generated_columns_are_captured(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(
        &backend,
        "create table orders (id integer primary key, total integer, \
         big integer generated always as (total / 10) stored)",
        |d| d.capture.update = Updates::Of(vec!["big".into()]),
    )
    .await;
    session
        .run("insert into orders (id, total) values (1, 10)")
        .await;
    session.run("update orders set total = 11").await;
    session.run("update orders set total = 25").await;
    let row = |total: i64, big: i64| json!({"id": 1, "total": total, "big": big});
    assert_eq!(
        told(&*store).await,
        [
            ("INSERT", Value::Null, row(10, 1)),
            ("UPDATE", row(11, 1), row(25, 2)),
        ]
    );
}

/// One event per row, with change ids of their own.
pub async fn many_rows_in_one_statement_are_one_event_each(backend: Arc<dyn Backend>) {
    const ROWS: usize = 2000;
    let (store, session, _) = scene(&backend, ORDERS, |_| {}).await;
    session
        .run(&format!(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < {ROWS}) \
             insert into orders select i, 'c' || i, i from n"
        ))
        .await;
    session.run("update orders set total = total + 1").await;
    session.run("delete from orders").await;
    let told = told(&*store).await;
    assert_eq!(told.len(), 3 * ROWS);
    for (round, op) in ["INSERT", "UPDATE", "DELETE"].iter().enumerate() {
        let mut seen = vec![false; ROWS + 1];
        for (which, old, new) in &told[round * ROWS..(round + 1) * ROWS] {
            assert_eq!(which, op);
            let row = if new.is_null() { old } else { new };
            let id = usize::try_from(row["id"].as_i64().unwrap()).unwrap();
            assert!(!std::mem::replace(&mut seen[id], true), "{id} twice");
            assert_eq!(row["customer"], format!("c{id}"));
            if *which == "UPDATE" {
                assert_eq!(old["id"], new["id"]);
                assert_eq!(
                    old["total"].as_i64().unwrap() + 1,
                    new["total"].as_i64().unwrap()
                );
            }
        }
    }
    let ids: Vec<i64> = log(&*store)
        .await
        .iter()
        .map(|e| e.event.change_id)
        .collect();
    assert!(ids.is_sorted_by(|a, b| a < b));
}

/// What a statement did in the end, not what it tried.
pub async fn an_upsert_is_what_it_did(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |_| {}).await;
    session.run("insert into orders values (1, 'a', 1)").await;
    match session.execute(backend.words().upsert).await {
        Err(error)
            if error
                .message
                .contains("not currently supported in Babelfish") =>
        {
            eprintln!("skipped: {error}");
            return;
        }
        done => done.unwrap(),
    }
    session.run(backend.words().insert_missing).await;
    let mut told = told(&*store).await;
    told.sort_by_key(|(op, old, new)| format!("{}{old}{new}", *op == "UPDATE"));
    assert_eq!(
        told,
        [
            ("INSERT", Value::Null, order(1, "a", 1)),
            ("INSERT", Value::Null, order(2, "c", 3)),
            ("INSERT", Value::Null, order(3, "d", 4)),
            ("UPDATE", order(1, "a", 1), order(1, "a", 2)),
        ]
    );
}

/// Rows that the database itself removes or changes because of others.
pub async fn cascades_are_captured(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run(
            "create table customer (id integer primary key); \
             create table orders (id integer primary key, customer integer \
               references customer (id) on delete cascade on update cascade); \
             create table note (id integer primary key, customer integer \
               references customer (id) on delete set null)",
        )
        .await;
    for table in ["customer", "orders", "note"] {
        store
            .create_trigger(&everything(table, table), false)
            .await
            .unwrap();
    }
    // SQLite asks for it; elsewhere the name is nobody's.
    let _ = session.execute("pragma foreign_keys = on").await;
    session
        .run(
            "insert into customer values (1); insert into orders values (10, 1), (11, 1); \
             insert into note values (20, 1)",
        )
        .await;
    // Without it the note would forbid the new key.
    session
        .run("delete from note; insert into note values (21, null)")
        .await;
    session.run("update customer set id = 2").await;
    session.run("update note set customer = 2").await;
    session.run("delete from customer").await;
    let of = |id: i64, customer: i64| json!({"id": id, "customer": customer});
    let orders = told_by(&*store, "orders").await;
    let mut last: Vec<_> = orders[2..].to_vec();
    last.sort_by_key(|(op, old, _)| (*op == "DELETE", old["id"].as_i64()));
    assert_eq!(
        last,
        [
            ("UPDATE", of(10, 1), of(10, 2)),
            ("UPDATE", of(11, 1), of(11, 2)),
            ("DELETE", of(10, 2), Value::Null),
            ("DELETE", of(11, 2), Value::Null),
        ]
    );
    assert_eq!(
        told_by(&*store, "note").await.last().unwrap(),
        &("UPDATE", of(21, 2), json!({"id": 21, "customer": null}))
    );
    assert_eq!(told_by(&*store, "customer").await.len(), 3);
}
