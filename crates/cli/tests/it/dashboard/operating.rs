//! What a person does.

use crate::dashboard::browser::Browser;
use crate::dashboard::stage::Stage;

#[test]
fn a_dead_letter_is_found_looked_at_and_delivered_again() {
    let stage = Stage::demo();
    let browser = Browser::start();
    // More than the demo's receiver takes; it gives in when it is asked a fourth time.
    stage.order(7001, "placed", 19_999);
    stage.changed_order(7500, "packed", "returned");
    browser.open(&stage.at("#/events"));
    browser.click("//tr[contains(., 'UPDATE') and contains(., '→ returned')]//a");
    browser.until_text(".compare .changed del", "packed");
    browser.until_text(".compare .changed ins", "returned");
    let changed = browser.eval("return document.querySelectorAll('.compare .changed').length;");
    assert_eq!(changed, 1, "only what differs is marked");
    browser.until_text(".attempts h3", "Request");
    browser.until_text(".attempts h3", "Response");
    browser.until_text(".attempts pre", "\"status\": \"returned\"");
    browser.screenshot("event");

    browser.open(&stage.at("#/events"));
    browser.click("//select[@name='status']/option[@value='dead_letter']");
    browser.until_text("h1", "Dead letters");
    browser.until_text("main table", "7001");
    browser.until_text("main tbody", "answered with status 422");
    let others = "return [...document.querySelectorAll('main tbody tr')].filter(r => r.querySelector('.badge')?.textContent !== '422').length;";
    assert_eq!(browser.eval(others), 0);
    browser.screenshot("dead-letters");
    let focus = browser.eval("return document.activeElement.name;");
    assert_eq!(focus, "status", "whoever filters stays where they were");
    browser.click("//a[text()='Clear']");
    browser.until_text("h1", "Events");
    browser.until(
        "no filter",
        "!document.querySelector('select[name=status]').value",
    );
    browser.click("//nav//a[starts-with(., 'Dead letters')]");
    browser.until_text("h1", "Dead letters");
    browser.until(
        "the filter says so",
        "document.querySelector('select[name=status]').value === 'dead_letter'",
    );
    browser.click("//tr[contains(., '7001')]//a");
    browser.until_text(".facts", "dead letter");
    browser.until_text(".attempts", "422");
    browser.screenshot("dead-letter");
    browser.click("//button[text()='Redeliver']");
    browser.until_text("#notes", "The event is delivered again.");
    browser.until_text(".facts", "delivered");
    browser.until_text(".attempts .badge", "200");
    browser.until_text(".facts", "of which 1 since it was delivered again");
    let focus = browser.eval("return document.activeElement.textContent;");
    assert_eq!(
        focus, "Redeliver",
        "whoever acts by keyboard goes on from there"
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn many_events_are_delivered_again_when_a_person_has_seen_how_many() {
    let stage = Stage::demo();
    let browser = Browser::start();
    stage.order(7001, "placed", 19_999);
    stage.order(7002, "placed", 19_998);
    let dead = "#/events?trigger=shipping&status=dead_letter&error=422";
    browser.open(&stage.at(dead));
    browser.until_text("main tbody", "7001");
    browser.until_text("main tbody", "7002");
    browser.click("//button[text()='Redeliver all of these']");
    browser.until_text("dialog h2", "events again?");
    browser.screenshot("redeliver-many");
    browser.click("//dialog//button[text()='Cancel']");
    browser.until("nothing was done", "!document.querySelector('dialog')");
    browser.until_text("main tbody", "7001");
    browser.click("//button[text()='Redeliver all of these']");
    browser.click("//dialog//button[starts-with(., 'Redeliver')]");
    browser.until_text("#notes", "delivered again");
    browser.until(
        "both are delivered",
        "!['7001', '7002'].some(id => document.querySelector('main').textContent.includes(id))",
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_trigger_is_invoked_by_hand_paused_and_resumed() {
    let stage = Stage::demo();
    let browser = Browser::start();
    browser.open(&stage.at("#/triggers/shipping"));
    browser.write("//textarea", "not JSON");
    browser.click("//button[text()='Invoke']");
    browser.until_text("#notes", "The payload is not JSON.");
    browser.write(
        "//textarea",
        "{\"hello\": \"by hand\", \"big\": 9007199254740993}",
    );
    browser.screenshot("trigger");
    browser.click("//button[text()='Invoke']");
    browser.until_text("h1", "MANUAL");
    browser.until_text(".compare", "by hand");
    // Neither on its way there nor back is a number rounded.
    browser.until_text(".compare", "9007199254740993");
    browser.until_text(".facts", "delivered");
    browser.screenshot("invoked");
    browser.open(&stage.at("#/triggers/shipping"));
    browser.click("//button[text()='Pause']");
    browser.until_text(".attention", "Nothing is delivered");
    browser.click("//button[text()='Resume']");
    browser.until("it goes on", "!document.querySelector('.attention')");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn parked_rows_get_another_round() {
    let stage = Stage::demo();
    let browser = Browser::start();
    // Mail does not reach it, until somebody asks again.
    stage.order(13_000, "delivered", 100);
    browser.open(&stage.at("#/watches/mail"));
    browser.until_text("section[aria-labelledby=h-parked-rows]", "13000");
    browser.screenshot("watch");
    browser.click("//tr[contains(., '13000')]//button[text()='Retry']");
    browser.until_text("#notes", "The row gets another round.");
    browser.until(
        "the row is gone",
        "![...document.querySelectorAll('section[aria-labelledby=h-parked-rows] tbody tr')].some(r => r.textContent.includes('13000'))",
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
