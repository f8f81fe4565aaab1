//! Lists of columns, as they are typed.

use changefeed::{Changefeed, Result};

/// The names in a list.
pub(crate) fn parse(db: &Changefeed, list: &str) -> Result<Vec<String>> {
    split(list).map(|name| db.column(name.trim())).collect()
}

/// Splits a list at the commas that are not within quotes.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut quote = None;
    list.split(move |c: char| {
        match (quote, c) {
            (None, '"' | '`') => quote = Some(c),
            (None, '[') => quote = Some(']'),
            (Some(end), c) if c == end => quote = None,
            (None, ',') => return true,
            _ => {}
        }
        false
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn commas_within_quotes_belong_to_the_name() {
        let split = |text| super::split(text).collect::<Vec<_>>();
        assert_eq!(split("a,b"), ["a", "b"]);
        assert_eq!(split("\"a,b\",[c,d],`e,f`"), ["\"a,b\"", "[c,d]", "`e,f`"]);
    }
}
