//! Tables that are altered after their event trigger was made.

use changefeed_core::{SchemaStore, Severity, TriggerStore};

use crate::event_support::everything;
use crate::support::Lab;

async fn lab() -> Lab {
    let lab = Lab::new().await;
    lab.shell("create table t (id integer primary key, a, b); insert into t values (1, 1, 1);")
        .unwrap();
    let mut definition = everything("t");
    definition.capture.condition = Some("coalesce(new.id, old.id) > 0".into());
    lab.trigger(&definition).await;
    lab
}

/// What refreshing says, and then nothing more to say.
async fn refreshed(lab: &Lab) -> Vec<(Severity, String)> {
    let found = lab.store.refresh_triggers().await.unwrap();
    let again = lab.store.refresh_triggers().await.unwrap();
    assert!(
        again.iter().all(|f| f.severity == Severity::Problem),
        "{again:?}"
    );
    found.into_iter().map(|f| (f.severity, f.message)).collect()
}

#[tokio::test]
async fn new_and_renamed_columns_and_tables_are_followed() {
    let lab = lab().await;
    assert!(refreshed(&lab).await.is_empty());
    lab.shell("alter table t add column c default 5; update t set a = 2;")
        .unwrap();
    // The write goes through at once; the new column is there after the next look.
    assert_eq!(
        lab.events().await,
        [r#"UPDATE {"id":1,"a":1,"b":1} > {"id":1,"a":2,"b":1}"#]
    );
    let said = refreshed(&lab).await;
    assert!(
        said[0].0 == Severity::Ok && said[0].1.contains("altered"),
        "{said:?}"
    );
    lab.shell(
        "update t set c = 6; alter table t rename column a to z; update t set z = 3;
         alter table t rename to u; update u set z = 4;",
    )
    .unwrap();
    let events = lab.events().await;
    assert!(
        events[1].ends_with(r#"{"id":1,"a":2,"b":1,"c":6}"#),
        "{events:?}"
    );
    assert_eq!(events.len(), 4);
    refreshed(&lab).await;
    lab.shell("replace into u values (1, 5, 5, 5);").unwrap();
    let events = lab.events().await;
    assert_eq!(
        events[4..],
        [
            r#"DELETE {"id":1,"z":4,"b":1,"c":6} > -"#,
            r#"INSERT - > {"id":1,"z":5,"b":5,"c":5}"#
        ]
    );
    let log = lab.log().await;
    assert_eq!(log[4].event.table.name, "u");
    assert_eq!(
        lab.store.triggers().await.unwrap()[0].definition.table.name,
        "u"
    );
}

#[tokio::test]
async fn a_rebuilt_table_gets_its_triggers_again() {
    let lab = lab().await;
    lab.shell(
        "create table t2 (id integer primary key, a, b, c); insert into t2 select *, 1 from t;
         drop table t; alter table t2 rename to t; update t set a = 5;",
    )
    .unwrap();
    assert!(lab.events().await.is_empty());
    let found = lab.store.capture_findings().await.unwrap();
    assert!(
        found
            .iter()
            .any(|f| f.severity == Severity::Problem && f.message.contains("missing")),
        "{found:?}"
    );
    let said = refreshed(&lab).await;
    assert!(said[0].0 == Severity::Warning, "{said:?}");
    lab.shell("update t set a = 6;").unwrap();
    assert_eq!(lab.events().await.len(), 1);
}

#[tokio::test]
async fn a_column_that_is_dropped_is_refused_until_the_trigger_lets_go() {
    let lab = lab().await;
    let refused = lab.shell("alter table t drop column b;").unwrap_err();
    assert!(refused.contains("changefeed_event_1"), "{refused}");
    // The way that the documentation shows.
    let drops = lab
        .shell(
            "select 'drop trigger \"' || name || '\";' from sqlite_master
              where type = 'trigger' and name glob 'changefeed_event_1_*';",
        )
        .unwrap();
    lab.shell(&format!(
        "begin; {drops} alter table t drop column b; commit;"
    ))
    .unwrap();
    refreshed(&lab).await;
    lab.shell("update t set a = 6;").unwrap();
    assert_eq!(
        lab.events().await,
        [r#"UPDATE {"id":1,"a":1} > {"id":1,"a":6}"#]
    );
}

#[tokio::test]
async fn a_definition_that_no_longer_fits_is_told_and_breaks_no_write() {
    let lab = lab().await;
    let mut definition = everything("t");
    definition.name = "named".parse().unwrap();
    definition.capture.payload = Some(vec!["a".into()]);
    lab.trigger(&definition).await;
    lab.shell("alter table t rename column a to z; update t set z = 9;")
        .unwrap();
    let said = refreshed(&lab).await;
    let stuck = said
        .iter()
        .find(|(severity, _)| *severity == Severity::Problem)
        .unwrap();
    assert!(stuck.1.contains("no column 'a'"), "{said:?}");
    lab.shell("update t set z = 10;").unwrap();
    // It goes on as it was.
    assert_eq!(lab.events().await.len(), 4);
    lab.shell("drop table t;").unwrap();
    let said = refreshed(&lab).await;
    assert!(
        said.iter().all(|s| s.1.contains("no longer exists")),
        "{said:?}"
    );
}

#[tokio::test]
async fn a_unique_index_made_later_is_followed() {
    let lab = lab().await;
    lab.shell("insert into t values (2, 2, 2); create unique index later on t (b);")
        .unwrap();
    refreshed(&lab).await;
    lab.shell("insert or replace into t values (3, 3, 2);")
        .unwrap();
    let events = lab.events().await;
    assert!(events[1].starts_with("DELETE {\"id\":2"), "{events:?}");
    // Also one over an expression.
    lab.shell("create unique index by_expression on t (id + b);")
        .unwrap();
    refreshed(&lab).await;
    lab.shell("insert or replace into t (id, a, b) values (4, 4, 1);")
        .unwrap();
    let events = lab.events().await;
    assert!(
        events.iter().any(|e| e.starts_with("DELETE {\"id\":3")),
        "{events:?}"
    );
}

#[tokio::test]
async fn uninstalling_takes_the_database_triggers_along() {
    let lab = lab().await;
    lab.store.uninstall().await.unwrap();
    lab.shell("insert into t values (7, 7, 7);").unwrap();
    assert_eq!(
        lab.shell("select name from sqlite_master where name like '%changefeed%';")
            .unwrap(),
        ""
    );
}

/// SQLite runs the newest trigger first; ours are made again to be that.
#[tokio::test]
async fn a_trigger_of_the_application_on_the_same_table_hides_nothing() {
    const TOUCH: &str = "create trigger touch after insert on t begin
         update t set b = 'touched' where id = new.id; end;";
    for (before, after, refresh) in [(TOUCH, "", false), ("", TOUCH, true), ("", TOUCH, false)] {
        let lab = Lab::new().await;
        lab.shell(&format!(
            "create table t (id integer primary key, a, b); insert into t values (1, 1, 1); {before}"
        ))
        .unwrap();
        lab.trigger(&everything("t")).await;
        lab.shell(after).unwrap();
        if refresh {
            assert_eq!(refreshed(&lab).await.len(), 1);
        }
        lab.shell("replace into t values (1, 2, 2);").unwrap();
        let delete = r#"DELETE {"id":1,"a":1,"b":1} > -"#;
        let insert = r#"INSERT - > {"id":1,"a":2,"b":2}"#;
        let update = r#"UPDATE {"id":1,"a":2,"b":2} > {"id":1,"a":2,"b":"touched"}"#;
        let expected = if after.is_empty() || refresh {
            [delete, insert, update]
        } else {
            [delete, update, insert]
        };
        assert_eq!(lab.events().await, expected);
    }
}
