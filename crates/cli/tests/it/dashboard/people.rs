//! For everybody: in the dark, on a telephone, with a keyboard, and not for strangers.

use serde_json::json;

use crate::dashboard::browser::Browser;
use crate::dashboard::stage::{Stage, changefeed};

const TAB: char = '\u{E004}';
const ENTER: char = '\u{E007}';

const GROUND: &str = "return getComputedStyle(document.body).backgroundColor;";

#[test]
fn it_is_dark_when_the_system_is_and_when_told_so() {
    let stage = Stage::demo();
    let browser = Browser::start();
    browser.prefer("light");
    browser.open(&stage.at(""));
    browser.until_text("h1", "Overview");
    let light = browser.eval(GROUND);
    browser.prefer("dark");
    let dark = browser.eval(GROUND);
    assert_ne!(light, dark, "the system decides");
    browser.until(
        "a chart",
        "document.querySelectorAll('.chart .bar').length > 2",
    );
    browser.screenshot("dark");
    browser.click("//button[@id='theme']");
    assert_eq!(browser.eval(GROUND), light, "unless a person does");
    browser.click("//button[@id='theme']");
    browser.prefer("light");
    assert_eq!(browser.eval(GROUND), dark);
    browser.open(&stage.at(""));
    browser.until_text("#theme", "Theme: dark");
    assert_eq!(browser.eval(GROUND), dark, "and it is remembered");
}

#[test]
fn it_fits_400_pixels() {
    let stage = Stage::demo();
    let browser = Browser::start();
    stage.order(
        13_000,
        "a status of considerable length, without any need",
        19_999,
    );
    browser.resize(400, 800);
    for place in [
        "",
        "feeds",
        "feeds/orders",
        "triggers",
        "triggers/shipping",
        "events",
        "watches",
        "watches/mail",
        "instances",
    ] {
        browser.open(&stage.at(&format!("#/{place}")));
        browser.until("the page", "document.querySelector('main h1')");
        browser.until("a table", "document.querySelector('main table')");
        let wide = browser.eval("return document.documentElement.scrollWidth;");
        assert_eq!(wide, 400, "nothing of {place} sticks out");
        browser.screenshot(&format!("narrow-{}", place.replace('/', "-")));
    }
    browser.open(&stage.at("#/events"));
    browser.click("(//main//tbody//a)[1]");
    browser.until("the event", "document.querySelector('.compare')");
    let wide = browser.eval("return document.documentElement.scrollWidth;");
    assert_eq!(wide, 400);
    browser.screenshot("narrow-event");
}

#[test]
fn a_keyboard_is_enough() {
    let stage = Stage::demo();
    let browser = Browser::start();
    browser.open(&stage.at(""));
    browser.until_text("h1", "Overview");
    browser.until("a table", "document.querySelector('main tbody a')");
    browser.press(TAB);
    let first = browser.eval("return document.activeElement.textContent;");
    assert_eq!(first, "Skip to the content");
    tab_to(&browser, "Triggers");
    browser.press(ENTER);
    browser.until_text("h1", "Event triggers");
    browser.until("focus follows", "document.activeElement.tagName === 'H1'");
    tab_to(&browser, "shipping");
    browser.press(ENTER);
    browser.until_text("h1", "shipping");
    tab_to(&browser, "All events");
    browser.press(ENTER);
    browser.until_text("h1", "Events");
    tab_to(&browser, "delivered");
    // Landmarks and names, for those who listen to the page.
    let landmarks = browser.eval(
        "return ['header', 'nav[aria-label]', 'main', 'form[role=search]', 'table caption'].filter(s => !document.querySelector(s));",
    );
    assert_eq!(landmarks, json!([]));
    let nameless = browser.eval(
        "return [...document.querySelectorAll('button, a, select, input, svg[role=img]')].filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label'))).map(e => e.outerHTML);",
    );
    assert_eq!(nameless, json!([]));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Goes on from one thing to the next until the focus is on what contains this text; each of them must
/// show that it has the focus.
fn tab_to(browser: &Browser, text: &str) {
    for _ in 0..200 {
        browser.press(TAB);
        let focus = browser.eval(
            "const e = document.activeElement;
             return [e.textContent, getComputedStyle(e).outlineStyle, e.tagName];",
        );
        assert_ne!(focus[1], "none", "{focus} does not show its focus");
        if focus[0]
            .as_str()
            .is_some_and(|t| t.trim().starts_with(text) || t.contains(text) && focus[2] == "SELECT")
        {
            return;
        }
    }
    panic!("'{text}' is not to be reached");
}

#[test]
fn with_tokens_defined_it_asks_for_one_once() {
    let mut token = String::new();
    let stage = Stage::empty(|database| {
        let made = changefeed(database, &["token", "create", "t", "--scope", "read"])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let text = String::from_utf8(made.stdout).unwrap();
        text.lines().next().unwrap().clone_into(&mut token);
    });
    let browser = Browser::start();
    browser.open(&stage.at(""));
    browser.until_text("dialog", "This server needs a token");
    browser.screenshot("token");
    browser.write("//dialog//input", "cft_nonsense");
    browser.click("//dialog//button");
    browser.until_text("dialog [role=alert]", "not");
    browser.write("//dialog//input", &token);
    browser.click("//dialog//button");
    browser.until_text("h1", "Overview");
    browser.until("the dialog is gone", "!document.querySelector('dialog')");
    browser.eval("location.reload();");
    browser.until_text("h1", "Overview");
    browser.until("nobody is asked again", "!document.querySelector('dialog')");
    let kept =
        "return [localStorage, document.cookie].some(s => JSON.stringify(s).includes('cft_'));";
    assert_eq!(browser.eval(kept), json!(false), "it ends with the tab");
    browser.click("//button[text()='Forget token']");
    browser.until_text("dialog", "This server needs a token");
}
