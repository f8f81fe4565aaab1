//! URLs of brokers: `scheme://[user[:password]@]host[:port][,host…]/place?name=value`.

use changefeed_core::{Error, Result};
use percent_encoding::percent_decode_str;

/// A URL of a broker in its parts, decoded.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct BrokerUrl {
    pub(super) scheme: String,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Each with its port, if one was given.
    pub(super) hosts: Vec<String>,
    /// What stands behind the first slash, without slashes at its ends.
    pub(super) path: String,
    options: Vec<(String, String)>,
}

impl BrokerUrl {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::invalid(format!("the URL of the sink {why}"));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("has no scheme"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user_info, hosts) = match authority.rsplit_once('@') {
            Some((info, hosts)) => (Some(info), hosts),
            None => (None, authority),
        };
        let hosts: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        if hosts.iter().any(|host| host.is_empty()) {
            return Err(bad("has no host, or an empty one in its list"));
        }
        let (user, password) =
            match user_info.map(|info| info.split_once(':').unwrap_or((info, ""))) {
                Some((user, password)) => (Some(decode(user)?), Some(decode(password)?)),
                None => (None, None),
            };
        let mut options = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            options.push((decode(name)?, decode(value)?));
        }
        Ok(BrokerUrl {
            scheme: scheme.to_owned(),
            user: user.filter(|user| !user.is_empty()),
            password: password.filter(|password| !password.is_empty()),
            hosts,
            path: decode(path.trim_matches('/'))?,
            options,
        })
    }

    /// Takes an option out of the URL.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.options.iter().position(|(known, _)| known == name)?;
        Some(self.options.remove(at).1)
    }

    /// Takes an option that is a number of at least one.
    pub(super) fn take_number(&mut self, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(Error::invalid(format!(
                "the option '{name}' of the sink's URL must be a number of at least 1, not '{value}'"
            ))),
        }
    }

    /// Refuses options that nobody took.
    pub(super) fn nothing_else(&self, known: &str) -> Result<()> {
        match self.options.first() {
            None => Ok(()),
            Some((name, _)) => Err(Error::invalid(format!(
                "the sink's URL has an unknown option '{name}'"
            ))
            .advise(format!("known options: {known}"))),
        }
    }
}

fn decode(text: &str) -> Result<String> {
    percent_decode_str(text)
        .decode_utf8()
        .map(|text| text.into_owned())
        .map_err(|_| Error::invalid("the URL of the sink has percent signs that are not UTF-8"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let mut url =
            BrokerUrl::parse("nats://me:p%40ss@a:4222,b:4223/shop.orders?replicas=3&stream=S")
                .unwrap();
        assert_eq!(url.scheme, "nats");
        assert_eq!(url.user.as_deref(), Some("me"));
        assert_eq!(url.password.as_deref(), Some("p@ss"));
        assert_eq!(url.hosts, ["a:4222", "b:4223"]);
        assert_eq!(url.path, "shop.orders");
        assert_eq!(url.take_number("replicas").unwrap(), Some(3));
        assert!(url.nothing_else("none").is_err());
        assert_eq!(url.take("stream").as_deref(), Some("S"));
        assert!(url.nothing_else("none").is_ok());
        for bad in ["host:1/x", "nats:///x", "nats://a,/x", "nats://a/%ff"] {
            assert!(BrokerUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
