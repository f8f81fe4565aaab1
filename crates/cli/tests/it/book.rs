//! The book: mdBook makes a site of it, whose links lead somewhere, and whose page of commands is what the program says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The values of an attribute.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    html.split(&format!(" {attribute}=\""))
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect()
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn the_site_is_built_without_warnings_and_its_links_lead_somewhere() {
    let Some(mdbook) = std::env::var_os("CHANGEFEED_TEST_MDBOOK").filter(|path| path != "none")
    else {
        return;
    };
    let site = tempfile::tempdir().unwrap();
    let built = Command::new(mdbook)
        .env("CHANGEFEED_PROGRAM", env!("CARGO_BIN_EXE_changefeed"))
        .args(["build", "--dest-dir"])
        .arg(site.path())
        .arg(root())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(built.status.success(), "{said}");
    assert!(!said.contains("WARN") && !said.contains("ERROR"), "{said}");
    let mut all = Vec::new();
    files(site.path(), &mut all);
    let pages: BTreeMap<PathBuf, String> = all
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "html"))
        .map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
        .collect();
    assert!(pages.len() > 20);
    let commands = &pages[&site.path().join("cli.html")];
    for said in [
        "changefeed subscription create",
        "--on-refusal",
        "changefeed completions",
    ] {
        assert!(commands.contains(said), "the page of commands lacks {said}");
    }
    let anchors: BTreeMap<&PathBuf, BTreeSet<&str>> = pages
        .iter()
        .map(|(path, html)| (path, values(html, "id").into_iter().collect()))
        .collect();
    let mut broken = Vec::new();
    for (page, html) in &pages {
        // The one that is printed holds all the others, and its anchors are theirs.
        if page.ends_with("print.html") || page.ends_with("404.html") {
            continue;
        }
        for link in values(html, "href").into_iter().chain(values(html, "src")) {
            if link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            let Ok(target) = target.canonicalize() else {
                broken.push(format!("{}: {link}", page.display()));
                continue;
            };
            let known = anchors
                .iter()
                .find(|(path, _)| path.canonicalize().unwrap() == target);
            if let Some((_, known)) = known
                && !anchor.is_empty()
                && !known.contains(anchor)
            {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new());
}
