//! Which subjects a lane has, and which of them its condition covers.

use changefeed_core::{Error, Result};

use super::super::destination::Lane;

/// Where the messages of a subscription go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subjects {
    prefix: String,
    spread: Spread,
}

/// How many subjects a lane has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    /// One: `PREFIX.SHARD`.
    None,
    /// A template `PREFIX.{shard}.…`: those below `PREFIX.SHARD`.
    BelowShard,
    /// A template `PREFIX.…` that does not name the shard: all below `PREFIX`. Only one shard can have them.
    BelowPrefix,
}

impl Subjects {
    /// A template has to keep what a lane writes apart from what others write: the condition of a batch is the newest
    /// message of all subjects that the lane may write to, and the server finds it by a prefix.
    pub(super) fn new(prefix: &str, template: Option<&str>) -> Result<Self> {
        publishable(prefix)
            .map_err(|why| Error::invalid(format!("the subject of the sink, '{prefix}', {why}")))?;
        let spread = match template {
            None => Spread::None,
            Some(template) => {
                let below = template
                    .strip_prefix(prefix)
                    .and_then(|rest| rest.strip_prefix('.'))
                    .filter(|rest| !rest.is_empty())
                    .ok_or_else(|| {
                        Error::invalid(format!(
                            "the subject template '{template}' does not begin with '{prefix}.'"
                        ))
                        .advise(format!(
                            "write '{prefix}.{{shard}}.…', so that the sink can tell where each shard stands"
                        ))
                    })?;
                match below.strip_prefix("{shard}.") {
                    Some(rest) if !rest.is_empty() => Spread::BelowShard,
                    _ if below == "{shard}" => Spread::None,
                    _ if below.contains("{shard}") => {
                        return Err(Error::invalid(format!(
                            "the shard stands in the middle of the subject template '{template}'"
                        ))
                        .advise(format!("write it first: '{prefix}.{{shard}}.…'")));
                    }
                    _ => Spread::BelowPrefix,
                }
            }
        };
        Ok(Subjects {
            prefix: prefix.to_owned(),
            spread,
        })
    }

    /// What a stream has to take to hold all lanes.
    pub(super) fn all(&self) -> String {
        format!("{}.>", self.prefix)
    }

    /// The name of the stream that is made if there is none: names must not contain dots.
    pub(super) fn stream_name(&self) -> String {
        self.prefix
            .chars()
            .map(|c| {
                if matches!(c, '.' | '/' | '\\') {
                    '_'
                } else {
                    c
                }
            })
            .collect()
    }

    /// The subject whose newest message is the position of a lane; it may be a wildcard.
    pub(super) fn lane(&self, lane: &Lane) -> String {
        match self.spread {
            Spread::None => format!("{}.{}", self.prefix, lane.shard),
            Spread::BelowShard => format!("{}.{}.>", self.prefix, lane.shard),
            Spread::BelowPrefix => self.all(),
        }
    }

    /// Whether the condition names a wildcard, which servers know since 2.11.
    pub(super) fn is_spread(&self) -> bool {
        self.spread != Spread::None
    }

    /// The subject of one message; an error says why the sink will never take it.
    pub(super) fn message<'a>(
        &self,
        filter: &'a str,
        asked: Option<&'a str>,
    ) -> std::result::Result<&'a str, String> {
        let subject = match asked {
            Some(subject) => subject,
            None if !self.is_spread() => filter,
            None => {
                return Err(
                    "the message has no subject, but the sink was opened with a template"
                        .to_owned(),
                );
            }
        };
        publishable(subject).map_err(|why| format!("the subject '{subject}' {why}"))?;
        if !covers(filter, subject) {
            return Err(format!(
                "the subject '{subject}' is not one of '{filter}', which this shard writes to"
            ));
        }
        Ok(subject)
    }
}

/// Whether a message can be published with this subject.
fn publishable(subject: &str) -> std::result::Result<(), &'static str> {
    if subject.split('.').any(str::is_empty) {
        return Err("has an empty part: it is made of words with dots between them");
    }
    if subject.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("contains white space or a control character");
    }
    if subject.split('.').any(|word| word == "*" || word == ">") {
        return Err("contains a wildcard");
    }
    if subject.starts_with('$') {
        return Err("begins with '$', which is the server's own");
    }
    Ok(())
}

/// Whether everything that `subject` stands for, which may be a wildcard too, matches `pattern`.
pub(super) fn covers(pattern: &str, subject: &str) -> bool {
    let mut words = subject.split('.');
    for part in pattern.split('.') {
        match (part, words.next()) {
            (">", Some(_)) => return true,
            ("*", Some(word)) if word != ">" => {}
            (part, Some(word)) if part == word && part != "*" => {}
            _ => return false,
        }
    }
    words.next().is_none()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use changefeed_core::ShardId;

    use super::*;

    fn lane() -> Lane {
        Lane {
            subscription: "s".to_owned(),
            feed: "orders".parse().unwrap(),
            shard: ShardId(2),
            epoch: 0,
        }
    }

    #[test]
    fn templates_keep_lanes_apart() {
        let plain = Subjects::new("shop.orders", None).unwrap();
        assert_eq!(plain.lane(&lane()), "shop.orders.2");
        assert_eq!(plain.stream_name(), "shop_orders");
        let by_shard = Subjects::new("shop.orders", Some("shop.orders.{shard}.{op}")).unwrap();
        assert_eq!(by_shard.lane(&lane()), "shop.orders.2.>");
        let shared = Subjects::new("shop.orders", Some("shop.orders.{op}")).unwrap();
        assert_eq!(shared.lane(&lane()), "shop.orders.>");
        for bad in [
            "shop.{op}",
            "shop.orders.",
            "shop.orders.{op}.{shard}",
            "other",
        ] {
            assert!(Subjects::new("shop.orders", Some(bad)).is_err(), "{bad}");
        }
        for bad in ["", "a..b", "a b", "a.>", "$JS.API", ".a"] {
            assert!(Subjects::new(bad, None).is_err(), "{bad}");
        }
    }

    #[test]
    fn subjects_from_data_are_judged() {
        let subjects = Subjects::new("o", Some("o.{shard}.{op}")).unwrap();
        let filter = subjects.lane(&lane());
        assert_eq!(
            subjects.message(&filter, Some("o.2.insert")),
            Ok("o.2.insert")
        );
        for bad in ["o.2", "o.3.insert", "o.2.", "o.2.a b", "o.2.*", "x"] {
            assert!(subjects.message(&filter, Some(bad)).is_err(), "{bad}");
        }
        assert!(subjects.message(&filter, None).is_err());
    }

    #[test]
    fn patterns_cover() {
        assert!(
            covers("a.>", "a.b.c")
                && covers("a.>", "a.*")
                && covers("a.*", "a.b")
                && covers(">", "a.>")
        );
        assert!(
            !covers("a.>", "a")
                && !covers("a.*", "a.>")
                && !covers("a.*", "a.b.c")
                && !covers("a.b", "a.*")
        );
    }
}
