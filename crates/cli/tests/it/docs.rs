//! What is written leads somewhere: every link of every page, and every page is in the book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages of a directory and, if `deep`, of those in it; their paths begin at the repository.
fn pages(directory: &str, deep: bool, found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(root().join(directory)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = Path::new(directory).join(&name);
        if entry.file_type().unwrap().is_dir() {
            if deep {
                pages(path.to_str().unwrap(), deep, found);
            }
        } else if name.ends_with(".md") {
            found.insert(path);
        }
    }
}

/// The text outside of fences.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

fn links(prose: &str) -> Vec<&str> {
    let targets = prose.split("](").skip(1);
    targets
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .collect()
}

/// The anchors of a page, as forges and mdBook make them of its headings.
fn anchors(prose: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for line in prose.lines() {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let slug: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter_map(|letter| match letter {
                ' ' => Some('-'),
                '-' | '_' => Some(letter),
                letter => letter.is_alphanumeric().then_some(letter),
            })
            .collect();
        let before = times.entry(slug.clone()).or_default();
        found.insert(match *before {
            0 => slug,
            again => format!("{slug}-{again}"),
        });
        *before += 1;
    }
    found
}

/// Without `.` and `..`, from the repository on. None if it leaves the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => normal.pop().then_some(())?,
            Component::Normal(name) => normal.push(name),
            _ => {}
        }
    }
    Some(normal)
}

#[test]
fn every_link_leads_somewhere() {
    let mut found = BTreeSet::new();
    pages(".", false, &mut found);
    pages("docs", true, &mut found);
    pages("examples", true, &mut found);
    pages("crates", false, &mut found);
    let found: BTreeSet<PathBuf> = found.iter().filter_map(|path| normal(path)).collect();
    let read = |page: &Path| prose(&std::fs::read_to_string(root().join(page)).unwrap());
    let mut broken = Vec::new();
    let mut followed = 0;
    for page in &found {
        let text = read(page);
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            followed += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => Some(page.clone()),
                path => normal(&page.parent().unwrap().join(path)),
            };
            let target = target.filter(|target| root().join(target).exists());
            let there = target.is_some_and(|target| {
                anchor.is_empty() || anchors(&read(&target)).contains(anchor)
            });
            if !there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(
        found.len() > 25 && followed > 100,
        "{followed} links of {found:?}"
    );
}

#[test]
fn every_page_is_in_the_book() {
    let mut found = BTreeSet::new();
    pages("docs", true, &mut found);
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let told: Vec<PathBuf> = links(&summary)
        .into_iter()
        .map(|page| Path::new("docs").join(page))
        .collect();
    let once: BTreeSet<PathBuf> = told.iter().cloned().collect();
    assert_eq!(told.len(), once.len(), "a page is there twice");
    assert!(found.remove(Path::new("docs/SUMMARY.md")));
    assert_eq!(once, found);
}

/// Commands name files of ours, too, where no link does.
#[test]
fn every_file_that_is_named_is_there() {
    let mut files = BTreeSet::from([PathBuf::from("deploy/release.workflow.yaml")]);
    pages(".", false, &mut files);
    pages("docs", true, &mut files);
    pages("examples", true, &mut files);
    let mut named = BTreeSet::new();
    for file in &files {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let letters = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
        for word in text.split(|letter| !letters(letter)) {
            let word = word.trim_end_matches('.');
            let ours = ["deploy/", "examples/", "crates/", "docs/"];
            // `crates/*` and the like end with a slash here.
            if ours.iter().any(|folder| word.starts_with(folder)) && !word.ends_with('/') {
                let there = root().join(word).exists();
                assert!(there, "{}: there is no {word}", file.display());
                named.insert(word.to_owned());
            }
        }
    }
    assert!(named.contains("deploy/release/make.py"), "{named:?}");
}
