//! SQL with blanks, and texts inside of SQL that has quotes of its own.

pub(crate) use changefeed_core::fill;

/// A dollar quote that occurs in none of these texts.
pub(crate) fn dollar_quote(texts: &[&str]) -> String {
    let mut tag = "$capture$".to_owned();
    let mut n = 0;
    while texts.iter().any(|text| text.contains(&tag)) {
        n += 1;
        tag = format!("$capture{n}$");
    }
    tag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_end_the_quote() {
        assert_eq!(dollar_quote(&["a", "b$capture$c"]), "$capture1$");
    }
}
