//! Where to connect, and how.

use std::borrow::Cow;
use std::time::Duration;

use changefeed_core::{Error, Kind, Result};
use connection_string::AdoNetString;
use tiberius::{AuthMethod, Client, Config, EncryptionLevel};
use tokio::net::TcpStream;
use tokio_util::compat::Compat;
use url::Url;

use crate::connection::dial;
use crate::error::db;
use crate::token::Token;

/// How long reaching the server may take, and then logging in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where access tokens come from.
const TOKENS: &str = "write authentication=token and put an access token into CHANGEFEED_SQLSERVER_ACCESS_TOKEN, a \
     command that prints one into CHANGEFEED_SQLSERVER_ACCESS_TOKEN_COMMAND, or one into a file that \
     access_token_file=… names";

const FORM: &str = "use sqlserver://user:password@host:1433/database";

/// Where to connect, and how.
#[derive(Debug, Clone)]
pub struct Target {
    config: Config,
    host: String,
    port: u16,
    /// Known where a URL names it.
    database: Option<String>,
    /// Instead of a user and a password.
    token: Option<Token>,
    /// Whether all addresses of the host are tried at the same time.
    all_addresses: bool,
    /// How long reaching the server may take, and then logging in.
    patience: Duration,
}

impl Target {
    /// Reads a URL or an ADO connection string (`Server=…;Database=…`).
    pub fn parse(text: &str) -> Result<Self> {
        let target = if text.contains("://") {
            from_url(text)?
        } else {
            from_ado(text)?
        };
        Ok(target.finished())
    }

    /// Where it leads, for people: host, port and database, and nothing of user or password.
    pub fn place(&self) -> String {
        let (host, port) = (&self.host, self.port);
        match &self.database {
            Some(database) => format!("sqlserver://{host}:{port}/{database}"),
            None => format!("sqlserver://{host}:{port}"),
        }
    }

    /// How long reaching the server may take, and then logging in.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    #[cfg(test)]
    pub(crate) fn connect_within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    fn finished(mut self) -> Self {
        self.config.application_name("changefeed");
        self.config.handshake_timeout(Some(CONNECT_TIMEOUT));
        // Each call has a limit of its own: see session.rs.
        self.config.command_timeout(None);
        // A character that is no character must not keep a row from being read.
        self.config.lossy_utf16_decoding(true);
        self
    }

    /// Connects. Azure may send us on to another address, once.
    pub async fn connect(&self) -> Result<Client<Compat<TcpStream>>> {
        let mut config = self.config.clone();
        if let Some(token) = &self.token {
            config.authentication(AuthMethod::aad_token(token.read().await?));
        }
        let (mut host, mut port) = (self.host.clone(), self.port);
        for _ in 0..2 {
            let tcp = tokio::time::timeout(self.patience, dial(&host, port, self.all_addresses))
                .await
                .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
                .map_err(|e| {
                    Error::new(
                        Kind::Unavailable,
                        format!("the SQL Server at {host}:{port} cannot be reached"),
                    )
                    .advise("check host and port, and that the server is running")
                    .caused_by(e)
                })?;
            // Boxed, like every call of the driver: its futures are too large for small stacks.
            let greeting = Box::pin(Client::connect(config.clone(), tcp));
            let greeted = tokio::time::timeout(self.patience, greeting).await;
            let greeted = greeted.map_err(|late| {
                Error::new(
                    Kind::Unavailable,
                    format!("the server at {host}:{port} does not answer"),
                )
                .advise("check that it is a SQL Server, and that it is not overloaded")
                .caused_by(late)
            })?;
            match greeted {
                Ok(client) => return Ok(client),
                Err(tiberius::error::Error::Routing {
                    host: elsewhere,
                    port: there,
                }) => {
                    config.host(&elsewhere);
                    config.port(there);
                    (host, port) = (elsewhere, there);
                }
                // The server was reached, and has said nothing: a greeting that went wrong.
                Err(
                    error @ (tiberius::error::Error::Protocol(_)
                    | tiberius::error::Error::Io { .. }),
                ) => {
                    return Err(Error::new(
                        Kind::Unavailable,
                        "the server and we could not agree on how to talk",
                    )
                    .advise(
                        "if the server does not encrypt, add encrypt=off (everything, the password \
                         included, can then be read on the way); if it is not a SQL Server, correct \
                         host and port",
                    )
                    .caused_by(error));
                }
                Err(error) => return Err(db(error)),
            }
        }
        Err(Error::new(
            Kind::Unavailable,
            "the server sends us from one address to the next",
        ))
    }
}

/// What a URL or a connection string says.
#[derive(Default)]
struct Parts {
    host: String,
    port: Option<u16>,
    database: Option<String>,
    user: String,
    password: String,
    options: Vec<(String, String)>,
}

impl Parts {
    fn target(self) -> Result<Target> {
        let port = self.port.unwrap_or(1433);
        let mut config = Config::new();
        config.host(&self.host);
        config.port(port);
        config.encryption(EncryptionLevel::Required);
        if let Some(database) = &self.database {
            config.database(database);
        }
        let mut trust = Trust::default();
        let (mut file, mut by_token, mut all_addresses) = (None, false, false);
        for (key, value) in self.options {
            match plain(&key).as_str() {
                "accesstokenfile" => file = Some(value),
                "authentication" => by_token = authentication(&value)?,
                "multisubnetfailover" => all_addresses = is_true(&key, &value)?,
                _ => option(&mut config, &mut trust, &key, &value)?,
            }
        }
        trust.tell(&mut config)?;
        if !self.user.is_empty() && (file.is_some() || by_token) {
            return Err(Error::invalid(
                "the database URL names a user and asks for an access token",
            )
            .advise("leave one of them out"));
        }
        let token = match (self.user.is_empty(), file) {
            (false, _) => None,
            (true, Some(path)) => Some(Token::File(path)),
            (true, None) => Some(Token::of_environment().ok_or_else(|| {
                Error::invalid("the database URL names no user, and there is no access token")
                    .advise(format!("{FORM}, or {TOKENS}"))
            })?),
        };
        if token.is_none() {
            config.authentication(AuthMethod::sql_server(self.user, self.password));
        }
        Ok(Target {
            config,
            host: self.host,
            port,
            database: self.database,
            token,
            all_addresses,
            patience: CONNECT_TIMEOUT,
        })
    }
}

/// What other drivers are told, and changes nothing here.
const OTHERS: [&str; 18] = [
    "app",
    "applicationname",
    "commandtimeout",
    "connectiontimeout",
    "connectretrycount",
    "connectretryinterval",
    "connecttimeout",
    "currentlanguage",
    "maxpoolsize",
    "minpoolsize",
    "multipleactiveresultsets",
    "networklibrary",
    "packetsize",
    "persistsecurityinfo",
    "pooling",
    "timeout",
    "workstationid",
    "wsid",
];

fn from_ado(text: &str) -> Result<Target> {
    // The parser's message may quote a value, which may be a password.
    let said: AdoNetString = text.parse().map_err(|_| {
        Error::invalid("this is not a connection string for SQL Server").advise(FORM)
    })?;
    let mut parts = Parts::default();
    for (key, value) in said.iter() {
        match plain(key).as_str() {
            "server" | "datasource" | "addr" | "address" | "networkaddress" => {
                (parts.host, parts.port) = server(value)?;
            }
            "database" | "initialcatalog" => parts.database = Some(value.clone()),
            "userid" | "uid" | "user" => parts.user = value.clone(),
            "password" | "pwd" => parts.password = value.clone(),
            "integratedsecurity" | "trustedconnection" => {
                return Err(unknown_login(key));
            }
            known if OTHERS.contains(&known) => {}
            _ => parts.options.push((key.clone(), value.clone())),
        }
    }
    if parts.host.is_empty() {
        return Err(Error::invalid("the connection string names no server").advise(FORM));
    }
    parts.target()
}

/// Host and port of `tcp:HOST\INSTANCE,PORT`.
fn server(value: &str) -> Result<(String, Option<u16>)> {
    let place = value.trim().trim_start_matches("tcp:");
    let (host, port) = match place.split_once(',') {
        Some((host, port)) => {
            let port = port.trim().parse().map_err(|e| {
                Error::invalid(format!("'{port}' is no port"))
                    .advise("write Server=HOST,PORT")
                    .caused_by(e)
            })?;
            (host, Some(port))
        }
        None => (place, None),
    };
    let (host, instance) = match host.split_once('\\') {
        Some((host, instance)) => (host, Some(instance)),
        None => (host, None),
    };
    if let (Some(instance), None) = (instance, port) {
        return Err(Error::invalid(format!(
            "the connection string names the instance {instance}, and not the port that it listens at"
        ))
        .advise(
            "write Server=HOST,PORT; SQL Server Configuration Manager shows the port of an instance, \
             and can give it a fixed one",
        ));
    }
    let host = match host.trim() {
        "(local)" | "." => "localhost",
        host => host,
    };
    Ok((host.to_owned(), port))
}

fn from_url(text: &str) -> Result<Target> {
    let url = Url::parse(text).map_err(|e| {
        Error::invalid("this is not a SQL Server URL")
            .advise(format!(
                "{FORM}; write special characters in the password as %XX"
            ))
            .caused_by(e)
    })?;
    let host = match url.host() {
        Some(url::Host::Ipv6(address)) => address.to_string(),
        Some(host) => host.to_string(),
        None => return Err(Error::invalid("the URL names no host").advise(FORM)),
    };
    let database = decoded(url.path().trim_start_matches('/'))?;
    let options = url.query_pairs();
    Parts {
        host,
        port: url.port(),
        database: (!database.is_empty()).then(|| database.into_owned()),
        user: decoded(url.username())?.into_owned(),
        password: decoded(url.password().unwrap_or_default())?.into_owned(),
        options: options
            .map(|(key, value)| (key.into_owned(), value.into_owned()))
            .collect(),
    }
    .target()
}

/// Whom the server's certificate may be from.
#[derive(Default)]
struct Trust {
    anybody: bool,
    authority: Option<String>,
}

impl Trust {
    fn tell(self, config: &mut Config) -> Result<()> {
        match (self.anybody, self.authority) {
            (true, Some(_)) => Err(Error::invalid(
                "trust_server_certificate=true takes any certificate, and \
                 trust_server_certificate_ca only those of one authority",
            )
            .advise("leave one of them out; the second is the safe one")),
            (true, None) => {
                config.trust_cert();
                Ok(())
            }
            (false, Some(authority)) => {
                config.trust_cert_ca(authority);
                Ok(())
            }
            (false, None) => Ok(()),
        }
    }
}

/// The name of an option, however it is written.
fn plain(key: &str) -> String {
    key.chars()
        .filter(|c| c.is_ascii_alphanumeric())
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

fn option(config: &mut Config, trust: &mut Trust, key: &str, value: &str) -> Result<()> {
    match plain(key).as_str() {
        "encrypt" => config.encryption(match value.to_ascii_lowercase().as_str() {
            "true" | "yes" | "1" | "mandatory" | "required" => EncryptionLevel::Required,
            "strict" => EncryptionLevel::Strict,
            // The login is encrypted even so, as every client does it.
            "false" | "no" | "0" | "optional" => EncryptionLevel::Off,
            "off" | "disable" => EncryptionLevel::NotSupported,
            _ => {
                return Err(Error::invalid(format!(
                    "encrypt={value} is not known: use true, strict, false or off"
                )));
            }
        }),
        "trustservercertificate" => trust.anybody = is_true("trust_server_certificate", value)?,
        "trustservercertificateca" => trust.authority = Some(value.to_owned()),
        "hostnameincertificate" => config.hostname_in_certificate(value),
        "applicationintent" => config.readonly(match plain(value).as_str() {
            "readonly" => true,
            "readwrite" => false,
            _ => {
                return Err(Error::invalid(format!(
                    "application_intent={value} is not known: use readonly or readwrite"
                )));
            }
        }),
        _ => {
            return Err(Error::invalid(format!(
                "the database URL has an option '{key}' that is not known"
            ))
            .advise(
                "there are encrypt, trust_server_certificate, trust_server_certificate_ca, \
                     host_name_in_certificate, authentication, access_token_file, \
                     application_intent and multi_subnet_failover",
            ));
        }
    }
    Ok(())
}

/// How one logs in; whether that is by an access token.
fn authentication(value: &str) -> Result<bool> {
    match plain(value).as_str() {
        "token" | "activedirectoryaccesstoken" => Ok(true),
        "sql" | "sqlpassword" | "notspecified" => Ok(false),
        _ => Err(unknown_login(&format!("authentication={value}"))),
    }
}

fn unknown_login(what: &str) -> Error {
    Error::invalid(format!(
        "{what} is not possible: there are SQL logins, and access tokens for Azure"
    ))
    .advise(format!("write a user and a password, or {TOKENS}"))
}

fn is_true(key: &str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "1" => Ok(true),
        "false" | "no" | "0" => Ok(false),
        _ => Err(Error::invalid(format!(
            "{key}={value} is not known: use true or false"
        ))),
    }
}

/// Without `%XX`.
fn decoded(text: &str) -> Result<Cow<'_, str>> {
    percent_encoding::percent_decode_str(text)
        .decode_utf8()
        .map_err(|e| {
            Error::invalid("the URL is not UTF-8")
                .advise(FORM)
                .caused_by(e)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_and_a_connection_string_name_the_same_server() {
        for text in [
            "sqlserver://sa:p%40ss@db.example:1444/shop?encrypt=true",
            "mssql://sa:p%40ss@db.example:1444/shop?Trust_Server_Certificate=true",
            "Server=tcp:db.example,1444;Database=shop;User Id=sa;Password=p@ss",
            r"Server=db.example\SQLEXPRESS,1444;Database=shop;User Id=sa;Password=p\ss",
            "data source=db.example,1444;initial catalog=shop;uid=sa;pwd='p;ss';encrypt=Optional;Pooling=true",
            "Server=db.example,1444;User=sa;Password=x;Encrypt=off;TrustServerCertificate=True",
        ] {
            let target = Target::parse(text).unwrap();
            assert_eq!((target.host.as_str(), target.port), ("db.example", 1444));
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for (text, word) in [
            ("sqlserver://", "URL"),
            ("sqlserver://u:secret@h/d?encrypt=maybe", "encrypt"),
            ("sqlserver://u:secret@h/d?speed=high", "speed"),
            ("sqlserver://h/d", "user"),
            ("sqlserver://u:secret@h:99999/d", "URL"),
            (
                "sqlserver://u:secret@h/d?trust_server_certificate=true&trust_server_certificate_ca=/x",
                "authority",
            ),
            (
                "sqlserver://u:secret@h/d?TrustServerCertificateCA=/x&TrustServerCertificate=yes",
                "authority",
            ),
            ("sqlserver://u:secret@h/d?access_token_file=/x", "token"),
            (r"Server=h\SQLEXPRESS;User Id=u;Password=secret", "instance"),
            ("Server=h,x;User Id=u;Password=secret", "port"),
            (
                "Server=h;User Id=u;Password=secret;Encrypt=maybe",
                "encrypt=maybe",
            ),
            (
                "Server=h;User Id=u;Password=secret;Trust Server Certficate=true",
                "certficate",
            ),
            ("Server=h;Integrated Security=true", "integrated security"),
            ("Server=h;Database=d", "user"),
            ("sqlserver://u:secret@h/d?authentication=token", "token"),
            (
                "Server=h;Authentication=Active Directory Interactive",
                "SQL logins",
            ),
            (
                "sqlserver://u:secret@h/d?multi_subnet_failover=maybe",
                "true or false",
            ),
            (
                "sqlserver://u:secret@h/d?application_intent=reed",
                "readonly",
            ),
        ] {
            let error = Target::parse(text).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{text}");
            let told = format!("{error} {}", error.advice().unwrap_or_default());
            assert!(told.contains(word) && !told.contains("secret"), "{told}");
        }
    }

    #[tokio::test]
    async fn an_access_token_is_read_for_each_connection() {
        let file = std::env::temp_dir().join(format!("changefeed-token-{}", std::process::id()));
        let url = format!(
            "sqlserver://127.0.0.1:1/d?access_token_file={}",
            file.display()
        );
        let target = Target::parse(&url).unwrap();
        let error = target.connect().await.unwrap_err();
        assert!(error.to_string().contains("no access token"), "{error}");
        for token in ["one", "two\n"] {
            std::fs::write(&file, token).unwrap();
            let read = target.token.as_ref().unwrap().read().await.unwrap();
            assert_eq!(read, token.trim());
            // It goes on to the server, which is not there.
            let error = target.connect().await.unwrap_err();
            assert!(error.to_string().contains("cannot be reached"), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
    }
}
