//! What the roles are for, and what they are not for.

use changefeed_core::{After, ConsumerStore, FeedId, TableName};
use changefeed_core::{FeedStore, Kind, NewFeed, SchemaStore, ShardId, SweepGroup, SweepStore};
use changefeed_sqlserver::SqlServerStore;
use changefeed_testkit::backend::{
    Backend, Session, SqlServerBackend, SqlServerSession, captured, name,
};
use changefeed_testkit::run;

const PASSWORD: &str = "Changefeed-Roles-1";

/// A database with a feed, and a login that is nobody yet.
struct Scene {
    backend: SqlServerBackend,
    store: SqlServerStore,
    admin: Box<dyn Session>,
    login: String,
    url: String,
}

async fn scene(role: Option<&str>) -> Scene {
    let backend = SqlServerBackend::fresh().await;
    let store = SqlServerStore::connect(&backend.url()).await.unwrap();
    store.migrate().await.unwrap();
    store
        .create_feed(&NewFeed {
            id: Some(FeedId(37)),
            ..NewFeed::new(name("orders"))
        })
        .await
        .unwrap();
    let admin = (&backend as &dyn Backend).session().await;
    let login = format!("changefeed_{:08x}", fastrand::u32(..));
    admin
        .run(&format!(
            "create login {login} with password = '{PASSWORD}'"
        ))
        .await;
    admin
        .run(&format!("create user {login} for login {login}"))
        .await;
    if let Some(role) = role {
        admin
            .run(&format!("alter role {role} add member {login}"))
            .await;
    }
    let url = backend.url();
    let (scheme, rest) = url.split_once("://").unwrap();
    let host = rest.split_once('@').unwrap().1;
    let url = format!("{scheme}://{login}:{PASSWORD}@{host}");
    Scene {
        backend,
        store,
        admin,
        login,
        url,
    }
}

impl Scene {
    async fn session(&self) -> SqlServerSession {
        SqlServerSession::connect(&self.url).await.unwrap()
    }

    /// The login is the server's, not the database's, so it does not go with it.
    async fn end(self) {
        self.admin.run(&format!("drop user {}", self.login)).await;
        let dropped = self
            .admin
            .execute(&format!("drop login {}", self.login))
            .await;
        if let Err(error) = dropped {
            eprintln!("the login {} stays: {error}", self.login);
        }
        drop(self.store);
        drop(self.backend);
    }
}

/// Every statement works, or every statement is refused.
async fn each(session: &SqlServerSession, works: bool, statements: &[&str]) {
    for sql in statements {
        let answer = session.execute(sql).await;
        let _ = session.execute("rollback").await;
        match (works, answer) {
            (true, Err(error)) => panic!("refused: {sql}\n{error}"),
            (false, Ok(())) => panic!("not refused: {sql}"),
            _ => {}
        }
    }
}

const READS: [&str; 4] = [
    "select * from changefeed.change",
    "select * from changefeed.feed",
    "select * from changefeed.event_log",
    "begin transaction; exec changefeed.longpoll 37, 0, 0, 10; rollback transaction",
];
const KEEPS_A_CURSOR: &str =
    "insert into changefeed.consumer (name, feed_id, shard, [cursor]) values (N'me', 37, 0, '0')";
const PUBLISHES: &str = "begin transaction; \
     insert into changefeed.change (feed_id, shard, change_id) \
     values (37, 0, next value for changefeed.change_id); rollback transaction";
const PUBLISHED: &str = "insert into changefeed.change (feed_id, shard, change_id) \
     values (37, 0, next value for changefeed.change_id)";
const ULIDS: &str = "begin transaction; \
     exec changefeed.begin_ulid_transaction '5f0a6b52-0d0c-4c0a-9a53-9d2a4a3b3c11', 0; \
     declare @ulid binary(16); exec changefeed.new_ulid @ulid output; \
     exec changefeed.commit_ulid_transaction; commit transaction";
const WORKS: [&str; 4] = [
    "exec changefeed.sweep 0",
    "update changefeed.shard set longpoll = 1",
    "insert into changefeed.feed (feed_id, name) values (38, 'other')",
    "delete from changefeed.change",
];

#[test]
fn nobody_may_do_anything() {
    run(async {
        let scene = scene(None).await;
        let session = scene.session().await;
        each(&session, false, &READS).await;
        each(&session, false, &[KEEPS_A_CURSOR, PUBLISHES]).await;
        each(&session, false, &WORKS).await;
        each(&session, false, &[ULIDS]).await;
        // It is installed, but not for them.
        let nobody = SqlServerStore::connect(&scene.url).await.unwrap();
        for error in [
            nobody.schema().await.unwrap_err(),
            nobody.uninstall().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Permission, "{error:?}");
            assert!(error.to_string().contains("may see nothing"), "{error}");
        }
        drop((nobody, session));
        scene.end().await;
    });
}

#[test]
fn a_reader_reads_keeps_its_cursor_and_does_nothing_else() {
    run(async {
        let scene = scene(Some("changefeed_reader")).await;
        let session = scene.session().await;
        each(&session, true, &READS).await;
        each(&session, true, &[KEEPS_A_CURSOR]).await;
        each(&session, false, &[PUBLISHES]).await;
        each(&session, false, &WORKS).await;
        // By the library as well: reading works, working does not, and the grant is named.
        let reader = SqlServerStore::connect(&scene.url).await.unwrap();
        let feeds = reader.feeds().await.unwrap();
        let page = reader.read(&feeds[0], ShardId(0), After::First, 10).await;
        assert!(page.unwrap().changes.is_empty());
        assert_eq!(reader.consumers().await.unwrap().len(), 1);
        let error = reader.sweep(SweepGroup(0)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        // Who may not drop a feed does not empty it either.
        scene.admin.run(PUBLISHED).await;
        scene.store.sweep(SweepGroup(0)).await.unwrap();
        let error = reader.drop_feed(&feeds[0]).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        let page = reader.read(&feeds[0], ShardId(0), After::First, 10).await;
        assert_eq!(page.unwrap().changes.len(), 1);
        drop((reader, session));
        scene.end().await;
    });
}

#[test]
fn a_writer_publishes_and_does_nothing_else() {
    run(async {
        let scene = scene(Some("changefeed_writer")).await;
        let session = scene.session().await;
        each(&session, true, &[PUBLISHES, ULIDS]).await;
        each(&session, false, &READS).await;
        each(&session, false, &[KEEPS_A_CURSOR]).await;
        each(&session, false, &WORKS).await;
        drop(session);
        scene.end().await;
    });
}

#[test]
fn an_admin_does_the_programs_work_within_the_schema() {
    run(async {
        let scene = scene(Some("changefeed_admin")).await;
        scene
            .admin
            .run("create table private (id integer primary key)")
            .await;
        let table = TableName::qualified("dbo", "private");
        let feed = NewFeed {
            id: Some(FeedId(40)),
            ..captured("private", table, None, 1)
        };
        let feed = scene.store.create_feed(&feed).await.unwrap();
        let session = scene.session().await;
        each(&session, true, &READS).await;
        each(&session, true, &[KEEPS_A_CURSOR, PUBLISHES]).await;
        each(&session, true, &WORKS).await;
        // The application's own tables are not ours to give.
        each(&session, false, &["select * from dbo.private"]).await;
        // Nor may it have our procedures read them, which their owner may.
        // What it cannot see it does not leave behind: writes would fail with a trigger of no feed.
        let store = SqlServerStore::connect(&scene.url).await.unwrap();
        let error = store.drop_feed(&feed).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        scene.admin.run("insert into private values (1)").await;
        let spying = "alter procedure changefeed.sweep as select * from dbo.private";
        each(&session, false, &[spying]).await;
        drop((store, session));
        scene.end().await;
    });
}

#[test]
fn uninstalling_removes_roles_that_have_members() {
    run(async {
        let scene = scene(Some("changefeed_reader")).await;
        let login = &scene.login;
        let also = format!("alter role changefeed_admin add member {login}");
        scene.admin.run(&also).await;
        scene.store.uninstall().await.unwrap();
        let roles = "select count(*) from sys.database_principals where name like 'changefeed[_]%er' \
                     or name = 'changefeed_admin'";
        assert_eq!(scene.admin.number(roles).await, 0);
        scene.store.migrate().await.unwrap();
        assert_eq!(scene.admin.number(roles).await, 3);
        scene.end().await;
    });
}
