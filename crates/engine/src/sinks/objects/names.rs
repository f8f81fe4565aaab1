//! Names of objects: the cursor that an object begins after, so that their order is that of the feed.

use std::fmt;

use changefeed_core::{Container, Cursor, Ulid};

/// The name of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// The cursor it begins after; zero is the beginning.
    start: Start,
    pub(super) container: Container,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Number(u64),
    Ulid(Ulid),
}

impl Name {
    /// The name of what comes after a cursor and ends with another one; nothing if that cannot be a name.
    pub(super) fn after(after: Option<Cursor>, last: Cursor, container: Container) -> Option<Name> {
        let start = match (after, last) {
            (None, Cursor::Number(_)) => Start::Number(0),
            (None, Cursor::Ulid(_)) => Start::Ulid(Ulid::MIN),
            (Some(Cursor::Number(number)), _) => Start::Number(u64::try_from(number).ok()?),
            (Some(Cursor::Ulid(ulid)), _) => Start::Ulid(ulid),
            _ => return None,
        };
        let name = Name { start, container };
        name.is_before(last).then_some(name)
    }

    /// Whether the object can end with this cursor.
    pub(super) fn is_before(&self, cursor: Cursor) -> bool {
        match (self.start, cursor) {
            (Start::Number(start), Cursor::Number(number)) => {
                u64::try_from(number).is_ok_and(|number| start < number)
            }
            (Start::Ulid(start), Cursor::Ulid(ulid)) => start < ulid,
            _ => false,
        }
    }

    /// Its place among others of its kind.
    pub(super) fn place(&self) -> u128 {
        match self.start {
            Start::Number(number) => number.into(),
            Start::Ulid(ulid) => u128::from(ulid.high()) << 64 | u128::from(ulid.low()),
        }
    }

    /// What sorts behind this name, and before names that are further away than this.
    pub(super) fn beyond(&self, distance: u128) -> String {
        let place = self.place().saturating_add(distance);
        let low = |place: u128| u64::try_from(place).unwrap_or(u64::MAX);
        let start = match self.start {
            Start::Number(_) => Start::Number(low(place)),
            Start::Ulid(_) => Start::Ulid(Ulid::from_parts(
                low(place >> 64),
                low(place & u128::from(u64::MAX)),
            )),
        };
        let container = self.container;
        Name { start, container }.to_string()
    }

    fn parse(text: &str) -> Option<Name> {
        let (start, ending) = text.split_once('.')?;
        let container = ending.parse().ok()?;
        let digits = start.bytes().all(|byte| byte.is_ascii_digit());
        let start = match start.len() {
            20 if digits => Start::Number(start.parse().ok()?),
            26 => Start::Ulid(start.parse().ok()?),
            _ => return None,
        };
        Some(Name { start, container })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.start {
            Start::Number(number) => write!(f, "{number:020}.{}", self.container),
            Start::Ulid(ulid) => write!(f, "{ulid}.{}", self.container),
        }
    }
}

/// The names of a folder. What begins with a dot or an underscore does not count, as everywhere in lakes.
pub(super) fn of(folder: &str, names: &[String]) -> Result<Vec<Name>, String> {
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        if name.is_empty() || name.starts_with(['.', '_']) {
            continue;
        }
        found.push(Name::parse(name).ok_or_else(|| {
            format!("{folder} holds '{name}', which is not an object of changefeed: others must not write there")
        })?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_sort_like_cursors() {
        let ulid = |text: &str| Cursor::Ulid(text.parse().unwrap());
        let cursors = [
            [
                None,
                Some(Cursor::Number(1)),
                Some(Cursor::Number(i64::MAX - 1)),
            ],
            [
                None,
                Some(ulid("01ARZ3NDEKTSV4RRFFQ69G5FAV")),
                Some(ulid("01BRZ3NDEKTSV4RRFFQ69G5FAV")),
            ],
        ];
        for row in cursors {
            let last = match row[1] {
                Some(Cursor::Number(_)) => Cursor::Number(i64::MAX),
                _ => ulid("7ZZZZZZZZZZZZZZZZZZZZZZZZZ"),
            };
            let names: Vec<String> = row
                .iter()
                .map(|start| Name::after(*start, last, Container::Parquet).unwrap())
                .map(|name| {
                    let text = name.to_string();
                    assert_eq!(Name::parse(&text), Some(name));
                    text
                })
                .collect();
            assert!(names.is_sorted(), "{names:?}");
        }
        let number = Cursor::Number;
        for (after, last) in [(number(-1), number(5)), (number(5), number(5))] {
            assert_eq!(Name::after(Some(after), last, Container::Ndjson), None);
        }
        let names = ["_SUCCESS", "", ".new-1-0"].map(str::to_owned);
        assert_eq!(of("f", &names), Ok(Vec::new()));
        for strange in [
            "x.ndjson",
            "00000000000000000001.csv",
            "00000000000000000001",
        ] {
            assert!(of("f", &[strange.to_owned()]).is_err(), "{strange}");
        }
    }
}
