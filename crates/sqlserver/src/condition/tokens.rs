//! The words and signs of a condition.

use std::fmt;

use changefeed_core::Result;

use super::refused;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Word(String),
    /// A name in quotes or brackets.
    Name(String),
    Text(String),
    Number(String),
    Sign(&'static str),
}

impl Token {
    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self, Token::Word(w) if w.eq_ignore_ascii_case(word))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(text) | Token::Number(text) => write!(f, "'{text}'"),
            Token::Name(name) => write!(f, "\"{name}\""),
            Token::Text(_) => f.write_str("a text"),
            Token::Sign(sign) => write!(f, "'{sign}'"),
        }
    }
}

/// Longer ones come first.
const SIGNS: [&str; 18] = [
    "<>", "!=", "<=", ">=", "=", "<", ">", "(", ")", ",", ".", "+", "-", "*", "/", "%", "[", "]",
];

/// Cuts a text into tokens; comments, variables and everything unusual are refused.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("--") || rest.starts_with("/*") {
            return Err(refused("comments are not possible"));
        }
        let after;
        match first {
            '\'' => {
                let (body, left) = quoted(&rest[1..], '\'')?;
                found.push(Token::Text(body));
                after = left;
            }
            'N' | 'n' if rest[1..].starts_with('\'') => {
                let (body, left) = quoted(&rest[2..], '\'')?;
                found.push(Token::Text(body));
                after = left;
            }
            '"' => {
                let (body, left) = quoted(&rest[1..], '"')?;
                found.push(Token::Name(body));
                after = left;
            }
            '[' => {
                let (body, left) = quoted(&rest[1..], ']')?;
                found.push(Token::Name(body));
                after = left;
            }
            c if c.is_ascii_digit() => {
                let end = number_end(rest);
                found.push(Token::Number(rest[..end].to_owned()));
                after = &rest[end..];
                if after.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
                    return Err(refused(format!("'{}' is not a number", &rest[..end])));
                }
            }
            c if c.is_alphabetic() || c == '_' => {
                let end = rest
                    .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                    .unwrap_or(rest.len());
                found.push(Token::Word(rest[..end].to_owned()));
                after = &rest[end..];
            }
            c => {
                let sign = SIGNS
                    .into_iter()
                    .find(|sign| rest.starts_with(sign))
                    .ok_or_else(|| refused(format!("'{c}' is not possible")))?;
                found.push(Token::Sign(sign));
                after = &rest[sign.len()..];
            }
        }
        rest = after.trim_start();
    }
    Ok(found)
}

/// The text up to the closing quote, which stands for itself where it is doubled.
fn quoted(text: &str, close: char) -> Result<(String, &str)> {
    let mut body = String::new();
    let mut rest = text;
    loop {
        let Some(end) = rest.find(close) else {
            return Err(refused("a quote is not closed"));
        };
        body.push_str(&rest[..end]);
        rest = &rest[end + close.len_utf8()..];
        match rest.strip_prefix(close) {
            Some(after) => {
                body.push(close);
                rest = after;
            }
            None => return Ok((body, rest)),
        }
    }
}

/// `12`, `1.5`, `1e9`
fn number_end(text: &str) -> usize {
    let digits = |from: usize| {
        text[from..]
            .find(|c: char| !c.is_ascii_digit())
            .map_or(text.len(), |n| from + n)
    };
    let mut end = digits(0);
    if text[end..].starts_with('.') {
        end = digits(end + 1);
    }
    if text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        let exponent = digits(end + 1 + sign);
        if exponent > end + 1 + sign {
            end = exponent;
        }
    }
    end
}
