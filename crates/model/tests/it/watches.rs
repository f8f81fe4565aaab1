//! Watches keep promises 9 and 10, and every mutation of them is found.
use crate::common::{holds, is_found, larger};
use changefeed_model::engine::Rules;
use changefeed_model::watches::Role::{CleanUp, Switch};
use changefeed_model::watches::{Role, Scripts, Watches};

const WRITER: Role = Role::Writer { key: 1 };
const OTHER: Role = Role::Writer { key: 2 };
const ONCE: Role = Role::Worker { rounds: 1 };
const TWICE: Role = Role::Worker { rounds: 2 };

fn shipped(rules: Rules, native: bool, roles: &[Role]) -> Watches {
    Watches::new(rules, native, roles, &Scripts::shipped())
}

#[test]
fn by_change_tracking() {
    for rules in Rules::ALL {
        let model = shipped(rules, true, &[WRITER, WRITER, TWICE])
            .losses(1)
            .reaches("both changes", |_, s| s.has_handled(2));
        holds(&format!("two changes, {rules:?}"), model);
        if rules == Rules::LOCKING || larger() {
            let model = shipped(rules, true, &[WRITER, WRITER, ONCE, ONCE])
                .reaches("a newer change waits", |_, s| s.has_newer());
            holds(&format!("two workers, {rules:?}"), model);
        }
        let model = shipped(rules, true, &[WRITER, OTHER, TWICE]).chunk(1);
        holds(
            &format!("more changes than are moved at a time, {rules:?}"),
            model,
        );
        let model = shipped(rules, true, &[WRITER, WRITER, TWICE, CleanUp])
            .reaches("something was missed", |_, s| s.is_loading());
        holds(&format!("the server cleans up, {rules:?}"), model);
        let model = shipped(rules, true, &[WRITER, WRITER, TWICE, Switch])
            .reaches("something was missed", |_, s| s.is_loading());
        holds(
            &format!("tracking is switched off and on, {rules:?}"),
            model,
        );
    }
    let model = shipped(Rules::LOCKING, true, &[WRITER, TWICE])
        .until(3)
        .reaches("given up", |_, s| s.has_parked());
    holds("attempts are used up", model);
    if larger() {
        for rules in Rules::ALL {
            let model = shipped(rules, true, &[WRITER, OTHER, TWICE, CleanUp]).chunk(1);
            holds(&format!("two rows and a clean-up, {rules:?}"), model);
        }
    }
}

#[test]
fn by_our_trigger() {
    for rules in Rules::ALL {
        let model = shipped(rules, false, &[WRITER, WRITER, TWICE])
            .losses(1)
            .reaches("both changes", |_, s| s.has_handled(2));
        holds(&format!("noted, two changes, {rules:?}"), model);
        let model = shipped(rules, false, &[WRITER, OTHER, ONCE, ONCE]).losses(1);
        holds(&format!("noted, two workers, {rules:?}"), model);
    }
}

struct Mutation {
    name: &'static str,
    breaks: &'static str,
    rules: Rules,
    native: bool,
    roles: &'static [Role],
    chunk: usize,
    edit: fn(&mut Scripts),
}

const LOST: &str = "10: every change is handed over";
const HOLDER: &str = "9: one has a row at a time";

const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "read what has changed outside of a snapshot",
        breaks: LOST,
        rules: Rules::VERSIONED,
        native: true,
        roles: &[WRITER, ONCE],
        chunk: 9,
        edit: |s| s.read.drop_line("set transaction isolation level snapshot"),
    },
    Mutation {
        name: "ask for the current version after the snapshot has begun",
        breaks: LOST,
        rules: Rules::VERSIONED,
        native: true,
        roles: &[WRITER, ONCE],
        chunk: 9,
        edit: |s| s.read.move_before("until", "floor"),
    },
    Mutation {
        name: "do not ask what is retained",
        breaks: LOST,
        rules: Rules::VERSIONED,
        native: true,
        roles: &[WRITER, ONCE, CleanUp],
        chunk: 9,
        edit: |s| s.read.drop("behind"),
    },
    Mutation {
        name: "ask what is retained before the snapshot begins",
        breaks: LOST,
        rules: Rules::VERSIONED,
        native: true,
        roles: &[WRITER, ONCE, CleanUp],
        chunk: 9,
        edit: |s| s.read.move_before("floor", "since"),
    },
    Mutation {
        name: "do not notice another life of change tracking",
        breaks: LOST,
        rules: Rules::VERSIONED,
        native: true,
        roles: &[WRITER, ONCE, Switch],
        chunk: 9,
        edit: |s| s.compares_life = false,
    },
    Mutation {
        name: "move whatever others have moved meanwhile",
        breaks: "10: what was moved is not moved again",
        rules: Rules::VERSIONED,
        native: true,
        roles: &[WRITER, OTHER, ONCE, ONCE],
        chunk: 1,
        edit: |s| s.moves.edit("lock", " and tracked_version = @since", ""),
    },
    Mutation {
        name: "forget a newer change of a row in process",
        breaks: LOST,
        rules: Rules::VERSIONED,
        native: true,
        roles: &[WRITER, WRITER, ONCE, ONCE],
        chunk: 9,
        edit: |s| {
            let (from, to) = (
                "_changefeed_newer_operation = …",
                "_changefeed_newer_operation = null",
            );
            s.function.edit("put", from, to);
        },
    },
    Mutation {
        name: "delete a row although a newer change waits",
        breaks: LOST,
        rules: Rules::VERSIONED,
        native: true,
        roles: &[WRITER, WRITER, ONCE, ONCE],
        chunk: 9,
        edit: |s| {
            s.done
                .edit("done", " and _changefeed_newer_operation is null", "")
        },
    },
    Mutation {
        name: "settle whatever the lease is",
        breaks: "9: who has lost a row settles nothing",
        rules: Rules::VERSIONED,
        native: true,
        roles: &[WRITER, ONCE, ONCE],
        chunk: 9,
        edit: |s| {
            s.done
                .edit("done", " and _changefeed_lease_generation = @p3", "")
        },
    },
    Mutation {
        name: "lease what somebody has",
        breaks: HOLDER,
        rules: Rules::VERSIONED,
        native: true,
        roles: &[WRITER, ONCE, ONCE],
        chunk: 9,
        edit: |s| {
            s.lease
                .edit("due", "q._changefeed_lease_generation is null or ", "")
        },
    },
    Mutation {
        name: "lease without the table's lock",
        breaks: HOLDER,
        rules: Rules::VERSIONED,
        native: true,
        roles: &[WRITER, ONCE, ONCE],
        chunk: 9,
        edit: |s| s.lease.drop("lock"),
    },
    Mutation {
        name: "wait for what writers have noted",
        breaks: "no worker waits for a writer",
        rules: Rules::LOCKING,
        native: false,
        roles: &[WRITER, ONCE],
        chunk: 9,
        edit: |s| {
            s.noted
                .edit("log", "readcommittedlock,readpast", "readcommittedlock")
        },
    },
    Mutation {
        name: "take what was noted before it is in the backlog",
        breaks: LOST,
        rules: Rules::VERSIONED,
        native: false,
        roles: &[WRITER, ONCE],
        chunk: 9,
        edit: |s| s.moves.drop("functions"),
    },
];

#[test]
fn every_mutation_is_found() {
    for mutation in MUTATIONS {
        let mut scripts = Scripts::shipped();
        (mutation.edit)(&mut scripts);
        let model = Watches::new(mutation.rules, mutation.native, mutation.roles, &scripts)
            .chunk(mutation.chunk);
        is_found(mutation.name, mutation.breaks, model);
    }
}
