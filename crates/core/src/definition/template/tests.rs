use serde_json::value::RawValue;

use super::*;

const VALUES: [&str; 4] = ["new", "old", "rows", "n"];

fn values() -> TemplateValues {
    let json = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    TemplateValues::default()
        .and(
            "new",
            Some(&json(
                r#"{"id":7,"name":"a \"b\"\n/c?","price":1.50,"big":123456789012345678901234.567,"x":null,
                   "tags":["p","q"]}"#,
            )),
        )
        .and("old", None)
        .and("rows", Some(&json(r#"[{"a":1},{"a":2}]"#)))
        .and("n", Some(&json("3")))
}

fn fill(place: TemplatePlace, text: &str) -> Result<String> {
    Template::new(text, place, &VALUES)?.fill(&values())
}

fn body(text: &str) -> String {
    fill(TemplatePlace::Body, text).unwrap()
}

#[test]
fn a_body_is_json_whatever_the_values_are() {
    assert_eq!(
        body(r#"{"id": {{ new.id }}, "name": {{ new.name }}}"#),
        r#"{"id": 7, "name": "a \"b\"\n/c?"}"#
    );
    assert_eq!(
        body(r#"{"text": "{{ new.id }}: {{ new.name }}, {{ new.x }}\"{{ n }}"}"#),
        r#"{"text": "7: a \"b\"\n/c?, \"3"}"#
    );
    // A blank at the same place, with the quotation mark chosen by a condition.
    assert_eq!(
        body(r#"{% if n > 2 %}"{% endif %}{{ new.name }}""#),
        r#""a \"b\"\n/c?""#
    );
    assert_eq!(
        body("[{% for r in rows %}{{ r.a }}{% if not loop.last %},{% endif %}{% endfor %}]"),
        "[1,2]"
    );
    assert_eq!(body("{{ old }}"), "null");
    assert_eq!(body("{{ new.tags | join('-') }}"), r#""p-q""#);
    assert_eq!(body("{{ [n, new.tags, none] }}"), r#"[3,["p","q"],null]"#);
    assert_eq!(body("{{ new.missing | default('x') | upper }}"), r#""X""#);
    assert_eq!(body(r#""{{ new.tags | tojson }}""#), r#""[\"p\",\"q\"]""#);
}

#[test]
fn numbers_keep_their_digits() {
    assert_eq!(body("{{ new.big }}"), "123456789012345678901234.567");
    assert_eq!(body("{{ new.price }}"), "1.5");
    assert_eq!(body("{% if new.price > 1.4 %}1{% endif %}"), "1");
    assert!(body("{{ new }}").contains("\"price\":1.50,"));
}

#[test]
fn values_cannot_leave_their_place() {
    let url = |text| fill(TemplatePlace::Url, text);
    assert_eq!(
        url("https://a.example/{{ new.name }}?p={{ new.id }}").unwrap(),
        "https://a.example/a%20%22b%22%0A%2Fc%3F?p=7"
    );
    assert!(url("https://a.example/{{ '..' }}").is_err());
    let header = |text| fill(TemplatePlace::Header, text);
    assert_eq!(header("order {{ new.id }}").unwrap(), "order 7");
    let error = header("{{ new.name }}").unwrap_err().to_string();
    assert!(error.contains("control characters"), "{error}");
}

#[test]
fn mistakes_are_found_when_a_template_is_made() {
    for (text, sentence) in [
        ("{{ new.id", "unexpected end"),
        ("{{ newer.id }}", "no value 'newer'"),
        ("{{ new.id | shout }}", "filter"),
        ("{% include 'x' %}", "statement 'include'"),
        ("{% set x = 1 %}", "statement 'set'"),
        ("{%- macro x() %}{% endmacro %}", "statement 'macro'"),
        ("{{ new ~ new }}", "operator '~'"),
        ("{{ '}}' ~ n }}", "operator '~'"),
        ("{{ new.name * 1000 }}", "operator '*'"),
        (&"x".repeat(LONGEST + 1), "more than 16384 bytes"),
    ] {
        let error = Template::new(text, TemplatePlace::Body, &VALUES);
        match error {
            Err(error) => {
                assert!(error.to_string().contains(sentence), "{text}: {error}");
            }
            // The engine looks for filters when it needs them.
            Ok(template) => {
                let error = template.fill(&values()).unwrap_err().to_string();
                assert!(error.contains(sentence), "{text}: {error}");
            }
        }
    }
    assert!(Template::new("{{ 'a ~ b * c' }}", TemplatePlace::Body, &VALUES).is_ok());
}

#[test]
fn what_is_missing_or_too_much_is_an_error() {
    let error = |text: &str| fill(TemplatePlace::Body, text).unwrap_err().to_string();
    assert!(error("{{ new.missing }}").contains("a value is missing"));
    assert!(error("{{ old.id }}").contains("a value is missing"));
    let loops = "{% for a in rows %}{% for b in rows %}".repeat(10);
    let ends = "{% endfor %}".repeat(20);
    assert!(error(&format!("{loops}{ends}")).contains("steps"));
    let many = format!("{loops}{}{ends}", "x".repeat(10_000));
    assert!(error(&many).contains("more than 1048576 bytes"));
    let nested = format!("{{{{ new.name {} }}}}", "| tojson ".repeat(30));
    assert!(error(&nested).contains("1048576"), "{}", error(&nested));
}

#[test]
fn blanks_of_a_url_are_put_back() {
    let url = "https://a.example/{{ new.id }}/x?t={% if n %}1{% endif %}";
    let stand_in = Template::stand_in(url);
    assert!(!stand_in.contains(['{', ' ']), "{stand_in}");
    assert_eq!(Template::put_back(url, stand_in), url);
}
