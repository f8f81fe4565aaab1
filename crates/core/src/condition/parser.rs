//! Parses a condition. Errors name the position.

use super::{Comparison, Condition, Operand, Side, Test};
use crate::{Error, Fold, Result};

/// Longer conditions are refused, and deeper ones, which are walked by recursion.
const MAX_LENGTH: usize = 10_000;
const MAX_DEPTH: usize = 50;
/// The longest number, and the most digits of its exponent.
const MAX_NUMBER: usize = 60;
const MAX_EXPONENT: usize = 3;

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    /// A name in quotes.
    Name(String),
    Text(String),
    Number(String),
    Sign(&'static str),
}

impl Token {
    fn shown(&self) -> String {
        match self {
            Token::Word(text) | Token::Number(text) => format!("'{text}'"),
            Token::Name(name) => format!("the name \"{name}\""),
            Token::Text(_) => "a text".to_owned(),
            Token::Sign(sign) => format!("'{sign}'"),
        }
    }
}

const SIGNS: [&str; 12] = [
    "<=", ">=", "<>", "!=", "<", ">", "=", "(", ")", ",", ".", "-",
];

fn refused(at: usize, why: impl std::fmt::Display) -> Error {
    Error::invalid(format!(
        "the condition cannot be used: at character {}, {why}",
        at + 1
    ))
    .advise(
        "a condition compares columns with values, with =, <>, <, <=, >, >=, in, between, like, is null, is \
         distinct from, and, or, not: that of a feed as in status = 'paid' and total > 100, that of an event trigger \
         over HTTP as in new.status = 'paid' and old.total <> new.total; any other SQL is for triggers that are made \
         on the command line",
    )
}

impl Condition {
    /// Reads a condition as a person writes it; names without quotes are folded.
    pub fn parse(text: &str, fold: Fold) -> Result<Condition> {
        Condition::read(text, fold, false)
    }

    /// Reads a condition over one row, whose columns go by their names alone. They are those of the new row.
    pub fn parse_row(text: &str, fold: Fold) -> Result<Condition> {
        Condition::read(text, fold, true)
    }

    fn read(text: &str, fold: Fold, one_row: bool) -> Result<Condition> {
        if text.len() > MAX_LENGTH {
            return Err(Error::invalid(format!(
                "the condition is too long: {} bytes, where {MAX_LENGTH} are possible",
                text.len()
            )));
        }
        let mut parser = Parser {
            tokens: tokens(text)?,
            end: text.chars().count(),
            at: 0,
            depth: 0,
            fold,
            one_row,
        };
        let condition = parser.condition()?;
        match parser.peek() {
            None => Ok(condition),
            Some(token) => Err(parser.refused(format!("{} is too much", token.shown()))),
        }
    }
}

struct Parser {
    /// With the places where they begin.
    tokens: Vec<(usize, Token)>,
    end: usize,
    at: usize,
    depth: usize,
    fold: Fold,
    /// Whether columns go by their names alone.
    one_row: bool,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn refused(&self, why: impl std::fmt::Display) -> Error {
        let place = self.tokens.get(self.at).map_or(self.end, |(at, _)| *at);
        refused(place, why)
    }

    /// Something else was needed here.
    fn needed(&self, what: &str) -> Error {
        self.refused(match self.peek() {
            Some(token) => format!("{} stands where {what} is needed", token.shown()),
            None => format!("it ends where {what} is needed"),
        })
    }

    fn take_word(&mut self, word: &str) -> bool {
        let there = matches!(self.peek(), Some(Token::Word(w)) if w.eq_ignore_ascii_case(word));
        self.at += usize::from(there);
        there
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let there = matches!(self.peek(), Some(Token::Sign(s)) if *s == sign);
        self.at += usize::from(there);
        there
    }

    fn need_sign(&mut self, sign: &str) -> Result<()> {
        if self.take_sign(sign) {
            return Ok(());
        }
        Err(self.needed(&format!("'{sign}'")))
    }

    fn deeper(&mut self, walk: impl FnOnce(&mut Self) -> Result<Condition>) -> Result<Condition> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.refused("it is nested too deeply"));
        }
        let walked = walk(self);
        self.depth -= 1;
        walked
    }

    fn condition(&mut self) -> Result<Condition> {
        self.joined("or", Self::conjunction, Condition::Or)
    }

    fn conjunction(&mut self) -> Result<Condition> {
        self.joined("and", Self::negation, Condition::And)
    }

    fn joined(
        &mut self,
        word: &str,
        part: fn(&mut Self) -> Result<Condition>,
        join: fn(Vec<Condition>) -> Condition,
    ) -> Result<Condition> {
        let first = part(self)?;
        let mut all = vec![first];
        while self.take_word(word) {
            all.push(part(self)?);
        }
        match all.len() {
            1 => Ok(all.remove(0)),
            _ => Ok(join(all)),
        }
    }

    fn negation(&mut self) -> Result<Condition> {
        if self.take_word("not") {
            let inner = self.deeper(Self::negation)?;
            return Ok(Condition::Not(Box::new(inner)));
        }
        if self.take_sign("(") {
            let inner = self.deeper(Self::condition)?;
            self.need_sign(")")?;
            return Ok(inner);
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Condition> {
        let value = self.value()?;
        if let Some(Token::Sign(sign)) = self.peek()
            && let Some(comparison) = Comparison::of(if *sign == "!=" { "<>" } else { sign })
        {
            self.at += 1;
            return Ok(Condition::Compare(value, comparison, self.value()?));
        }
        if self.take_word("is") {
            return self.is(value);
        }
        let not = self.take_word("not");
        let test = if self.take_word("in") {
            self.list()?
        } else if self.take_word("like") {
            self.pattern()?
        } else if self.take_word("between") {
            let low = self.value()?;
            if !self.take_word("and") {
                return Err(self.needed("AND"));
            }
            Test::Between(low, self.value()?)
        } else {
            return Err(self.needed("a comparison"));
        };
        Ok(Condition::Test { value, not, test })
    }

    /// `is [not] null`, `is [not] distinct from b`, `is [not] b`
    fn is(&mut self, value: Operand) -> Result<Condition> {
        let mut not = self.take_word("not");
        if self.take_word("distinct") {
            if !self.take_word("from") {
                return Err(self.needed("FROM"));
            }
            not = !not;
        }
        let test = if self.take_word("null") {
            Test::Null
        } else {
            Test::Same(self.value()?)
        };
        Ok(Condition::Test { value, not, test })
    }

    fn list(&mut self) -> Result<Test> {
        self.need_sign("(")?;
        let mut all = vec![self.value()?];
        while self.take_sign(",") {
            all.push(self.value()?);
        }
        self.need_sign(")")?;
        Ok(Test::In(all))
    }

    fn pattern(&mut self) -> Result<Test> {
        let Some(Token::Text(pattern)) = self.peek().cloned() else {
            return Err(self.needed("a pattern in single quotes"));
        };
        if pattern.contains('\\') {
            return Err(self.refused(
                "the pattern has a backslash, which means something else on each database",
            ));
        }
        self.at += 1;
        if let Some(Token::Word(word)) = self.peek()
            && word.eq_ignore_ascii_case("escape")
        {
            return Err(self.refused("ESCAPE is not possible"));
        }
        Ok(Test::Like(pattern))
    }

    fn value(&mut self) -> Result<Operand> {
        let minus = self.take_sign("-");
        match self.peek().cloned() {
            Some(Token::Number(number)) => {
                self.at += 1;
                let sign = if minus { "-" } else { "" };
                Ok(Operand::Number(format!("{sign}{number}")))
            }
            _ if minus => Err(self.needed("a number")),
            Some(Token::Text(text)) => {
                self.at += 1;
                Ok(Operand::Text(text))
            }
            Some(Token::Word(word)) => self.word(&word),
            Some(Token::Name(_)) if self.one_row => self.column(Side::New),
            _ => Err(self.needed("a column or a value")),
        }
    }

    fn word(&mut self, word: &str) -> Result<Operand> {
        let after = |n: usize| self.tokens.get(self.at + n).map(|(_, token)| token);
        let side = match word.to_ascii_lowercase().as_str() {
            "old" if !self.one_row => Side::Old,
            "new" if !self.one_row => Side::New,
            "true" | "false" => {
                self.at += 1;
                return Ok(Operand::Boolean(word.eq_ignore_ascii_case("true")));
            }
            "null" => return Err(self.refused("nothing equals NULL: write IS NULL")),
            _ if after(1) == Some(&Token::Sign("(")) => {
                return Err(self.refused(format!("'{word}' is called, and there are no functions")));
            }
            _ if self.one_row => return self.column(Side::New),
            _ => {
                return Err(self.refused(format!(
                    "it does not say what '{word}' is: columns are written as new.COLUMN and \
                     old.COLUMN, texts in single quotes"
                )));
            }
        };
        self.at += 1;
        self.need_sign(".")?;
        self.column(side)
    }

    fn column(&mut self, side: Side) -> Result<Operand> {
        let name = match self.peek() {
            Some(Token::Word(name)) => match self.fold {
                Fold::Lower => name.to_lowercase(),
                Fold::Keep => name.clone(),
            },
            Some(Token::Name(name)) => name.clone(),
            _ => return Err(self.needed("a column")),
        };
        self.at += 1;
        Ok(Operand::Column(side, name))
    }
}

/// What is left to be read of a text.
struct Rest<'a> {
    text: &'a str,
    /// How many characters were read.
    at: usize,
}

impl<'a> Rest<'a> {
    fn skip(&mut self, bytes: usize) -> &'a str {
        let (read, rest) = self.text.split_at(bytes);
        self.at += read.chars().count();
        self.text = rest;
        read
    }

    fn skip_while(&mut self, more: impl Fn(char) -> bool) -> &'a str {
        let end = self.text.find(|c| !more(c)).unwrap_or(self.text.len());
        self.skip(end)
    }

    /// What stands in quotes up to this one; a doubled one stands for itself. With `escapes` so does
    /// a doubled backslash, and a single one is refused.
    fn quoted(&mut self, close: char, escapes: bool) -> Result<String> {
        let begin = self.at;
        self.skip(1);
        let mut inside = String::new();
        let mut chars = self.text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let doubled = chars.peek().is_some_and(|(_, next)| *next == c);
            let here = || self.at + self.text[..at].chars().count();
            if c == close && !doubled {
                self.skip(at + c.len_utf8());
                return Ok(inside);
            }
            if c.is_control() {
                return Err(refused(here(), "there is a control character"));
            }
            if c == close || escapes && c == '\\' {
                if !doubled {
                    return Err(refused(here(), "a backslash in E'…' is not doubled"));
                }
                chars.next();
            }
            inside.push(c);
        }
        Err(refused(begin, "a quote is not closed"))
    }

    fn number(&mut self) -> Result<String> {
        let begin = self.at;
        let part = |c: char| c.is_alphanumeric() || c == '.' || c == '_';
        let mut number = self.skip_while(part).to_owned();
        if number.ends_with(['e', 'E']) && self.text.starts_with(['+', '-']) {
            number.push_str(self.skip(1));
            number.push_str(self.skip_while(part));
        }
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let (mantissa, exponent) = match number.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (number.as_str(), None),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        let exponent = exponent.map(|e| e.strip_prefix(['+', '-']).unwrap_or(e));
        let fine = digits(whole)
            && fraction.is_none_or(digits)
            && exponent.is_none_or(|e| digits(e) && e.len() <= MAX_EXPONENT)
            && number.len() <= MAX_NUMBER;
        if fine {
            Ok(number)
        } else {
            Err(refused(
                begin,
                format!("'{number}' is not a number that is possible"),
            ))
        }
    }
}

fn tokens(text: &str) -> Result<Vec<(usize, Token)>> {
    let mut rest = Rest { text, at: 0 };
    let mut found = Vec::new();
    loop {
        rest.skip_while(char::is_whitespace);
        let Some(first) = rest.text.chars().next() else {
            return Ok(found);
        };
        let at = rest.at;
        let token = match first {
            '\'' => Token::Text(rest.quoted('\'', false)?),
            'e' | 'E' if rest.text[1..].starts_with('\'') => {
                rest.skip(1);
                Token::Text(rest.quoted('\'', true)?)
            }
            '"' | '`' | '[' => {
                let close = if first == '[' { ']' } else { first };
                match rest.quoted(close, false)? {
                    name if name.is_empty() => return Err(refused(at, "a name is empty")),
                    name => Token::Name(name),
                }
            }
            c if c.is_ascii_digit() => Token::Number(rest.number()?),
            c if c.is_alphabetic() || c == '_' => {
                let letter = |c: char| c.is_alphanumeric() || c == '_' || c == '$' || c == '#';
                Token::Word(rest.skip_while(letter).to_owned())
            }
            other => match SIGNS.iter().find(|sign| rest.text.starts_with(**sign)) {
                _ if rest.text.starts_with("--") => {
                    return Err(refused(at, "there is a comment"));
                }
                Some(sign) => {
                    rest.skip(sign.len());
                    Token::Sign(sign)
                }
                None => return Err(refused(at, format!("'{other}' does not belong there"))),
            },
        };
        found.push((at, token));
    }
}
