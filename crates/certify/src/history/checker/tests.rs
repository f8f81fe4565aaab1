//! Handmade histories: a good one, and for every rule a bad one. A checker that cannot fail
//! proves nothing.

use super::*;

const S: ShardKey = (37, 0);

fn transaction(began: Moment, ended: Moment, outcome: Outcome, ids: &[i64]) -> Transaction {
    Transaction {
        writer: "w".to_owned(),
        changes: ids.iter().map(|id| (S, *id)).collect(),
        taken_back: Vec::new(),
        began,
        ended,
        outcome,
    }
}

fn page(reader: &str, after: Option<i64>, changes: &[(i64, i64)]) -> PageRead {
    PageRead {
        reader: reader.to_owned(),
        shard: S,
        after,
        limit: 10,
        changes: changes.to_vec(),
        next: changes.last().map_or(after.unwrap_or(100), |(n, _)| *n),
    }
}

/// Three transactions, of which the second was rolled back, and a reader who saw it all.
fn good() -> History {
    History {
        start: BTreeMap::from([(S, 100)]),
        transactions: vec![
            transaction(0, 10, Outcome::Committed, &[1, 2]),
            transaction(5, 15, Outcome::RolledBack, &[3]),
            transaction(20, 30, Outcome::Committed, &[4]),
        ],
        pages: vec![
            page("r", None, &[(101, 1)]),
            page("r", Some(101), &[(102, 2), (103, 4)]),
            page("r", Some(103), &[]),
        ],
        table: BTreeMap::from([(S, vec![(101, 1), (102, 2), (103, 4)])]),
        finished_readers: vec![("r".to_owned(), S)],
    }
}

fn broken(change: impl FnOnce(&mut History)) -> Vec<Violation> {
    let mut history = good();
    change(&mut history);
    check(&history)
}

fn table(history: &mut History) -> &mut Vec<(i64, i64)> {
    history.table.get_mut(&S).unwrap()
}

#[test]
fn a_good_history_is_accepted() {
    assert_eq!(check(&good()), []);
}

#[test]
fn promise_1_a_committed_change_that_got_no_number_is_lost() {
    let found = broken(|h| {
        h.transactions
            .push(transaction(40, 50, Outcome::Committed, &[5]));
    });
    assert_eq!(
        found,
        [Violation::Lost {
            shard: S,
            change_id: 5
        }]
    );
}

#[test]
fn promise_1_a_number_that_is_missing_inside_a_page_is_skipped() {
    let found = broken(|h| h.pages[1] = page("r", Some(101), &[(103, 4)]));
    assert_eq!(
        found,
        [Violation::Skipped {
            reader: "r".to_owned(),
            shard: S,
            number: 102,
            change_id: 2
        }]
    );
}

#[test]
fn promise_1_a_number_that_appears_behind_a_reader_is_skipped() {
    // What the naive reader does: the cursor has passed a number that is given out afterwards.
    let found = broken(|h| {
        h.pages = vec![page("r", None, &[(102, 2), (103, 4)])];
    });
    assert_eq!(
        found,
        [Violation::Skipped {
            reader: "r".to_owned(),
            shard: S,
            number: 101,
            change_id: 1
        }]
    );
}

#[test]
fn promise_1_an_empty_page_must_not_move_the_cursor() {
    let found = broken(|h| {
        h.pages.truncate(1);
        h.pages.push(PageRead {
            next: 103,
            ..page("r", Some(101), &[])
        });
    });
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(matches!(found[0], Violation::Skipped { number: 102, .. }));
}

#[test]
fn promise_1_a_reader_must_go_on_where_it_stood() {
    let found = broken(|h| {
        h.pages.insert(1, page("r", Some(102), &[(103, 4)]));
    });
    assert!(
        found.contains(&Violation::Jump {
            reader: "r".to_owned(),
            shard: S,
            expected: 101,
            found: 102
        }),
        "{found:?}"
    );
}

#[test]
fn promise_1_the_next_cursor_must_be_the_last_number() {
    let found = broken(|h| {
        h.pages = vec![PageRead {
            next: 102,
            ..page("r", None, &[(101, 1)])
        }];
        h.finished_readers.clear();
    });
    assert!(found.contains(&Violation::Jump {
        reader: "r".to_owned(),
        shard: S,
        expected: 101,
        found: 102
    }));
}

#[test]
fn promise_1_a_finished_reader_has_seen_the_end() {
    let found = broken(|h| h.pages.truncate(1));
    assert_eq!(
        found,
        [Violation::Skipped {
            reader: "r".to_owned(),
            shard: S,
            number: 103,
            change_id: 4
        }]
    );
}

#[test]
fn promise_2_a_gap_is_found_at_the_start_and_in_the_middle() {
    for (start, missing) in [(99, 100), (98, 99)] {
        let found = broken(|h| {
            h.start.insert(S, start);
        });
        assert_eq!(found, [Violation::Gap { shard: S, missing }]);
    }
    let found = broken(|h| {
        table(h)[2].0 = 104;
        h.pages[1].changes[1].0 = 104;
        h.pages[1].next = 104;
        h.pages[2].after = Some(104);
        h.pages[2].next = 104;
    });
    assert_eq!(
        found,
        [Violation::Gap {
            shard: S,
            missing: 103
        }]
    );
}

#[test]
fn promise_2_backfilled_numbers_below_the_start_are_no_gap() {
    let found = broken(|h| {
        h.transactions
            .push(transaction(40, 50, Outcome::Committed, &[9]));
        table(h).push((42, 9));
        h.pages.clear();
        h.finished_readers.clear();
    });
    // It was committed after the others and is before them: that is what a backfill is, and
    // what the checker is told by leaving such transactions out of the order.
    assert!(
        found
            .iter()
            .all(|v| matches!(v, Violation::Reordered { .. })),
        "{found:?}"
    );
}

#[test]
fn promise_2_two_changes_with_one_number_are_found() {
    let found = broken(|h| {
        table(h)[1].0 = 101;
        h.pages.clear();
        h.finished_readers.clear();
    });
    assert!(
        found.contains(&Violation::Doubled {
            shard: S,
            number: 101,
            change_id: 2
        }),
        "{found:?}"
    );
}

#[test]
fn promise_2_one_change_with_two_numbers_is_found() {
    let found = broken(|h| {
        table(h).push((104, 4));
        h.finished_readers.clear();
        h.pages.clear();
    });
    assert_eq!(
        found,
        [Violation::Doubled {
            shard: S,
            number: 104,
            change_id: 4
        }]
    );
}

#[test]
fn promise_2_a_page_must_ascend() {
    let found = broken(|h| {
        h.pages = vec![PageRead {
            next: 103,
            ..page("r", None, &[(102, 2), (101, 1), (103, 4)])
        }];
    });
    assert_eq!(
        found,
        [Violation::Disorder {
            reader: "r".to_owned(),
            shard: S,
            number: 101
        }]
    );
}

#[test]
fn promise_3_what_began_after_a_commit_has_a_higher_number() {
    let found = broken(|h| {
        *table(h) = vec![(101, 1), (102, 4), (103, 2)];
        h.pages.clear();
        h.finished_readers.clear();
    });
    assert_eq!(
        found,
        [Violation::Reordered {
            shard: S,
            earlier: 2,
            later: 4
        }]
    );
}

#[test]
fn promise_3_transactions_that_overlap_may_have_any_order() {
    let found = broken(|h| {
        h.transactions[2].began = 10;
        *table(h) = vec![(101, 1), (102, 4), (103, 2)];
        h.pages.clear();
        h.finished_readers.clear();
    });
    assert_eq!(found, []);
}

#[test]
fn promise_3_one_in_doubt_began_after_what_was_committed_before() {
    let found = broken(|h| {
        h.transactions[2].outcome = Outcome::InDoubt;
        *table(h) = vec![(101, 4), (102, 1), (103, 2)];
        h.pages.clear();
        h.finished_readers.clear();
    });
    assert_eq!(
        found,
        [Violation::Reordered {
            shard: S,
            earlier: 2,
            later: 4
        }]
    );
}

#[test]
fn promise_4_what_was_rolled_back_must_not_have_a_number() {
    let found = broken(|h| {
        table(h).push((104, 3));
        h.finished_readers.clear();
    });
    assert_eq!(
        found,
        [Violation::Resurrected {
            shard: S,
            change_id: 3
        }]
    );
}

#[test]
fn promise_4_what_was_rolled_back_must_not_be_read_even_for_a_moment() {
    let found = broken(|h| h.pages[2] = page("r", Some(103), &[(104, 3)]));
    assert_eq!(
        found,
        [Violation::Resurrected {
            shard: S,
            change_id: 3
        }]
    );
}

#[test]
fn promise_4_what_a_savepoint_took_back_must_not_appear() {
    let found = broken(|h| {
        h.transactions[0].taken_back.push((S, 8));
        table(h).push((104, 8));
        h.finished_readers.clear();
    });
    assert_eq!(
        found,
        [Violation::Resurrected {
            shard: S,
            change_id: 8
        }]
    );
}

#[test]
fn a_change_that_nobody_wrote_is_found() {
    let found = broken(|h| {
        table(h).push((104, 77));
        h.finished_readers.clear();
    });
    assert_eq!(
        found,
        [Violation::Invented {
            shard: S,
            change_id: 77
        }]
    );
}

#[test]
fn promise_5_a_page_read_again_starts_with_the_same_changes() {
    let found = broken(|h| {
        h.pages.push(page("other", Some(101), &[(102, 2)]));
    });
    assert_eq!(found, [], "a shorter page is fine");
    let found = broken(|h| {
        h.pages
            .push(page("other", Some(101), &[(102, 4), (103, 2)]));
    });
    assert!(found.contains(&Violation::Unstable {
        shard: S,
        number: 101
    }));
    let found = broken(|h| {
        h.pages.push(page("other", Some(101), &[(103, 4)]));
    });
    assert!(
        found.contains(&Violation::Unstable {
            shard: S,
            number: 101
        }),
        "{found:?}"
    );
}

#[test]
fn in_doubt_changes_appear_once_or_never_but_not_in_part() {
    let in_doubt = |appear: &[(i64, i64)]| {
        broken(|h| {
            h.transactions
                .push(transaction(40, 50, Outcome::InDoubt, &[5, 6]));
            table(h).extend(appear);
            h.finished_readers.clear();
        })
    };
    assert_eq!(in_doubt(&[]), []);
    assert_eq!(in_doubt(&[(104, 5), (105, 6)]), []);
    assert_eq!(
        in_doubt(&[(104, 5)]),
        [Violation::Torn {
            writer: "w".to_owned(),
            present: 5,
            absent: 6
        }]
    );
    assert_eq!(
        in_doubt(&[(104, 5), (105, 6), (106, 5)]),
        [Violation::Doubled {
            shard: S,
            number: 106,
            change_id: 5
        }]
    );
}
