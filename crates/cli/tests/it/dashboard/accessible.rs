//! Every page by axe, the judge of accessibility: light and dark, wide and narrow.

use crate::dashboard::browser::Browser;
use crate::dashboard::stage::Stage;

const PAGES: [&str; 17] = [
    "",
    "feeds",
    "feeds/orders",
    "feeds/orders/history",
    "triggers",
    "triggers/shipping",
    "events",
    "events?status=dead_letter",
    "watches",
    "watches/mail",
    "subscriptions",
    "instances",
    "api",
    "define/feeds",
    "define/triggers/shipping",
    "define/watches",
    "define/subscriptions",
];

#[test]
fn axe_finds_nothing() {
    let Some(path) = std::env::var_os("CHANGEFEED_TEST_AXE").filter(|path| path != "none") else {
        return;
    };
    let axe = std::fs::read_to_string(path).unwrap();
    let stage = Stage::demo();
    let browser = Browser::start();
    stage.order(13_000, "delivered", 19_999);
    let mut violations = Vec::new();
    for (width, scheme) in [
        (1400, "light"),
        (400, "dark"),
        (1400, "dark"),
        (400, "light"),
    ] {
        browser.resize(width, 900);
        browser.prefer(scheme);
        // The other two differ in nothing but colours and widths that were seen.
        let step = if width == 1400 && scheme == "dark" || width == 400 && scheme == "light" {
            3
        } else {
            1
        };
        for page in PAGES.iter().step_by(step) {
            browser.open(&stage.at(&format!("#/{page}")));
            browser.until("the page", "document.querySelector('main h1')");
            browser.eval(&axe);
            let found = browser.eval(
                "return axe.run(document).then(r => r.violations.map(v => `${v.id}: ${v.nodes.map(n => n.html).join(' ')}`));",
            );
            for violation in found.as_array().unwrap() {
                violations.push(format!("{page} at {width}, {scheme}: {violation}"));
            }
        }
    }
    assert_eq!(violations, Vec::<String>::new());
}
