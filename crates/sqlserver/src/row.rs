//! Columns of the answers to our statements: what is not as expected is an error, never a panic and
//! never an invented zero.

use std::panic::Location;

use changefeed_core::{Error, Result, words};
use tiberius::{FromSql, QueryIdx, Row};

pub(crate) trait Cells {
    /// The value of a column that is never null.
    #[track_caller]
    fn take<'a, T: FromSql<'a>>(&'a self, column: impl QueryIdx + Copy) -> Result<T>;

    /// A number that is never null and never negative.
    #[track_caller]
    fn count<'a, N: FromSql<'a>, T: TryFrom<N>>(
        &'a self,
        column: impl QueryIdx + Copy,
    ) -> Result<T>;

    /// The value of a column that may be null.
    #[track_caller]
    fn maybe<'a, T: FromSql<'a>>(&'a self, column: impl QueryIdx + Copy) -> Result<Option<T>>;

    /// Whether a bit is set; null is not.
    #[track_caller]
    fn says(&self, column: impl QueryIdx + Copy) -> Result<bool>;

    /// A text of its own, of a column that is never null.
    #[track_caller]
    fn text(&self, column: impl QueryIdx + Copy) -> Result<String>;

    /// A text of its own, of a column that may be null.
    #[track_caller]
    fn maybe_text(&self, column: impl QueryIdx + Copy) -> Result<Option<String>>;
}

impl Cells for Row {
    #[track_caller]
    fn take<'a, T: FromSql<'a>>(&'a self, column: impl QueryIdx + Copy) -> Result<T> {
        let asked = Location::caller();
        match self.try_get(column) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(Error::unreadable(column, asked).caused_by("it is null")),
            Err(e) => Err(Error::unreadable(column, asked).caused_by(e)),
        }
    }

    #[track_caller]
    fn count<'a, N: FromSql<'a>, T: TryFrom<N>>(
        &'a self,
        column: impl QueryIdx + Copy,
    ) -> Result<T> {
        let asked = Location::caller();
        T::try_from(self.take(column)?).map_err(|_| Error::unreadable(column, asked))
    }

    #[track_caller]
    fn maybe<'a, T: FromSql<'a>>(&'a self, column: impl QueryIdx + Copy) -> Result<Option<T>> {
        let asked = Location::caller();
        self.try_get(column)
            .map_err(|e| Error::unreadable(column, asked).caused_by(e))
    }

    #[track_caller]
    fn says(&self, column: impl QueryIdx + Copy) -> Result<bool> {
        Ok(self.maybe(column)? == Some(true))
    }

    #[track_caller]
    fn text(&self, column: impl QueryIdx + Copy) -> Result<String> {
        self.take::<&str>(column).map(str::to_owned)
    }

    #[track_caller]
    fn maybe_text(&self, column: impl QueryIdx + Copy) -> Result<Option<String>> {
        Ok(self.maybe::<&str>(column)?.map(str::to_owned))
    }
}

/// The row of a statement that always has one.
pub(crate) fn only(rows: &[Row]) -> Result<&Row> {
    rows.first().ok_or_else(words::server_unexpected)
}

/// The value of a column in the first row: none if there is no row, or if it is null.
#[track_caller]
pub(crate) fn first<'a, T: FromSql<'a>>(
    rows: &'a [Row],
    column: impl QueryIdx + Copy,
) -> Result<Option<T>> {
    rows.first().map_or(Ok(None), |row| row.maybe(column))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// The names by which the code of a file asks rows for their columns, itself or by a closure.
    fn asked(code: &str) -> Vec<&str> {
        const METHODS: [&str; 8] = [
            ".take",
            ".maybe",
            ".text",
            ".maybe_text",
            ".says",
            ".count",
            " json",
            " setting",
        ];
        let mut names = Vec::new();
        for (at, _) in code.match_indices("(\"") {
            let before = &code[..at];
            let method = match before.rsplit_once("::<") {
                Some((method, _)) if before.ends_with('>') => method,
                _ => before,
            };
            if METHODS.iter().any(|name| method.ends_with(name)) {
                names.extend(code[at + 2..].split('"').next());
            }
        }
        names
    }

    /// A server would find this; there is none here.
    #[test]
    fn every_column_that_is_asked_for_by_name_is_in_a_statement_of_its_file() {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut checked = 0;
        for file in [
            "access",
            "consumers",
            "event_claim",
            "event_log",
            "instances",
        ] {
            let code = std::fs::read_to_string(src.join(file).with_extension("rs")).unwrap();
            let mut statements = String::new();
            for part in code.split("include_str!(\"").skip(1) {
                let sql = src.join(part.split('"').next().unwrap());
                statements += &std::fs::read_to_string(sql).unwrap();
            }
            for name in asked(&code) {
                let ends = |rest: &str| rest.starts_with([',', '\n', ' ']);
                let forms = [
                    format!(" as {name}"),
                    format!(" as [{name}]"),
                    format!(".{name}"),
                ];
                let found = forms.iter().any(|form| {
                    let mut places = statements.match_indices(form.as_str());
                    places.any(|(at, _)| ends(&statements[at + form.len()..]))
                });
                assert!(found, "{file}.rs asks for the column {name}");
                checked += 1;
            }
        }
        assert!(checked > 40, "only {checked} names were found");
    }
}
