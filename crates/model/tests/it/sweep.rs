//! The sweep keeps promises 1 to 5, and every mutation of it is found.
use crate::common::{holds, is_found, larger};
use changefeed_model::engine::Rules;
use changefeed_model::script::step;
use changefeed_model::sweep::Role::{Backfiller, Consumer, Reader, Reorganizer, Trimmer};
use changefeed_model::sweep::{Role, Scripts, Sweep};

const WRITER: Role = Role::Writer {
    shard: 0,
    early: false,
    savepoint: false,
};
const ELSEWHERE: Role = Role::Writer {
    shard: 1,
    early: false,
    savepoint: false,
};
const EARLY: Role = Role::Writer {
    shard: 0,
    early: true,
    savepoint: false,
};
const WITH_SAVEPOINT: Role = Role::Writer {
    shard: 0,
    early: false,
    savepoint: true,
};
const ONCE: Role = Role::Sweeper { shard: 0, times: 1 };
const TWICE: Role = Role::Sweeper { shard: 0, times: 2 };
const OTHER_SHARD: Role = Role::Sweeper { shard: 1, times: 1 };

/// A sweep asks whether snapshots are allowed.
const EVERY: [Rules; 4] = [
    Rules::VERSIONED,
    Rules::OPTIMIZED,
    Rules::LOCKING,
    Rules::SNAPSHOTS,
];

fn shipped(rules: Rules, roles: &[Role]) -> Sweep {
    Sweep::new(rules, roles, &Scripts::shipped())
}

#[test]
fn two_sweepers_beside_writers() {
    for rules in EVERY {
        let model = shipped(rules, &[WRITER, WRITER, ONCE, ONCE])
            .reaches("two numbers in one sweep", |_, s| s.numbers() == 2);
        holds(
            &format!("two sweepers, two writers, {rules:?}"),
            model.losses(1),
        );
        let third = if larger() { TWICE } else { ONCE };
        let model = shipped(rules, &[WRITER, WRITER, EARLY, third])
            .reaches("three numbers", |_, s| s.numbers() == 3 || !larger());
        holds(&format!("three writers, {rules:?}"), model);
        let model = shipped(rules, &[WITH_SAVEPOINT, WRITER, TWICE]).losses(1);
        holds(&format!("savepoints, {rules:?}"), model);
        let model = shipped(rules, &[WRITER, WRITER, TWICE]).batch(1);
        holds(
            &format!("more changes than a sweep takes, {rules:?}"),
            model,
        );
        let model = shipped(rules, &[WRITER, ELSEWHERE, ONCE, OTHER_SHARD]);
        holds(&format!("two shards, {rules:?}"), model);
        let model = shipped(rules, &[WRITER, WRITER, TWICE, Reorganizer]);
        holds(&format!("an index is reorganized, {rules:?}"), model);
        if larger() {
            // Without versions a scan is many steps, and there are many more states.
            let roles: &[Role] = match rules.versioned {
                true => &[WRITER, WRITER, WITH_SAVEPOINT, TWICE, TWICE],
                false => &[WRITER, WITH_SAVEPOINT, TWICE, TWICE],
            };
            holds(
                &format!("more writers, two sweepers, {rules:?}"),
                shipped(rules, roles),
            );
        }
    }
}

#[test]
fn readers_beside_sweeps_and_trims() {
    let reader = Reader {
        pages: 2,
        first: false,
    };
    for rules in EVERY {
        for backward in [false, true] {
            let mut scripts = Scripts::shipped();
            scripts.backward = backward;
            let model = Sweep::new(rules, &[WRITER, WRITER, TWICE, reader], &scripts)
                .reaches("a reader has both", |_, s| s.read_most() == 2);
            holds(&format!("a reader, {rules:?}"), model);
        }
        let model = shipped(rules, &[WRITER, TWICE, reader, Consumer, Trimmer])
            .reaches("something is trimmed", |_, s| s.is_trimmed())
            .reaches("a cursor expires", |_, s| s.has_expired());
        holds(&format!("a trim and a consumer, {rules:?}"), model);
    }
}

#[test]
fn a_backfill_beside_a_sweep() {
    let reader = Reader {
        pages: 2,
        first: true,
    };
    for rules in Rules::ALL {
        let model = shipped(rules, &[WRITER, ONCE, reader, Backfiller])
            .reaches("a reader has old and new", |_, s| s.read_most() == 3);
        holds(&format!("a backfill, {rules:?}"), model);
        let mut by_sql = Scripts::shipped();
        by_sql.page = changefeed_model::sweep::read();
        let model = Sweep::new(rules, &[WRITER, ONCE, reader, Backfiller], &by_sql);
        holds(&format!("a reader by SQL and a backfill, {rules:?}"), model);
        if larger() {
            let model = shipped(rules, &[WRITER, ONCE, Backfiller, Backfiller]);
            holds(&format!("two backfills, {rules:?}"), model);
        }
    }
    for rules in EVERY {
        let model = shipped(rules, &[WRITER, ONCE, Backfiller, Consumer, Trimmer]);
        holds(&format!("a backfill and a trim, {rules:?}"), model);
    }
}

/// What promise 3 does not cover, it really does not keep: ids that are drawn before the transaction begins.
#[test]
fn ids_drawn_early_are_outside_of_promise_3() {
    for rules in EVERY {
        let model = shipped(rules, &[WRITER, EARLY, ONCE])
            .reaches("early ids break the order", |m, s| {
                m.0.early_breaks_the_order(s)
            });
        holds(&format!("early ids, {rules:?}"), model);
    }
}

struct Mutation {
    name: &'static str,
    breaks: &'static str,
    rules: Rules,
    roles: &'static [Role],
    edit: fn(&mut Scripts),
}

/// The statement that read the shard's state before the update did.
const STATE: &str = "select @last = s.last_change_sequence_number from shard where s.feed_id = @feed_id and s.shard = @shard";

fn read_by_select(scripts: &mut Scripts, before: &str) {
    let output =
        " output inserted.last_change_sequence_number, inserted.last_sweep_time into @state";
    scripts.sweep.edit("lock", output, "");
    let place = scripts.sweep.lines.iter().position(|l| l.step == before);
    scripts
        .sweep
        .lines
        .insert(place.unwrap(), step("state", STATE));
}

fn forget_the_guards(scripts: &mut Scripts) {
    scripts.sweep.drop_line("if @@rowcount <> @change_count");
    scripts.sweep.drop_line("if @@rowcount <> 1");
    scripts
        .sweep
        .edit("end", " and s.last_change_sequence_number = @last", "");
}

const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "drop the UPDLOCK",
        breaks: "no sweep fails",
        rules: Rules::OPTIMIZED,
        roles: &[WRITER, ONCE, ONCE],
        edit: |s| s.sweep.edit("lock", "forceseek,updlock", "forceseek"),
    },
    Mutation {
        name: "drop the UPDLOCK and the guards",
        breaks: "2: numbers are unique and gapless",
        rules: Rules::OPTIMIZED,
        roles: &[WRITER, WRITER, ONCE, ONCE],
        edit: |s| {
            s.sweep.edit("lock", "forceseek,updlock", "forceseek");
            forget_the_guards(s);
        },
    },
    Mutation {
        name: "read the state before the lock",
        breaks: "no sweep fails",
        rules: Rules::VERSIONED,
        roles: &[WRITER, WRITER, ONCE, ONCE],
        edit: |s| read_by_select(s, "lock"),
    },
    Mutation {
        name: "read the state before the lock, and forget the guards",
        breaks: "2: numbers are unique and gapless",
        rules: Rules::VERSIONED,
        roles: &[WRITER, WRITER, ONCE, ONCE],
        edit: |s| {
            read_by_select(s, "lock");
            forget_the_guards(s);
        },
    },
    Mutation {
        name: "read the state by a scan after the lock",
        breaks: "no deadlock",
        rules: Rules::LOCKING,
        roles: &[WRITER, ELSEWHERE, ONCE, OTHER_SHARD],
        edit: |s| read_by_select(s, "collect"),
    },
    Mutation {
        name: "collect before the lock",
        breaks: "no sweep fails",
        rules: Rules::VERSIONED,
        roles: &[WRITER, ONCE, ONCE],
        edit: |s| s.sweep.move_before("collect", "lock"),
    },
    Mutation {
        name: "no transaction",
        breaks: "no sweep fails",
        rules: Rules::LOCKING,
        roles: &[WRITER, ONCE, ONCE],
        edit: |s| s.sweep.drop("begin"),
    },
    Mutation {
        name: "pass by locked rows although rows are versioned",
        breaks: "3: who committed first comes first",
        rules: Rules::VERSIONED,
        roles: &[WRITER, WRITER, ONCE],
        edit: |s| {
            s.sweep.edit(
                "collect",
                "from change",
                "from change(readcommittedlock,readpast)",
            )
        },
    },
    Mutation {
        name: "wait for locked rows although rows are versioned",
        breaks: "no sweep waits for a writer",
        rules: Rules::VERSIONED,
        roles: &[WRITER, WRITER, ONCE],
        edit: |s| {
            s.sweep
                .edit("collect", "from change", "from change(readcommittedlock)")
        },
    },
    Mutation {
        name: "forget the bound",
        breaks: "3: who committed first comes first",
        rules: Rules::LOCKING,
        roles: &[WRITER, WRITER, ONCE],
        edit: |s| {
            s.sweep
                .edit("collect by locks", " and c.change_id < @bound", "")
        },
    },
    Mutation {
        name: "draw the bound after collecting",
        breaks: "3: who committed first comes first",
        rules: Rules::LOCKING,
        roles: &[WRITER, WRITER, ONCE],
        edit: |s| {
            s.sweep.move_before("bound", "number");
            s.sweep
                .edit("collect by locks", " and c.change_id < @bound", "");
        },
    },
    Mutation {
        name: "collect without the snapshot",
        breaks: "no sweep waits for a writer",
        rules: Rules::SNAPSHOTS,
        roles: &[WRITER, WRITER, ONCE],
        edit: |s| {
            s.sweep
                .drop_line("set transaction isolation level snapshot")
        },
    },
    Mutation {
        name: "do not ask whether somebody has swept since the snapshot",
        breaks: "no sweep fails",
        rules: Rules::SNAPSHOTS,
        roles: &[WRITER, ONCE, ONCE],
        edit: |s| s.sweep.edit("compare", " or @last = @seen", ""),
    },
    Mutation {
        name: "the same, and forget the guards",
        breaks: "3: who committed first comes first",
        rules: Rules::SNAPSHOTS,
        roles: &[WRITER, WRITER, ONCE, ONCE],
        edit: |s| {
            s.sweep.edit("compare", " or @last = @seen", "");
            s.sweep.drop_line("if @@rowcount <> @change_count");
            s.sweep
                .edit("number", " and c.change_sequence_number is null", "");
        },
    },
    Mutation {
        name: "read the end of the shard after the snapshot",
        breaks: "no sweep fails",
        rules: Rules::SNAPSHOTS,
        roles: &[WRITER, ONCE, ONCE],
        edit: |s| {
            s.sweep.move_before("look at changes", "look at the end");
            s.sweep.move_before("looked", "look at the end");
        },
    },
    Mutation {
        name: "wait for what is locked",
        breaks: "no sweep waits for a writer",
        rules: Rules::LOCKING,
        roles: &[WRITER, WRITER, ONCE],
        edit: |s| {
            s.sweep.edit(
                "collect by locks",
                "readcommittedlock,readpast",
                "readcommittedlock",
            )
        },
    },
    Mutation {
        name: "let pages be locked",
        breaks: "3: who committed first comes first",
        rules: Rules::LOCKING,
        roles: &[WRITER, WRITER, ONCE, Reorganizer],
        edit: |s| {
            for line in &mut s.index.lines {
                line.text = line.text.replace(" allow_page_locks = off", "");
            }
        },
    },
    Mutation {
        name: "number in another order",
        breaks: "3: who committed first comes first",
        rules: Rules::VERSIONED,
        roles: &[WRITER, WRITER, ONCE],
        edit: |s| s.sweep.edit("collect", " order by c.change_id", ""),
    },
    Mutation {
        name: "forget the end of the shard",
        breaks: "2: numbers are unique and gapless",
        rules: Rules::VERSIONED,
        roles: &[WRITER, TWICE],
        edit: |s| s.sweep.drop("end"),
    },
    Mutation {
        name: "forget where the live numbers start",
        breaks: "1: nothing that was committed is skipped",
        rules: Rules::VERSIONED,
        roles: &[
            WRITER,
            ONCE,
            Reader {
                pages: 2,
                first: true,
            },
            Backfiller,
        ],
        edit: |s| {
            s.sweep
                .edit("end", "start = isnull(s.start, @last)", "start = s.start")
        },
    },
    Mutation {
        name: "a reader does not look for gaps",
        breaks: "1: nothing that was committed is skipped",
        rules: Rules::LOCKING,
        roles: &[
            WRITER,
            WRITER,
            ONCE,
            Reader {
                pages: 2,
                first: false,
            },
        ],
        edit: |s| {
            s.keeps_contiguous = false;
            s.backward = true;
        },
    },
    Mutation {
        name: "a reader asks for the ends before the page, and does not look for gaps",
        breaks: "1: nothing that was committed is skipped",
        rules: Rules::VERSIONED,
        roles: &[
            WRITER,
            WRITER,
            TWICE,
            Reader {
                pages: 1,
                first: false,
            },
            Trimmer,
        ],
        edit: |s| {
            s.page.move_before("ends", "page");
            s.keeps_contiguous = false;
        },
    },
    Mutation {
        name: "a reader does not ask whether a backfill has begun",
        breaks: "1: nothing that was committed is skipped",
        rules: Rules::VERSIONED,
        roles: &[
            WRITER,
            ONCE,
            Reader {
                pages: 2,
                first: true,
            },
            Backfiller,
        ],
        edit: |s| {
            s.page.edit(
                "ends",
                "(select count(*) from backfill b where b.feed_id = @feed_id) - @begun,",
                "",
            )
        },
    },
    Mutation {
        name: "a reader by SQL does not ask whether a backfill has begun",
        breaks: "1: nothing that was committed is skipped",
        rules: Rules::VERSIONED,
        roles: &[
            WRITER,
            ONCE,
            Reader {
                pages: 2,
                first: true,
            },
            Backfiller,
        ],
        edit: |s| {
            s.page = changefeed_model::sweep::read();
            s.page.drop("began");
        },
    },
    Mutation {
        name: "two backfills at a time",
        breaks: "1: what was backfilled stays",
        rules: Rules::VERSIONED,
        roles: &[Backfiller, Backfiller],
        edit: |s| {
            s.backfill
                .edit("claim", "backfill(rowlock,updlock)", "backfill(rowlock)")
        },
    },
    Mutation {
        name: "a backfill does not look for room",
        breaks: "1: what was backfilled stays",
        rules: Rules::VERSIONED,
        roles: &[WRITER, ONCE, Trimmer, Backfiller],
        edit: |s| {
            s.backfill.drop("room");
            s.refusal
                .edit("refuse", " or i.change_sequence_number <= s.trimmed_to", "");
        },
    },
    Mutation {
        name: "a trim waits for a consumer",
        breaks: "no sweep waits for a writer",
        rules: Rules::LOCKING,
        roles: &[WRITER, TWICE, Consumer, Trimmer],
        edit: |s| s.trim.edit("consumers", "consumer(nowait)", "consumer"),
    },
    Mutation {
        name: "a trim does not lock the shard",
        breaks: "1: what was backfilled stays",
        rules: Rules::VERSIONED,
        roles: &[WRITER, ONCE, Consumer, Trimmer, Backfiller],
        edit: |s| s.trim.drop("lock"),
    },
];

#[test]
fn every_mutation_is_found() {
    for mutation in MUTATIONS {
        let mut scripts = Scripts::shipped();
        (mutation.edit)(&mut scripts);
        let model = Sweep::new(mutation.rules, mutation.roles, &scripts);
        is_found(mutation.name, mutation.breaks, model);
    }
}
