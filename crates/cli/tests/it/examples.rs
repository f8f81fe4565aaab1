//! What the examples promise, where typing what their pages say (`guides.rs`) does not reach.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(90);

/// Ends with the test, at once.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two copies of `exactly_once_sqlite3.py` keep balances, and are killed again and again while they do.
#[test]
fn copies_that_are_killed_count_each_change_once() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let desk = tempfile::tempdir().unwrap();
    let (shop, books) = (desk.path().join("shop.db"), desk.path().join("books.db"));
    sql(
        &shop,
        "create table payment (id integer primary key, customer integer, cents integer)",
    )
    .unwrap();
    changefeed(desk.path(), &["migrate"]);
    let feed = [
        "feed", "create", "payments", "--from", "payment", "--images",
    ];
    changefeed(desk.path(), &feed);
    let mut server = Running(
        program(desk.path())
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut said = String::new();
    let mut output = BufReader::new(server.0.stdout.take().unwrap());
    output.read_line(&mut said).unwrap();
    let address = said
        .strip_prefix("serving at ")
        .and_then(|rest| rest.split(';').next());
    let address = address.expect(&said).to_owned();

    let copy = || {
        let python = std::env::var_os("CHANGEFEED_TEST_PYTHON").unwrap_or("python3".into());
        let child = Command::new(python)
            .arg(example("exactly_once_sqlite3.py"))
            .args([&address, "payments", "0"])
            .arg(&books)
            .stdout(Stdio::null())
            .spawn();
        Running(child.unwrap())
    };
    let mut copies = [copy(), copy()];
    let cursor = || sql(&books, "select cursor from progress").unwrap_or_default();
    for round in 0..10 {
        let before = cursor();
        let mut writes = String::new();
        for row in 1..=20 {
            let (id, customer) = (round * 20 + row, random.u8(..5));
            let cents = random.u16(..1000);
            writes += &format!("insert into payment values ({id}, {customer}, {cents});");
            let (other, cents) = (random.u16(1..=id), random.u16(..1000));
            writes += &match random.u8(..6) {
                0 => format!("delete from payment where id = {other};"),
                1 | 2 => format!("update payment set cents = {cents} where id = {other};"),
                3 => format!("update payment set customer = {customer} where id = {other};"),
                _ => String::new(),
            };
        }
        sql(&shop, &writes).unwrap();
        // One of them is in the middle of it.
        wait(|| cursor() != before);
        copies[random.usize(..2)] = copy();
    }
    let balances = "select customer, sum(cents) from payment group by customer having sum(cents) <> 0 order by customer";
    let wanted = sql(&shop, balances).unwrap();
    let kept = "select customer, cents from balance where cents <> 0 order by customer";
    // Balances and cursor change together, so they are right when everything has been read.
    let last = sql(
        &shop,
        "select max(change_sequence_number) from changefeed_change",
    )
    .unwrap();
    wait(|| cursor() == last);
    assert_eq!(sql(&books, kept).unwrap(), wanted);
}

fn wait(reached: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < deadline, "it does not come to that");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn example(name: &str) -> PathBuf {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    examples.join(name)
}

fn program(desk: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
    command
        .current_dir(desk)
        .env("CHANGEFEED_DB", "sqlite:shop.db");
    command
}

fn changefeed(desk: &Path, words: &[&str]) {
    let output = program(desk).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "changefeed {words:?}: {said}");
}

/// What the database answers, or its error.
fn sql(file: &Path, statements: &str) -> Result<String, String> {
    let mut shell = Command::new("sqlite3");
    let output = shell
        .args(["-batch", "-cmd", ".timeout 30000"])
        .arg(file)
        .arg(statements);
    let output = output.output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
