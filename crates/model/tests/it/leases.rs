//! One instance has a lease at a time (promise 12), and every mutation of that is found.
use crate::common::{holds, is_found, larger};
use changefeed_model::engine::Rules;
use changefeed_model::leases::{Leases, Role, Scripts};

const A: Role = Role::Instance { owner: 1, calls: 3 };
const A_TWICE: Role = Role::Instance { owner: 1, calls: 2 };
const B_ONCE: Role = Role::Instance { owner: 2, calls: 1 };
const B: Role = Role::Instance { owner: 2, calls: 2 };
const LATE: Role = Role::Late { owner: 1 };
const LATE_RELEASE: Role = Role::LateRelease { owner: 1 };

fn shipped(rules: Rules, roles: &[Role]) -> Leases {
    Leases::new(rules, roles, &Scripts::shipped())
}

#[test]
fn instances_that_take_turns() {
    for rules in [Rules::VERSIONED, Rules::OPTIMIZED, Rules::LOCKING] {
        let model = shipped(rules, &[A, B]).until(if larger() { 8 } else { 5 });
        let model = model.reaches("both had it", |_, s| s.owners() == 2);
        holds(&format!("two instances, {rules:?}"), model);
        let model = shipped(rules, &[A_TWICE, B_ONCE, LATE]).until(3);
        holds(&format!("a late call, {rules:?}"), model);
        let model = shipped(rules, &[A_TWICE, B_ONCE, LATE_RELEASE]).until(3);
        holds(&format!("a late release, {rules:?}"), model);
        if rules == Rules::LOCKING || larger() {
            let model = shipped(rules, &[A_TWICE, B]).sets_back().reaches(
                "taken from one who is gone although the clock was set back",
                |_, s| s.is_set_back() && s.owners() == 2,
            );
            holds(&format!("a clock that is set back, {rules:?}"), model);
        }
    }
}

struct Mutation {
    name: &'static str,
    breaks: &'static str,
    roles: &'static [Role],
    edit: fn(&mut Scripts),
}

const ONE: &str = "12: one has the lease at a time";

const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "take it although it has not expired",
        breaks: ONE,
        roles: &[A, B],
        edit: |s| s.take.edit("update", "expires_at <= @now or ", ""),
    },
    Mutation {
        name: "take it without a new generation",
        breaks: "12: a generation is one owner's",
        roles: &[A, B],
        edit: |s| {
            s.take
                .edit("update", "else generation + 1 end", "else generation end")
        },
    },
    Mutation {
        name: "renew without a new renewal",
        breaks: ONE,
        roles: &[A, B],
        edit: |s| s.take.edit("update", "renewal = renewal + 1, ", ""),
    },
    Mutation {
        name: "give back whatever the generation is",
        breaks: ONE,
        roles: &[A, B, LATE_RELEASE],
        edit: |s| s.release.edit("release", " and generation = @p3", ""),
    },
    Mutation {
        name: "give back whosoever it is",
        breaks: ONE,
        roles: &[A, B, LATE_RELEASE],
        edit: |s| {
            s.release
                .edit("release", " and owner = @p2 and generation = @p3", "")
        },
    },
    Mutation {
        name: "let a late call shorten a lease",
        breaks: ONE,
        roles: &[A, B, LATE],
        edit: |s| {
            s.take.edit(
                "update",
                "owner = @owner and expires_at > @expires and",
                "1 = 0 and",
            )
        },
    },
    Mutation {
        name: "count from the answer",
        breaks: ONE,
        roles: &[A, B],
        edit: |s| s.counts_from_question = false,
    },
    Mutation {
        name: "call a renewal stale before a lease is over",
        breaks: ONE,
        roles: &[A, B],
        edit: |s| s.stale_after = 1,
    },
];

#[test]
fn every_mutation_is_found() {
    for mutation in MUTATIONS {
        let mut scripts = Scripts::shipped();
        (mutation.edit)(&mut scripts);
        let model = Leases::new(Rules::VERSIONED, mutation.roles, &scripts);
        is_found(mutation.name, mutation.breaks, model);
    }
}
