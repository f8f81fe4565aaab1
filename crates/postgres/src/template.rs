//! SQL with blanks to be filled in.

/// Fills every `{blank}` of a template in one pass, so that a value that looks like a blank (a
/// column may be called anything) is left as it is.
pub(crate) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        filled.push_str(&rest[..open]);
        rest = &rest[open..];
        let blank = values.iter().find(|(name, _)| {
            rest[1..]
                .strip_prefix(name)
                .is_some_and(|r| r.starts_with('}'))
        });
        match blank {
            Some((name, value)) => {
                filled.push_str(value);
                rest = &rest[name.len() + 2..];
            }
            None => {
                filled.push('{');
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    filled
}

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
    fn values_are_not_searched_for_blanks() {
        let sql = fill("a {x} b {y} {z} {", &[("x", "{y}"), ("y", "{x}")]);
        assert_eq!(sql, "a {y} b {x} {z} {");
    }

    #[test]
    fn a_name_cannot_end_the_quote() {
        assert_eq!(dollar_quote(&["a", "b$capture$c"]), "$capture1$");
    }
}
