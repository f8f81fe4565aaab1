//! What is released can be installed, and runs where it was installed: crates, a wheel and a Debian package.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

#[test]
fn crates_can_be_published() {
    let said = run(python()
        .arg(repository("deploy/release/check_crates.py"))
        .env_remove("CARGO_TARGET_DIR"));
    assert!(said.contains("crates can be published"), "{said}");
}

#[test]
fn a_wheel_is_installed_and_runs() {
    let desk = tempfile::tempdir().unwrap();
    let wheel = run(python()
        .arg(repository("deploy/wheel/build.py"))
        .args([program(), desk.path()])
        .arg("--fast"));
    let wheel = wheel.trim();
    assert!(wheel.contains("-py3-none-manylinux_2_"), "{wheel}");
    let home = desk.path().join("home");
    run(python().args(["-m", "venv"]).arg(&home));
    let pip = home.join("bin/pip");
    run(Command::new(&pip)
        .args([
            "install",
            "--quiet",
            "--no-index",
            "--disable-pip-version-check",
        ])
        .arg(wheel));
    shows_the_demo(&home.join("bin/changefeed"));
    // pip knows every file of it.
    run(Command::new(&pip).args(["uninstall", "--quiet", "--yes", "changefeed"]));
    assert!(!home.join("bin/changefeed").exists());
}

#[test]
fn a_debian_package_is_installed_and_runs() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        eprintln!("not run: there is no dpkg-deb");
        return;
    }
    let desk = tempfile::tempdir().unwrap();
    let package = run(python()
        .arg(repository("deploy/debian/build.py"))
        .args([program(), desk.path()])
        .arg("--fast"));
    let package = package.trim();
    let fields = run(Command::new("dpkg-deb").args(["--field", package, "Version", "Depends"]));
    let version = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(fields.contains(&version), "{fields}");
    assert!(fields.contains("libc6 (>= 2."), "{fields}");

    let root = desk.path().join("root");
    let dpkg = |words: &[&str]| {
        run(Command::new("dpkg")
            .arg("--root")
            .arg(&root)
            // Scripts run outside, because there is no shell inside; and there is no libc either.
            .args([
                "--force-script-chrootless",
                "--force-depends",
                "--log=/dev/null",
            ])
            .args(words))
    };
    let as_root = rustix::process::getuid().is_root();
    if as_root {
        a_machine_at(&root);
        dpkg(&["--install", package]);
        let users = std::fs::read_to_string(root.join("etc/passwd")).unwrap();
        assert!(users.contains("\nchangefeed:x:"), "{users}");
    } else {
        // Only root can make the user of the service.
        run(Command::new("dpkg-deb")
            .args(["--extract", package])
            .arg(&root));
    }
    let unit = std::fs::read_to_string(root.join("usr/lib/systemd/system/changefeed.service"));
    let unit = unit.unwrap();
    assert!(unit.contains("\nUser=changefeed\n"), "{unit}");
    assert!(
        unit.contains("\nExecStart=/usr/bin/changefeed serve"),
        "{unit}"
    );
    for file in [
        "usr/share/man/man1/changefeed.1.gz",
        "usr/share/man/man1/changefeed-feed-create.1.gz",
        "usr/share/bash-completion/completions/changefeed",
        "usr/share/zsh/vendor-completions/_changefeed",
        "usr/share/fish/vendor_completions.d/changefeed.fish",
        "usr/share/doc/changefeed/copyright",
    ] {
        assert!(root.join(file).metadata().unwrap().len() > 100, "{file}");
    }

    // The settings that come with it are enough to begin with.
    let installed = root.join("usr/bin/changefeed");
    let settled = |words: &[&str]| {
        run(Command::new(&installed)
            .arg("--config")
            .arg(root.join("etc/changefeed/changefeed.toml"))
            .args(words)
            .env_remove("CHANGEFEED_DB")
            .current_dir(desk.path()))
    };
    settled(&["migrate"]);
    settled(&["status"]);
    shows_the_demo(&installed);

    if as_root {
        dpkg(&["--purge", "changefeed"]);
        assert!(!installed.exists());
        assert!(!root.join("etc/changefeed").exists());
    }
}

#[test]
fn a_release_is_whole() {
    let desk = tempfile::tempdir().unwrap();
    let out = desk.path().join("out");
    let files = run(python()
        .arg(repository("deploy/release/make.py"))
        .args([program(), &out])
        .arg("--fast"));
    let version = env!("CARGO_PKG_VERSION");
    assert!(files.contains(".whl\n"), "{files}");
    run(Command::new("sha256sum")
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(&out));
    let sums = std::fs::read_to_string(out.join("SHA256SUMS")).unwrap();
    assert_eq!(sums.lines().count(), files.lines().count());

    let archive = files.lines().find(|file| file.ends_with(".tar.gz"));
    run(Command::new("tar")
        .args(["--extract", "--gzip", "--strip-components=1", "--file"])
        .arg(archive.unwrap())
        .current_dir(desk.path()));
    let said = run(Command::new(desk.path().join("changefeed")).arg("--version"));
    assert_eq!(said, format!("changefeed {version}\n"));
    assert!(desk.path().join("man/changefeed-serve.1").exists());

    // What it is made of is what cargo has locked, without what only tests need.
    let made_of = std::fs::read(out.join(format!("changefeed-{version}.cdx.json"))).unwrap();
    let made_of: serde_json::Value = serde_json::from_slice(&made_of).unwrap();
    let lock = include_str!("../../../../Cargo.lock");
    let mut names = Vec::new();
    for part in made_of["components"].as_array().unwrap() {
        let (name, version) = (part["name"].as_str().unwrap(), part["version"].as_str());
        let entry = format!("name = \"{name}\"\nversion = \"{}\"\n", version.unwrap());
        assert!(lock.contains(&entry), "{entry}");
        assert!(part["licenses"][0]["expression"].is_string(), "{part}");
        names.push(name);
    }
    assert!(
        names.len() > 100 && names.contains(&"rusqlite"),
        "{names:?}"
    );
    for test in ["changefeed-testkit", "proptest", "stateright", "insta"] {
        assert!(!names.contains(&test), "{test}");
    }
}

/// As much of a Debian machine as dpkg and useradd look at.
fn a_machine_at(root: &Path) {
    std::fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    std::fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    std::fs::create_dir_all(root.join("etc")).unwrap();
    for (file, text) in [
        ("var/lib/dpkg/status", ""),
        ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
        ("etc/group", "root:x:0:\n"),
        ("etc/shadow", ""),
        ("etc/gshadow", ""),
    ] {
        std::fs::write(root.join(file), text).unwrap();
    }
}

/// The demo of an installed program numbers changes and answers.
fn shows_the_demo(installed: &Path) {
    let elsewhere = tempfile::tempdir().unwrap();
    let mut demo = Demo(
        Command::new(installed)
            // It ends by itself if nothing is seen.
            .args([
                "serve",
                "--demo",
                "--duration",
                "60s",
                "--listen",
                "127.0.0.1:0",
            ])
            .env_remove("CHANGEFEED_DB")
            .env_remove("CHANGEFEED_CONFIG")
            .current_dir(elsewhere.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let (mut address, mut seen) = (None, String::new());
    for line in BufReader::new(demo.0.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((_, at)) = line.split_once("See all of it at http://") {
            address = Some(at.trim().to_owned());
        }
        seen.push_str(&line);
        seen.push('\n');
        if line.contains("2000000000000001") {
            let address = address.expect("the address comes first");
            let mut connection = TcpStream::connect(&address).unwrap();
            write!(
                connection,
                "GET /readyz HTTP/1.0\r\nHost: {address}\r\n\r\n"
            )
            .unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).unwrap();
            assert!(answer.contains(" 200 "), "{answer}");
            return;
        }
    }
    panic!("no change was numbered:\n{seen}");
}

struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        // SIGTERM, so that it removes its database.
        let process = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// The program of this build without what debuggers need: half of the bytes to copy.
fn program() -> &'static Path {
    static SMALL: OnceLock<PathBuf> = OnceLock::new();
    SMALL.get_or_init(|| {
        let small = Path::new(env!("CARGO_TARGET_TMPDIR")).join("changefeed");
        run(Command::new("strip")
            .arg("-o")
            .args([&small, Path::new(env!("CARGO_BIN_EXE_changefeed"))]));
        small
    })
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn python() -> Command {
    let python = std::env::var_os("CHANGEFEED_TEST_PYTHON");
    Command::new(python.unwrap_or_else(|| OsString::from("python3")))
}

/// What a command that must succeed prints.
fn run(command: &mut Command) -> String {
    let name = command.get_program().to_owned();
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", OsStr::display(&name)));
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}\n{printed}{said}");
    printed
}
