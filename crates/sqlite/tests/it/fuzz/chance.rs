//! What chance makes: schemas and statements.

/// A small generator of numbers, so that a seed is the same case for ever.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

const RESOLVE: [&str; 9] = [
    "",
    "",
    "on conflict replace",
    "on conflict replace",
    "on conflict ignore",
    "on conflict abort",
    "on conflict fail",
    "on conflict rollback",
    "",
];
const ACTION: [&str; 5] = [
    "no action",
    "restrict",
    "set null",
    "set default",
    "cascade",
];
const OR: [&str; 9] = [
    "",
    "",
    "or replace",
    "or replace",
    "or replace",
    "or ignore",
    "or abort",
    "or fail",
    "or rollback",
];

/// A table `t`, its indexes, and triggers of the application.
pub(crate) struct Schema {
    pub(crate) tables: Vec<String>,
    pub(crate) triggers: Vec<String>,
    pub(crate) recursive: &'static str,
    pub(crate) foreign_keys: &'static str,
    pub(crate) key: Vec<&'static str>,
    /// Whether the key takes no notice of case.
    pub(crate) nocase: bool,
    pub(crate) columns: Vec<&'static str>,
    text_id: bool,
}

impl Schema {
    pub(crate) fn by(c: &mut Chance) -> Schema {
        let without_rowid = c.one_in(3);
        let kind = c.below(6);
        let (id, text_id, nocase) = match kind {
            0 | 1 => ("integer", false, false),
            2 => ("int not null", false, false),
            3 => ("text not null", true, false),
            4 => ("text collate nocase not null", true, true),
            _ => ("not null", false, false),
        };
        let composite = kind > 1 && c.one_in(3);
        let mut parts = Vec::new();
        let inline = !composite;
        parts.push(format!(
            "id {id} {}",
            if inline {
                format!("primary key {}", c.of(&RESOLVE))
            } else {
                String::new()
            }
        ));
        let default = [
            "",
            "not null default 2",
            "not null on conflict replace default 1",
        ];
        parts.push(format!(
            "a integer {} {}",
            if composite {
                "not null default 1"
            } else {
                c.of(&default)
            },
            if c.one_in(4) {
                format!("unique {}", c.of(&RESOLVE))
            } else {
                String::new()
            }
        ));
        parts.push(format!(
            "b text {} {} {}",
            c.of(&["", "collate nocase"]),
            c.of(&["", "", "not null default 'x'", "default 'y'"]),
            if c.one_in(3) {
                format!("unique {}", c.of(&RESOLVE))
            } else {
                String::new()
            }
        ));
        parts.push(format!(
            "c {}",
            c.of(&[
                "",
                "integer",
                "default 1",
                "int not null on conflict replace default 0"
            ])
        ));
        let target = match c.below(4) {
            0 | 1 if !composite => Some("id"),
            2 => Some("b"),
            3 => Some("c"),
            _ => None,
        };
        let mut columns = vec!["id", "a", "b", "c"];
        if let Some(target) = target.filter(|_| !c.one_in(3)) {
            columns.push("p");
            // A row that refers to itself is changed by its own action before SQLite tells of the
            // change that caused it.
            parts.push(format!(
                "p {} {} check (p is not {target}) references t({target}) on delete {} on update {} {}",
                c.of(&["", "default 1", "default 'x'"]),
                if c.one_in(5) {
                    format!("unique {}", c.of(&RESOLVE))
                } else {
                    String::new()
                },
                c.of(&ACTION),
                c.of(&ACTION),
                c.of(&["", "", "deferrable initially deferred"])
            ));
        }
        if c.one_in(4) {
            columns.push("g");
            parts.push(format!(
                "g as ({}) {} {}",
                c.of(&["lower(b)", "a + c", "coalesce(b, c)"]),
                c.of(&["virtual", "stored"]),
                if c.one_in(2) {
                    format!("unique {}", c.of(&RESOLVE))
                } else {
                    String::new()
                }
            ));
        }
        if composite {
            parts.push(format!("primary key (id, a) {}", c.of(&RESOLVE)));
        }
        if c.one_in(3) {
            parts.push(format!("unique (a, c) {}", c.of(&RESOLVE)));
        }
        let mut tables = vec![format!(
            "create table t ({}) {}",
            parts.join(", "),
            if without_rowid { "without rowid" } else { "" }
        )];
        tables.push("create table u (x)".to_owned());
        if target == Some("c") {
            tables.push("create unique index by_c on t (c)".to_owned());
        }
        if target == Some("b") && c.one_in(2) {
            tables.push("create unique index by_b on t (b)".to_owned());
        }
        for n in 0..c.below(3) {
            let over = c.of(&[
                "(c) where a > 1",
                "(b collate nocase)",
                "(b collate rtrim) where c is not null",
                "(a + c)",
                "(lower(b))",
                "(coalesce(c, 0), a)",
                "(a, b) where b <> 'z'",
                "(lower(b) || c) where b is not null",
                "(a desc, lower(b) collate nocase desc)",
            ]);
            tables.push(format!("create unique index i{n} on t {over}"));
        }
        let mut schema = Schema {
            tables,
            triggers: Vec::new(),
            recursive: c.of(&["off", "off", "on"]),
            foreign_keys: c.of(&["on", "on", "off"]),
            key: if composite {
                vec!["id", "a"]
            } else {
                vec!["id"]
            },
            nocase,
            columns,
            text_id,
        };
        // SQLite does not say what comes of a row that is changed by a trigger before its own update or
        // delete. With nothing else around it, such a trigger can keep away from it.
        let count = c.below(4);
        let alone = count == 1 && schema.recursive == "off" && !schema.columns.contains(&"p");
        for n in 0..count {
            let trigger = schema.trigger(c, n, alone);
            schema.triggers.push(trigger);
        }
        schema
    }

    fn trigger(&self, c: &mut Chance, n: usize, alone: bool) -> String {
        let event = c.of(&["insert", "insert", "update", "delete"]);
        let time = c.of(&["before", "after"]);
        let row = if event == "delete" { "old" } else { "new" };
        let away = match (time, event) {
            ("before", "update" | "delete") => "id <> old.id",
            _ => "1",
        };
        let when = match c.below(3) {
            0 => format!("when {row}.c = {}", c.below(4)),
            1 => format!("when {row}.a > {}", c.below(3)),
            _ => String::new(),
        };
        let harmless = !alone && time == "before" && event != "insert";
        let body: Vec<String> = (0..=c.below(2))
            .map(|_| {
                if harmless {
                    return format!("insert into u values ({row}.id)");
                }
                let or = c.of(&["", "or ignore", "or replace"]);
                match c.below(8) {
                    0 => format!("update {or} t set c = coalesce(c, 0) + 1 where a = {row}.a and c < 3 and {away}"),
                    1 => format!("update {or} t set a = {row}.a where b = {row}.b and {away}"),
                    2 => format!("update {or} t set b = {row}.b where c = {row}.c and {away}"),
                    3 if time == "after" || event == "insert" => {
                        format!("delete from t where c = {row}.c and id <> {row}.id")
                    }
                    4 => format!("insert {or} into t (id, a, b, c) select {}, {row}.a, {row}.b, {} where {row}.c < 2",
                        self.id(c), c.below(4)),
                    5 => format!(
                        "insert into t (id, a, b, c) values ({}, {}, {}, 1) on conflict do nothing",
                        self.id(c),
                        number(c),
                        text(c)
                    ),
                    6 => format!("update {or} t set id = {} where id = {} and {away}", self.id(c), self.id(c)),
                    _ => format!("insert into u values ({row}.id)"),
                }
            })
            .collect();
        format!(
            "create trigger app{n} {time} {event} on t {when} begin {}; end",
            body.join("; ")
        )
    }

    fn id(&self, c: &mut Chance) -> String {
        if self.text_id {
            c.of(&["'k'", "'K'", "'l'", "'m'", "'M'"]).to_owned()
        } else {
            (1 + c.below(5)).to_string()
        }
    }

    pub(crate) fn statement(&self, c: &mut Chance) -> String {
        let or = c.of(&OR);
        match c.below(20) {
            0..=7 => {
                let rows: Vec<String> = (0..=c.below(3)).map(|_| self.row(c)).collect();
                let tail = match c.below(10) {
                    0 => "on conflict do nothing".to_owned(),
                    1 if self.key.len() == 1 => {
                        format!(
                            "on conflict (id) do update set {} where a > {}",
                            self.set(c),
                            c.below(3)
                        )
                    }
                    2 if self.key.len() == 1 => {
                        format!("on conflict (id) do update set {}", self.set(c))
                    }
                    3 => format!("on conflict do update set {}", self.set(c)),
                    _ => String::new(),
                };
                let or = if tail.is_empty() { or } else { "" };
                let p = if self.columns.contains(&"p") {
                    ", p"
                } else {
                    ""
                };
                format!(
                    "insert {or} into t (id, a, b, c{p}) values {} {tail}",
                    rows.join(", ")
                )
            }
            8 => format!(
                "insert {or} into t (a, b, c) values ({}, {}, {})",
                number(c),
                text(c),
                number(c)
            ),
            9 => format!("insert {or} into t (id, a, b, c) select id + 1, a, b, c + 1 from t"),
            10..=13 => format!(
                "update {or} t set {} where {}",
                self.set(c),
                self.condition(c)
            ),
            14 => format!("update {or} t set {}, {}", self.set(c), "c = c + 1"),
            15 => format!("delete from t where {}", self.condition(c)),
            16 => c.of(&["begin", "savepoint s", "savepoint s"]).to_owned(),
            17 => c
                .of(&["rollback to s", "rollback", "release s", "commit", "commit"])
                .to_owned(),
            18 => format!(
                "replace into t (id, b) values ({}, {})",
                self.id(c),
                text(c)
            ),
            _ => format!(
                "update {or} t set id = {} where {}",
                self.id(c),
                self.condition(c)
            ),
        }
    }

    fn row(&self, c: &mut Chance) -> String {
        let id = if c.one_in(12) {
            "null".to_owned()
        } else {
            self.id(c)
        };
        let mut values = vec![id, number(c), text(c), number(c)];
        if self.columns.contains(&"p") {
            let parent = if c.one_in(2) {
                self.id(c)
            } else {
                c.of(&["null", "1", "'x'", "2"]).to_owned()
            };
            values.push(parent);
        }
        format!("({})", values.join(", "))
    }

    fn set(&self, c: &mut Chance) -> String {
        match c.below(7) {
            0 => format!("a = {}", number(c)),
            1 => format!("b = {}", text(c)),
            2 => format!("c = {}", number(c)),
            3 => "c = coalesce(c, 0) + 1".to_owned(),
            4 => format!("a = {}, b = {}", number(c), text(c)),
            5 if self.columns.contains(&"p") => format!("p = {}", self.id(c)),
            _ => format!("b = {}, c = {}", text(c), number(c)),
        }
    }

    fn condition(&self, c: &mut Chance) -> String {
        match c.below(4) {
            0 => format!("id = {}", self.id(c)),
            1 => format!("a >= {}", c.below(4)),
            2 => format!("b = {}", text(c)),
            _ => format!("c <> {}", c.below(4)),
        }
    }
}

fn number(c: &mut Chance) -> String {
    match c.below(7) {
        0 => "null".to_owned(),
        n => (n % 4).to_string(),
    }
}

fn text(c: &mut Chance) -> String {
    c.of(&["'x'", "'X'", "'y'", "'Y'", "'z'", "'x '", "null"])
        .to_owned()
}
