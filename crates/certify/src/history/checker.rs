//! The judge. Written against the promises, not against any implementation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::{History, Moment, Outcome, PageRead, ShardKey, Transaction};

/// A promise that was broken, with what shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Promise 1: a committed change never got a number.
    Lost {
        /// The shard.
        shard: ShardKey,
        /// The change.
        change_id: i64,
    },
    /// Promise 1: a reader who paged with the cursor passed over a change.
    Skipped {
        /// Who.
        reader: String,
        /// The shard.
        shard: ShardKey,
        /// The number that was passed over.
        number: i64,
        /// Its change.
        change_id: i64,
    },
    /// Promise 1: a page does not go on where the reader's last one ended, or says wrongly where
    /// to go on.
    Jump {
        /// Who.
        reader: String,
        /// The shard.
        shard: ShardKey,
        /// Where the page should have begun or ended.
        expected: i64,
        /// Where it did.
        found: i64,
    },
    /// Promise 2: two changes share a number, or one change has two.
    Doubled {
        /// The shard.
        shard: ShardKey,
        /// The number.
        number: i64,
        /// The change.
        change_id: i64,
    },
    /// Promise 2: a number is missing.
    Gap {
        /// The shard.
        shard: ShardKey,
        /// The number that should be there.
        missing: i64,
    },
    /// Promise 2: a page is not in ascending order.
    Disorder {
        /// Who read it.
        reader: String,
        /// The shard.
        shard: ShardKey,
        /// The number that is out of order.
        number: i64,
    },
    /// Promise 3: `later` began after `earlier` was committed, and has a lower number.
    Reordered {
        /// The shard.
        shard: ShardKey,
        /// The change that was committed first.
        earlier: i64,
        /// The change whose transaction began afterwards.
        later: i64,
    },
    /// Promise 4: a change that was rolled back has a number or was read.
    Resurrected {
        /// The shard.
        shard: ShardKey,
        /// The change.
        change_id: i64,
    },
    /// A change that nobody wrote.
    Invented {
        /// The shard.
        shard: ShardKey,
        /// The change.
        change_id: i64,
    },
    /// A transaction is only partly there.
    Torn {
        /// Who wrote it.
        writer: String,
        /// A change of it that is there.
        present: i64,
        /// A change of it that is not.
        absent: i64,
    },
    /// Promise 5: the same number was read with two different changes, or a page read again
    /// starts otherwise.
    Unstable {
        /// The shard.
        shard: ShardKey,
        /// The number or cursor.
        number: i64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// All broken promises of a history; none means that it may have happened.
pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let numbers = check_table(history, &mut found);
    check_fates(history, &numbers, &mut found);
    check_order(history, &numbers, &mut found);
    check_pages(history, &numbers, &mut found);
    check_rereads(history, &mut found);
    found
}

/// Number and change id, in order.
type Changes = [(i64, i64)];

/// Number by shard and change.
type Numbers = HashMap<(ShardKey, i64), i64>;

fn check_table(history: &History, found: &mut Vec<Violation>) -> Numbers {
    let mut numbers = Numbers::new();
    for (shard, rows) in &history.table {
        let mut rows = rows.clone();
        rows.sort_unstable();
        let mut expected = history.start.get(shard).map(|start| start + 1);
        let mut previous = None;
        for (number, change_id) in rows {
            if previous == Some(number) || numbers.insert((*shard, change_id), number).is_some() {
                found.push(Violation::Doubled {
                    shard: *shard,
                    number,
                    change_id,
                });
            }
            previous = Some(number);
            if let Some(next) = expected
                && number >= next
            {
                if number > next {
                    found.push(Violation::Gap {
                        shard: *shard,
                        missing: next,
                    });
                }
                expected = Some(number + 1);
            }
        }
    }
    numbers
}

/// Promises 1 and 4, and that transactions are atomic: what should be there, and what should not.
fn check_fates(history: &History, numbers: &Numbers, found: &mut Vec<Violation>) {
    let mut may_exist: HashSet<(ShardKey, i64)> = HashSet::new();
    let mut must_not: HashSet<(ShardKey, i64)> = HashSet::new();
    for transaction in &history.transactions {
        must_not.extend(&transaction.taken_back);
        match transaction.outcome {
            Outcome::RolledBack => must_not.extend(&transaction.changes),
            Outcome::Committed => {
                may_exist.extend(&transaction.changes);
                for (shard, change_id) in &transaction.changes {
                    if !numbers.contains_key(&(*shard, *change_id)) {
                        found.push(Violation::Lost {
                            shard: *shard,
                            change_id: *change_id,
                        });
                    }
                }
            }
            Outcome::InDoubt => {
                may_exist.extend(&transaction.changes);
                let (present, absent): (Vec<(ShardKey, i64)>, Vec<_>) = transaction
                    .changes
                    .iter()
                    .copied()
                    .partition(|change| numbers.contains_key(change));
                if let (Some(present), Some(absent)) = (present.first(), absent.first()) {
                    found.push(Violation::Torn {
                        writer: transaction.writer.clone(),
                        present: present.1,
                        absent: absent.1,
                    });
                }
            }
        }
    }
    let read = history
        .pages
        .iter()
        .flat_map(|page| page.changes.iter().map(|(_, id)| (page.shard, *id)));
    let seen: HashSet<(ShardKey, i64)> = numbers.keys().copied().chain(read).collect();
    for (shard, change_id) in seen {
        if must_not.contains(&(shard, change_id)) {
            found.push(Violation::Resurrected { shard, change_id });
        } else if !may_exist.contains(&(shard, change_id)) {
            found.push(Violation::Invented { shard, change_id });
        }
    }
}

/// Promise 3. Sorted by time, so that each transaction is compared with the highest number among
/// all that were committed before it began.
fn check_order(history: &History, numbers: &Numbers, found: &mut Vec<Violation>) {
    let of_shard = |transaction: &Transaction, shard: ShardKey| -> Vec<(i64, i64)> {
        transaction
            .changes
            .iter()
            .filter(|(s, _)| *s == shard)
            .filter_map(|(s, id)| numbers.get(&(*s, *id)).map(|number| (*number, *id)))
            .collect()
    };
    for shard in history.table.keys() {
        // (moment, lowest or highest number, its change)
        let mut commits: Vec<(Moment, i64, i64)> = Vec::new();
        let mut begins: Vec<(Moment, i64, i64)> = Vec::new();
        for transaction in &history.transactions {
            let mine = of_shard(transaction, *shard);
            // One in doubt may have been committed at any later moment, so it bounds nothing;
            // yet it too began after what was committed before.
            if transaction.outcome == Outcome::Committed
                && let Some((number, id)) = mine.iter().max()
            {
                commits.push((transaction.ended, *number, *id));
            }
            if transaction.outcome != Outcome::RolledBack
                && let Some((number, id)) = mine.iter().min()
            {
                begins.push((transaction.began, *number, *id));
            }
        }
        commits.sort_unstable();
        begins.sort_unstable();
        let mut committed = commits.into_iter().peekable();
        let mut highest: Option<(i64, i64)> = None;
        for (began, number, later) in begins {
            while let Some((_, n, id)) = committed.next_if(|(ended, ..)| *ended < began) {
                highest = highest.max(Some((n, id)));
            }
            if let Some((above, earlier)) = highest
                && above > number
            {
                found.push(Violation::Reordered {
                    shard: *shard,
                    earlier,
                    later,
                });
            }
        }
    }
}

/// Promises 1 and 2 as readers see them: each page begins right after its cursor and has every
/// number up to its end.
fn check_pages(history: &History, numbers: &Numbers, found: &mut Vec<Violation>) {
    let mut sorted: BTreeMap<ShardKey, Vec<(i64, i64)>> = history.table.clone();
    for rows in sorted.values_mut() {
        rows.sort_unstable();
    }
    let none = Vec::new();
    let mut stands: HashMap<(&str, ShardKey), i64> = HashMap::new();
    for page in &history.pages {
        let shard = page.shard;
        let jump = |expected, found| Violation::Jump {
            reader: page.reader.clone(),
            shard,
            expected,
            found,
        };
        if let Some(stood) = stands.insert((&page.reader, shard), page.next) {
            match page.after {
                Some(after) if after == stood => {}
                after => found.push(jump(stood, after.unwrap_or(i64::MIN))),
            }
        }
        let mut previous = page.after.unwrap_or(i64::MIN);
        for (number, change_id) in &page.changes {
            if *number <= previous {
                found.push(Violation::Disorder {
                    reader: page.reader.clone(),
                    shard,
                    number: *number,
                });
            }
            previous = *number;
            if numbers
                .get(&(shard, *change_id))
                .is_some_and(|n| n != number)
            {
                found.push(Violation::Unstable {
                    shard,
                    number: *number,
                });
            }
        }
        if let Some((last, _)) = page.changes.last()
            && *last != page.next
        {
            found.push(jump(*last, page.next));
        }
        check_skips(page, sorted.get(&shard).unwrap_or(&none), found);
    }
    for (reader, shard) in &history.finished_readers {
        let stood = stands.get(&(reader.as_str(), *shard)).copied();
        let last = sorted.get(shard).and_then(|rows| rows.last());
        if let Some((number, change_id)) = last
            && stood.is_none_or(|stood| stood < *number)
        {
            found.push(Violation::Skipped {
                reader: reader.clone(),
                shard: *shard,
                number: *number,
                change_id: *change_id,
            });
        }
    }
}

/// Every number of the table between the page's cursor and the page's end must be on the page.
fn check_skips(page: &PageRead, table: &Changes, found: &mut Vec<Violation>) {
    let on_page: HashSet<i64> = page.changes.iter().map(|(number, _)| *number).collect();
    let from = page
        .after
        .map_or(0, |after| table.partition_point(|(n, _)| *n <= after));
    for (number, change_id) in table[from..].iter().take_while(|(n, _)| *n <= page.next) {
        if !on_page.contains(number) {
            found.push(Violation::Skipped {
                reader: page.reader.clone(),
                shard: page.shard,
                number: *number,
                change_id: *change_id,
            });
        }
    }
}

/// Promise 5: of two pages after the same cursor, the shorter is how the longer begins; and a
/// number stands for the same change on every page.
fn check_rereads(history: &History, found: &mut Vec<Violation>) {
    let mut meaning: HashMap<(ShardKey, i64), i64> = HashMap::new();
    let mut longest: HashMap<(ShardKey, Option<i64>), &Changes> = HashMap::new();
    for page in &history.pages {
        for (number, change_id) in &page.changes {
            let before = *meaning.entry((page.shard, *number)).or_insert(*change_id);
            if before != *change_id {
                found.push(Violation::Unstable {
                    shard: page.shard,
                    number: *number,
                });
            }
        }
        let known = longest
            .entry((page.shard, page.after))
            .or_insert(&page.changes);
        let same = known.iter().zip(&page.changes).all(|(a, b)| a == b);
        if !same {
            found.push(Violation::Unstable {
                shard: page.shard,
                number: page.after.unwrap_or(i64::MIN),
            });
        }
        if page.changes.len() > known.len() {
            *known = &page.changes;
        }
    }
}

#[cfg(test)]
mod tests;
