//! Events keep promises 8, 9 and 12, and every mutation of them is found.
use crate::common::{holds, is_found, larger};
use changefeed_model::engine::Rules;
use changefeed_model::events::{Events, Scripts, Wanted};

const ANY: Wanted = Wanted {
    overall: None,
    ordered: false,
};
const ONE: Wanted = Wanted {
    overall: Some(1),
    ordered: false,
};
const ORDERED: Wanted = Wanted {
    overall: None,
    ordered: true,
};

fn shipped(rules: Rules, wanted: Wanted, workers: usize, keys: &[i8]) -> Events {
    Events::new(rules, wanted, workers, keys, &Scripts::shipped())
}

#[test]
fn instances_that_share_events() {
    for rules in Rules::ALL {
        let model = shipped(rules, ANY, 2, &[1])
            .rounds(if larger() { 2 } else { 1 })
            .losses(1)
            .reaches("taken over", |_, s| s.has_unknown())
            .reaches("late", |_, s| s.has_late())
            .reaches("delivered", |_, s| s.delivered() == 1);
        holds(&format!("one event, two instances, {rules:?}"), model);
        let model = shipped(rules, ANY, 2, &[1, 2])
            .losses(1)
            .reaches("both delivered", |_, s| s.delivered() == 2);
        holds(&format!("two events, {rules:?}"), model);
        let model = shipped(rules, ONE, 2, &[1, 2]).losses(1);
        holds(&format!("one at a time, {rules:?}"), model);
        let model = shipped(rules, ORDERED, 2, &[1, 1])
            .losses(1)
            .reaches("both delivered", |_, s| s.delivered() == 2);
        holds(&format!("in order, {rules:?}"), model);
        if larger() {
            holds(
                &format!("three instances, {rules:?}"),
                shipped(rules, ANY, 3, &[1]),
            );
            let model = shipped(rules, ORDERED, 2, &[1, 1]).rounds(2).losses(1);
            holds(&format!("in order, twice, {rules:?}"), model);
        }
    }
}

struct Mutation {
    name: &'static str,
    breaks: &'static str,
    rules: Rules,
    wanted: Wanted,
    workers: usize,
    keys: &'static [i8],
    rounds: u8,
    edit: fn(&mut Scripts),
}

const HOLDER: &str = "9: one has it at a time";
const DECIDES: &str = "9: who has lost it decides nothing";
const ORDER: &str = "9: events of a key are in order";
const RECORDED: &str = "8: what was sent is recorded";

const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "finish whatever the generation is",
        breaks: DECIDES,
        rules: Rules::VERSIONED,
        wanted: ANY,
        workers: 2,
        keys: &[1],
        rounds: 1,
        edit: |s| {
            s.finish
                .edit("decide", " and f.generation = event.generation", "")
        },
    },
    Mutation {
        name: "compare generations with <=",
        breaks: DECIDES,
        rules: Rules::LOCKING,
        wanted: ANY,
        workers: 2,
        keys: &[1],
        rounds: 1,
        edit: |s| {
            s.finish
                .edit("decide", "f.generation = event", "f.generation <= event")
        },
    },
    Mutation {
        name: "claim without a new generation",
        breaks: DECIDES,
        rules: Rules::LOCKING,
        wanted: ANY,
        workers: 2,
        keys: &[1],
        rounds: 1,
        edit: |s| s.claim.edit("claim", " generation = generation + 1,", ""),
    },
    Mutation {
        name: "drop the UPDLOCK and what makes a claim conditional",
        breaks: HOLDER,
        rules: Rules::VERSIONED,
        wanted: ANY,
        workers: 2,
        keys: &[1],
        rounds: 1,
        edit: |s| {
            s.claim
                .edit("due", "readpast,rowlock,updlock", "readpast,rowlock");
            s.claim.edit("claim", "due_at <= @now and", "");
            s.claim
                .edit("claim", "d.generation = event.generation and", "");
        },
    },
    Mutation {
        name: "claim heads of keys without a condition",
        breaks: HOLDER,
        rules: Rules::VERSIONED,
        wanted: ORDERED,
        workers: 2,
        keys: &[1],
        rounds: 1,
        edit: |s| {
            s.claim.edit("claim", "due_at <= @now and", "");
            s.claim
                .edit("claim", "d.generation = event.generation and", "");
        },
    },
    Mutation {
        name: "do not record what was cut off",
        breaks: RECORDED,
        rules: Rules::VERSIONED,
        wanted: ANY,
        workers: 2,
        keys: &[1],
        rounds: 1,
        edit: |s| s.claim.drop("unknown"),
    },
    Mutation {
        name: "decide and do not record",
        breaks: RECORDED,
        rules: Rules::VERSIONED,
        wanted: ANY,
        workers: 1,
        keys: &[1],
        rounds: 1,
        edit: |s| {
            s.finish.drop("record");
            s.finish.drop("late");
        },
    },
    Mutation {
        name: "renew whatever the generation is",
        breaks: HOLDER,
        rules: Rules::VERSIONED,
        wanted: ANY,
        workers: 2,
        keys: &[1],
        rounds: 1,
        edit: |s| {
            s.renew
                .edit("renew", " and h.generation = event.generation", "")
        },
    },
    Mutation {
        name: "release whatever the generation is",
        breaks: HOLDER,
        rules: Rules::VERSIONED,
        wanted: ANY,
        workers: 2,
        keys: &[1],
        rounds: 2,
        edit: |s| {
            s.release
                .edit("release", " and h.generation = event.generation", "")
        },
    },
    Mutation {
        name: "count what all hold without being alone",
        breaks: "12: together no more than allowed",
        rules: Rules::VERSIONED,
        wanted: ONE,
        workers: 2,
        keys: &[1, 2],
        rounds: 1,
        edit: |s| s.claim.drop("alone"),
    },
    Mutation {
        name: "drop the UPDLOCK of who counts",
        breaks: "12: together no more than allowed",
        rules: Rules::OPTIMIZED,
        wanted: ONE,
        workers: 2,
        keys: &[1, 2],
        rounds: 1,
        edit: |s| s.claim.edit("alone", "rowlock,updlock", "rowlock"),
    },
    Mutation {
        name: "pass by older events that are locked, and look no further",
        breaks: ORDER,
        rules: Rules::LOCKING,
        wanted: ORDERED,
        workers: 2,
        keys: &[1, 1],
        rounds: 1,
        edit: |s| {
            s.claim.edit(
                "heads",
                "from event o with(readuncommitted)",
                "from event o with(readpast)",
            );
            s.claim.drop("older");
        },
    },
    Mutation {
        name: "believe that an older event is finished before that is committed",
        breaks: ORDER,
        rules: Rules::VERSIONED,
        wanted: ORDERED,
        workers: 2,
        keys: &[1, 1],
        rounds: 1,
        edit: |s| s.claim.drop("older"),
    },
];

#[test]
fn every_mutation_is_found() {
    for mutation in MUTATIONS {
        let mut scripts = Scripts::shipped();
        (mutation.edit)(&mut scripts);
        let Mutation {
            rules,
            wanted,
            workers,
            keys,
            rounds,
            ..
        } = *mutation;
        let model = Events::new(rules, wanted, workers, keys, &scripts)
            .rounds(rounds)
            .losses(1);
        is_found(mutation.name, mutation.breaks, model);
    }
}
