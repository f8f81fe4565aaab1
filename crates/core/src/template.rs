//! SQL with blanks to be filled in.

/// Fills every `{blank}` of a template in one pass, so that a value that looks like a blank (a
/// column may be called anything) is left as it is.
pub fn fill(template: &str, values: &[(&str, &str)]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_searched_for_blanks() {
        let sql = fill("a {x} b {y} {z} {", &[("x", "{y}"), ("y", "{x}")]);
        assert_eq!(sql, "a {y} b {x} {z} {");
    }
}
