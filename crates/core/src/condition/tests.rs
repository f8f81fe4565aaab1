use proptest::prelude::*;

use super::*;

const POSTGRES: Dialect = Dialect {
    fold: Fold::Lower,
    backslashes: true,
    distinct_from: true,
};
const SQLITE: Dialect = Dialect {
    fold: Fold::Keep,
    backslashes: false,
    distinct_from: false,
};

fn written(text: &str, dialect: Dialect) -> String {
    let condition = Condition::parse(text, dialect.fold);
    condition
        .unwrap_or_else(|e| panic!("{text}: {e}"))
        .sql(dialect)
}

#[test]
fn conditions_are_written_anew() {
    for (text, postgres, sqlite) in [
        (
            "New.Status='it''s' AND old.STATUS != new.status",
            "new.\"status\" = 'it''s' and old.\"status\" <> new.\"status\"",
            "new.\"Status\" = 'it''s' and old.\"STATUS\" <> new.\"status\"",
        ),
        (
            "old.a is distinct from new.a or not new.b IN (1,-2.5, 1e-3)",
            "old.\"a\" is distinct from new.\"a\" or not new.\"b\" in (1, -2.5, 1e-3)",
            "old.\"a\" is not new.\"a\" or not new.\"b\" in (1, -2.5, 1e-3)",
        ),
        (
            "new.paid is true and new.[we ird] is not null and new.`x` not like 'a%'",
            "new.\"paid\" is not distinct from true and new.\"we ird\" is not null \
             and new.\"x\" not like 'a%'",
            "new.\"paid\" is true and new.\"we ird\" is not null and new.\"x\" not like 'a%'",
        ),
        (
            "(new.a between 1 and 2 or new.b = false) and new.c = 'a\\b'",
            "(new.\"a\" between 1 and 2 or new.\"b\" = false) and new.\"c\" = E'a\\\\b'",
            "(new.\"a\" between 1 and 2 or new.\"b\" = false) and new.\"c\" = 'a\\b'",
        ),
        (
            "((new.a is not distinct from null))",
            "new.\"a\" is null",
            "new.\"a\" is null",
        ),
    ] {
        assert_eq!(written(text, POSTGRES), postgres);
        assert_eq!(written(text, SQLITE), sqlite);
    }
}

#[test]
fn everything_else_is_refused_with_its_place() {
    for (text, sentence) in [
        ("", "at character 1, it ends where a column"),
        ("new.a", "at character 6, it ends where a comparison"),
        ("a = 1", "at character 1, it does not say what 'a' is"),
        (
            "new.a = 1; drop table t",
            "at character 10, ';' does not belong",
        ),
        ("new.a = 1 -- x", "at character 11, there is a comment"),
        ("new.a = 1 /* x */", "at character 11, '/' does not belong"),
        (
            "pg_read_file('x') = 'y'",
            "'pg_read_file' is called, and there are no functions",
        ),
        (
            "new.a = lo_export(1, 'x')",
            "at character 9, 'lo_export' is called",
        ),
        ("new.a = (select 1)", "at character 9, '(' stands where"),
        ("new.a::text = 'x'", "at character 6, ':' does not belong"),
        ("new.a = $1", "'$' does not belong"),
        ("new.a || 'x' = 'y'", "'|' does not belong"),
        ("new.a + 1 = 2", "'+' does not belong"),
        ("new.a - 1 = 2", "'-' stands where a comparison"),
        ("new.a = null", "at character 9, nothing equals NULL"),
        ("new.a in (1, null)", "nothing equals NULL"),
        ("new.a in ()", "at character 11, ')' stands where"),
        ("new.a in (select 1)", "what 'select' is"),
        ("new.a like new.b", "a pattern in single quotes"),
        ("new.a like 'a\\%'", "at character 12, the pattern has"),
        ("new.a like 'a' escape 'x'", "ESCAPE is not possible"),
        ("new.a = 'x", "at character 9, a quote is not closed"),
        ("new.a = E'\\x'", "at character 11, a backslash"),
        ("new.a = 'x\ny'", "at character 11, there is a control"),
        ("new.a = 0x1f", "'0x1f' is not a number"),
        ("new.a = 1_000", "'1_000' is not a number"),
        ("new.a = 1e9999", "'1e9999' is not a number"),
        ("new.a = 1.", "'1.' is not a number"),
        ("new.\"\" = 1", "a name is empty"),
        ("new.a.b = 1", "at character 6, '.' stands where"),
        ("new.a = 1 new.b = 2", "at character 11, 'new' is too much"),
        ("(new.a = 1", "it ends where ')' is needed"),
        ("new.a = 1)", "')' is too much"),
        ("new.a = any (new.b)", "'any' is called"),
        ("new = 1", "'=' stands where '.' is needed"),
        ("\"new\".a = 1", "the name \"new\" stands where"),
    ] {
        let error = Condition::parse(text, Fold::Lower).unwrap_err();
        assert!(error.message().contains(sentence), "{text}: {error}");
    }
    let deep = format!("{}new.a = 1{}", "(".repeat(51), ")".repeat(51));
    let error = Condition::parse(&deep, Fold::Lower).unwrap_err();
    assert!(error.message().contains("too deeply"), "{error}");
    let nots = format!("{}new.a = 1", "not ".repeat(2000));
    assert!(Condition::parse(&nots, Fold::Lower).is_err());
    let long = format!("new.a = '{}'", "x".repeat(10_000));
    assert!(Condition::parse(&long, Fold::Lower).is_err());
}

fn operand() -> impl Strategy<Value = Operand> {
    let side = prop_oneof![Just(Side::Old), Just(Side::New)];
    prop_oneof![
        (side, "[^\\p{Cc}]{1,8}").prop_map(|(side, name)| Operand::Column(side, name)),
        "[^\\p{Cc}]{0,12}".prop_map(Operand::Text),
        "['\\\\E\"\\]`;-]{0,6}".prop_map(Operand::Text),
        "-?[0-9]{1,20}(\\.[0-9]{1,10})?([eE][+-]?[0-9]{1,3})?".prop_map(Operand::Number),
        any::<bool>().prop_map(Operand::Boolean),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    let comparison = (0..Comparison::ALL.len()).prop_map(|n| Comparison::ALL[n].0);
    let test = prop_oneof![
        Just(Test::Null),
        operand().prop_map(Test::Same),
        prop::collection::vec(operand(), 1..4).prop_map(Test::In),
        "[^\\p{Cc}\\\\]{0,10}".prop_map(Test::Like),
        (operand(), operand()).prop_map(|(low, high)| Test::Between(low, high)),
    ];
    let leaf = prop_oneof![
        (operand(), comparison, operand())
            .prop_map(|(left, comparison, right)| Condition::Compare(left, comparison, right)),
        (operand(), any::<bool>(), test).prop_map(|(value, not, test)| Condition::Test {
            value,
            not,
            test
        }),
    ];
    leaf.prop_recursive(5, 40, 4, |inner| {
        let several = || prop::collection::vec(inner.clone(), 2..4);
        prop_oneof![
            several().prop_map(Condition::And),
            several().prop_map(Condition::Or),
            inner.prop_map(|c| Condition::Not(Box::new(c))),
        ]
    })
}

/// What is left of SQL without its quoted parts.
fn bare(sql: &str) -> String {
    let mut quote = None;
    let mut bare = String::new();
    for c in sql.chars() {
        match quote {
            // A doubled quote ends and begins again.
            Some(open) if open == c => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None => bare.push(c),
        }
    }
    bare
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_it_was(condition in condition()) {
        for dialect in [POSTGRES, SQLITE] {
            let sql = condition.sql(dialect);
            let read = Condition::parse(&sql, dialect.fold).ok();
            prop_assert_eq!(read.as_ref(), Some(&condition), "{}", sql);
        }
    }

    #[test]
    fn nothing_breaks_out_of_its_quotes(condition in condition()) {
        for dialect in [POSTGRES, SQLITE] {
            let bare = bare(&condition.sql(dialect));
            let fine = |c: char| c.is_ascii_alphanumeric() || " .,()<>=+-".contains(c);
            prop_assert!(bare.chars().all(fine), "{}", bare);
            prop_assert!(!bare.contains("--"), "{}", bare);
        }
    }

    #[test]
    fn no_text_is_too_strange(text in ".{0,60}") {
        let _ = Condition::parse(&text, Fold::Lower);
    }

    #[test]
    fn words_in_any_order_are_read_or_refused(
        words in prop::collection::vec(prop::sample::select(vec![
            "new.a", "old.\"B\"", "'x'", "1", "-", "=", "<>", "and", "or", "not", "(", ")", "in", "is",
            "null", "like", "between", "distinct", "from", "true", ",", "E'\\\\'", "é",
        ]), 0..12)
    ) {
        let text = words.join(" ");
        if let Ok(condition) = Condition::parse(&text, Fold::Lower) {
            let again = Condition::parse(&condition.sql(POSTGRES), Fold::Lower);
            prop_assert_eq!(again.ok(), Some(condition));
        }
    }
}

#[test]
fn a_condition_over_one_row_knows_columns_by_their_names() {
    let dialect = Dialect {
        fold: Fold::Lower,
        backslashes: true,
        distinct_from: true,
    };
    let parsed = Condition::parse_row(
        "Status in ('paid', 'sent') and not (\"Total\" is null or old > 5) and new is distinct from 3",
        Fold::Lower,
    )
    .unwrap();
    assert_eq!(
        parsed.sql_of("r", dialect),
        "r.\"status\" in ('paid', 'sent') and not (r.\"Total\" is null or r.\"old\" > 5) \
         and r.\"new\" is distinct from 3"
    );
    for bad in [
        "new.status = 1",
        "lower(status) = 'a'",
        "status",
        "1 = (select 1)",
    ] {
        assert!(Condition::parse_row(bad, Fold::Lower).is_err(), "{bad}");
    }
}
