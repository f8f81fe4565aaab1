//! SQL with blanks to be filled in.

use crate::{Error, Result};

/// Fills every `{blank}` of a template in one pass, so that a value that looks like a blank (a
/// column may be called anything) is left as it is. A blank that no value fills is an error; braces
/// around anything but a lower-case name, such as the JSON `{}`, are no blank.
pub fn fill(template: &str, values: &[(&str, &str)]) -> Result<String> {
    let mut filled = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let (before, from_open) = rest.split_at(open);
        filled.push_str(before);
        let Some(blank) = blank(from_open) else {
            filled.push('{');
            rest = &from_open[1..];
            continue;
        };
        let Some((_, value)) = values.iter().find(|(name, _)| *name == blank) else {
            let message = format!("a statement has no value for its blank {{{blank}}}");
            return Err(Error::defect(message));
        };
        filled.push_str(value);
        rest = &from_open[blank.len() + 2..];
    }
    filled.push_str(rest);
    Ok(filled)
}

/// The name of the blank that a text begins with.
fn blank(from_open: &str) -> Option<&str> {
    let (name, _) = from_open[1..].split_once('}')?;
    let named = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_');
    named.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_searched_for_blanks() {
        let sql = fill("a {x} b {y} '{}' {A} {1} {", &[("x", "{y}"), ("y", "{x}")]);
        assert_eq!(sql.unwrap(), "a {y} b {x} '{}' {A} {1} {");
    }

    #[test]
    fn a_blank_without_a_value_is_refused() {
        let error = fill("a {x} {z_1}", &[("x", "1")]).unwrap_err();
        assert!(error.message().contains("{z_1}"), "{error}");
    }
}
