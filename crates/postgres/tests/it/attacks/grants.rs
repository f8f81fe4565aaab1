//! Roles with no more than the documented grants.

use std::collections::BTreeSet;
use std::sync::Arc;

use changefeed_core::{
    AccessStore, FeedStore, Kind, ParkedRows, Severity, Store, TriggerStore, WatchStore,
};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{Backend, PostgresBackend, PostgresSession, Session};
use changefeed_testkit::run;
use changefeed_testkit::watching::{quick, spec, take_all};

const GUIDES: [&str; 6] = [
    include_str!("../../../../../docs/postgres.md"),
    include_str!("../../../../../docs/watches.md"),
    include_str!("../../../../../docs/events.md"),
    include_str!("../../../../../docs/feeds.md"),
    include_str!("../../../../../docs/http.md"),
    include_str!("../../../../../docs/ulids.md"),
];

/// The blocks of SQL in the guides that grant something on PostgreSQL.
fn documented() -> Vec<String> {
    let blocks = GUIDES.iter().flat_map(|guide| {
        let postgres = guide.split("\n## On SQL Server").next().unwrap();
        postgres.split("```sql\n").skip(1)
    });
    blocks
        .map(|block| block.split("```").next().unwrap().to_owned())
        .filter(|block| block.contains("grant ") || block.contains("grant_worker"))
        .collect()
}

/// The roles that they are for.
fn roles(blocks: &[String]) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    blocks
        .iter()
        .flat_map(|block| block.split(|c| !word(c)))
        .filter(|name| name.starts_with("app_"))
        .map(str::to_owned)
        .collect()
}

struct Scene {
    backend: Arc<PostgresBackend>,
    store: Arc<dyn Store>,
    admin: Box<dyn Session>,
    suffix: String,
    roles: BTreeSet<String>,
}

impl Scene {
    /// A database with everything in it, in which all documented grants were made. Roles are of the
    /// whole server, so that they have names of their own here.
    async fn new() -> Scene {
        let backend = Arc::new(PostgresBackend::fresh().await);
        let store = (&*backend as &dyn Backend).installed().await;
        let admin = (&*backend as &dyn Backend).session().await;
        let blocks = documented();
        let roles = roles(&blocks);
        assert!(roles.len() >= 5, "{roles:?}");
        let scene = Scene {
            backend,
            store,
            admin,
            suffix: format!("_{}", fastrand::u32(..)),
            roles,
        };
        scene
            .admin
            .run("create table orders (id integer primary key, note text)")
            .await;
        scene.store.open_watch(&spec("f", "orders")).await.unwrap();
        scene
            .admin
            .run(
                "insert into changefeed.feed (feed_id, name) values (1, 'orders'), (2, 'secret'); \
                 insert into changefeed.shard (feed_id, shard) values (1, 0), (2, 0)",
            )
            .await;
        for role in &scene.roles {
            let role = scene.role(role);
            scene.admin.run(&format!("create role {role} login")).await;
        }
        for block in blocks {
            let mut block = block;
            for role in &scene.roles {
                block = block.replace(role, &scene.role(role));
            }
            scene.admin.run(&block).await;
        }
        scene
    }

    fn role(&self, documented: &str) -> String {
        format!("{documented}{}", self.suffix)
    }

    fn url(&self, documented: &str) -> String {
        let url = (&*self.backend as &dyn Backend).url();
        let (_, host) = url.split_once('@').unwrap();
        format!("postgres://{}@{host}", self.role(documented))
    }

    async fn session(&self, documented: &str) -> Box<dyn Session> {
        Box::new(
            PostgresSession::connect(&self.url(documented))
                .await
                .unwrap(),
        )
    }

    async fn end(self) {
        for role in &self.roles {
            let role = self.role(role);
            self.admin
                .run(&format!("drop owned by {role} cascade; drop role {role}"))
                .await;
        }
    }
}

/// What is planted in the schema is run by the owner and by `serve`.
#[test]
fn no_documented_role_can_plant_anything_in_our_schema() {
    run(async {
        let scene = Scene::new().await;
        // What is made later belongs to the owner as well.
        scene
            .admin
            .run("create table more (id integer primary key)")
            .await;
        scene.store.open_watch(&spec("g", "more")).await.unwrap();
        let tables = "select string_agg(case c.relkind when 'v' then 'instead of insert on ' \
               else 'before insert on ' end || 'changefeed.' || c.relname, ',') from pg_class c \
             where c.relnamespace = 'changefeed'::regnamespace and c.relkind in ('r', 'v', 'p')";
        let tables = scene.admin.value(tables).await;
        assert!(tables.contains("leases_") && tables.contains("event_trigger"));
        for name in &scene.roles {
            let attacker = scene.session(name).await;
            let role = scene.role(name);
            scene
                .admin
                .run(&format!(
                    "create schema own_{role} authorization {role}; \
                     create table own_{role}.spy (who name); \
                     grant insert on own_{role}.spy to public"
                ))
                .await;
            attacker
                .run(&format!(
                    "create function own_{role}.plant() returns trigger language plpgsql as \
                     $$ begin insert into own_{role}.spy values (current_user); return new; end $$"
                ))
                .await;
            let mut attacks = vec![
                "create function changefeed.table_signature(regclass) returns text language sql \
                 as 'select 1::text'"
                    .to_owned(),
                "create or replace function changefeed.table_signature(oid) returns text \
                 language sql as 'select 1::text'"
                    .to_owned(),
                "create table changefeed.leases_0000000000000000_1 (id integer)".to_owned(),
                "create view changefeed.trap as select 1".to_owned(),
                "create operator changefeed.= (leftarg = text, rightarg = text, \
                 function = pg_catalog.texteq)"
                    .to_owned(),
                "alter schema changefeed rename to mine".to_owned(),
                format!("alter function changefeed.table_signature(oid) owner to {role}"),
                // What only the owner may tell to whom.
                format!("select changefeed.grant_worker('{role}')"),
                // Definitions are run, and tokens are keys.
                "update changefeed.watch set definition = '{}'".to_owned(),
                "insert into changefeed.watch (name, function_id, table_id) \
                 values ('x', '0000000000000000', 1)"
                    .to_owned(),
                "update changefeed.watched_table set key = '{x}'".to_owned(),
                "update changefeed.event_trigger set name = name".to_owned(),
                "select from changefeed.access_token".to_owned(),
                "delete from changefeed.access_token".to_owned(),
                "insert into changefeed.schema_version (version) values (99)".to_owned(),
            ];
            for place in tables.split(',') {
                let (_, table) = place.rsplit_once(' ').unwrap();
                attacks.push(format!(
                    "create trigger planted {place} for each row execute function own_{role}.plant()"
                ));
                attacks.push(format!(
                    "create rule planted as on insert to {table} do also select 1"
                ));
                attacks.push(format!("alter table {table} owner to {role}"));
            }
            for attack in attacks {
                let error = match attacker.execute(&attack).await {
                    Ok(()) => panic!("{name} could {attack}"),
                    Err(error) => error,
                };
                let denied = [
                    "permission denied",
                    "must be owner",
                    "INSTEAD OF",
                    "Views cannot",
                ];
                assert!(
                    denied.iter().any(|why| error.message.contains(why)),
                    "{name}: {attack}: {error}"
                );
            }
        }
        assert!(strangers(&*scene.store).await.is_empty());
        scene.end().await;
    });
}

async fn strangers(store: &dyn Store) -> Vec<String> {
    let findings = store.server_findings().await.unwrap();
    findings
        .into_iter()
        .filter(|f| f.subject == "rights" && f.severity == Severity::Problem)
        .map(|f| format!("{} → {}", f.message, f.advice.unwrap()))
        .collect()
}

/// Every role can do what the guides grant it for.
#[test]
fn every_documented_role_can_do_its_work() {
    run(async {
        let scene = Scene::new().await;
        let writer = scene.session("app_writer").await;
        writer
            .run("insert into changefeed.change (feed_id, shard, change_id) values (1, 0, nextval('changefeed.change_id'))")
            .await;
        for statement in [
            "begin",
            "select changefeed.begin_ulid_transaction('80270756-deeb-11ed-91f2-4f03a365d3f8', 0)",
            "select changefeed.new_ulid()",
            "select changefeed.commit_ulid_transaction()",
            "commit",
        ] {
            writer.run(statement).await;
        }
        let sweeper = scene.session("app_sweeper").await;
        let swept = "select sum(change_count) from changefeed.sweep(0)";
        assert_eq!(sweeper.value(swept).await, "1");
        sweeper
            .run("call changefeed.sweep_loop(0, 1, 1, 1, null, null, null)")
            .await;
        let reader = scene.session("app_reader").await;
        let read = "select count(*) from changefeed.read(1, 0, 0, 100)";
        assert_eq!(reader.number(read).await, 1);
        reader
            .run(
                "insert into changefeed.consumer (name, feed_id, shard, cursor) \
                 values ('c', 1, 0, '2000000000000001'); \
                 update changefeed.consumer set cursor = '2000000000000001'; \
                 select * from changefeed.event_log; select * from changefeed.event_invocation_logs; \
                 select * from changefeed.feed join changefeed.shard using (feed_id)",
            )
            .await;
        // A worker, on the watch that was there and on one that is made later.
        scene
            .admin
            .run("create table more (id integer primary key)")
            .await;
        scene.store.open_watch(&spec("g", "more")).await.unwrap();
        scene
            .admin
            .run(&format!(
                "grant select on more to {}",
                scene.role("app_worker")
            ))
            .await;
        let worker = PostgresStore::connect(&scene.url("app_worker"))
            .await
            .unwrap();
        scene
            .admin
            .run("insert into orders values (1, 'a'); insert into more values (1)")
            .await;
        for (name, table) in [("f", "orders"), ("g", "more")] {
            let watch = worker.open_watch(&spec(name, table)).await.unwrap();
            assert_eq!(take_all(&worker, &watch, &quick()).await.concat().len(), 1);
            let status = worker.watch_status(&watch, 1).await.unwrap();
            assert_eq!(status.unprocessed, 0);
            worker.retry_parked(&watch, ParkedRows::All).await.unwrap();
            let from = changefeed_core::WatchFrom::Beginning;
            worker.reset_watch(&watch, from).await.unwrap();
            assert_eq!(take_all(&worker, &watch, &quick()).await.concat().len(), 1);
            // Which is not to make, change or drop one.
            let error = worker.drop_watch(&watch).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        }
        let error = worker.open_watch(&spec("h", "more")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        for error in [
            worker.tokens().await.unwrap_err(),
            worker.triggers().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        }
        scene.end().await;
    });
}

/// Whoever has such a right, by a generous grant or by an accident, could have us run anything.
#[test]
fn we_refuse_to_work_where_a_stranger_could_plant_code() {
    run(async {
        let scene = Scene::new().await;
        let url = (&*scene.backend as &dyn Backend).url();
        let role = scene.role("app_worker");
        for (plant, remove) in [
            (
                format!("grant create on schema changefeed to {role}"),
                format!("revoke create on schema changefeed from {role}"),
            ),
            (
                "grant all on schema changefeed to public".to_owned(),
                "revoke all on schema changefeed from public".to_owned(),
            ),
            (
                format!("grant all on all tables in schema changefeed to {role}"),
                format!("revoke trigger on all tables in schema changefeed from {role}"),
            ),
            (
                format!(
                    "create function changefeed.table_signature(regclass) returns text \
                     language sql as 'select null::text'; \
                     grant create on schema changefeed to {role}; \
                     alter function changefeed.table_signature(regclass) owner to {role}; \
                     revoke create on schema changefeed from {role}"
                ),
                "drop function changefeed.table_signature(regclass)".to_owned(),
            ),
            (
                format!(
                    "create table changefeed.trap (id integer); \
                     grant create on schema changefeed to {role}; \
                     alter table changefeed.trap owner to {role}; \
                     revoke create on schema changefeed from {role}"
                ),
                "drop table changefeed.trap".to_owned(),
            ),
        ] {
            scene.admin.run(&plant).await;
            assert!(!strangers(&*scene.store).await.is_empty(), "{plant}");
            let store = PostgresStore::connect(&url).await.unwrap();
            let error = store.feeds().await.unwrap_err();
            assert_eq!(error.kind(), Kind::Permission, "{plant}: {error:?}");
            assert!(error.advice().is_some(), "{error:?}");
            scene.admin.run(&remove).await;
            assert!(strangers(&*scene.store).await.is_empty(), "{remove}");
            store.feeds().await.unwrap();
        }
        scene.end().await;
    });
}

/// A function of ours must not look up names in the caller's path.
#[test]
fn functions_of_ours_have_a_path_of_their_own() {
    run(async {
        let scene = Scene::new().await;
        scene
            .admin
            .run("insert into orders values (1, 'a'); delete from orders")
            .await;
        // These spell every name, operator and type with its schema, or have none: a path of their own
        // would cost every writer, and a procedure that commits cannot have one. The audit of `./test`,
        // in which the caller's path is full of traps, calls each of them.
        let functions = "select coalesce(string_agg(p.proname, ',' order by p.proname), '') \
             from pg_proc p where p.pronamespace = 'changefeed'::regnamespace \
             and p.oid::regprocedure::text !~ '^changefeed\\.(change_insert|(track|capture)_[0-9]+\
|shard_of\\(bigint|enter_change|publish_row|consumer_touch|same_row|sweep_loop|new_ulid|ulid_sequence\
|ulid_lock_key|ulid_misuse|rollback_ulid_transaction|await_commit)\\M' and not exists ( \
               select from unnest(p.proconfig) c where c = 'search_path=pg_catalog, pg_temp')";
        assert_eq!(scene.admin.value(functions).await, "");
        scene.end().await;
    });
}
