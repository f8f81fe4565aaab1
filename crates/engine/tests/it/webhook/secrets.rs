//! Secrets come from the environment, reach the receiver, and nobody else.

use bytes::Bytes;
use changefeed_core::{AllowedVariables, Delivery, Error, Kind, Setting, Sink, Webhook};
use changefeed_engine::sinks::webhook::{Target, Variables};
use changefeed_receiver::{Receiver, Reply};

use crate::webhook::support::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn environment(name: &str) -> Option<String> {
    match name {
        "TENANT_VALUE" => Some("hidden-tenant\n".into()),
        "SECRET" => Some(SECRET.into()),
        "BAD_SECRET" => Some("hunter2-hunter2".into()),
        "CONTROL" => Some("hunter2\nx: y".into()),
        "NOT_A_URL" => Some("hunter2 hunter2".into()),
        _ => None,
    }
}

fn webhook(delivery: &mut Delivery) -> &mut Webhook {
    delivery.sink.as_webhook_mut().unwrap()
}

fn prepare(delivery: &Delivery) -> Result<Target, Error> {
    let delivery = granted(delivery);
    let variables = Variables::new(environment);
    Target::prepare(&"orders".parse().unwrap(), &delivery, &variables)
}

#[tokio::test]
async fn no_secret_is_in_the_log() {
    let receiver = Receiver::start().await.unwrap();
    let url = format!(
        "http://me:p%40ss-word@{}/hook?tenant=7&access_token=hidden-token&sig=hidden-sig",
        receiver.address()
    );
    let mut delivery = delivery(&url);
    webhook(&mut delivery).headers = vec![
        header("X-Tenant", Setting::FromEnv("TENANT_VALUE".into())),
        header("X-Api-Key", Setting::Value("hidden-api-key".into())),
        header("X-Plain", Setting::Value("plain".into())),
    ];
    webhook(&mut delivery).secrets_from_env = vec!["SECRET".into()];
    receiver.next([Reply::Answer {
        status: 401,
        headers: vec![
            ("set-cookie".into(), "hidden-cookie".into()),
            ("x-echo".into(), "hidden-tenant".into()),
            ("x-fine".into(), "fine".into()),
        ],
        body: Bytes::from_static(b"you sent hidden-tenant, hidden-api-key and bWU6cEBzcy13b3Jk"),
    }]);
    let target = prepare(&delivery).unwrap();
    let sent = client().send(&target, &event()).await;
    // The receiver gets them.
    let request = &receiver.requests()[0];
    assert_eq!(request.header("x-tenant"), Some("hidden-tenant"));
    assert_eq!(request.header("x-api-key"), Some("hidden-api-key"));
    assert_eq!(
        request.header("authorization"),
        Some("Basic bWU6cEBzcy13b3Jk")
    );
    assert!(request.path.contains("access_token=hidden-token"));
    assert_eq!(
        request.header("host"),
        Some(receiver.address().to_string().as_str())
    );
    // The log does not.
    let all = format!("{:?} {target:?} {:?}", sent, target.shown_url());
    for secret in ["hidden", "p%40ss", "p@ss", "bWU6", "MfKQ9r8GKYqr"] {
        assert!(!all.contains(secret), "{secret} in {all}");
    }
    let logged = value(&sent.attempt.request);
    assert_eq!(
        logged["url"],
        format!(
            "http://***@{}/hook?tenant=7&access_token=***&sig=***",
            receiver.address()
        )
    );
    assert_eq!(logged["headers"]["x-tenant"], "***");
    assert_eq!(logged["headers"]["authorization"], "***");
    assert_eq!(logged["headers"]["x-plain"], "plain");
    assert_eq!(logged["body"]["trigger"]["name"], "orders");
    let response = value(&sent.attempt.response);
    assert_eq!(response["headers"]["set-cookie"], "***");
    assert_eq!(response["headers"]["x-echo"], "***");
    assert_eq!(response["headers"]["x-fine"], "fine");
    assert_eq!(response["body"], "you sent ***, *** and ***");
}

#[tokio::test]
async fn a_url_from_the_environment_is_shown_without_its_path() {
    let receiver = Receiver::start().await.unwrap();
    let url = receiver.url("/T000/hidden-path?x=hidden-query");
    let mut delivery = delivery("");
    webhook(&mut delivery).url = Setting::FromEnv("HOOK".into());
    let variables = Variables::new(move |name| (name == "HOOK").then(|| format!("{url}\n")));
    let target = Target::prepare(&"orders".parse().unwrap(), &granted(&delivery), &variables);
    let target = target.unwrap();
    let sent = client().send(&target, &event()).await;
    assert_eq!(
        receiver.requests()[0].path,
        "/T000/hidden-path?x=hidden-query"
    );
    assert!(!format!("{sent:?} {target:?}").contains("hidden"));
    assert_eq!(value(&sent.attempt.request)["url"], receiver.url("/***"));
}

#[test]
fn what_is_wrong_with_the_environment_is_said_without_its_values() {
    let base = || delivery("http://example.com/");
    let with = |change: &dyn Fn(&mut Delivery)| {
        let mut delivery = base();
        change(&mut delivery);
        let error = prepare(&delivery).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        let all = format!("{error:?}");
        assert!(all.contains("orders") && !all.contains("hunter2"), "{all}");
        error.to_string()
    };
    assert_eq!(
        with(&|d| webhook(d).url = Setting::FromEnv("HOOK".into())),
        "the environment variable HOOK, which holds the webhook of trigger 'orders', is not set"
    );
    assert_eq!(
        with(&|d| webhook(d).url = Setting::FromEnv("NOT_A_URL".into())),
        "the webhook in the environment variable NOT_A_URL of trigger 'orders' is not a URL"
    );
    assert_eq!(
        with(&|d| webhook(d).headers = vec![header("X-A", Setting::FromEnv("A".into()))]),
        "the environment variable A, which holds the header 'X-A' of trigger 'orders', is not set"
    );
    assert_eq!(
        with(&|d| webhook(d).headers = vec![header("X-A", Setting::FromEnv("CONTROL".into()))]),
        "the value of the header 'X-A' of trigger 'orders' contains control characters"
    );
    assert_eq!(
        with(&|d| webhook(d).secrets_from_env = vec!["SECRET".into(), "NONE".into()]),
        "the environment variable NONE, which holds a secret of trigger 'orders', is not set"
    );
    assert_eq!(
        with(&|d| webhook(d).secrets_from_env = vec!["SECRET".into(), "BAD_SECRET".into()]),
        "the environment variable BAD_SECRET, a secret of trigger 'orders', does not begin with \
         'whsec_'"
    );
    assert_eq!(
        with(&|d| d.sink = Sink::InProcess),
        "trigger 'orders' has no webhook"
    );
    for url in [
        "",
        "/only/path",
        "ftp://x/",
        "http://",
        "http://bücher.example/",
        "http://a b/",
    ] {
        let sentence = with(&|d| webhook(d).url = Setting::Value(url.into()));
        assert_eq!(
            sentence, "the webhook of trigger 'orders' is not a URL",
            "{url}"
        );
    }
}

#[test]
fn a_port_is_one_that_exists() {
    for (url, fine) in [
        ("http://h:65535/", true),
        ("http://[::1]/", true),
        ("http://[::1]:80/", true),
        ("http://me:pw@h:1/", true),
        ("http://h:65536/", false),
        ("http://h:99999/", false),
        ("http://h:0/", false),
        ("http://[::1]:99999/", false),
        ("http://me:pw@h:99999/", false),
    ] {
        let checked = Target::check("trigger 'orders'", &delivery(url).sink);
        assert_eq!(checked.is_ok(), fine, "{url}");
        if let Err(error) = checked {
            let says = error.to_string();
            assert!(says.contains("which is not possible"), "{says}");
            assert!(!says.contains("pw"), "{says}");
        }
    }
}

#[test]
fn a_variable_that_was_not_granted_is_read_only_if_it_is_allowed() {
    let mut delivery = delivery("http://example.com/");
    webhook(&mut delivery).secrets_from_env = vec!["SECRET".into()];
    let orders = "orders".parse().unwrap();
    let prepared = |delivery: &Delivery, variables: &Variables| {
        let target = Target::prepare(&orders, delivery, variables);
        target.map(drop).map_err(|error| error.to_string())
    };
    let variables = Variables::new(environment);
    let refused = prepared(&delivery, &variables).unwrap_err();
    assert!(refused.contains("which is not allowed here"), "{refused}");
    // Whether it is there makes no difference.
    webhook(&mut delivery).secrets_from_env = vec!["NOTHING".into()];
    let missing = prepared(&delivery, &variables).unwrap_err();
    assert_eq!(missing.replace("NOTHING", "SECRET"), refused);
    webhook(&mut delivery).secrets_from_env = vec!["SECRET".into()];
    let allowed = AllowedVariables::new(["SECRET".to_owned()]).unwrap();
    prepared(&delivery, &variables.clone().allowing(allowed)).unwrap();
    prepared(&granted(&delivery), &variables).unwrap();
}
