//! Reading in plain SQL, with keys, operations and images, by those who were granted the feed.

use std::sync::Arc;

use changefeed_core::{Source, Store, TableName};
use changefeed_testkit::backend::{
    Backend, PostgresBackend, PostgresSession, Session, captured, read_all,
};
use changefeed_testkit::run;
use serde_json::Value;

const TABLE: &str = "create table t (id integer, at timestamptz, sure boolean, price numeric(9,2), \
                     name text, f float8, primary key (id, at, sure, price, name, f))";

struct Scene {
    backend: Arc<PostgresBackend>,
    store: Arc<dyn Store>,
    admin: Box<dyn Session>,
    reader: Box<dyn Session>,
    role: String,
}

impl Scene {
    /// A database with a table, and a role that has no rights in it.
    async fn new() -> Scene {
        let backend = Arc::new(PostgresBackend::fresh().await);
        let store = (&*backend as &dyn Backend).installed().await;
        let admin = (&*backend as &dyn Backend).session().await;
        let role = format!("cf_reader_{}", fastrand::u32(..));
        admin
            .run(&format!("create role {role} login; {TABLE}"))
            .await;
        let url = (&*backend as &dyn Backend).url();
        let (_, host) = url.split_once('@').unwrap();
        let reader = PostgresSession::connect(&format!("postgres://{role}@{host}"))
            .await
            .unwrap();
        Scene {
            backend,
            store,
            admin,
            reader: Box::new(reader),
            role,
        }
    }

    async fn settle(&self) {
        (&*self.backend as &dyn Backend).settle(&*self.store).await;
    }

    async fn end(self) {
        let role = &self.role;
        let gone = format!("drop owned by {role} cascade; drop role {role}");
        self.admin.run(&gone).await;
    }
}

/// What is read by SQL is what our own reader gives.
#[test]
fn a_page_in_sql_tells_what_a_page_of_ours_does() {
    run(async {
        let scene = Scene::new().await;
        let mut new = captured("t", TableName::unqualified("t"), None, 1);
        new.source.as_mut().unwrap().keep_images(true);
        let feed = scene.store.create_feed(&new).await.unwrap();
        for write in [
            "insert into t values (-1, '2026-01-01 05:00:00.5+01', true, 1.50, 'a\"b\\', 1e300)",
            "insert into t values (2, 'infinity', false, 'NaN', '', '-Infinity')",
            "update t set name = 'é', price = 2 where id = 2",
            "delete from t where id = -1",
            "truncate t",
        ] {
            scene.admin.run(write).await;
        }
        scene.settle().await;
        let changes = read_all(&*scene.store, &feed, 0, 100).await;
        let rows = scene
            .admin
            .query(
                "set timezone = 'Asia/Kolkata'; set datestyle = 'German'; set extra_float_digits = 0; \
                 select change_sequence_number, op, key, old, new from changefeed.read('t', 0)",
            )
            .await
            .unwrap();
        assert_eq!(rows.len(), 6);
        for (change, row) in changes.iter().zip(&rows) {
            let json = |place: usize| {
                row[place]
                    .as_deref()
                    .map(|text| serde_json::from_str::<Value>(text).unwrap())
            };
            let mut ours = String::from("{");
            change.write_json(&mut ours);
            ours.push('}');
            let ours: Value = serde_json::from_str(&ours).unwrap();
            assert_eq!(ours["cursor"], *row[0].as_deref().unwrap());
            assert_eq!(ours["op"], *row[1].as_deref().unwrap());
            for (place, name) in [(2, "key"), (3, "old"), (4, "new")] {
                assert_eq!(ours[name], json(place).unwrap_or_default(), "{name}");
            }
        }
        scene.end().await;
    });
}

/// Rights are granted feed by feed; a function of the reader's own sees no change of another feed.
#[test]
fn a_feed_is_read_by_those_it_was_granted_to() {
    run(async {
        let scene = Scene::new().await;
        scene
            .admin
            .run("create table secret (id integer primary key)")
            .await;
        for table in ["t", "secret"] {
            let new = captured(table, TableName::unqualified(table), None, 1);
            scene.store.create_feed(&new).await.unwrap();
        }
        scene
            .admin
            .run("insert into secret values (7); insert into t values (1, now(), true, 1, 'a', 1)")
            .await;
        scene.settle().await;
        let refused = async |sql: &str| scene.reader.query(sql).await.unwrap_err().to_string();
        let denied = refused("select * from changefeed.read('t', 0)").await;
        assert!(denied.contains("permission denied"), "{denied}");
        let grant = format!("select changefeed.grant_read('t', '{}')", scene.role);
        scene.admin.run(&grant).await;
        // Twice is as good as once.
        scene.admin.run(&grant).await;
        let found = "select count(*) from changefeed.read('t', 0) r where r.key ->> 'id' = '1'";
        assert_eq!(scene.reader.number(found).await, 1);
        let denied = refused("select * from changefeed.read('secret', 0)").await;
        assert!(denied.contains("may not read feed 'secret'"), "{denied}");
        scene
            .reader
            .run(
                "create function pg_temp.leak(id bigint) returns boolean language plpgsql cost 0.0001 as \
                 $$ begin raise exception 'leaked %', id; end $$",
            )
            .await;
        // The only change that it is shown is the one that may be read.
        let leak = "select count(*) from changefeed.change_log l where l.feed_id = \
                    (select feed_id from changefeed.feed where name = 'secret') and pg_temp.leak(l.change_id)";
        assert_eq!(scene.reader.number(leak).await, 0);
        let all = "select count(*) from changefeed.change_log";
        assert_eq!(scene.reader.number(all).await, 1);
        let denied = refused("select * from changefeed.change_row").await;
        assert!(denied.contains("permission denied"), "{denied}");
        // A function of the owner's that others may call reads with the owner's rights, and no
        // function of anybody's reads with the rights of whoever happens to call it.
        scene
            .admin
            .run(&format!(
                "create function public.spy() returns bigint language sql security definer as \
                 'select count(*) from changefeed.read(''secret'', 0)'; \
                 alter function public.spy() owner to {}",
                scene.role
            ))
            .await;
        let spied = scene.admin.query("select public.spy()").await;
        let denied = spied.unwrap_err().to_string();
        assert!(denied.contains("may not read feed 'secret'"), "{denied}");
        let misspelt = format!("select changefeed.revoke_read('T', '{}')", scene.role);
        let told = scene.admin.query(&misspelt).await.unwrap_err().to_string();
        assert!(told.contains("there is no feed T"), "{told}");
        let revoke = format!("select changefeed.revoke_read('t', '{}')", scene.role);
        scene.admin.run(&revoke).await;
        let denied = refused("select * from changefeed.read('t', 0)").await;
        assert!(denied.contains("may not read feed 't'"), "{denied}");
        scene.end().await;
    });
}

/// However many changes there are, a page in SQL reads its own.
#[test]
fn a_page_in_sql_is_read_through_the_keys() {
    run(async {
        let scene = Scene::new().await;
        let new = captured("t", TableName::unqualified("t"), None, 1);
        let feed = scene.store.create_feed(&new).await.unwrap();
        scene
            .admin
            .run("insert into t select i, 'epoch', true, 1, '', 1 from generate_series(1, 20000) i")
            .await;
        scene.settle().await;
        let read = async |table: &str| {
            let sql = format!(
                "select coalesce(sum(seq_tup_read), 0) + coalesce(sum(idx_tup_fetch), 0) \
                 from pg_stat_xact_user_tables where relname = '{table}'"
            );
            scene.admin.number(&sql).await
        };
        scene.admin.run("begin").await;
        let page = format!(
            "select count(*) from changefeed.read({}, 0, 2000000000010000, 100)",
            feed.id.0
        );
        assert_eq!(scene.admin.number(&page).await, 100);
        assert!(read("numbered").await <= 300);
        assert!(read("change_row").await <= 300);
        scene.admin.run("commit").await;
        scene.end().await;
    });
}

/// A column that a filter names may be renamed or dropped: writers do not suffer, nothing is lost, what was left out
/// is not shown, and `doctor` says so.
#[test]
fn a_filter_whose_columns_are_gone_fails_no_write() {
    run(async {
        let scene = Scene::new().await;
        scene
            .admin
            .run("create table u (id integer primary key, state text, secret text, note text)")
            .await;
        let mut new = captured("u", TableName::unqualified("u"), None, 1);
        if let Some(Source::Captured { when, columns, .. }) = &mut new.source {
            *when = Some("state = 'in'".to_owned());
            *columns = Some(vec!["id".to_owned(), "note".to_owned()]);
        }
        let feed = scene.store.create_feed(&new).await.unwrap();
        for write in [
            "insert into u values (1, 'in', 's', 'a'), (2, 'out', 's', 'b')",
            "alter table u rename secret to hidden",
            // The condition can still be asked.
            "insert into u values (3, 'in', 's', 'c'), (4, 'out', 's', 'd')",
            "alter table u rename state to phase",
            "insert into u values (5, 'out', 's', 'e')",
        ] {
            scene.admin.run(write).await;
        }
        scene.settle().await;
        let findings = scene.store.capture_findings().await.unwrap();
        let told = findings.iter().any(|f| {
            f.message.contains("no longer keeps any row out") && f.message.contains("state")
        });
        assert!(told, "{findings:?}");
        let changes = read_all(&*scene.store, &feed, 0, 100).await;
        let rows: Vec<&str> = changes
            .iter()
            .map(|c| c.content.row().unwrap().get())
            .collect();
        assert_eq!(rows.len(), 3, "{rows:?}");
        for (row, id) in rows.iter().zip([1, 3, 5]) {
            let row: Value = serde_json::from_str(row).unwrap();
            assert_eq!(row["id"], id);
            let names: Vec<&String> = row.as_object().unwrap().keys().collect();
            assert_eq!(names, ["id", "note"]);
        }
        scene.end().await;
    });
}
