//! What only PostgreSQL has: roles, schemas, partitions, NOTIFY, connections that can be counted,
//! and a server that can go away.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    After, Content, Cursor, Error, FeedStore, Kind, SchemaStore, ShardId, Store, SweepGroup,
    SweepStore, TableName, Taken,
};
use changefeed_postgres::{PostgresStore, consume};
use changefeed_testkit::backend::{
    Backend, PostgresBackend, Session, captured, ids, is_woken, read_all, settle,
};
use changefeed_testkit::postgres::{Cluster, as_role};
use changefeed_testkit::{eventually, run};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};

const GROUP: SweepGroup = SweepGroup(0);

async fn fresh() -> Arc<dyn Backend> {
    Arc::new(PostgresBackend::fresh().await)
}

/// Connections of this database other than the one that asks.
async fn connections(session: &dyn Session) -> i64 {
    session
        .number(
            "select count(*) from pg_stat_activity where datname = current_database() \
             and pid <> pg_backend_pid() and backend_type = 'client backend'",
        )
        .await
}

/// However many wait.
#[test]
fn a_thousand_waiters_wait_on_one_connection() {
    run(async {
        let backend = fresh().await;
        let (maker, feed) = backend.feed(37, 4).await;
        let session = backend.session().await;
        drop(maker);
        eventually("only we are connected", || async {
            (connections(&*session).await == 0).then_some(())
        })
        .await;
        let store = backend.store().await;
        let mut waiters: Vec<_> = (0..1000i16)
            .map(|n| store.listen(&feed, ShardId(n % 4)))
            .collect();
        for waiter in &mut waiters {
            assert!(
                is_woken(waiter).await,
                "told to look once, when all is ready"
            );
            waiter.look();
        }
        let listening = "select count(*) from pg_stat_activity \
                         where datname = current_database() and query ilike 'listen%'";
        assert_eq!(session.number(listening).await, 1);
        assert!(
            connections(&*session).await <= 2,
            "one to wait, at most one to ask"
        );
        drop(waiters);
        drop(store);
        eventually("the connection is given back", || async {
            (connections(&*session).await == 0).then_some(())
        })
        .await;
    });
}

/// A connection that listens as an application would: its messages, in order.
async fn listen(url: &str) -> (tokio_postgres::Client, mpsc::UnboundedReceiver<String>) {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message {
                let _ = sender.send(note.payload().to_owned());
            }
        }
    });
    client.batch_execute("listen changefeed").await.unwrap();
    (client, receiver)
}

/// `feed_id/shard/last_number` from the sweep, and nothing from the writer, whose commits would
/// all queue for one lock.
#[test]
fn the_sweep_notifies_and_the_writer_does_not() {
    run(async {
        let backend = fresh().await;
        let (store, _) = backend.feed(37, 2).await;
        let (session, words) = (backend.session().await, backend.words());
        let (_client, mut heard) = listen(&backend.url()).await;
        session.run(&words.publish_many(37, 1, 1..=3)).await;
        session
            .run("select pg_notify('changefeed', 'after the writer')")
            .await;
        assert_eq!(heard.recv().await.unwrap(), "after the writer");
        settle(&*store, GROUP).await;
        assert_eq!(heard.recv().await.unwrap(), "37/1/2000000000000003");
        // A shard without long polling is not announced.
        session
            .run("update changefeed.shard set longpoll = false where shard = 1")
            .await;
        session.run(&words.publish(37, 1, 4)).await;
        settle(&*store, GROUP).await;
        session.run(&words.publish(37, 0, 5)).await;
        settle(&*store, GROUP).await;
        assert_eq!(heard.recv().await.unwrap(), "37/0/2000000000000001");
    });
}

/// Of such a shard nothing is announced, and its followers looked once a minute.
#[test]
fn a_shard_without_long_polling_is_followed_within_seconds() {
    run(async {
        let backend = fresh().await;
        let (store, feed) = backend.feed(37, 2).await;
        let (session, words) = (backend.session().await, backend.words());
        session
            .run("update changefeed.shard set longpoll = false where shard = 1")
            .await;
        let mut news = store.listen(&feed, ShardId(1));
        // It is told once that it may have missed something; from then on somebody listens.
        news.news().await;
        session.run(&words.publish(37, 1, 4)).await;
        settle(&*store, GROUP).await;
        let followed = async {
            loop {
                news.look();
                let page = store.read(&feed, ShardId(1), After::First, 10).await;
                if !page.unwrap().changes.is_empty() {
                    // Only those that come now count.
                    session.run(&words.publish(37, 1, 5)).await;
                    settle(&*store, GROUP).await;
                    return news.news().await;
                }
                news.news().await;
            }
        };
        let limit = Duration::from_secs(40);
        tokio::time::timeout(limit, followed).await.unwrap();
    });
}

/// `select * from changefeed.sweep(group)`, as pure SQL users call it.
#[test]
fn sweep_by_plain_sql_reports_what_it_did() {
    run(async {
        let backend = fresh().await;
        let (store, feed) = backend.feed(37, 3).await;
        let (session, words) = (backend.session().await, backend.words());
        session.run(&words.publish_many(37, 0, 1..=4)).await;
        session.run(&words.publish(37, 2, 5)).await;
        let rows = session
            .query(
                "select feed_id, shard, change_count, lag_milliseconds >= 0 \
                 from changefeed.sweep(0) order by shard",
            )
            .await
            .unwrap();
        let text = |row: [&str; 4]| row.map(|v| Some(v.to_owned())).to_vec();
        assert_eq!(
            rows,
            [text(["37", "0", "4", "t"]), text(["37", "2", "1", "t"])]
        );
        assert_eq!(ids(&*store, &feed, 0).await, [1, 2, 3, 4]);
    });
}

/// In another schema, of the same name in two schemas, and behind a search path.
#[test]
fn tables_in_any_schema() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let session = backend.session().await;
        session
            .run(
                "create schema sales; create schema \"Odd Schema\"; \
                 create table orders (id int primary key, s text default 'public'); \
                 create table sales.orders (id int primary key, s text default 'sales'); \
                 create table \"Odd Schema\".\"Order\" (id int primary key, s text default 'odd')",
            )
            .await;
        let tables = [
            (TableName::unqualified("orders"), "orders", "public"),
            (
                TableName::qualified("sales", "orders"),
                "sales.orders",
                "sales",
            ),
            (
                TableName::qualified("Odd Schema", "Order"),
                "\"Odd Schema\".\"Order\"",
                "odd",
            ),
        ];
        for (number, (table, sql, expected)) in tables.into_iter().enumerate() {
            let feed = store
                .create_feed(&captured(&format!("f{number}"), table, None, 1))
                .await
                .unwrap();
            // From a session that sees none of them by default.
            session
                .run(&format!(
                    "set search_path = pg_catalog; insert into {} (id) values (1); \
                     reset search_path",
                    if sql == "orders" {
                        "public.orders"
                    } else {
                        sql
                    }
                ))
                .await;
            settle(&*store, GROUP).await;
            let changes = read_all(&*store, &feed, 0, 10).await;
            assert_eq!(changes.len(), 1);
            let row = changes[0].content.row().unwrap().get();
            assert!(row.contains(expected), "{row}");
        }
    });
}

/// The feed is made on the parent; writes to any partition are seen, and a row that moves to
/// another partition is still there.
#[test]
fn partitioned_tables() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let session = backend.session().await;
        session
            .run(
                "create table event (day int, id int, note text, primary key (day, id)) \
                 partition by list (day); \
                 create table event_1 partition of event for values in (1); \
                 create table event_2 partition of event for values in (2)",
            )
            .await;
        let feed = store
            .create_feed(&captured(
                "events",
                TableName::unqualified("event"),
                None,
                1,
            ))
            .await
            .unwrap();
        session.run("insert into event values (1, 1, 'a')").await;
        session.run("insert into event_2 values (2, 2, 'b')").await;
        session
            .run("create table event_3 partition of event for values in (3)")
            .await;
        session.run("update event set day = 3 where id = 1").await;
        settle(&*store, GROUP).await;
        let changes = read_all(&*store, &feed, 0, 10).await;
        let there: Vec<bool> = changes
            .iter()
            .map(|change| matches!(change.content, Content::Row(_)))
            .collect();
        assert_eq!(there, [false, true, false, true]);
    });
}

/// The text of a key must not depend on who wrote it, or the row would not be found again.
#[test]
fn keys_of_any_type_are_found_whatever_the_writers_settings() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let session = backend.session().await;
        let kinds = [
            ("timestamptz", "'2024-02-29 12:34:56.789012+05:30'"),
            ("date", "'2024-02-29'"),
            ("bytea", "'\\x00ff27'"),
            ("interval", "'1 day 02:03:04'"),
            ("double precision", "0.30000000000000004"),
            ("real", "0.1"),
            ("numeric", "12345678901234567890.123456789"),
            ("uuid", "'6f0d7f4e-3a8e-4b53-9a41-0d3b3a6b7f10'"),
            ("text", "E'a\\nb\"c''d\\\\e'"),
            ("char(5)", "'ab'"),
            ("inet", "'10.0.0.1/8'"),
            ("int[]", "'{1,2,NULL}'"),
            ("boolean", "true"),
            ("bigint", "-9223372036854775808"),
        ];
        for (number, (kind, value)) in kinds.into_iter().enumerate() {
            let table = format!("t{number}");
            session
                .run(&format!(
                    "create table {table} (k {kind} primary key, v int)"
                ))
                .await;
            let feed = store
                .create_feed(&captured(&table, TableName::unqualified(&table), None, 1))
                .await
                .unwrap_or_else(|e| panic!("{kind}: {e:?}"));
            let writer = backend.session().await;
            writer
                .run(
                    "set datestyle = 'German'; set timezone = 'Asia/Tokyo'; \
                     set bytea_output = escape; set intervalstyle = 'iso_8601'; \
                     set extra_float_digits = -5",
                )
                .await;
            writer
                .run(&format!("insert into {table} values ({value}, 1)"))
                .await;
            settle(&*store, GROUP).await;
            let changes = read_all(&*store, &feed, 0, 10).await;
            assert!(
                matches!(changes[0].content, Content::Row(_)),
                "the row of key {kind} is not found"
            );
            writer.run(&format!("update {table} set v = 2")).await;
            settle(&*store, GROUP).await;
            assert_eq!(
                read_all(&*store, &feed, 0, 10).await.len(),
                2,
                "an update of {kind} is one change"
            );
        }
    });
}

/// A role with nothing is told what is missing; a writer with INSERT on the view can publish.
#[test]
fn rights_are_named_when_they_are_missing() {
    run(async {
        let backend = fresh().await;
        let (store, feed) = backend.feed(37, 1).await;
        let admin = backend.session().await;
        let role = format!("cf_role_{:08x}", std::process::id());
        admin
            .run(&format!(
                "drop role if exists {role}; create role {role} login password 'secret'"
            ))
            .await;
        let url = as_role(&backend.url(), &role, "secret");
        let poor = PostgresStore::connect(&url).await.unwrap();
        for error in [
            poor.feeds().await.unwrap_err(),
            poor.sweep(GROUP).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        }
        let empty = fresh().await;
        let url = as_role(&empty.url(), &role, "secret");
        let stranger = PostgresStore::connect(&url).await.unwrap();
        let error = stranger.migrate().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        assert!(
            error.advice().is_some_and(|a| a.contains("grant")),
            "{error:?}"
        );
        // A writer needs no more than this.
        admin
            .run(&format!(
                "grant usage on schema changefeed to {role}; \
                 grant insert on changefeed.change to {role}; \
                 grant usage on sequence changefeed.change_id to {role}; \
                 set role {role}; \
                 insert into changefeed.change (feed_id, shard, change_id) \
                 values (37, 0, nextval('changefeed.change_id')); \
                 reset role"
            ))
            .await;
        settle(&*store, GROUP).await;
        assert_eq!(ids(&*store, &feed, 0).await.len(), 1);
        admin
            .run(&format!("drop owned by {role}; drop role {role}"))
            .await;
    });
}

/// The application's own role writes to a captured table, with no right on anything of ours.
#[test]
fn writers_of_a_captured_table_need_no_rights_of_ours() {
    run(async {
        let backend = fresh().await;
        let store = backend.installed().await;
        let admin = backend.session().await;
        admin
            .run("create table orders (id int primary key, note text)")
            .await;
        let feed = store
            .create_feed(&captured(
                "orders",
                TableName::unqualified("orders"),
                None,
                1,
            ))
            .await
            .unwrap();
        let role = format!("cf_writer_{:08x}", std::process::id());
        admin
            .run(&format!(
                "drop role if exists {role}; create role {role}; \
                 grant select, insert, update, delete on orders to {role}; set role {role}; \
                 insert into orders values (1, 'a'); update orders set note = 'b'; \
                 delete from orders; reset role"
            ))
            .await;
        settle(&*store, GROUP).await;
        assert_eq!(ids(&*store, &feed, 0).await.len(), 3);
        admin
            .run(&format!("drop owned by {role}; drop role {role}"))
            .await;
    });
}

/// The same store object goes on, and so do those who wait.
#[test]
fn a_store_survives_a_restart_of_its_server() {
    run(async {
        let cluster = Cluster::start_new();
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::on(&cluster.url()).await);
        let (store, feed) = backend.feed(37, 1).await;
        let words = backend.words();
        backend.session().await.run(&words.publish(37, 0, 1)).await;
        settle(&*store, GROUP).await;
        let mut waiter = store.listen(&feed, ShardId(0));
        assert!(is_woken(&mut waiter).await);

        cluster.stop_immediate();
        let error = store
            .read(&feed, ShardId(0), After::First, 10)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
        let error = store.sweep(GROUP).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
        cluster.start();

        eventually("the store works again", || async {
            store.read(&feed, ShardId(0), After::First, 10).await.ok()
        })
        .await;
        waiter.look();
        let session = backend.session().await;
        session.run(&words.publish(37, 0, 2)).await;
        settle(&*store, GROUP).await;
        assert!(is_woken(&mut waiter).await, "who waits is woken again");
        let page = store
            .read(
                &feed,
                ShardId(0),
                Cursor::Number(2_000_000_000_000_001).into(),
                10,
            )
            .await
            .unwrap();
        assert_eq!(page.changes.len(), 1);
    });
}

/// Many at once do not need as many connections.
#[test]
fn a_store_uses_few_connections_under_load() {
    run(async {
        let backend = fresh().await;
        let (_, feed) = backend.feed(37, 1).await;
        let session = backend.session().await;
        let store: Arc<dyn Store> = backend.store().await;
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..300 {
            let (store, feed) = (Arc::clone(&store), feed.clone());
            readers.spawn(async move {
                store
                    .read(&feed, ShardId(0), After::First, 10)
                    .await
                    .unwrap();
            });
        }
        let mut most = 0;
        while !readers.is_empty() {
            most = most.max(connections(&*session).await);
            while let Some(outcome) = readers.try_join_next() {
                outcome.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(most <= 40, "{most} connections");
    });
}

/// Two instances that have read the same page: whoever comes second waits for the first, and has no effects.
#[test]
fn effects_of_a_page_are_committed_once() {
    run(async {
        let backend = fresh().await;
        let (store, feed) = backend.feed(37, 1).await;
        let app = backend.session().await;
        app.run("create table effect (n int)").await;
        app.run("insert into changefeed.change (feed_id, shard, change_id) values (37, 0, 1), (37, 0, 2)")
            .await;
        settle(&*store, GROUP).await;
        let name = "c".parse().unwrap();
        let taken = Taken::read(&*store, &name, &feed, ShardId(0), 10);
        let taken = taken.await.unwrap();
        assert_eq!(taken.page.changes.len(), 2);
        let connect = async || {
            let (client, connection) = tokio_postgres::connect(&backend.url(), NoTls)
                .await
                .unwrap();
            tokio::spawn(connection);
            client
        };
        let (mut first, mut second) = (connect().await, connect().await);
        let failed = consume(&mut first, &taken, async |effects| {
            effects
                .execute("insert into effect values (0)", &[])
                .await
                .unwrap();
            Err::<(), _>(Error::invalid("no"))
        });
        assert_eq!(failed.await.unwrap_err().message(), "no");
        let waiting = tokio::sync::Notify::new();
        let (one, two) = tokio::join!(
            consume(&mut first, &taken, async |effects| {
                waiting.notify_one();
                let blocked = "select count(*) from pg_stat_activity \
                               where wait_event_type = 'Lock' and datname = current_database()";
                eventually("the second waits", || async {
                    (app.number(blocked).await == 1).then_some(())
                })
                .await;
                let effect = "insert into effect values (1)";
                effects.execute(effect, &[]).await.unwrap();
                Ok::<_, Error>(())
            }),
            async {
                waiting.notified().await;
                let late = consume(&mut second, &taken, async |_| -> Result<(), Error> {
                    panic!("it has effects")
                });
                late.await
            }
        );
        one.unwrap();
        assert_eq!(two.unwrap_err().kind(), Kind::Moved);
        assert_eq!(app.number("select sum(n) + count(*) from effect").await, 2);
        let next = Taken::read(&*store, &name, &feed, ShardId(0), 10);
        assert_eq!(next.await.unwrap().to(), None);
    });
}
