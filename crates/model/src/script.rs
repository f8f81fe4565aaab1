//! The shipped SQL as lines, and edits of them.

/// One line of a script, as the parser of the tests tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The step of the model that executes it, or an empty name.
    pub step: &'static str,
    /// What the shipped SQL says.
    pub text: String,
    /// Why the model does without it.
    pub beside: &'static str,
}

/// A line that a step of the model executes.
pub fn step(step: &'static str, text: &str) -> Line {
    Line {
        step,
        text: text.to_owned(),
        beside: "",
    }
}

/// A line that decides what a neighbour does, and is read with it.
pub fn with(text: &str) -> Line {
    step("", text)
}

/// A line that the model leaves out, and why.
pub fn beside(text: &str, why: &'static str) -> Line {
    Line {
        beside: why,
        ..step("", text)
    }
}

/// A procedure or a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Its name in the shipped SQL.
    pub of: &'static str,
    /// All that it does to the database, in order.
    pub lines: Vec<Line>,
}

impl Script {
    /// The script of a procedure or of a file.
    pub fn new(of: &'static str, lines: impl Into<Vec<Line>>) -> Self {
        Script {
            of,
            lines: lines.into(),
        }
    }

    /// The steps, in order.
    pub fn steps(&self) -> Vec<Line> {
        self.lines
            .iter()
            .filter(|line| !line.step.is_empty())
            .cloned()
            .collect()
    }

    /// Whether a line that says this is there.
    pub fn says(&self, text: &str) -> bool {
        self.lines.iter().any(|line| line.text.contains(text))
    }

    /// Replaces words of a step; it is a mistake of the mutation if they are not there.
    pub fn edit(&mut self, step: &str, from: &str, to: &str) {
        let line = self.find(step);
        let text = &mut self.lines[line].text;
        assert!(text.contains(from), "'{from}' is not in: {text}");
        *text = text.replace(from, to);
    }

    /// Takes a step out.
    pub fn drop(&mut self, step: &str) {
        let line = self.find(step);
        self.lines.remove(line);
    }

    /// Takes out the line that says this.
    pub fn drop_line(&mut self, text: &str) {
        let before = self.lines.len();
        self.lines.retain(|line| line.text.trim() != text);
        assert!(self.lines.len() < before, "'{text}' is not a line");
    }

    /// Moves a step to before another.
    pub fn move_before(&mut self, step: &str, other: &str) {
        let line = self.find(step);
        let line = self.lines.remove(line);
        let place = self.find(other);
        self.lines.insert(place, line);
    }

    fn find(&self, step: &str) -> usize {
        let place = self.lines.iter().position(|line| line.step == step);
        assert!(place.is_some(), "{} has no step '{step}'", self.of);
        place.unwrap_or_default()
    }
}

/// What a model executes: the steps of a script and what matters of their texts.
#[derive(Debug, Clone)]
pub struct Program {
    steps: Vec<Line>,
    conditions: String,
}

impl Program {
    /// The steps of a script.
    pub fn of(script: &Script) -> Self {
        let all: Vec<&str> = script.lines.iter().map(|l| l.text.trim()).collect();
        Program {
            steps: script.steps(),
            conditions: all.join("\n"),
        }
    }

    /// The step at a place, if the program is not over.
    pub fn at(&self, place: u8) -> Option<&Line> {
        self.steps.get(usize::from(place))
    }

    /// The place of a step, or the end where there is none.
    pub fn place(&self, step: &str) -> u8 {
        let place = self.steps.iter().position(|line| line.step == step);
        u8::try_from(place.unwrap_or(self.steps.len())).unwrap_or(u8::MAX)
    }

    /// Whether a line of the script is exactly this, without its indentation.
    pub fn has(&self, line: &str) -> bool {
        self.conditions.lines().any(|said| said == line)
    }
}

impl Line {
    /// Whether the step's statement says this.
    pub fn says(&self, text: &str) -> bool {
        self.text.contains(text)
    }

    /// Whether a table has a hint: `shard(forceseek,updlock)`.
    pub fn hint(&self, table: &str, hint: &str) -> bool {
        let head = format!("{table}(");
        self.text.match_indices(&head).any(|(at, _)| {
            let hints = self.text[at + head.len()..].split(')').next();
            let starts =
                at == 0 || !self.text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            starts && hints.is_some_and(|h| h.split(',').any(|each| each == hint))
        })
    }
}
