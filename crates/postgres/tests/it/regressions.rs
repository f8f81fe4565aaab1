//! One test per bug that was found on PostgreSQL, named after it.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{After, Cursor, Kind, NewFeed, ShardId, SweepGroup, TableName};
use changefeed_testkit::backend::{
    Backend, PostgresBackend, captured, eventually_true, ids, settle,
};
use changefeed_testkit::run;

const GROUP: SweepGroup = SweepGroup(0);

async fn fresh() -> Arc<dyn Backend> {
    Arc::new(PostgresBackend::fresh().await)
}

/// A role of this process and test.
fn role(test: &str) -> String {
    format!("cf_{test}_{:08x}", std::process::id())
}

/// `shard_of` is inlined into a trigger that runs with our rights: an operator of the writer's
/// own schema must not get into it.
#[test]
fn an_operator_of_the_writer_does_not_run_with_our_rights() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let admin = backend.session().await;
        let role = role("operator");
        admin
            .run("create table orders (id int primary key, customer_id bigint)")
            .await;
        let table = TableName::unqualified("orders");
        store
            .create_feed(&captured("orders", table, Some("customer_id"), 4))
            .await
            .unwrap();
        admin
            .run(&format!(
                "drop role if exists {role}; create role {role}; grant insert on orders to {role}; \
                 create schema mal authorization {role}; create table seen (who text); \
                 grant insert on seen to {role}; set role {role}; set search_path = mal, public; \
                 create function mal.evil(a bigint, b integer) returns bigint language plpgsql as \
                 $$ begin insert into public.seen values (current_user); return 0; end $$; \
                 create operator mal.% (leftarg = bigint, rightarg = integer, function = mal.evil); \
                 create function mal.evil(a bigint, b bigint) returns bigint language plpgsql as \
                 $$ begin insert into public.seen values (current_user); return 0; end $$; \
                 create operator mal.% (leftarg = bigint, rightarg = bigint, function = mal.evil); \
                 insert into public.orders values (1, 5); reset search_path; reset role"
            ))
            .await;
        assert_eq!(admin.number("select count(*) from seen").await, 0);
        admin
            .run(&format!("drop owned by {role}; drop role {role}"))
            .await;
    });
}

/// pg_temp comes first when a type is looked up: `record` in a function that runs with our
/// rights was the writer's own.
#[test]
fn a_type_of_the_writer_does_not_run_with_our_rights() {
    run(async {
        let backend = fresh().await;
        let (_, feed) = backend.feed(37, 1).await;
        let admin = backend.session().await;
        let role = role("type");
        admin
            .run(&format!(
                "drop role if exists {role}; create role {role}; \
                 grant usage on schema changefeed to {role}; \
                 grant insert on changefeed.change to {role}; \
                 create table seen (who text); grant insert on seen to {role}; set role {role}; \
                 create function pg_temp.evil(v bigint) returns boolean language plpgsql as $$ begin \
                   if current_user <> '{role}' then insert into public.seen values (current_user); \
                   end if; return true; end $$; \
                 create domain pg_temp.d as bigint check (pg_temp.evil(value)); \
                 create type pg_temp.record as (start pg_temp.d, trimmed_to pg_temp.d); \
                 create domain pg_temp.int8 as bigint check (pg_temp.evil(value)); \
                 insert into changefeed.change (feed_id, shard, change_id, change_sequence_number) \
                 values ({0}, 0, 1, 5); \
                 insert into changefeed.change (feed_id, shard, change_id) values ({0}, 0, 2); \
                 reset role",
                feed.id
            ))
            .await;
        assert_eq!(admin.number("select count(*) from seen").await, 0);
        admin
            .run(&format!("drop owned by {role}; drop role {role}"))
            .await;
    });
}

/// The numbers stayed half given, and readers from `first` waited for ever at the frontier.
#[test]
fn a_backfill_that_does_not_fit_changes_nothing_and_blocks_nobody() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let admin = backend.session().await;
        admin
            .run("create table t (id int primary key); insert into t select generate_series(1, 10)")
            .await;
        let new = NewFeed {
            start: 5,
            ..captured("t", TableName::unqualified("t"), None, 1)
        };
        let feed = store.create_feed(&new).await.unwrap();
        let error = store.backfill(&feed, 2).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        admin.run("insert into t values (11)").await;
        settle(&*store, GROUP).await;
        assert_eq!(ids(&*store, &feed, 0).await.len(), 1);
    });
}

/// Numbers given by hand in the middle of a backfill collided with it, every time.
#[test]
fn numbers_by_hand_wait_for_a_backfill_to_end() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let admin = backend.session().await;
        let words = backend.words();
        admin
            .run("create table t (id int primary key); insert into t select generate_series(1, 10)")
            .await;
        let feed = store
            .create_feed(&captured("t", TableName::unqualified("t"), None, 1))
            .await
            .unwrap();
        store.backfill(&feed, 4).await.unwrap();
        let by_hand = words.publish_old(feed.id.0, 0, 1, 1_000_000_000_000_007);
        let refused = admin.execute(&by_hand).await.unwrap_err();
        assert!(
            refused.to_string().contains("a backfill of feed"),
            "{refused}"
        );
        while !store.backfill(&feed, 4).await.unwrap().finished {}
        admin
            .run(&words.publish_old(feed.id.0, 0, 1, 2_000_000_000_000_000))
            .await;
        assert_eq!(ids(&*store, &feed, 0).await.len(), 11);
    });
}

/// A number by hand at the very start made every backfill say that its rows do not fit.
#[test]
fn a_number_by_hand_at_the_start_leaves_room_for_a_backfill() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let admin = backend.session().await;
        admin
            .run("create table t (id int primary key); insert into t select generate_series(1, 10)")
            .await;
        let feed = store
            .create_feed(&captured("t", TableName::unqualified("t"), None, 1))
            .await
            .unwrap();
        let words = backend.words();
        admin
            .run(&words.publish_old(feed.id.0, 0, 1, 2_000_000_000_000_000))
            .await;
        assert!(store.backfill(&feed, 100).await.unwrap().finished);
        assert_eq!(ids(&*store, &feed, 0).await.len(), 11);
    });
}

/// The inbox still held what was numbered and trimmed, and re-stamping took it for new.
#[test]
fn what_was_trimmed_does_not_come_back_in_another_cluster() {
    run(async {
        let backend = fresh().await;
        let (store, feed) = backend.feed(37, 1).await;
        let admin = backend.session().await;
        let words = backend.words();
        admin.run(&words.publish_range(feed.id.0, 0, 1, 10)).await;
        settle(&*store, GROUP).await;
        let trimmed = store
            .trim(&feed, Duration::ZERO.into(), 1000)
            .await
            .unwrap();
        assert_eq!(trimmed.removed, 10);
        admin
            .run("update changefeed.cluster set system_identifier = 1")
            .await;
        admin.run(&words.publish(feed.id.0, 0, 11)).await;
        settle(&*store, GROUP).await;
        settle(&*store, GROUP).await;
        assert_eq!(ids(&*store, &feed, 0).await, [11]);
    });
}

/// `call sweep_loop(0, null, null, null)` never returned.
#[test]
fn a_sweep_loop_without_times_uses_its_defaults() {
    run(async {
        let backend = fresh().await;
        let _ = backend.feed(37, 1).await;
        let admin = backend.session().await;
        let row = admin
            .query("call changefeed.sweep_loop(0, null, 0, null)")
            .await
            .unwrap();
        assert_eq!(
            row[0].last().unwrap().as_deref(),
            Some("1"),
            "one iteration"
        );
        assert!(
            admin
                .execute("call changefeed.sweep_loop(0, -1, 0, 0)")
                .await
                .is_err()
        );
    });
}

/// Deleting a feed by SQL left its trigger, which failed the application's writes.
#[test]
fn a_feed_deleted_by_sql_takes_its_trigger_along() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let admin = backend.session().await;
        admin.run("create table t (id int primary key)").await;
        store
            .create_feed(&captured("t", TableName::unqualified("t"), None, 1))
            .await
            .unwrap();
        admin
            .run("delete from changefeed.feed where name = 't'")
            .await;
        admin.run("insert into t values (1)").await;
        assert!(store.feeds().await.unwrap().is_empty());
    });
}

/// Every look at the inbox passed over the rows of a writer that had not committed yet. (Needs
/// PostgreSQL 15 for statistics on demand.)
#[test]
fn a_large_open_transaction_does_not_slow_every_sweep() {
    run(async {
        let backend = fresh().await;
        let (store, feed) = backend.feed(37, 1).await;
        let (writer, other) = (backend.session().await, backend.session().await);
        let words = backend.words();
        writer.run("begin").await;
        writer
            .run(&words.publish_range(feed.id.0, 0, 1, 100_000))
            .await;
        // The first sweeps meet the rows; then the writer is known by name. In one session, whose
        // statistics can be asked for.
        let sweep = "select count(*) from changefeed.sweep(0)";
        for id in 0..3 {
            other
                .run(&words.publish(feed.id.0, 0, 1_000_000 + id))
                .await;
            other.run(sweep).await;
        }
        let read = async || {
            other.run("select pg_stat_force_next_flush()").await;
            other
                .number(
                    // By an index or, when statistics were gathered meanwhile, by the table itself.
                    "select sum(n)::bigint from ( \
                     select idx_tup_read from pg_stat_user_indexes \
                     where schemaname = 'changefeed' and relname like 'inbox%' \
                     union all select seq_tup_read from pg_stat_user_tables \
                     where schemaname = 'changefeed' and relname like 'inbox%') reads (n)",
                )
                .await
        };
        let before = read().await;
        assert!(before >= 100_000, "the rows were met at first: {before}");
        for _ in 0..20 {
            other.run(sweep).await;
        }
        let more = read().await - before;
        assert!(more < 10_000, "{more} entries were read by 20 idle sweeps");
        writer.run("commit").await;
        settle(&*store, GROUP).await;
        let page = store.read(&feed, ShardId(0), After::Last, 1).await.unwrap();
        assert_eq!(page.next, Cursor::Number(2_000_000_000_100_003));
    });
}

/// The owner of a captured table may have made a cast of their own type, which ran with our
/// rights, and stored whatever it returned as the key.
#[test]
fn a_cast_of_the_tables_owner_does_not_run_with_our_rights() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let admin = backend.session().await;
        let role = role("cast");
        admin
            .run(&format!(
                "drop role if exists {role}; create role {role}; \
                 create schema mal authorization {role}; create table seen (who text); \
                 grant insert on seen to {role}; set role {role}; \
                 create type mal.e as enum ('a', 'b'); \
                 create function mal.tx(v mal.e) returns text language plpgsql as \
                 $$ begin insert into public.seen values (current_user); return 'a'; end $$; \
                 create cast (mal.e as text) with function mal.tx(mal.e); \
                 create table mal.t (id mal.e primary key); reset role"
            ))
            .await;
        let table = TableName::qualified("mal", "t");
        let feed = store
            .create_feed(&captured("t", table, Some("id"), 2))
            .await
            .unwrap();
        admin
            .run(&format!(
                "set role {role}; insert into mal.t values ('b'); \
                 alter table mal.t rename id to renamed; insert into mal.t values ('a'); reset role"
            ))
            .await;
        assert_eq!(admin.number("select count(*) from seen").await, 0);
        settle(&*store, GROUP).await;
        let (zero, one) = (ids(&*store, &feed, 0).await, ids(&*store, &feed, 1).await);
        assert_eq!(zero.len() + one.len(), 2);
        let keys = admin
            .value("select string_agg(key->>0, ',' order by change_id) from changefeed.change_row")
            .await;
        assert_eq!(keys, "b,a");
        admin
            .run(&format!("drop owned by {role} cascade; drop role {role}"))
            .await;
    });
}

/// A domain over an integer was hashed as text.
#[test]
fn a_domain_is_sharded_by_what_it_is_over() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let admin = backend.session().await;
        admin
            .run(
                "create domain cust as int; create domain big_cust as cust; \
                 create table t (id int primary key, c big_cust)",
            )
            .await;
        let feed = store
            .create_feed(&captured("t", TableName::unqualified("t"), Some("c"), 4))
            .await
            .unwrap();
        admin.run("insert into t values (1, 5)").await;
        settle(&*store, GROUP).await;
        assert_eq!(ids(&*store, &feed, 1).await.len(), 1);
    });
}

/// Removing a shard that a trigger publishes to failed the application's writes.
#[test]
fn a_shard_that_a_trigger_publishes_to_cannot_be_removed() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let admin = backend.session().await;
        admin.run("create table t (id int primary key)").await;
        let feed = store
            .create_feed(&captured("t", TableName::unqualified("t"), None, 1))
            .await
            .unwrap();
        let delete = format!("delete from changefeed.shard where feed_id = {}", feed.id);
        assert!(admin.execute(&delete).await.is_err());
        admin.run("insert into t values (1)").await;
        store.drop_feed(&feed).await.unwrap();
        admin.run("insert into t values (2)").await;
    });
}

/// A backfill read the table by its name, a moment after it had looked which one that was.
#[test]
fn a_backfill_does_not_number_the_rows_of_a_table_that_takes_the_place_of_another() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let admin = backend.session().await;
        admin
            .run(
                "create table orders (id int primary key); create table others (id int primary key); \
                 insert into orders values (1); insert into others values (11), (12)",
            )
            .await;
        let table = TableName::unqualified("orders");
        let feed = store
            .create_feed(&captured("orders", table, None, 1))
            .await
            .unwrap();
        let swap = backend.session().await;
        swap.run("begin; alter table orders rename to before; alter table others rename to orders")
            .await;
        let backfill = tokio::spawn({
            let (store, feed) = (store.clone(), feed.clone());
            async move { store.backfill(&feed, 100).await }
        });
        let waits =
            "select count(*) from pg_locks where relation = 'orders'::regclass and not granted";
        eventually_true("the backfill waits for the swap", async || {
            admin.number(waits).await == 1
        })
        .await;
        swap.run("commit").await;
        let error = backfill.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        let numbered = "select count(*) from changefeed.change";
        assert_eq!(admin.number(numbered).await, 0);
        // The feed knows its table by more than its name.
        assert_eq!(store.backfill(&feed, 100).await.unwrap().added, 1);
    });
}
