//! Operators and types that somebody made for us to run.

use changefeed_core::{
    After, FeedId, FeedStore, NewFeed, SchemaStore, ShardId, Source, SweepGroup, SweepStore,
    TableName,
};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{Backend, PostgresBackend};
use changefeed_testkit::run;

/// A procedure that commits can have no search path of its own.
#[test]
fn sweep_loop_runs_nobodys_operators() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let store = PostgresStore::connect(&backend.url()).await.unwrap();
        store.migrate().await.unwrap();
        let session = backend.try_session().await.unwrap();
        for (n, (operator, left, right)) in [
            ("||", "text", "integer"),
            ("*", "integer", "interval"),
            ("*", "interval", "numeric"),
            ("*", "integer", "numeric"),
            ("/", "integer", "numeric"),
        ]
        .into_iter()
        .enumerate()
        {
            session
                .run(&format!(
                    "create function public.sprung_{n}({left}, {right}) returns {right} language plpgsql as \
                     $$ begin raise exception 'a trap was sprung'; end $$"
                ))
                .await;
            // One that the audit's traps have already is as good.
            let _ = session
                .execute(&format!(
                    "create operator public.{operator} (leftarg = {left}, rightarg = {right}, \
                     function = public.sprung_{n})"
                ))
                .await;
        }
        session
            .run("call changefeed.sweep_loop(0, 10, 50, 10, null, null, null)")
            .await;
    });
}

/// A literal of an array of a domain runs the domain's check, with the rights of whoever reads.
#[test]
fn a_key_of_an_array_of_a_domain_is_not_read() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let store = PostgresStore::connect(&backend.url()).await.unwrap();
        store.migrate().await.unwrap();
        let session = backend.try_session().await.unwrap();
        session
            .run("create table t (id int primary key, v text)")
            .await;
        let new = NewFeed {
            id: Some(FeedId(37)),
            source: Some(Source::captured(TableName::unqualified("t"))),
            ..NewFeed::new("t".parse().unwrap())
        };
        let feed = store.create_feed(&new).await.unwrap();
        session
            .run(
                "create function judge(int) returns boolean language plpgsql as $$ begin \
                   if current_setting('application_name') = 'changefeed' then \
                     raise exception 'a trap was sprung'; end if; return true; end $$; \
                 create domain judged as int check (judge(value)); \
                 alter table t alter column id type judged[] using array[id]::judged[]; \
                 insert into t values ('{3}', 'c')",
            )
            .await;
        store.sweep(SweepGroup(0)).await.unwrap();
        let error = store
            .read(&feed, ShardId(0), After::First, 10)
            .await
            .unwrap_err();
        assert!(!error.to_string().contains("trap"), "{error}");
        assert!(
            error.to_string().contains("whoever made its type"),
            "{error}"
        );
        let error = store.backfill(&feed, 10).await.unwrap_err();
        assert!(!error.to_string().contains("trap"), "{error}");
    });
}
