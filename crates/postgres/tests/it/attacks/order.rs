//! Triggers, cascades and statements that write to other rows while a statement is at work: the events of each key are in
//! the order in which the database applied the changes.

use changefeed_core::OrderBy;
use changefeed_testkit::events::{Told, everything, told, told_by};
use changefeed_testkit::run;

use crate::attacks::capture::Stage;

/// The events of each key, in their order.
async fn by_key(stage: &Stage, trigger: &str, key: i64) -> Vec<String> {
    let of_key = |t: &Told| t.1["id"] == key || t.2["id"] == key;
    let told = told_by(&*stage.store, trigger).await;
    let words = |t: &Told| format!("{} {}", t.0, if t.0 == "DELETE" { &t.1 } else { &t.2 }["v"]);
    told.iter().filter(|t| of_key(t)).map(words).collect()
}

const VALUES: &str = "create table orders (id int primary key, v int, next int)";

async fn ordered(setup: &str, write: &str, expected: &[(i64, &[&str])]) {
    let stage = Stage::new(&format!("{VALUES}; {setup}")).await;
    stage.capture_in_every_way("orders", "id").await;
    stage.session.run(write).await;
    for trigger in ["plain", "condition", "fed"] {
        for (key, words) in expected {
            assert_eq!(
                by_key(&stage, trigger, *key).await,
                *words,
                "{trigger}: {write}"
            );
        }
    }
    // What readers of the feed get is in the same order.
    let feed = "select count(*) from changefeed.change c join changefeed.feed f using (feed_id) \
                left join changefeed.event e using (change_id) where f.name = 'fed' \
                and e.change_id is null";
    assert_eq!(stage.session.number(feed).await, 0);
}

/// The trigger of the second row changes the first, before either was captured.
#[test]
fn a_before_trigger_that_changes_another_row_of_the_statement() {
    let trigger = |when: &str, what: &str| {
        format!(
            "create function other() returns trigger language plpgsql as $$ begin {what}; \
             return new; end $$; create trigger other {when} on orders for each row \
             when (pg_trigger_depth() < 1) execute function other()"
        )
    };
    run(async {
        ordered(
            &trigger(
                "before insert",
                "update orders set v = v + 10 where id = new.id - 1",
            ),
            "insert into orders values (1, 1), (2, 2), (3, 3)",
            &[
                (1, &["INSERT 1", "UPDATE 11"]),
                (2, &["INSERT 2", "UPDATE 12"]),
                (3, &["INSERT 3"]),
            ],
        )
        .await;
        // Three versions of one row, and its end.
        ordered(
            &trigger(
                "before insert",
                "if new.id > 1 then update orders set v = v + 10 where id = 1; end if; \
                 if new.id = 4 then delete from orders where id = 1; end if",
            ),
            "insert into orders values (1, 1), (2, 2), (3, 3), (4, 4)",
            &[(
                1,
                &[
                    "INSERT 1",
                    "UPDATE 11",
                    "UPDATE 21",
                    "UPDATE 31",
                    "DELETE 31",
                ],
            )],
        )
        .await;
        // What replaces a row deletes it first.
        ordered(
            &format!(
                "insert into orders values (1, 1), (2, 2); {}",
                trigger("before insert", "delete from orders where id = new.id")
            ),
            "insert into orders values (1, 10), (2, 20)",
            &[
                (1, &["DELETE 1", "INSERT 10"]),
                (2, &["DELETE 2", "INSERT 20"]),
            ],
        )
        .await;
        ordered(
            &format!(
                "insert into orders values (1, 1), (2, 2); {}",
                trigger(
                    "before update",
                    "if new.id = 2 then update orders set v = v + 100 where id = 1; end if"
                )
            ),
            "update orders set v = v + 10",
            &[(1, &["UPDATE 11", "UPDATE 111"]), (2, &["UPDATE 12"])],
        )
        .await;
        ordered(
            &trigger(
                "after insert",
                "update orders set v = v + 10 where id = new.id + 1",
            ),
            "insert into orders values (1, 1), (2, 2), (3, 3)",
            &[
                (2, &["INSERT 2", "UPDATE 12"]),
                (3, &["INSERT 3", "UPDATE 13"]),
            ],
        )
        .await;
        // In savepoints, too.
        ordered(
            &trigger(
                "before insert",
                "begin update orders set v = v + 10 where id = new.id - 1; \
                 exception when others then raise; end",
            ),
            "begin; savepoint a; insert into orders values (1, 1), (2, 2); release a; \
             insert into orders values (3, 3), (4, 4); commit",
            &[
                (1, &["INSERT 1", "UPDATE 11"]),
                (2, &["INSERT 2", "UPDATE 12"]),
                (3, &["INSERT 3", "UPDATE 13"]),
            ],
        )
        .await;
    });
}

/// A cascade of the table to itself is a nested write as well.
#[test]
fn a_cascade_to_other_rows_of_the_statement() {
    run(ordered(
        "insert into orders values (1, 1, null), (2, 2, 1), (3, 3, 2); \
         alter table orders add foreign key (next) references orders on update cascade",
        "update orders set id = id + 10, v = v + 10",
        &[
            (1, &["UPDATE 11"]),
            (12, &["UPDATE 12", "UPDATE 12"]),
            (13, &["UPDATE 13", "UPDATE 13"]),
        ],
    ));
}

/// Parts of one statement, of which one takes up what the other has removed.
#[test]
fn common_table_expressions_that_modify() {
    let rows = "insert into orders values (1, 1), (2, 2), (3, 3)";
    run(async {
        for write in [
            "with d as (delete from orders where id < 3 returning id), \
             i as (insert into orders select id, 10 from d limit 1 returning id) select from i",
            "with d as (delete from orders where id < 3 returning id) \
             insert into orders select id, 10 from d where id = 1",
            "with u as (update orders set id = 9 where id = 1 returning id) \
             insert into orders select 1, 10 from u",
        ] {
            let first = if write.contains("update") {
                "UPDATE 1"
            } else {
                "DELETE 1"
            };
            ordered(rows, write, &[(1, &[first, "INSERT 10"])]).await;
        }
    });
}

/// Rows that share what events are ordered by, in one upsert.
#[test]
fn an_upsert_in_the_order_of_a_column() {
    run(async {
        let stage = Stage::new(&format!("{VALUES}; insert into orders values (2, 2, 7)")).await;
        let mut definition = everything("t", "orders");
        definition.capture.order_by = Some(OrderBy::Column("next".into()));
        stage
            .store
            .create_trigger(&definition, false)
            .await
            .unwrap();
        stage
            .session
            .run(
                "insert into orders values (1, 1, 7), (2, 20, 7), (3, 3, 7) \
                 on conflict (id) do update set v = excluded.v",
            )
            .await;
        let told = told(&*stage.store).await;
        let ids: Vec<String> = told.iter().map(|t| t.2["id"].to_string()).collect();
        assert_eq!(ids, ["1", "2", "3"]);
    });
}
