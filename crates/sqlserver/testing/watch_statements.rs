//! The T-SQL of watches, as it is generated for tables that are hard to get right: for those who want
//! to judge it without a server.

use std::time::{Duration, Instant};

use changefeed_core::{
    Batch, BatchOutcome, ParkedRows, Part, Result, Take, Watch, WatchName, WatchSettings, WatchSpec,
};

use crate::backlog::Backlog;
use crate::platform::Platform;
use crate::source::Table;
use crate::tracking::{Tracked, Way, leases_name};
use crate::{watch_registry, watches};

/// What is not the same where the server notes the changes, and what that is about.
const DIFFERENT: [&str; 10] = [
    "leases",
    "look",
    "look for all",
    "take",
    "move",
    "count",
    "new table",
    "altered table",
    "forgotten changes",
    "still tracked",
];

/// All statements, each with a name, for watches on these tables, in both ways.
pub(crate) fn statements(tables: Vec<Table>) -> Result<Vec<(String, String)>> {
    let mut all: Vec<(String, String)> = Vec::new();
    for (number, table) in tables.into_iter().enumerate() {
        // Each has tables of ours of its own.
        for (n, way) in [Way::Trigger, Way::Native].into_iter().enumerate() {
            let table = Table {
                id: i32::try_from(number * 2 + n).unwrap_or_default() + 1,
                ..table.clone()
            };
            all.extend(of_table(table, way)?);
        }
    }
    Ok(all)
}

fn of_table(table: Table, way: Way) -> Result<Vec<(String, String)>> {
    let tracked = Tracked {
        table,
        way,
        columns: true,
    };
    let function = format!("{:016x}", tracked.id());
    let leases = leases_name(&function, i64::from(tracked.id()));
    let backlog = Backlog::new(tracked.clone(), &function, 1, vec![function.clone()]);
    let settings = WatchSettings::default();
    let take = Take {
        owner: "it's me",
        settings: &settings,
    };
    let failed = BatchOutcome::Failed {
        error: "it's bad".to_owned(),
    };
    let batch = Batch::leased(1, (1, 9), 1, Instant::now());
    let settle = |outcome| backlog.settle_sql(&batch, outcome, &settings);
    let some = |part, outcome| backlog.settle_sql(&batch.part(part), outcome, &settings);
    let key = "[{\"name\":\"it's\"}]";
    let mut statements = vec![
        ("new table", watch_registry::new_table_sql(&tracked, key)),
        (
            "altered table",
            watch_registry::altered_table_sql(&tracked, key),
        ),
        (
            "missed",
            watch_registry::missed_because_sql(
                tracked.id(),
                std::slice::from_ref(&function),
                "it's gone",
            )?,
        ),
        (
            "forgotten changes",
            watch_registry::forget_changes_sql(&tracked)?,
        ),
        ("leases", tracked.leases_sql(&leases)?),
        ("log", tracked.log_sql()?),
        ("trigger", tracked.trigger_sql()?),
        ("look", backlog.look_sql(take.owner)?),
        (
            "look for all",
            [backlog.look_all_sql(0)?, backlog.look_all_sql(1)?].join(" union all "),
        ),
        ("take", backlog.take_sql(&take)?),
        ("move", backlog.move_all_sql()?),
        ("held", backlog.held_sql(take.owner)?),
        ("renew", backlog.renew_sql(Duration::from_secs(1))),
        ("done", settle(&BatchOutcome::Done)?),
        ("released", settle(&BatchOutcome::Released)?),
        ("failed", settle(&failed)?),
        (
            "done in part",
            some(Part::Without(vec![3, 5]), &BatchOutcome::Done)?,
        ),
        ("failed in part", some(Part::Only(vec![3, 5]), &failed)?),
        ("retry", backlog.retry_sql(ParkedRows::All)?),
        ("retry one", backlog.retry_sql(ParkedRows::Version(7))?),
        ("rows", backlog.rows_sql(Platform::SqlServer)?),
        ("upkeep", backlog.upkeep_sql()?),
        ("signature", backlog.signature_sql()?),
        ("still tracked", backlog.still_tracked_sql()?),
        ("load", watches::load_sql(&tracked, &function)?),
        ("count", backlog.count_sql()?),
        ("view", watch_registry::view_sql(&function)?),
        ("status", watches::status_sql(&function)?),
        ("parked", watches::parked_sql(&tracked, &leases, 10)?),
    ];
    let name = tracked.table.name.clone();
    if let Ok(function_name) = "f".parse::<WatchName>() {
        let spec = WatchSpec::new(function_name, name.clone());
        let watch = Watch {
            name: spec.name.clone(),
            function_id: function.clone(),
            table_id: 1,
            table: name.clone(),
            leases_table: leases,
            definition: None,
        };
        statements.extend(
            watch_registry::new_watch_sql(&spec, &watch, true).map(|sql| ("new watch", sql)),
        );
        statements.extend(
            watch_registry::known_watch_sql(&spec, &watch, true).map(|sql| ("known watch", sql)),
        );
    }
    let statements = statements
        .into_iter()
        // The others are the same.
        .filter(|(what, _)| way == Way::Trigger || DIFFERENT.contains(what))
        .map(|(what, sql)| (format!("watch {what} of {name} ({way:?})"), sql))
        .collect();
    Ok(statements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statements::nasty_tables;

    fn statements_named(part: &str) -> Vec<String> {
        let all = statements(nasty_tables()).unwrap();
        let found: Vec<String> = all
            .into_iter()
            .filter(|(name, _)| name.contains(part))
            .map(|(_, sql)| sql)
            .collect();
        assert!(!found.is_empty(), "{part}");
        found
    }

    /// A filtered index serves only whoever says what it is filtered by.
    #[test]
    fn whoever_leases_names_what_the_indexes_are_filtered_by() {
        for sql in statements_named("watch take of") {
            let lease = &sql[sql.find("@due table").unwrap()..];
            for tried in ["= 0", "> 0"] {
                let claims = format!(
                    "where _changefeed_attempt_count {tried} and _changefeed_parked_time is null\n  \
                     and exists (select 1 from @due d"
                );
                assert_eq!(lease.matches(&claims).count(), 1, "{lease}");
            }
            let filtered = lease.matches("_changefeed_parked_time is null").count();
            let tried = lease
                .matches("_changefeed_attempt_count = 0 and ")
                .chain(lease.matches("_changefeed_attempt_count > 0 and "))
                .count();
            assert_eq!(filtered, tried, "{lease}");
        }
    }

    /// Alone it is refused where READ_COMMITTED_SNAPSHOT is on.
    #[test]
    fn whoever_passes_locked_rows_by_reads_with_locks() {
        let mut seen = 0;
        for (name, sql) in statements(nasty_tables()).unwrap() {
            for (at, _) in sql.match_indices("readpast") {
                seen += 1;
                assert!(sql[..at].ends_with("readcommittedlock, "), "{name}: {sql}");
            }
        }
        assert!(seen > 0);
    }

    /// Numbers of before and after a loss cannot be compared; whoever moves changes must not do so.
    #[test]
    fn what_waits_forgets_its_place_before_changes_after_a_loss_are_moved() {
        let all: Vec<String> = ["take", "move"]
            .iter()
            .flat_map(|part| statements_named(&format!("watch {part} of")))
            .filter(|sql| sql.contains("changetable"))
            .collect();
        assert!(!all.is_empty());
        for sql in all {
            let forgotten = sql.find("set _changefeed_order = 0").unwrap();
            let compared = sql.find("n.newest < q._changefeed_order").unwrap();
            assert!(forgotten < compared, "{sql}");
        }
    }

    /// A version that is asked for within a snapshot may be later than the snapshot.
    #[test]
    fn the_version_of_change_tracking_is_asked_for_before_anything_is_read() {
        let all = statements_named("watch move of");
        let native = all.iter().filter(|sql| sql.contains("changetable"));
        assert!(native.clone().count() > 0);
        for sql in native {
            let begins = "isolation level snapshot;\n    begin transaction;\n    \
                          set @until = change_tracking_current_version();\n    select @since";
            assert_eq!(sql.matches(begins).count(), 1, "{sql}");
        }
    }

    /// A text of another type than a column's may not be found by an index.
    #[test]
    fn functions_are_found_by_their_index() {
        let mut seen = 0;
        for (name, sql) in statements(nasty_tables()).unwrap() {
            for (at, what) in sql.match_indices("function_id = ") {
                seen += 1;
                let value = &sql[at + what.len()..];
                let fits = ["convert(varchar(16), ", "'", "w."];
                assert!(
                    fits.iter().any(|fit| value.starts_with(fit)),
                    "{name}: {sql}"
                );
            }
        }
        assert!(seen > 0);
    }

    /// Whoever may alter the schema can do whatever its owner can: no guide grants that.
    #[test]
    fn only_the_owner_makes_watches() {
        for guide in [
            include_str!("../../../docs/sqlserver.md"),
            include_str!("../../../docs/watches.md"),
        ] {
            let grants = guide.lines().filter(|line| line.starts_with("grant "));
            for grant in grants {
                assert!(!grant.contains("schema::changefeed"), "{grant}");
                assert!(!grant.contains("create table"), "{grant}");
            }
        }
        let asked = include_str!("../src/sql/watch_rights.sql");
        for right in ["create table", "create function", "create view", "alter"] {
            assert!(asked.contains(&format!("N'{right}")), "{right}: {asked}");
        }
    }

    /// Versions alone do not tell that change tracking was off for a while, or that the table was truncated.
    #[test]
    fn another_life_of_change_tracking_is_noticed() {
        let this = |sql: &str| {
            assert!(sql.contains("i.internal_type = 209"), "{sql}");
            assert!(sql.contains("c.begin_version"), "{sql}");
        };
        for part in [
            "new table",
            "forgotten changes",
            "take",
            "move",
            "still tracked",
        ] {
            let all = statements_named(&format!("watch {part} of"));
            let native = all.iter().filter(|sql| sql.contains("change_tracking"));
            assert!(native.clone().count() > 0, "{part}");
            native.for_each(|sql| this(sql));
        }
    }
}
