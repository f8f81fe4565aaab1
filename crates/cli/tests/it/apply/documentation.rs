//! docs/configuration.md says what really happens: its file is written, its commands are run, and what
//! they print is what is printed there.

use std::path::Path;
use std::process::Command;

use crate::apply::on_every_database;

/// The blocks between fences, with their languages.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (None, Some((language, block))) => open = Some((language, format!("{block}{line}\n"))),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

#[test]
fn the_guide_tells_the_truth() {
    let program = Path::new(env!("CARGO_BIN_EXE_changefeed"));
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    on_every_database(async |stage| {
        let mut ran = 0;
        for (language, block) in blocks(&guide) {
            if language == "toml" {
                std::fs::write(stage.dir.path().join("changefeed.toml"), block).unwrap();
                continue;
            }
            assert_eq!(language, "console");
            for step in block.split("$ ").skip(1) {
                let (command, expected) = step.split_once('\n').unwrap();
                let output = Command::new("sh")
                    .args(["-c", &format!("{command} 2>&1")])
                    .current_dir(stage.dir.path())
                    .env("PATH", &path)
                    .env("SHOP_DB", stage.backend.url())
                    .env_remove("CHANGEFEED_DB")
                    .env_remove("CHANGEFEED_CONFIG")
                    .output()
                    .unwrap();
                let said = String::from_utf8(output.stdout).unwrap();
                // Servers name tables with their schema, and every database is another.
                let mut said = said
                    .replace("public.orders", "orders")
                    .replace("dbo.orders", "orders");
                if said.starts_with("database ") {
                    let (_, plan) = said.split_once('\n').unwrap();
                    said = format!("database postgres://db.example:5432/shop\n{plan}");
                }
                assert_eq!(said, expected, "{command}");
                ran += 1;
            }
        }
        assert_eq!(ran, 5);
    });
}
