//! The sweep of PostgreSQL keeps promises 1 to 4, and every mutation of it is found.
use crate::common::{holds, is_found, larger, stands_in};
use changefeed_model::snapshots::Role::{Sweeper, Writer};
use changefeed_model::snapshots::{Role, Scripts, Snapshots, finished_between, number_shard};

fn shipped(roles: &[Role]) -> Snapshots {
    Snapshots::new(roles, &Scripts::shipped())
}

#[test]
fn sweepers_beside_writers() {
    let model = shipped(&[Writer, Writer, Sweeper(2)]).losses(1);
    holds("snapshots: two writers", model);
    let model = shipped(&[Writer, Writer, Sweeper(1), Sweeper(1)]).losses(1);
    holds("snapshots: two sweepers", model);
    let model = shipped(&[Writer, Writer, Sweeper(2)]).piece(1);
    holds("snapshots: piece by piece", model);
    if larger() {
        let model = shipped(&[Writer, Writer, Writer, Sweeper(2)]).losses(1);
        holds("snapshots: three writers", model);
        let model = shipped(&[Writer, Writer, Writer, Sweeper(2)]).piece(1);
        holds("snapshots: three writers, piece by piece", model);
    }
}

struct Mutation {
    name: &'static str,
    breaks: &'static str,
    roles: &'static [Role],
    piece: usize,
    edit: fn(&mut Scripts),
}

/// Taking the snapshot before the lock is not among them: an older snapshot shows nothing that the stored one
/// does not, so that such a sweep finds nothing to do.
const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "read the end before the lock",
        breaks: "2: numbers are unique and gapless",
        roles: &[Writer, Writer, Sweeper(1), Sweeper(1)],
        piece: 9,
        edit: |s| s.number.move_before("prev", "lock"),
    },
    Mutation {
        name: "do not lock",
        breaks: "2: numbers are unique and gapless",
        roles: &[Writer, Writer, Sweeper(1), Sweeper(1)],
        piece: 9,
        edit: |s| s.number.drop("lock"),
    },
    Mutation {
        name: "forget who was at work in the last snapshot",
        breaks: "1: nothing that was committed is skipped",
        roles: &[Writer, Writer, Writer, Sweeper(2)],
        piece: 9,
        edit: |s| {
            s.finished
                .edit("worked", "pg_visible_in_snapshot(x, upto)", "false")
        },
    },
    Mutation {
        name: "let a piece end before the last one did",
        breaks: "2: numbers are unique and gapless",
        roles: &[Writer, Writer, Writer, Sweeper(2)],
        piece: 1,
        edit: |s| s.keeps_end = false,
    },
];

#[test]
fn every_mutation_is_found() {
    for mutation in MUTATIONS {
        let mut scripts = Scripts::shipped();
        (mutation.edit)(&mut scripts);
        let model = Snapshots::new(mutation.roles, &scripts).piece(mutation.piece);
        is_found(mutation.name, mutation.breaks, model);
    }
}

#[test]
fn the_model_is_of_what_is_shipped() {
    let sql = include_str!("../../../postgres/migrations/0001/numbering.sql");
    stands_in(&number_shard(), sql, "create function", "end $$;");
    stands_in(&finished_between(), sql, "create function", "end $$;");
    let keeps = "case when cut < pg_snapshot_xmax(next.snapshot)\n                         \
                 then pg_snapshot_xmax(next.snapshot) else cut end";
    assert!(sql.contains(keeps), "{keeps}");
}
