//! Values of a condition and their types.

use changefeed_core::{Result, Uuid};

use super::{Parser, Piece, Side, joined, refused, sql};
use crate::condition::tokens::Token;
use crate::quote;
use crate::source::Column;

/// How many digits an integer of ours may have, and one that is divided.
const MOST_DIGITS: u32 = 37;
const MOST_DIVIDED: u32 = 18;
/// A decimal with more digits is compared as a float.
const EXACT_DIGITS: u32 = 28;

/// What a value is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// With so many digits at most.
    Integer(u32),
    Decimal,
    Float,
    Text,
    /// The base type, and the type with its length.
    Time(String, String),
    Bit,
    Uuid,
    /// Can only be tested for NULL.
    Opaque,
}

/// A value as SQL.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub(super) kind: Kind,
    pub(super) pieces: Vec<Piece>,
    /// The text, if it is one in quotes.
    literal: Option<String>,
}

impl Value {
    fn new(kind: Kind, text: impl Into<String>) -> Self {
        Value {
            kind,
            pieces: vec![sql(text)],
            literal: None,
        }
    }

    fn converted(self, to: &str) -> Vec<Piece> {
        joined([
            vec![sql(format!("convert({to}, "))],
            self.pieces,
            vec![sql(")")],
        ])
    }

    fn called(self, function: &str) -> Self {
        Value {
            pieces: joined([
                vec![sql(format!("{function}("))],
                self.pieces,
                vec![sql(")")],
            ]),
            ..self
        }
    }

    fn digits(&self) -> Result<u32> {
        match self.kind {
            Kind::Integer(digits) => Ok(digits),
            _ => Err(refused(
                "only integers can be added, multiplied and divided",
            )),
        }
    }
}

fn kind_of(column: &Column) -> Kind {
    let precision = || -> u32 {
        let inner = column.type_sql.split(['(', ',', ')']).nth(1);
        inner
            .and_then(|p| p.trim().parse().ok())
            .unwrap_or(u32::MAX)
    };
    match column.base_type.as_str() {
        "tinyint" => Kind::Integer(3),
        "smallint" => Kind::Integer(5),
        "int" => Kind::Integer(10),
        "bigint" => Kind::Integer(19),
        "decimal" | "numeric" if precision() > EXACT_DIGITS => Kind::Float,
        "decimal" | "numeric" => Kind::Decimal,
        "float" | "real" => Kind::Float,
        "char" | "varchar" | "nchar" | "nvarchar" => Kind::Text,
        "bit" => Kind::Bit,
        "uniqueidentifier" => Kind::Uuid,
        time
        @ ("date" | "time" | "datetime" | "datetime2" | "smalldatetime" | "datetimeoffset") => {
            Kind::Time(time.to_owned(), column.type_sql.clone())
        }
        _ => Kind::Opaque,
    }
}

impl Parser<'_> {
    /// Two values as SQL that can be compared without a conversion that may fail.
    pub(super) fn alike(&mut self, left: Value, right: Value) -> Result<(Vec<Piece>, Vec<Piece>)> {
        let exact = |kind: &Kind| matches!(kind, Kind::Integer(_) | Kind::Decimal);
        let number = |kind: &Kind| exact(kind) || *kind == Kind::Float;
        match (&left.kind, &right.kind) {
            (a, b) if exact(a) && exact(b) => {}
            (a, b) if number(a) && number(b) => {
                return Ok((float(left), float(right)));
            }
            (Kind::Text, Kind::Text) | (Kind::Bit, Kind::Bit) | (Kind::Uuid, Kind::Uuid) => {}
            (Kind::Bit, Kind::Integer(1)) | (Kind::Integer(1), Kind::Bit) => {}
            (Kind::Time(a, _), Kind::Time(b, _)) if a == b => {}
            (Kind::Time(base, full), Kind::Text) => {
                let right = self.time(base.clone(), full.clone(), right)?;
                return Ok((left.pieces, right));
            }
            (Kind::Text, Kind::Time(base, full)) => {
                let left = self.time(base.clone(), full.clone(), left)?;
                return Ok((left, right.pieces));
            }
            (Kind::Uuid, Kind::Text) => return Ok((left.pieces, uuid(right)?)),
            (Kind::Text, Kind::Uuid) => return Ok((uuid(left)?, right.pieces)),
            _ => {
                return Err(refused(
                    "values of different types are compared, which may fail at some row",
                ));
            }
        }
        Ok((left.pieces, right.pieces))
    }

    /// A text that stands for a time.
    fn time(&mut self, base: String, full: String, value: Value) -> Result<Vec<Piece>> {
        let Some(text) = value.literal else {
            return Err(refused(
                "a time can be compared with a time, or a text in quotes",
            ));
        };
        let style = if base == "date" { 23 } else { 126 };
        let literal = quote::literal(&text);
        self.times.push((full.clone(), text));
        Ok(vec![sql(format!("convert({full}, {literal}, {style})"))])
    }

    /// `a + b - c`
    pub(super) fn value(&mut self) -> Result<Value> {
        self.deeper(|p| {
            let mut value = p.term()?;
            loop {
                let sign = match p.peek() {
                    Some(Token::Sign(sign @ ("+" | "-"))) => *sign,
                    _ => return Ok(value),
                };
                p.at += 1;
                let right = p.term()?;
                let digits = value.digits()?.max(right.digits()?) + 1;
                value = calculated(value, sign, right, digits)?;
            }
        })
    }

    fn term(&mut self) -> Result<Value> {
        let mut value = self.factor()?;
        loop {
            let sign = match self.peek() {
                Some(Token::Sign(sign @ ("*" | "/" | "%"))) => *sign,
                _ => return Ok(value),
            };
            self.at += 1;
            let right = self.factor()?;
            let (a, b) = (value.digits()?, right.digits()?);
            value = match sign {
                "*" => calculated(value, sign, right, a + b)?,
                _ => divided(value, sign, right, a, b)?,
            };
        }
    }

    fn factor(&mut self) -> Result<Value> {
        if self.take_sign("(") {
            let value = self.value()?;
            self.need_sign(")")?;
            return Ok(value);
        }
        if self.take_sign("-") {
            let value = self.deeper(Self::factor)?;
            if value.kind == Kind::Float || value.kind == Kind::Decimal {
                return match &value.pieces[..] {
                    [Piece::Sql(number)] if !number.starts_with('-') => {
                        Ok(Value::new(value.kind, format!("-{number}")))
                    }
                    _ => Err(refused("only integers can be negated")),
                };
            }
            let digits = value.digits()? + 1;
            return calculated(Value::new(Kind::Integer(1), "0"), "-", value, digits);
        }
        let token = self.peek().cloned();
        self.at += 1;
        match token {
            Some(Token::Text(text)) => Ok(Value {
                literal: Some(text.clone()),
                ..Value::new(Kind::Text, quote::literal(&text))
            }),
            Some(Token::Number(number)) => literal(&number),
            Some(Token::Word(word)) => self.word(&word),
            Some(Token::Name(name)) => Err(refused(format!("the name \"{name}\" stands alone"))),
            Some(token) => Err(refused(format!("{token} is not expected where it stands"))),
            None => Err(refused("it ends where a value is needed")),
        }
    }

    fn word(&mut self, word: &str) -> Result<Value> {
        let lower = word.to_ascii_lowercase();
        let side = match lower.as_str() {
            "old" => Some(Side::Old),
            "new" => Some(Side::New),
            _ => None,
        };
        if let Some(side) = side {
            self.need_sign(".")?;
            let name = match self.peek().cloned() {
                Some(Token::Word(name) | Token::Name(name)) => name,
                _ => return Err(refused(format!("after '{word}.' a column is needed"))),
            };
            self.at += 1;
            let column = self.table.column(&name)?;
            let value = Value {
                kind: kind_of(column),
                pieces: vec![Piece::Column(side, column.clone())],
                literal: None,
            };
            return Ok(match column.base_type.as_str() {
                // A number that it is compared with would be made money, and may be too large for that.
                "money" | "smallmoney" => Value {
                    kind: Kind::Decimal,
                    pieces: value.converted("decimal(19, 4)"),
                    literal: None,
                },
                _ => value,
            });
        }
        match lower.as_str() {
            "true" => Ok(Value::new(Kind::Bit, "1")),
            "false" => Ok(Value::new(Kind::Bit, "0")),
            "null" => Err(refused("nothing equals NULL: write IS NULL")),
            _ => self.function(&lower),
        }
    }

    fn function(&mut self, name: &str) -> Result<Value> {
        if !self.take_sign("(") {
            return Err(refused(format!("'{name}' is not known here")).advise(
                "columns are written as old.COLUMN and new.COLUMN, texts in single quotes",
            ));
        }
        let first = self.value()?;
        let text = first.kind == Kind::Text;
        let value = match name {
            "lower" | "upper" | "ltrim" | "rtrim" if text => first.called(name),
            "trim" if text => first.called("rtrim").called("ltrim"),
            "len" | "length" if text => Value {
                kind: Kind::Integer(10),
                ..first.called("len")
            },
            "coalesce" => {
                let kind = first.kind.clone();
                let mut pieces = joined([vec![sql("coalesce(")], first.pieces.clone()]);
                while self.take_sign(",") {
                    let next = self.value()?;
                    let (_, next) = self.alike(first.clone(), next)?;
                    pieces = joined([pieces, vec![sql(", ")], next]);
                }
                pieces.push(sql(")"));
                // One of the others may have more digits.
                let kind = match kind {
                    Kind::Integer(_) => Kind::Integer(19),
                    other => other,
                };
                Value {
                    kind,
                    pieces,
                    literal: None,
                }
            }
            _ => {
                return Err(refused(format!("'{name}' is not possible here")).advise(
                    "the functions are coalesce, and for texts lower, upper, trim, ltrim, rtrim \
                     and len",
                ));
            }
        };
        self.need_sign(")")?;
        Ok(Value {
            literal: None,
            ..value
        })
    }
}

fn float(value: Value) -> Vec<Piece> {
    match value.kind {
        Kind::Float if matches!(value.pieces[..], [Piece::Column(..)]) => value.pieces,
        _ => value.converted("float"),
    }
}

fn uuid(value: Value) -> Result<Vec<Piece>> {
    let parsed = value.literal.as_deref().map(str::parse::<Uuid>);
    match parsed {
        Some(Ok(uuid)) => Ok(vec![sql(format!("convert(uniqueidentifier, '{uuid}')"))]),
        _ => Err(refused(
            "a uniqueidentifier can be compared with another, or with one in quotes",
        )),
    }
}

/// A number as it was written.
fn literal(number: &str) -> Result<Value> {
    if number.bytes().all(|b| b.is_ascii_digit()) {
        let digits = number.trim_start_matches('0');
        let length = u32::try_from(digits.len()).unwrap_or(u32::MAX).max(1);
        if length > MOST_DIVIDED {
            return Err(refused(format!("the number {number} is too long")));
        }
        let digits = if digits.is_empty() { "0" } else { digits };
        return Ok(Value::new(Kind::Integer(length), digits));
    }
    if number.contains(['e', 'E']) {
        return match number.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Value::new(Kind::Float, format!("{value:e}"))),
            _ => Err(refused(format!("the number {number} is too large"))),
        };
    }
    if number.len() > 16 || number.ends_with('.') {
        return Err(refused(format!("the number {number} is not possible")));
    }
    Ok(Value::new(Kind::Decimal, number))
}

/// With so many digits that nothing can overflow.
fn calculated(left: Value, sign: &str, right: Value, digits: u32) -> Result<Value> {
    const WIDE: &str = "decimal(38, 0)";
    if digits > MOST_DIGITS {
        return Err(refused(
            "a calculation could become larger than the server can hold",
        ));
    }
    Ok(Value {
        kind: Kind::Integer(digits),
        pieces: joined([
            vec![sql("(")],
            left.converted(WIDE),
            vec![sql(format!(" {sign} "))],
            right.converted(WIDE),
            vec![sql(")")],
        ]),
        literal: None,
    })
}

/// As integers are divided; NULL where it is by zero.
fn divided(left: Value, sign: &str, right: Value, a: u32, b: u32) -> Result<Value> {
    if a > MOST_DIVIDED || b > MOST_DIVIDED {
        return Err(refused(
            "a bigint cannot be divided: the smallest one by -1 is an error",
        ));
    }
    Ok(Value {
        kind: Kind::Integer(a),
        pieces: joined([
            vec![sql("(")],
            left.converted("bigint"),
            vec![sql(format!(" {sign} nullif("))],
            right.converted("bigint"),
            vec![sql(", 0))")],
        ]),
        literal: None,
    })
}
