//! Partitioned tables.

use changefeed_core::{FeedBinding, Severity};
use changefeed_testkit::events::{log, told};
use changefeed_testkit::run;
use serde_json::{Value, json};

use crate::events::scene::Scene;

const PARTITIONED: &str = "create table orders (id int, region text, v text, \
      primary key (id, region)) partition by list (region); \
    create table orders_eu partition of orders for values in ('eu'); \
    create table orders_us (v text, dropped int, region text not null, id int not null); \
    alter table orders_us drop column dropped; \
    alter table orders attach partition orders_us for values in ('us')";

fn row(id: i64, region: &str, v: &str) -> Value {
    json!({"id": id, "region": region, "v": v})
}

/// Through the parent, directly, and into a partition whose columns are in another order.
#[test]
fn writes_to_partitions_are_captured_whichever_way_they_come() {
    run(async {
        let scene = Scene::new(PARTITIONED).await;
        scene.trigger().await;
        scene
            .session
            .run(
                "insert into orders values (1, 'eu', 'a'), (2, 'us', 'b'); \
                 insert into orders_eu values (3, 'eu', 'c'); \
                 insert into orders_us (id, region, v) values (4, 'us', 'd'); \
                 update orders_us set v = 'e' where id = 4; \
                 update orders set v = 'f' where id = 2; \
                 delete from orders_eu where id = 3; delete from orders where id = 1",
            )
            .await;
        let told = told(&*scene.store).await;
        assert_eq!(
            told,
            [
                ("INSERT", Value::Null, row(1, "eu", "a")),
                ("INSERT", Value::Null, row(2, "us", "b")),
                ("INSERT", Value::Null, row(3, "eu", "c")),
                ("INSERT", Value::Null, row(4, "us", "d")),
                ("UPDATE", row(4, "us", "d"), row(4, "us", "e")),
                ("UPDATE", row(2, "us", "b"), row(2, "us", "f")),
                ("DELETE", row(3, "eu", "c"), Value::Null),
                ("DELETE", row(1, "eu", "a"), Value::Null),
            ]
        );
        // Events are of the table that the trigger is on.
        for logged in log(&*scene.store).await {
            assert_eq!(logged.event.table.name, "orders");
        }
    });
}

/// Attached and detached after the trigger was made, other order of columns included.
#[test]
fn a_partition_that_comes_later_is_captured() {
    run(async {
        let scene = Scene::new(PARTITIONED).await;
        scene
            .trigger_with(|d| {
                d.capture.feed = Some(FeedBinding {
                    feed: "f".parse().unwrap(),
                    shard_by: Some("id".into()),
                });
            })
            .await;
        scene
            .session
            .run(
                "create table orders_as partition of orders for values in ('as'); \
                 create table orders_af (junk int, v text, id int not null, region text not null); \
                 alter table orders_af drop column junk; \
                 alter table orders attach partition orders_af for values in ('af'); \
                 insert into orders values (1, 'as', 'a'), (2, 'af', 'b'); \
                 insert into orders_af (id, region, v) values (3, 'af', 'c')",
            )
            .await;
        scene.store.refresh_triggers().await.unwrap();
        scene
            .session
            .run("insert into orders values (4, 'af', 'd'); update orders set v = 'x' where id = 2")
            .await;
        assert_eq!(
            told(&*scene.store).await,
            [
                ("INSERT", Value::Null, row(1, "as", "a")),
                ("INSERT", Value::Null, row(2, "af", "b")),
                ("INSERT", Value::Null, row(3, "af", "c")),
                ("INSERT", Value::Null, row(4, "af", "d")),
                ("UPDATE", row(2, "af", "b"), row(2, "af", "x")),
            ]
        );
        assert!(scene.complaints().await.is_empty());
        scene
            .session
            .run("alter table orders detach partition orders_af; delete from orders_af")
            .await;
        assert_eq!(log(&*scene.store).await.len(), 5, "it is another table now");
        let trigger = &scene.store.triggers().await.unwrap()[0];
        scene.store.drop_trigger(trigger).await.unwrap();
        scene
            .session
            .run("insert into orders values (9, 'as', 'z'); insert into orders_af (id, region) values (9, 'af')")
            .await;
    });
}

/// What PostgreSQL does there is documented: the row leaves one table and enters another.
#[test]
fn an_update_that_moves_a_row_is_a_delete_and_an_insert() {
    run(async {
        let scene = Scene::new(PARTITIONED).await;
        scene.trigger().await;
        scene
            .session
            .run("insert into orders values (1, 'eu', 'a')")
            .await;
        scene.session.run("update orders set region = 'us'").await;
        assert_eq!(
            told(&*scene.store).await[1..],
            [
                ("DELETE", row(1, "eu", "a"), Value::Null),
                ("INSERT", Value::Null, row(1, "us", "a")),
            ]
        );
        let findings = scene.store.capture_findings().await.unwrap();
        assert!(findings.iter().any(|f| f.message.contains("partition")));
    });
}

/// A trigger on one partition sees what comes through the parent too.
#[test]
fn a_trigger_on_a_partition_sees_writes_through_the_parent() {
    run(async {
        let scene = Scene::new(PARTITIONED).await;
        scene
            .trigger_with(|d| d.table.name = "orders_us".into())
            .await;
        scene
            .session
            .run(
                "insert into orders values (1, 'eu', 'a'), (2, 'us', 'b'); \
                 insert into orders_us (id, region, v) values (3, 'us', 'c'); \
                 delete from orders",
            )
            .await;
        let ops: Vec<_> = told(&*scene.store)
            .await
            .iter()
            .map(|(op, ..)| *op)
            .collect();
        assert_eq!(ops, ["INSERT", "INSERT", "DELETE", "DELETE"]);
    });
}

/// Emptied as a whole or one partition of it: shown either way.
#[test]
fn a_truncated_partition_is_remembered() {
    run(async {
        for truncate in ["truncate orders", "truncate orders_eu"] {
            let scene = Scene::new(PARTITIONED).await;
            scene.trigger().await;
            scene
                .session
                .run("insert into orders values (1, 'eu', 'a')")
                .await;
            scene.session.run(truncate).await;
            let complaints = scene.complaints().await;
            assert!(
                complaints
                    .iter()
                    .any(|f| f.severity == Severity::Warning && f.message.contains("TRUNCATE")),
                "{truncate}: {complaints:?}"
            );
        }
    });
}
