//! Decides whether what writers of ULID transactions did and readers saw keeps promises 3 and 6.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

use changefeed_core::Ulid;

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The server said so.
    Committed,
    /// It cannot have been committed.
    Undone,
    /// Its commit was sent, and the answer never came.
    InDoubt,
}

/// One transaction of a writer. Its rows carry the notes `name/size/0`, `name/size/1`, …
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its own name.
    pub name: String,
    /// How many rows it wrote.
    pub size: usize,
    /// What became of it.
    pub fate: Fate,
    /// Microseconds since 1970 before it began.
    pub began: u128,
    /// Microseconds since 1970 after it ended.
    pub ended: u128,
}

/// As one line, for writers in processes of their own.
impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Written {
            name,
            size,
            fate,
            began,
            ended,
        } = self;
        write!(f, "{name} {size} {fate:?} {began} {ended}")
    }
}

impl FromStr for Written {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, size, fate, began, ended] = words[..] else {
            return Err(format!("not a transaction: {line}"));
        };
        let number = |word: &str| word.parse::<u128>().map_err(|e| format!("{e}: {line}"));
        Ok(Written {
            name: name.to_owned(),
            size: size.parse().map_err(|e| format!("{e}: {line}"))?,
            fate: match fate {
                "Committed" => Fate::Committed,
                "Undone" => Fate::Undone,
                "InDoubt" => Fate::InDoubt,
                other => return Err(format!("no fate: {other}")),
            },
            began: number(began)?,
            ended: number(ended)?,
        })
    }
}

/// What is wrong.
pub type Found = String;

/// Checks a shard: `table` is what it holds in the end, in no order; `transactions` is what its
/// writers say they did; each reader paged from the first to the last row.
///
/// `may_be_silent` names writers that were killed and could not tell of their last transaction.
pub fn check(
    table: &[(Ulid, String)],
    transactions: &[Written],
    readers: &[Vec<Ulid>],
    may_be_silent: impl Fn(&str) -> bool,
) -> Vec<Found> {
    let mut found = Vec::new();
    let mut in_order: Vec<Ulid> = table.iter().map(|(ulid, _)| *ulid).collect();
    in_order.sort_unstable();
    if in_order.windows(2).any(|pair| pair[0] == pair[1]) {
        found.push("a ULID was given twice".to_owned());
    }
    for (n, reader) in readers.iter().enumerate() {
        if let Some(pair) = reader.windows(2).find(|pair| pair[0] >= pair[1]) {
            found.push(format!("reader {n} saw {} before {}", pair[0], pair[1]));
        }
        // A row that appeared behind a reader's cursor is missing from what it saw.
        if let Some(missed) = in_order.iter().find(|u| reader.binary_search(u).is_err()) {
            found.push(format!("{missed} appeared behind the cursor of reader {n}"));
        }
        if let Some(ghost) = reader.iter().find(|u| in_order.binary_search(u).is_err()) {
            found.push(format!("reader {n} saw {ghost}, which is gone"));
        }
    }

    let mut rows: BTreeMap<(&str, usize), Vec<(usize, Ulid)>> = BTreeMap::new();
    for (ulid, note) in table {
        let parts: Vec<&str> = note.split('/').collect();
        let [name, size, n] = parts[..] else {
            found.push(format!("nobody wrote '{note}'"));
            continue;
        };
        let (size, n) = (size.parse().unwrap_or(0), n.parse().unwrap_or(0));
        rows.entry((name, size)).or_default().push((n, *ulid));
    }
    let told: HashMap<&str, &Written> = transactions.iter().map(|t| (&*t.name, t)).collect();
    for ((name, size), rows) in &mut rows {
        rows.sort_unstable();
        if rows.len() != *size {
            found.push(format!("{} of {size} rows of {name}", rows.len()));
        }
        if rows.windows(2).any(|pair| pair[0].1 >= pair[1].1) {
            found.push(format!("the ULIDs of {name} do not increase"));
        }
        if rows.iter().any(|(_, ulid)| ulid.time() != rows[0].1.time()) {
            found.push(format!("{name} happened at more than one time"));
        }
        match told.get(name).map(|t| t.fate) {
            Some(Fate::Committed | Fate::InDoubt) => {}
            Some(Fate::Undone) => found.push(format!("{name} was undone and is there")),
            None if may_be_silent(name) => {}
            None => found.push(format!("nobody wrote {name}")),
        }
    }

    // Committed transactions that are not there, and those that are in another order than time's.
    let mut committed: Vec<(&Written, Ulid, Ulid)> = Vec::new();
    for written in transactions.iter().filter(|t| t.fate == Fate::Committed) {
        match rows.get(&(&*written.name, written.size)) {
            Some(rows) => committed.push((written, rows[0].1, rows[rows.len() - 1].1)),
            None => found.push(format!("{} was committed and is not there", written.name)),
        }
    }
    committed.sort_unstable_by_key(|(written, ..)| written.began);
    let mut by_end: Vec<&(&Written, Ulid, Ulid)> = committed.iter().collect();
    by_end.sort_unstable_by_key(|(written, ..)| written.ended);
    let (mut ended, mut newest) = (by_end.into_iter().peekable(), None::<(Ulid, &str)>);
    for (written, first, _) in &committed {
        while let Some((before, _, last)) = ended.next_if(|(b, ..)| b.ended < written.began) {
            newest = newest.max(Some((*last, &before.name)));
        }
        if let Some((ulid, name)) = newest
            && ulid >= *first
        {
            found.push(format!(
                "{name} was committed before {} began, and comes after it",
                written.name
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulid(n: u64) -> Ulid {
        Ulid::from_parts(1 << 20, n)
    }

    fn written(name: &str, fate: Fate, began: u128, ended: u128) -> Written {
        Written {
            name: name.to_owned(),
            size: 1,
            fate,
            began,
            ended,
        }
    }

    fn table(rows: &[(u64, &str)]) -> Vec<(Ulid, String)> {
        let row = |(n, name): &(u64, &str)| (ulid(*n), format!("{name}/1/0"));
        rows.iter().map(row).collect()
    }

    fn problems(rows: &[(u64, &str)], told: &[Written], readers: &[&[u64]]) -> usize {
        let readers: Vec<Vec<Ulid>> = readers
            .iter()
            .map(|seen| seen.iter().map(|n| ulid(*n)).collect())
            .collect();
        check(&table(rows), told, &readers, |_| false).len()
    }

    #[test]
    fn a_clean_history_passes_and_every_fault_is_found() {
        let a = written("a", Fate::Committed, 1, 2);
        let b = written("b", Fate::Committed, 3, 4);
        let both = [a.clone(), b.clone()];
        let rows = [(1, "a"), (2, "b")];
        assert_eq!(problems(&rows, &both, &[&[1, 2], &[1, 2]]), 0);
        // Behind a cursor, in the wrong order, gone again.
        assert_eq!(problems(&rows, &both, &[&[2]]), 1);
        assert!(problems(&rows, &both, &[&[2, 1]]) > 0);
        assert_eq!(problems(&rows, &both, &[&[1, 2, 3]]), 1);
        // Against time.
        assert_eq!(problems(&[(2, "a"), (1, "b")], &both, &[]), 1);
        // Undone, invented, lost, twice.
        let undone = [a.clone(), written("b", Fate::Undone, 3, 4)];
        assert_eq!(problems(&rows, &undone, &[]), 1);
        assert_eq!(problems(&rows, &[a], &[]), 1);
        assert_eq!(problems(&[(1, "a")], &both, &[]), 1);
        assert!(problems(&[(1, "a"), (1, "b")], &both, &[]) > 0);
    }

    #[test]
    fn a_transaction_is_told_in_one_line() {
        let told = written("w-1", Fate::InDoubt, 5, 6);
        assert_eq!(told.to_string().parse(), Ok(told));
    }
}
