//! What a person sees.

use std::sync::Arc;

use changefeed_testkit::backend::{Backend, PostgresBackend};
use serde_json::json;

use crate::dashboard::browser::Browser;
use crate::dashboard::stage::Stage;
use crate::http::serving::{Serving, orders, out};

#[test]
fn everything_of_the_demo_is_seen_within_seconds() {
    let stage = Stage::demo();
    let browser = Browser::start();
    browser.open(&stage.at(""));
    browser.until_text("h1", "Overview");
    for (section, what) in [
        ("#h-feeds", "orders"),
        ("#h-feeds", "order-log"),
        ("#h-feeds", "report"),
        ("#h-triggers", "shipping"),
        ("#h-watches", "mail"),
        ("#h-instances", "sweep, deliver, watch, push, http"),
        ("#h-incidents", "none"),
    ] {
        let panel = format!("section[aria-labelledby={}]", &section[1..]);
        browser.until_text(&panel, what);
    }
    browser.until(
        "a chart of attempts",
        "document.querySelectorAll('.chart .bar').length > 2",
    );
    browser.until("a rate", "document.querySelector('.spark .line')");
    browser.until(
        "a tail",
        "document.querySelectorAll('.tail tbody tr').length > 3",
    );
    browser.screenshot("overview");
    let foreign = browser.eval(
        "return performance.getEntriesByType('resource').map(e => e.name).filter(n => new URL(n).origin !== location.origin);",
    );
    assert_eq!(foreign, json!([]), "nothing is asked of anybody else");
    for place in ["feeds", "feeds/orders", "triggers", "watches", "instances"] {
        browser.open(&stage.at(&format!("#/{place}")));
        browser.until(
            "the page",
            "document.querySelector('main h1, main .failure')",
        );
        browser.until("a table", "document.querySelector('main table')");
        browser.screenshot(&place.replace('/', "-"));
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_live_tail_gets_a_row_as_it_is_written() {
    let stage = Stage::demo();
    let browser = Browser::start();
    browser.open(&stage.at("#/feeds/orders"));
    browser.until_text(".live-state", "live");
    stage.order(5001, "unmistakable", 1);
    browser.until_text(".tail tbody", "unmistakable");
    browser.click("//button[text()='Pause']");
    browser.until_text(".live-state", "paused");
    stage.order(5500, "while-paused", 1);
    browser.until_text(".live-state", "paused");
    browser.click("//button[text()='Go on']");
    browser.until_text(".tail tbody", "while-paused");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn what_strangers_wrote_into_a_row_stays_text() {
    let stage = Stage::demo();
    let browser = Browser::start();
    let attack = "<img src=x onerror=\"window.broken=1\"><script>window.broken=1</script>";
    browser.open(&stage.at("#/feeds/orders"));
    browser.until_text(".live-state", "live");
    stage.order(6001, attack, 100);
    browser.until_text(".tail tbody", attack);
    stage.changed_order(6500, attack, "javascript:window.broken=1");
    browser.open(&stage.at("#/events?trigger=shipping"));
    browser.until_text("main table", attack);
    browser.click("//tr[contains(., 'javascript:window')]//a");
    browser.until_text(".compare", attack);
    browser.until_text(".compare ins", "javascript:window");
    browser.until("the attempt", "document.querySelector('.attempts pre')");
    browser.screenshot("hostile-row");
    assert_eq!(browser.eval("return window.broken ?? null;"), json!(null));
    let made = "return document.querySelectorAll('main img, main script, main a[href^=javascript]').length;";
    assert_eq!(browser.eval(made), json!(0));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn where_there_is_nothing_it_says_what_to_run() {
    let stage = Stage::empty(|_| {});
    let browser = Browser::start();
    browser.open(&stage.at(""));
    for command in [
        "changefeed feed create",
        "changefeed trigger create",
        "changefeed watch create",
    ] {
        browser.until_text(".empty pre", command);
    }
    browser.screenshot("nothing-yet");
    browser.open(&stage.at("#/feeds/nobody"));
    browser.until_text("[role=alert]", "There is no feed 'nobody'.");
    browser.open(&stage.at("#/events"));
    browser.until_text(".empty", "There is no event yet.");
}

/// Its table is gone, and changes of another wait for somebody who sweeps.
#[test]
fn what_doctor_finds_is_seen_at_once() {
    changefeed_testkit::run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let url = orders(&backend).await;
        let app = backend.session().await;
        app.run("create table item (id int primary key)").await;
        out(&url, &["feed", "create", "items", "--from", "item"]);
        app.run("insert into item values (1)").await;
        app.run("drop table orders").await;
        let serving = Serving::start(&url, &["--only", "http"]);
        // The browser is asked by a thread that may wait.
        let look = move || {
            let browser = Browser::start();
            browser.open(&format!("http://{}/", serving.at));
            browser.until_text(".attention", "feed orders: its table was dropped");
            browser.until_text(".attention", "nobody sweeps its group");
            browser.until_text("#banner", "nobody sweeps group 0");
            browser.screenshot("findings");
            browser.open(&format!("http://{}/#/feeds/orders", serving.at));
            browser.until_text("section[aria-labelledby=h-findings]", "feed drop orders");
            browser.screenshot("findings-of-a-feed");
        };
        tokio::task::spawn_blocking(look).await.unwrap();
    });
}

#[test]
fn its_files_are_asked_about_and_sent_once() {
    let stage = Stage::empty(|_| {});
    let browser = Browser::start();
    browser.open(&stage.at(""));
    let answers = browser.eval(
        "return (async () => {
           const first = await fetch('/page/app.js', {cache: 'no-store'});
           const known = {'if-none-match': first.headers.get('etag')};
           const again = await fetch('/page/app.js', {cache: 'no-store', headers: known});
           const none = await fetch('/page/../Cargo.toml');
           const policy = (await fetch('/')).headers.get('content-security-policy');
           return [first.status, first.headers.get('content-type'), again.status, none.status, policy];
         })();",
    );
    assert_eq!(answers[0], 200);
    assert_eq!(answers[1], "text/javascript; charset=utf-8");
    assert_eq!(answers[2], 304);
    assert_eq!(answers[3], 404);
    let policy = answers[4].as_str().unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"));
}
