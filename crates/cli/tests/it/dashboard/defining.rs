//! Definitions by form, and what they stand for; a feed's history; shortcuts.

use serde_json::json;

use crate::dashboard::browser::Browser;
use crate::dashboard::stage::{Stage, changefeed};

/// What stands beside the form.
const PREVIEW: &str = "return document.querySelector('[data-key=preview] code').textContent;";

fn field(name: &str) -> String {
    format!("//*[@id='f-{name}']")
}

/// A preview is the definition if `apply` finds nothing to change.
fn is_what_there_is(stage: &Stage, toml: &str) {
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    std::fs::write(file.path(), toml).unwrap();
    let path = file.path().to_str().unwrap();
    let applied = changefeed(&stage.database(), &["apply", path, "--check"])
        .output()
        .unwrap();
    assert!(applied.status.success(), "{toml}\n{applied:?}");
}

#[test]
fn a_trigger_is_made_and_changed_by_form_as_its_preview_says() {
    let stage = Stage::demo();
    let browser = Browser::start();
    browser.open(&stage.at("#/triggers"));
    browser.click("//a[text()='New']");
    browser.until_text("h1", "New event trigger");
    browser.write(&field("name"), "paid");
    browser.write(&field("table"), "no_such_table");
    browser.write(&field("webhook"), "https://shop.example/hooks/\"paid\"");
    browser.write(&field("update"), "status, cents");
    browser.write(&field("when"), "new.\"status\" = 'paid'");
    browser.click("//button[text()='Create']");
    browser.until_text("[role=alert]", "no_such_table");
    browser.write(&field("table"), "orders");
    browser.write(&field("webhook"), "https://shop.example/hooks/paid");
    browser.click("//summary[text()='More settings']");
    browser.write(&field("header"), "X-Token: $CHANGEFEED_HOOK_TOKEN");
    browser.until_text("[data-key=preview]", "allow_env");
    browser.write(&field("header"), "X-Team: shop");
    browser.write(&field("final_status"), "410, 422");
    browser.screenshot("define-trigger");
    let toml = browser.eval(PREVIEW);
    browser.click("//button[text()='Create']");
    browser.until_text("#notes", "Created event trigger paid.");
    browser.until_text("h1", "paid");
    is_what_there_is(&stage, toml.as_str().unwrap());

    browser.click("//a[text()='Edit']");
    browser.until_text("h1", "Edit event trigger paid");
    is_what_there_is(&stage, browser.eval(PREVIEW).as_str().unwrap());
    browser.write(&field("retries"), "9");
    let toml = browser.eval(PREVIEW);
    browser.click("//button[text()='Save']");
    browser.until_text("#notes", "Saved event trigger paid.");
    browser.until_text(".facts", "9, after");
    is_what_there_is(&stage, toml.as_str().unwrap());
    assert_eq!(complaints(&browser), Vec::<String>::new());
}

/// A refused definition is a failed request, which a browser notes.
fn complaints(browser: &Browser) -> Vec<String> {
    let mut all = browser.complaints();
    all.retain(|line| !line.contains("Failed to load resource"));
    all
}

#[test]
fn feeds_watches_and_subscriptions_are_made_by_form() {
    let stage = Stage::demo();
    let browser = Browser::start();
    browser.open(&stage.at("#/define/feeds"));
    browser.write(&field("name"), "by-form");
    browser.write(&field("from"), "orders");
    browser.write(&field("shards"), "2");
    browser.write(&field("shard_by"), "customer_id");
    browser.click("//summary[text()='More settings']");
    browser.write(&field("trim_after"), "30d");
    let toml = browser.eval(PREVIEW);
    browser.click("//button[text()='Create']");
    browser.until_text("#notes", "Created feed by-form.");
    is_what_there_is(&stage, toml.as_str().unwrap());
    browser.click("//a[text()='Edit']");
    browser.write(&field("comment"), "made by hand");
    let toml = browser.eval(PREVIEW);
    browser.click("//button[text()='Save']");
    browser.until_text(".heading .note", "made by hand");
    is_what_there_is(&stage, toml.as_str().unwrap());

    browser.open(&stage.at("#/define/watches"));
    browser.write(&field("name"), "by-form");
    browser.write(&field("table"), "orders");
    browser.click("//summary[text()='More settings']");
    browser.write(&field("exec"), "./send-mail");
    browser.until_text("[data-key=preview]", "run changefeed apply");
    browser.until(
        "no button for it",
        "document.querySelector('button[type=submit]').disabled",
    );
    browser.write(&field("exec"), "");
    browser.write(&field("webhook"), "http://127.0.0.1:9/never");
    let toml = browser.eval(PREVIEW);
    browser.click("//button[text()='Create']");
    browser.until_text("#notes", "Created watch by-form.");
    is_what_there_is(&stage, toml.as_str().unwrap());
    browser.click("//a[text()='Edit']");
    browser.write(&field("batch"), "7");
    browser.click("//button[text()='Save']");
    browser.until_text(".facts", "7 rows");

    browser.open(&stage.at("#/define/subscriptions"));
    browser.write(&field("name"), "by-form");
    browser.write(&field("feed"), "orders");
    browser.write(&field("to"), "nats://127.0.0.1:4222/orders");
    browser.until_text("[data-key=preview]", "Run the command instead.");
    let command = browser.eval(PREVIEW);
    assert_eq!(
        command,
        json!(
            "changefeed subscription create by-form --feed orders --to nats://127.0.0.1:4222/orders"
        )
    );
    browser.write(&field("to"), "http://127.0.0.1:9/never");
    browser.write(&field("from"), "now");
    browser.screenshot("define-subscription");
    browser.click("//button[text()='Create']");
    browser.until_text("#notes", "Created subscription by-form.");
    browser.until_text("h1", "by-form");
    assert_eq!(complaints(&browser), Vec::<String>::new());
}

#[test]
fn a_history_is_turned_page_by_page_and_searched_by_key_and_time() {
    let stage = Stage::empty(|database| {
        let made = changefeed(
            database,
            &["feed", "create", "notes", "--from", "note", "--id", "1"],
        );
        let path = database.strip_prefix("sqlite:").unwrap();
        let file = changefeed::sqlite::rusqlite::Connection::open(path).unwrap();
        file.execute_batch("create table note (id integer primary key, text text)")
            .unwrap();
        let mut made = made;
        assert!(made.output().unwrap().status.success());
        file.execute_batch(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 600)
             insert into note select i, 'note ' || i from n;
             update note set text = 'other' where id = 7;",
        )
        .unwrap();
    });
    let browser = Browser::start();
    let rows = "return [...document.querySelectorAll('main tbody th')].map(e => e.textContent);";
    let shown = || {
        let rows = browser.eval(rows);
        let rows = rows.as_array().unwrap();
        let at = |i: usize| rows[i].as_str().unwrap()[12..].to_owned();
        (at(0), at(rows.len() - 1))
    };
    browser.open(&stage.at("#/feeds/notes"));
    browser.until_text(".tail tbody", "other");
    browser.press('h');
    browser.until_text("h1", "History of notes");
    browser.until_text("main tbody", "2000000000000601");
    assert_eq!(shown(), ("0552".to_owned(), "0601".to_owned()));
    browser.click("//a[text()='Older']");
    browser.until_text("main tbody", "2000000000000551");
    assert_eq!(shown(), ("0502".to_owned(), "0551".to_owned()));
    browser.click("//a[text()='Oldest']");
    browser.until_text("main tbody", "2000000000000001");
    browser.click("//a[text()='Newer']");
    browser.until_text("main tbody", "2000000000000051");
    browser.screenshot("history");
    browser.click("//a[text()='Oldest']");
    browser.until_text("main tbody", "2000000000000001");
    browser.write("//input[@name='key']", "id=7");
    browser.click("//button[text()='Show']");
    browser.until_text("main", "601 looked at");
    assert_eq!(shown(), ("0007".to_owned(), "0601".to_owned()));
    for (time, what) in [
        ("2100-01-01T00:00:00", "no change after"),
        ("2020-01-01T00:00:00", "2000000000000001"),
    ] {
        browser.open(&stage.at(&format!("#/feeds/notes/history?time={time}")));
        browser.until_text("main", what);
    }
    browser.press('g');
    browser.press('t');
    browser.until_text("h1", "Event triggers");
    browser.press('?');
    browser.until_text("dialog", "Keyboard shortcuts");
    browser.screenshot("shortcuts");
    browser.click("//dialog//input");
    browser.click("//dialog//button");
    browser.until("it is closed", "!document.querySelector('dialog')");
    browser.press('g');
    browser.press('f');
    browser.until_text("h1", "Event triggers");
    assert_eq!(
        browser.eval("return location.hash;"),
        "#/triggers",
        "they are off"
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
