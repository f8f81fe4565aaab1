//! Environment variables that definitions name: where addresses and secrets are kept.
//!
//! A definition names variables, and the instance that delivers reads them. Whoever may define
//! something over HTTP would so read all variables of that instance, its database's password
//! included, by having them sent to an address of theirs. Therefore a variable is read only
//!
//! - if the instance allows it ([`AllowedVariables`]), or
//! - if it was named by somebody who is trusted with the machine: on the command line, in its file, or
//!   by a program that uses the library. Such a definition carries the name as *granted*.
//!
//! Both is judged when a definition comes over HTTP, and again by every instance that reads one. What
//! a definition does not carry was not granted, so one from elsewhere is judged like one over HTTP.

use crate::{Error, Result, Setting, Sink, Webhook};

/// The variables that any definition may name: by their names, or by prefixes, which end in `_`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedVariables(Vec<String>);

impl Default for AllowedVariables {
    fn default() -> Self {
        AllowedVariables(vec![Self::DEFAULT.to_owned()])
    }
}

impl AllowedVariables {
    /// What is allowed where nobody says anything.
    pub const DEFAULT: &str = "CHANGEFEED_HOOK_";

    /// These names and prefixes.
    pub fn new(names: impl IntoIterator<Item = String>) -> Result<Self> {
        let names: Vec<String> = names.into_iter().collect();
        names.iter().try_for_each(|name| check_variable(name))?;
        Ok(AllowedVariables(names))
    }

    /// Whether any definition may name this variable.
    pub fn allow(&self, name: &str) -> bool {
        self.0.iter().any(|allowed| match allowed.ends_with('_') {
            true => name.starts_with(allowed.as_str()),
            false => name == allowed,
        })
    }

    /// Refuses a variable that may not be named. Whether there is such a variable is not looked at.
    pub fn check(&self, whose: &str, name: &str) -> Result<()> {
        check_variable(name)?;
        if self.allow(name) {
            return Ok(());
        }
        let allowed: Vec<String> = self
            .0
            .iter()
            .map(|allowed| match allowed.ends_with('_') {
                true => format!("{allowed}*"),
                false => allowed.clone(),
            })
            .collect();
        Err(Error::invalid(format!(
            "{whose} names the environment variable {name}, which is not allowed here: only {} may \
             be named by definitions that were not made on the command line",
            allowed.join(", ")
        ))
        .advise(format!(
            "whoever runs `changefeed serve` allows it with --allow-env {name}, or defines this on the \
             command line"
        )))
    }
}

pub(crate) fn check_variable(name: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(fine)
    {
        return Err(Error::invalid(format!(
            "'{name}' is not the name of an environment variable"
        ))
        .advise("letters, digits and '_' are, not beginning with a digit"));
    }
    Ok(())
}

impl Setting {
    /// The variable that holds it.
    pub fn variable(&self) -> Option<&str> {
        match self {
            Setting::FromEnv(variable) => Some(variable),
            Setting::Value(_) => None,
        }
    }
}

impl Webhook {
    /// The variables that it names.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        let settings = self.headers.iter().map(|h| &h.value);
        settings
            .chain([&self.url])
            .filter_map(Setting::variable)
            .chain(self.secrets_from_env.iter().map(String::as_str))
    }

    /// Refuses variables that a definition over HTTP may not name. One that was granted to the
    /// definition before stays granted where it was: in the same place, for the same address. At
    /// another address it would be sent to somebody else.
    fn restrict(
        &mut self,
        whose: &str,
        allowed: &AllowedVariables,
        before: Option<&Webhook>,
    ) -> Result<()> {
        self.granted_env.clear();
        let before = before.filter(|before| before.url == self.url);
        let mut granted = Vec::new();
        let mut judge = |name: &str, unchanged: &dyn Fn(&Webhook) -> bool| match before {
            _ if allowed.allow(name) => Ok(()),
            Some(before) if before.grants(name) && unchanged(before) => {
                granted.push(name.to_owned());
                Ok(())
            }
            _ => allowed.check(whose, name),
        };
        if let Some(name) = self.url.variable() {
            judge(name, &|_| true)?;
        }
        for header in &self.headers {
            if let Some(name) = header.value.variable() {
                judge(name, &|before| before.headers.contains(header))?;
            }
        }
        for name in &self.secrets_from_env {
            judge(name, &|before| before.secrets_from_env.contains(name))?;
        }
        granted.sort_unstable();
        granted.dedup();
        self.granted_env = granted;
        Ok(())
    }

    fn grants(&self, name: &str) -> bool {
        self.granted_env.iter().any(|granted| granted == name)
    }
}

impl Sink {
    /// The variables that it names.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.as_webhook().into_iter().flat_map(Webhook::variables)
    }

    /// Lets every instance read the variables that it names: for definitions on the command line or in
    /// the file.
    pub fn granted(mut self) -> Self {
        let mut names: Vec<String> = self.variables().map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        if let Sink::Webhook(webhook) = &mut self {
            webhook.granted_env = names;
        }
        self
    }

    /// Refuses what a definition over HTTP may not have: commands, and variables that are not allowed.
    /// What was granted to the definition before stays granted in the same place.
    pub fn restrict(
        &mut self,
        whose: &str,
        allowed: &AllowedVariables,
        before: Option<&Sink>,
    ) -> Result<()> {
        if self.is_local() {
            return Err(Error::invalid(format!(
                "{whose} goes to '{self}' on this machine, which cannot be defined over HTTP"
            ))
            .advise("define it on the command line or in changefeed.toml"));
        }
        match self.as_webhook_mut() {
            Some(webhook) => webhook.restrict(whose, allowed, before.and_then(Sink::as_webhook)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Header;

    fn header(name: &str, variable: &str) -> Header {
        Header {
            name: name.to_owned(),
            value: Setting::FromEnv(variable.to_owned()),
        }
    }

    /// As it is made on the command line.
    fn typed() -> Webhook {
        let sink = Sink::Webhook(Webhook {
            headers: vec![header("authorization", "SHOP_TOKEN")],
            secrets_from_env: vec!["SHOP_SECRET".to_owned()],
            ..Webhook::new(Setting::Value("https://good.example/".to_owned()))
        });
        sink.granted().as_webhook().unwrap().clone()
    }

    fn restricted(mut webhook: Webhook, before: Option<&Webhook>) -> Result<Vec<String>> {
        webhook.restrict("trigger 'x'", &AllowedVariables::default(), before)?;
        Ok(webhook.granted_env)
    }

    #[test]
    fn names_and_prefixes_are_allowed() {
        let allowed = ["A_", "TOKEN"].map(str::to_owned);
        let allowed = AllowedVariables::new(allowed).unwrap();
        assert!(allowed.allow("A_") && allowed.allow("A_B") && allowed.allow("TOKEN"));
        for name in ["A", "B_A_", "TOKENS", "TOKEN_", "a_b", ""] {
            assert!(!allowed.allow(name), "{name}");
        }
        for bad in ["", "A*", "1A", "A=B"] {
            assert!(AllowedVariables::new([bad.to_owned()]).is_err(), "{bad}");
        }
        let error = allowed.check("trigger 'x'", "CHANGEFEED_DB").unwrap_err();
        assert!(error.message().contains("only A_*, TOKEN may"), "{error}");
    }

    #[test]
    fn what_comes_over_http_names_only_what_is_allowed() {
        let places: [fn(&mut Webhook, String); 3] = [
            |w, name| w.url = Setting::FromEnv(name),
            |w, name| w.headers = vec![header("x", &name)],
            |w, name| w.secrets_from_env = vec![name],
        ];
        for place in places {
            let plain = || Webhook::new(Setting::Value("https://a.example/".to_owned()));
            let mut fine = plain();
            place(&mut fine, "CHANGEFEED_HOOK_X".to_owned());
            assert_eq!(restricted(fine, None).unwrap(), [""; 0]);
            let mut bad = plain();
            place(&mut bad, "CHANGEFEED_DB".to_owned());
            // What a stranger says about grants is not believed.
            bad.granted_env = vec!["CHANGEFEED_DB".to_owned()];
            assert!(restricted(bad, None).is_err());
        }
    }

    #[test]
    fn a_granted_variable_stays_in_its_place() {
        let before = typed();
        let kept = restricted(typed(), Some(&before)).unwrap();
        assert_eq!(kept, ["SHOP_SECRET", "SHOP_TOKEN"]);
        // What was not granted before is not granted now.
        let foreign = Webhook {
            granted_env: Vec::new(),
            ..typed()
        };
        assert!(restricted(typed(), Some(&foreign)).is_err());

        type Change = fn(&mut Webhook);
        let changes: [Change; 5] = [
            |d| d.url = Setting::Value("https://evil.example/".to_owned()),
            |d| d.url = Setting::FromEnv("CHANGEFEED_HOOK_URL".to_owned()),
            |d| d.headers.push(header("x-more", "SHOP_TOKEN")),
            |d| d.headers.push(header("x-more", "SHOP_SECRET")),
            |d| d.secrets_from_env.push("SHOP_TOKEN".to_owned()),
        ];
        for change in changes {
            let mut changed = typed();
            change(&mut changed);
            assert!(restricted(changed, Some(&before)).is_err());
        }
        let mut fewer = typed();
        fewer.headers.clear();
        assert_eq!(restricted(fewer, Some(&before)).unwrap(), ["SHOP_SECRET"]);
    }
}
