//! ULID transactions keep promises 6 and 7, and every mutation of them is found.
use crate::common::{holds, is_found, larger};
use changefeed_model::engine::Rules;
use changefeed_model::ulid::Client::{self, Plain, Raw, Serializable, Snapshot};
use changefeed_model::ulid::{Scripts, Ulids};

fn shipped(rules: Rules, clients: &[Client]) -> Ulids {
    Ulids::new(rules, clients, &Scripts::shipped())
}

#[test]
fn transactions_of_one_shard() {
    for rules in Rules::ALL {
        let model = shipped(rules, &[Plain, Plain]).times(2).losses(1);
        holds(&format!("two clients, {rules:?}"), model);
        let model = shipped(rules, &[Plain, Plain]).known().freezes(2).losses(1);
        holds(
            &format!("two clients of a shard that is in use, {rules:?}"),
            model,
        );
        for other in [Serializable, Snapshot] {
            let model = shipped(rules, &[Plain, other]).freezes(1).losses(1);
            let model = model.reaches("an incident", |_, s| s.incidents() == 1);
            holds(&format!("plain and {other:?}, {rules:?}"), model);
        }
        let model = shipped(rules, &[Raw, Plain]).times(2);
        holds(&format!("a raw commit, {rules:?}"), model);
    }
}

#[test]
fn holders_that_go_silent() {
    for rules in Rules::ALL {
        let model = shipped(rules, &[Plain, Plain])
            .freezes(2)
            .times(2)
            .reaches("two incidents", |_, s| s.incidents() == 2)
            .reaches("a zombie is refused", |_, s| s.has_refused());
        holds(&format!("two clients that stop, {rules:?}"), model);
    }
    let all: &[Rules] = if larger() {
        &Rules::ALL
    } else {
        &[Rules::LOCKING]
    };
    for rules in all {
        let model = shipped(*rules, &[Plain, Plain, Plain])
            .freezes(1)
            .reaches("an incident", |_, s| s.incidents() == 1);
        holds(&format!("three clients, {rules:?}"), model);
    }
}

struct Mutation {
    name: &'static str,
    breaks: &'static str,
    rules: Rules,
    clients: &'static [Client],
    edit: fn(&mut Scripts),
}

const ORDER: &str = "6: ULIDs increase for every observer";
const ZOMBIE: &str = "7: who was judged dead cannot commit";
const WAITS: &str = "7: nobody waits for who is silent";
const FAILS: &str = "nobody fails without an incident";

fn do_not_look_at_incidents(s: &mut Scripts) {
    s.commit.edit("incident", " and [count] = @incidents", "");
}

const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "compare the state alone",
        breaks: ZOMBIE,
        rules: Rules::VERSIONED,
        clients: &[Plain, Plain],
        edit: do_not_look_at_incidents,
    },
    Mutation {
        name: "compare the number of incidents with >=",
        breaks: ZOMBIE,
        rules: Rules::LOCKING,
        clients: &[Plain, Plain],
        edit: |s| {
            s.commit
                .edit("incident", "[count] = @incidents", "[count] >= @incidents")
        },
    },
    Mutation {
        name: "verify nothing",
        breaks: ORDER,
        rules: Rules::VERSIONED,
        clients: &[Plain, Plain],
        edit: |s| {
            do_not_look_at_incidents(s);
            s.commit.edit(
                "move",
                " and ulid_high = @before_high and ulid_low = @before_low",
                "",
            );
        },
    },
    Mutation {
        name: "drop the UPDLOCK",
        breaks: ZOMBIE,
        rules: Rules::OPTIMIZED,
        clients: &[Plain, Plain],
        edit: |s| s.commit.edit("incident", "rowlock,updlock", "rowlock"),
    },
    Mutation {
        name: "read the state before the lock",
        breaks: FAILS,
        rules: Rules::VERSIONED,
        clients: &[Plain, Plain],
        edit: |s| s.enter.move_before("state", "wait"),
    },
    Mutation {
        name: "do not lock at all",
        breaks: FAILS,
        rules: Rules::LOCKING,
        clients: &[Plain, Plain],
        edit: |s| s.wait.drop("try"),
    },
    Mutation {
        name: "do not count again when the lock is granted",
        breaks: "nobody enters by a burned lock",
        rules: Rules::VERSIONED,
        clients: &[Plain, Plain, Plain],
        edit: |s| s.wait.drop("count again"),
    },
    Mutation {
        name: "count an incident whatever the number is by now",
        breaks: "7: an incident is counted once",
        rules: Rules::VERSIONED,
        clients: &[Plain, Plain, Plain],
        edit: |s| s.report.edit("raise", " and [count] = @observed", ""),
    },
    Mutation {
        name: "see the silence, and count nothing",
        breaks: "7: one incident stops nobody for ever",
        rules: Rules::LOCKING,
        clients: &[Plain, Plain],
        edit: |s| s.report.drop("raise"),
    },
    Mutation {
        name: "keep the caller's isolation level",
        breaks: WAITS,
        rules: Rules::LOCKING,
        clients: &[Serializable, Plain],
        edit: |s| s.enter.drop("level"),
    },
    Mutation {
        name: "commit in another round trip",
        breaks: WAITS,
        rules: Rules::VERSIONED,
        clients: &[Plain, Plain],
        edit: |s| s.batch.drop("commit"),
    },
    Mutation {
        name: "forget how many were drawn",
        breaks: ORDER,
        rules: Rules::VERSIONED,
        clients: &[Plain, Plain],
        edit: |s| s.commit.drop("drawn"),
    },
    Mutation {
        name: "do not look for what a raw commit left behind",
        breaks: ORDER,
        rules: Rules::VERSIONED,
        clients: &[Raw, Plain],
        edit: |s| s.enter.drop("left"),
    },
];

#[test]
fn every_mutation_is_found() {
    for mutation in MUTATIONS {
        let mut scripts = Scripts::shipped();
        (mutation.edit)(&mut scripts);
        let model = Ulids::new(mutation.rules, mutation.clients, &scripts)
            .freezes(1)
            .known();
        is_found(mutation.name, mutation.breaks, model);
    }
}
