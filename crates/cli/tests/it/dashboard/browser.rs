//! A real browser, driven through WebDriver. The protocol is JSON over HTTP, and what we need of it is
//! little; the crates that speak it carry a licence that `deny.toml` does not allow.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use changefeed_testkit::process::Running;
use serde_json::{Value, json};

/// How long anything may take to appear before the test has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// The key of WebDriver that holds an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Browsers are heavy; two at once make each other slow.
static ONE: Mutex<()> = Mutex::new(());

pub(crate) struct Browser {
    at: SocketAddr,
    session: String,
    _driver: Running,
    /// Kept open: nobody likes to write to a closed pipe.
    _output: BufReader<ChildStdout>,
    _profile: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Browser {
    pub(crate) fn start() -> Browser {
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let program = std::env::var("CHANGEFEED_TEST_CHROMEDRIVER");
        let program = program.unwrap_or_else(|_| "chromedriver".to_owned());
        let found = Command::new(&program).arg("--version").output();
        assert!(
            found.is_ok(),
            "{program} does not run: install chromium and chromium-driver, or use ./test"
        );
        let mut driver = Running::start(
            Command::new(&program)
                .arg("--port=0")
                .stdout(Stdio::piped())
                .stderr(Stdio::null()),
        );
        let mut output = BufReader::new(driver.child().stdout.take().unwrap());
        let port = output
            .by_ref()
            .lines()
            .map_while(Result::ok)
            .find_map(|line| {
                let (_, port) = line.split_once("successfully on port ")?;
                port.trim_end_matches('.').parse::<u16>().ok()
            })
            .expect("chromedriver says on which port it listens");
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        let profile = tempfile::tempdir().unwrap();
        let args = json!([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            format!("--user-data-dir={}", profile.path().display()),
        ]);
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": args},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let made = call(at, "POST", "/session", Some(&wanted)).unwrap();
        let session = made["sessionId"].as_str().unwrap().to_owned();
        let browser = Browser {
            at,
            session,
            _driver: driver,
            _output: output,
            _profile: profile,
            _alone: alone,
        };
        browser.resize(1360, 900);
        browser
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let path = format!("/session/{}{path}", self.session);
        call(self.at, method, &path, Some(body))
    }

    fn must(&self, path: &str, body: &Value) -> Value {
        self.command("POST", path, body)
            .unwrap_or_else(|e| panic!("{path} {body}: {e}"))
    }

    /// A command of the browser's own protocol, for what WebDriver does not know.
    fn devtools(&self, command: &str, parameters: &Value) {
        self.must(
            "/goog/cdp/execute",
            &json!({"cmd": command, "params": parameters}),
        );
    }

    pub(crate) fn open(&self, url: &str) {
        // A page that differs only behind # would not be loaded again.
        self.must("/url", &json!({"url": "about:blank"}));
        self.must("/url", &json!({"url": url}));
    }

    pub(crate) fn resize(&self, width: u32, height: u32) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// What the system says about light and dark.
    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// What a script returns; a promise is waited for.
    pub(crate) fn eval(&self, script: &str) -> Value {
        self.must("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true, and returns it.
    pub(crate) fn until(&self, what: &str, expression: &str) -> Value {
        let began = Instant::now();
        let script = format!("return ({expression});");
        loop {
            let value = self.eval(&script);
            let truthy = !matches!(&value, Value::Null | Value::Bool(false))
                && value != json!(0)
                && value != json!("");
            if truthy {
                return value;
            }
            if began.elapsed() > PATIENCE {
                self.screenshot("failed");
                let seen = self.eval("return document.body.innerText;");
                panic!("{what}: not within {PATIENCE:?}; there is {seen}");
            }
            std::thread::sleep(Duration::from_millis(60));
        }
    }

    /// Waits until the text of an element contains something.
    pub(crate) fn until_text(&self, selector: &str, text: &str) {
        let expression = format!(
            "[...document.querySelectorAll({})].some(e => e.textContent.includes({}))",
            json!(selector),
            json!(text)
        );
        self.until(&format!("'{text}' in {selector}"), &expression);
    }

    fn element(&self, xpath: &str) -> Option<String> {
        let asked = json!({"using": "xpath", "value": xpath});
        let found = self.command("POST", "/element", &asked).ok()?;
        found[ELEMENT].as_str().map(str::to_owned)
    }

    /// Clicks what a person would click; a refresh may take the element away meanwhile, so it is looked
    /// for again.
    pub(crate) fn click(&self, xpath: &str) {
        self.with(xpath, "/click", &json!({}));
    }

    pub(crate) fn write(&self, xpath: &str, text: &str) {
        self.with(xpath, "/clear", &json!({}));
        self.with(xpath, "/value", &json!({"text": text}));
    }

    fn with(&self, xpath: &str, what: &str, body: &Value) {
        let began = Instant::now();
        loop {
            let tried = match self.element(xpath) {
                Some(id) => self.command("POST", &format!("/element/{id}{what}"), body),
                None => Err("it is not there".to_owned()),
            };
            match tried {
                Ok(_) => return,
                Err(error) if began.elapsed() > PATIENCE => {
                    self.screenshot("failed");
                    panic!("{what} {xpath}: {error}");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(60)),
            }
        }
    }

    /// Presses a key, as a keyboard does.
    pub(crate) fn press(&self, key: char) {
        let actions = json!({"actions": [{"type": "key", "id": "keyboard", "actions": [
            {"type": "keyDown", "value": key.to_string()},
            {"type": "keyUp", "value": key.to_string()},
        ]}]});
        self.must("/actions", &actions);
    }

    /// Keeps what is to be seen now, all of the page, under `target`.
    pub(crate) fn screenshot(&self, name: &str) -> PathBuf {
        let size =
            self.eval("return [innerWidth, innerHeight, document.documentElement.scrollHeight];");
        let number = |i: usize| u32::try_from(size[i].as_u64().unwrap_or(900)).unwrap_or(900);
        let (width, height, whole) = (number(0), number(1), number(2));
        self.resize(width, whole.clamp(height, 6000));
        let picture = self
            .command("GET", "/screenshot", &Value::Null)
            .unwrap_or_default();
        self.resize(width, height);
        let bytes = base64::prelude::BASE64_STANDARD
            .decode(picture.as_str().unwrap_or_default())
            .unwrap();
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("dashboard");
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("{name}.png"));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// What the browser has complained about: errors of scripts, refused content, failed requests.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let entries = self.must("/se/log", &json!({"type": "browser"}));
        entries
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["level"] == "SEVERE")
            .map(|entry| entry["message"].to_string())
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Killed without this, chromedriver would leave its browser behind.
        let _ = self.command("DELETE", "", &Value::Null);
    }
}

/// One request to chromedriver.
fn call(at: SocketAddr, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
    let body = match body {
        Some(body) if !body.is_null() => body.to_string(),
        _ => String::new(),
    };
    let mut stream = TcpStream::connect(at).map_err(|e| e.to_string())?;
    stream
        .set_read_timeout(Some(PATIENCE * 2))
        .map_err(|e| e.to_string())?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {at}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream
        .write_all(head.as_bytes())
        .map_err(|e| e.to_string())?;
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).map_err(|e| e.to_string())?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut answer = vec![0; length];
    reader.read_exact(&mut answer).map_err(|e| e.to_string())?;
    let answer: Value = serde_json::from_slice(&answer).map_err(|e| e.to_string())?;
    let value = answer["value"].clone();
    match value["error"].as_str() {
        Some(error) => Err(format!("{error}: {}", value["message"])),
        None => Ok(value),
    }
}
