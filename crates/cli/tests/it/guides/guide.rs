//! A guide as a list of things to do.

use std::net::TcpListener;

pub(crate) struct Guide {
    pub(crate) steps: Vec<Step>,
}

pub(crate) enum Step {
    Save {
        name: String,
        text: String,
    },
    Type {
        terminal: usize,
        eventually: bool,
        commands: Vec<Command>,
    },
}

pub(crate) struct Command {
    pub(crate) typed: String,
    /// What is to be seen, line by line.
    pub(crate) shows: Vec<String>,
    /// Whether the reader ends it then.
    pub(crate) interrupted: bool,
}

impl Command {
    /// Whether the reader is told that it fails.
    pub(crate) fn fails(&self) -> bool {
        self.shows
            .first()
            .is_some_and(|line| line.starts_with("error:"))
    }
}

impl Guide {
    pub(crate) fn parse(text: &str) -> Guide {
        let mut steps = Vec::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(fence) = line.strip_prefix("```") else {
                continue;
            };
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let mut words = fence.split(' ');
            match (words.next(), words.next()) {
                (Some("console"), option) => steps.push(Step::Type {
                    terminal: option
                        .and_then(|word| word.strip_prefix("terminal="))
                        .map_or(1, |number| number.parse().unwrap()),
                    eventually: option == Some("eventually"),
                    commands: commands(&body),
                }),
                (Some(_), Some(name)) => steps.push(Step::Save {
                    name: name.to_owned(),
                    text: body.join("\n") + "\n",
                }),
                _ => {}
            }
        }
        assert!(!steps.is_empty(), "there is nothing to do in this guide");
        Guide { steps }
    }
}

fn commands(body: &[&str]) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    let mut unfinished = false;
    for line in body {
        if let Some(typed) = line.strip_prefix("$ ") {
            commands.push(Command {
                typed: typed.to_owned(),
                shows: Vec::new(),
                interrupted: false,
            });
            unfinished = typed.ends_with('\\');
            continue;
        }
        let command = commands.last_mut().expect("a command begins with '$ '");
        if unfinished {
            command.typed.push('\n');
            command.typed.push_str(line);
            unfinished = line.ends_with('\\');
        } else if *line == "^C" {
            command.interrupted = true;
        } else {
            command.shows.push((*line).to_owned());
        }
    }
    commands
}

/// A guide with the addresses of this machine in place of those of its readers.
pub(crate) fn at_home(text: &str, postgres: &str) -> String {
    let mut text = text.replace("postgres://app:secret@localhost/shop", postgres);
    // Kept open until all are found, so that no two are the same.
    let mut found: Vec<(String, TcpListener)> = Vec::new();
    for host in ["localhost:", "127.0.0.1:"] {
        for (at, _) in text.match_indices(host) {
            let port: String = text[at + host.len()..]
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            let known = postgres.contains(&format!(":{port}/"));
            if !port.is_empty() && !known && found.iter().all(|(other, _)| *other != port) {
                found.push((port, TcpListener::bind("127.0.0.1:0").unwrap()));
            }
        }
    }
    for (port, listener) in &found {
        let free = listener.local_addr().unwrap().port().to_string();
        text = text.replace(port, &free);
        if port == "8787" {
            // What a reader gets without asking is said here, because it is another port.
            text = text
                .lines()
                .map(|line| match line.strip_prefix("$ changefeed serve") {
                    Some(rest) if !rest.contains("--listen") => {
                        format!("$ changefeed serve --listen 127.0.0.1:{free}{rest}\n")
                    }
                    _ => format!("{line}\n"),
                })
                .collect();
        }
    }
    text
}

/// Whether what is seen is what is shown, where `…` stands for anything.
pub(crate) fn agrees(shown: &[String], seen: &str) -> bool {
    let seen: Vec<&str> = seen.lines().map(str::trim_end).collect();
    lines_agree(shown, &seen)
}

fn lines_agree(shown: &[String], seen: &[&str]) -> bool {
    match shown.split_first() {
        None => seen.is_empty(),
        Some((line, rest)) if line.trim() == "…" => {
            (0..=seen.len()).any(|skipped| lines_agree(rest, &seen[skipped..]))
        }
        Some((line, rest)) => seen
            .split_first()
            .is_some_and(|(first, more)| line_agrees(line, first) && lines_agree(rest, more)),
    }
}

fn line_agrees(shown: &str, seen: &str) -> bool {
    let mut pieces = shown.trim_end().split('…');
    let Some(mut rest) = pieces.next().and_then(|begin| seen.strip_prefix(begin)) else {
        return false;
    };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(end) = pieces.pop() else {
        return rest.is_empty();
    };
    for piece in pieces {
        match rest.split_once(piece) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::agrees;

    #[test]
    fn dots_stand_for_anything_and_nothing_else_does() {
        for (shown, seen, same) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a", "a\nb", false),
            ("a\n…", "a\nb\nc", true),
            ("…\nc", "a\nb\nc", true),
            ("…\nd", "a\nb\nc", false),
            ("id … paid", "id 17 paid", true),
            ("id … paid", "id 17 new", false),
            ("{\"id\":…,\"b\":…}", "{\"id\":1,\"b\":2}", true),
            ("x…", "", false),
        ] {
            let lines: Vec<String> = shown.lines().map(str::to_owned).collect();
            assert_eq!(agrees(&lines, seen), same, "{shown:?} {seen:?}");
        }
    }
}
