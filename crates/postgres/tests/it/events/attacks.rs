//! Writers and table owners who would like to run something with our rights.

use changefeed_core::{FeedBinding, OrderBy, Updates};
use changefeed_testkit::backend::Session;
use changefeed_testkit::events::{log, told};
use changefeed_testkit::run;

use crate::events::scene::{Role, Scene};

/// A table in which everything that an attacker gets to run is written down.
const PROOF: &str = "create table pwned (who text, how text); grant insert on pwned to public";

/// What ran with rights that were not the attacker's.
async fn nothing_ran(scene: &Scene, attacker: &Role) {
    let ran = scene
        .session
        .query(&format!(
            "select * from pwned where who <> '{}'",
            attacker.name
        ))
        .await
        .unwrap();
    assert!(ran.is_empty(), "ran with rights of others: {ran:?}");
}

/// Functions, operators, types and tables with the names of those that we use.
async fn litter(session: &dyn Session) {
    session
        .run("create schema evil; set search_path = pg_temp, evil, public, pg_catalog")
        .await;
    let evil = "returns %R language plpgsql as $$ begin \
                insert into public.pwned values (current_user, '%N'); return null; end $$";
    for schema in ["evil", "public", "pg_temp"] {
        for (name, arguments, returns) in [
            ("format", "text, anyelement", "text"),
            ("num_nulls", "anyelement", "int"),
            ("row_to_json", "record", "json"),
            ("to_json", "anyelement", "json"),
            ("nextval", "text", "bigint"),
            ("current_setting", "text, boolean", "text"),
            ("hashtextextended", "text, int", "bigint"),
            ("jsonb_build_array", "text", "jsonb"),
            ("left", "text, int", "text"),
            ("clock_timestamp", "", "timestamptz"),
            ("ne", "record, record", "boolean"),
        ] {
            let body = evil.replace("%R", returns).replace("%N", name);
            let _ = session
                .execute(&format!(
                    "create function {schema}.{name}({arguments}) {body}"
                ))
                .await;
        }
        let _ = session
            .execute(&format!(
                "create operator {schema}.*<> (leftarg = record, rightarg = record, \
                 function = {schema}.ne)"
            ))
            .await;
    }
    for table in [
        "create temp table changed (id int, v text, n int)",
        "create temp table pg_attribute (attname text, atttypid oid, attrelid oid)",
        "create temp table event (x int)",
        "create domain pg_temp.json as int",
        "create domain evil.text as int",
    ] {
        let _ = session.execute(table).await;
    }
}

/// Whatever the writer's search path holds.
#[test]
fn a_writers_search_path_changes_nothing() {
    run(async {
        let scene = Scene::new(PROOF).await;
        scene
            .session
            .run("create table orders (id int primary key, v text, n int)")
            .await;
        scene
            .trigger_with(|d| {
                d.capture.update = Updates::Of(vec!["v".into()]);
                d.capture.order_by = Some(OrderBy::Key);
                d.capture.feed = Some(FeedBinding {
                    feed: "f".parse().unwrap(),
                    shard_by: Some("v".into()),
                });
            })
            .await;
        scene
            .trigger_with(|d| {
                d.name = "condition".parse().unwrap();
                d.capture.condition = Some("new.n > 0 or old.v = 'c'".into());
            })
            .await;
        let role = Role::new(&scene, "evil").await;
        scene
            .session
            .run(&format!(
                "grant all on orders to {0}; grant create on database {1} to {0}",
                role.name,
                scene.database.name()
            ))
            .await;
        let writer = scene.as_role(&role).await;
        litter(&*writer).await;
        let write = "insert into public.orders (id, v, n) values (1, 'a', 1), (2, 'b', 2); \
                     update public.orders set v = 'c', n = 5; delete from public.orders";
        writer.run(write).await;
        assert_eq!(log(&*scene.store).await.len(), 12);
        // The slow way, after the table was altered.
        scene
            .session
            .run("alter table orders add column extra int")
            .await;
        writer.run(write).await;
        assert_eq!(log(&*scene.store).await.len(), 24);
        nothing_ran(&scene, &role).await;
        let told = told(&*scene.store).await;
        assert_eq!(told[0].2["v"], "a");
    });
}

/// The owner of a table gives a column a type of his own, with casts and operators that run his
/// functions.
#[test]
fn a_table_owner_cannot_run_anything_with_our_rights() {
    run(async {
        let scene = Scene::new(PROOF).await;
        let role = Role::new(&scene, "owner").await;
        let owner = scene.as_role(&role).await;
        owner
            .run("create table orders (id int primary key, v text, n int, k text)")
            .await;
        scene
            .trigger_with(|d| {
                d.capture.update = Updates::Of(vec!["v".into()]);
                d.capture.order_by = Some(OrderBy::Column("k".into()));
                d.capture.feed = Some(FeedBinding {
                    feed: "f".parse().unwrap(),
                    shard_by: Some("v".into()),
                });
            })
            .await;
        scene
            .trigger_with(|d| {
                d.name = "condition".parse().unwrap();
                d.capture.condition = Some("new.v = 'x' or old.v = 'x' or new.k = 'y'".into());
            })
            .await;
        owner
            .run("insert into orders values (1, 'x', 1, 'y')")
            .await;
        owner
            .run(
                "create type sly as enum ('x', 'y'); create type deep as (a sly); \
                 create function sly_text(sly) returns text language plpgsql as $$ begin \
                   insert into pwned values (current_user, 'text'); return 'x'; end $$; \
                 create function sly_json(sly) returns json language plpgsql as $$ begin \
                   insert into pwned values (current_user, 'json'); return '1'; end $$; \
                 create function sly_jsonb(sly) returns jsonb language plpgsql as $$ begin \
                   insert into pwned values (current_user, 'jsonb'); return '1'; end $$; \
                 create function sly_bigint(sly) returns bigint language plpgsql as $$ begin \
                   insert into pwned values (current_user, 'bigint'); return 1; end $$; \
                 create function sly_eq(sly, sly) returns boolean language plpgsql as $$ begin \
                   insert into pwned values (current_user, 'eq'); return true; end $$; \
                 create function deep_json(deep) returns json language plpgsql as $$ begin \
                   insert into pwned values (current_user, 'deep'); return '1'; end $$; \
                 create cast (sly as text) with function sly_text(sly) as implicit; \
                 create cast (sly as json) with function sly_json(sly) as implicit; \
                 create cast (sly as jsonb) with function sly_jsonb(sly) as implicit; \
                 create cast (sly as bigint) with function sly_bigint(sly) as implicit; \
                 create cast (deep as json) with function deep_json(deep) as implicit; \
                 create operator = (leftarg = sly, rightarg = sly, function = sly_eq)",
            )
            .await;
        let write = "insert into public.orders (id, v, n, k) values (2, 'y', 1, 'y'); \
                     update public.orders set v = 'x', k = 'x'; update public.orders set v = 'y'; \
                     delete from public.orders where id = 2";
        // Writers other than the attacker are the ones whose rights matter too.
        for change in [
            "alter table orders alter v type sly using 'x'",
            "alter table orders alter k type sly using 'y'",
            "alter table orders add column d deep default row('x'), \
             add column ds deep[] default array[row('x')::deep], \
             add column ss sly[] default '{x,y}'",
        ] {
            owner.run(change).await;
            owner.run(write).await;
            scene.store.refresh_triggers().await.unwrap();
            owner.run(write).await;
            nothing_ran(&scene, &role).await;
        }
        // Existing rows, sent by us.
        let trigger = scene
            .store
            .triggers()
            .await
            .unwrap()
            .into_iter()
            .find(|t| t.definition.name.as_str() == "t")
            .unwrap();
        scene.store.backfill_trigger(&trigger, 10).await.unwrap();
        nothing_ran(&scene, &role).await;
        let last = told(&*scene.store).await.pop().unwrap();
        assert_eq!(last.2["v"], "y");
    });
}

/// A cast that is made after the trigger, of a type that was there before: nothing about the table
/// changes.
#[test]
fn a_cast_that_comes_later_does_not_see_a_condition() {
    run(async {
        let scene = Scene::new(PROOF).await;
        let role = Role::new(&scene, "owner").await;
        let owner = scene.as_role(&role).await;
        owner
            .run(
                "create type state as enum ('new', 'paid'); \
                 create table orders (id state primary key, status state)",
            )
            .await;
        let trigger = scene
            .trigger_with(|d| {
                d.capture.condition =
                    Some("new.status = 'paid' or new.status::text = 'paid'".into());
            })
            .await;
        owner
            .run(
                "create function state_text(state) returns text language plpgsql as $$ begin \
                   insert into pwned values (current_user, 'text'); return 'paid'; end $$; \
                 create function text_state(text) returns state language plpgsql as $$ begin \
                   insert into pwned values (current_user, 'state'); return 'new'; end $$; \
                 create cast (state as text) with function state_text(state) as assignment; \
                 create cast (text as state) with function text_state(text) as assignment; \
                 insert into orders values ('new', 'new'), ('paid', 'paid')",
            )
            .await;
        assert_eq!(told(&*scene.store).await.len(), 1, "only what is paid");
        // Its position is a key of that type.
        for finished in [false, false, true] {
            let step = scene.store.backfill_trigger(&trigger, 1).await.unwrap();
            assert_eq!(step.finished, finished);
        }
        nothing_ran(&scene, &role).await;
    });
}

/// What the columns of a table are is written down; names may hold whatever that is written with.
#[test]
fn names_of_columns_cannot_pass_for_types() {
    run(async {
        let scene = Scene::new(PROOF).await;
        let role = Role::new(&scene, "owner").await;
        let owner = scene.as_role(&role).await;
        owner.run("create type sly as enum ('x')").await;
        let oid = owner.value("select 'sly'::regtype::oid").await;
        owner
            .run(&format!("create table orders (\"a:{oid},b\" text, a int)"))
            .await;
        scene
            .trigger_with(|d| {
                d.capture.payload = Some(vec!["a".into()]);
                d.capture.condition = Some("new.a is not null".into());
            })
            .await;
        owner
            .run(&format!(
                "create function sly_json(sly) returns json language plpgsql as $$ begin \
                   insert into pwned values (current_user, 'json'); return '1'; end $$; \
                 create cast (sly as json) with function sly_json(sly) as implicit; \
                 alter table orders drop column a, drop column \"a:{oid},b\"; \
                 alter table orders add a sly, add \"b:25,a\" int; \
                 insert into orders (a) values ('x')"
            ))
            .await;
        assert_eq!(told(&*scene.store).await.len(), 1);
        nothing_ran(&scene, &role).await;
    });
}
