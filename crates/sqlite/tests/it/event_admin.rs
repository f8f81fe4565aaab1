//! What people do with event triggers and their log.

use std::time::{Duration, SystemTime};

use changefeed_core::{
    After, CleanUp, ConsumerStore, Content, Cursor, EventFilter, EventStatus, EventStore,
    FeedBinding, FeedStore, Kind, NewFeed, Op, Operation, OrderBy, Redelivery, ShardId, ShardValue,
    Source, TriggerStore, Updates, Verdict, shard_of,
};
use serde_json::value::RawValue;

use crate::event_support::{LEASE, claim, everything, finished, key, wanted};
use crate::support::{Lab, named};

const ALL: CleanUp = CleanUp {
    after: Duration::ZERO,
    dead_letters: false,
};

async fn lab() -> Lab {
    let lab = Lab::new().await;
    lab.shell("create table t (id integer primary key, k);")
        .unwrap();
    lab
}

#[tokio::test]
async fn a_trigger_is_replaced_paused_and_dropped() {
    let lab = lab().await;
    let trigger = lab.trigger(&everything("T")).await;
    assert_eq!(trigger.definition.table.name, "t");
    lab.shell("insert into t values (1, 1), (2, 2);").unwrap();
    let held = lab.claim(&trigger, 1).await.remove(0);

    let mut definition = everything("t");
    definition.capture.payload = Some(vec!["k".into()]);
    let replaced = lab.store.create_trigger(&definition, true).await.unwrap();
    assert_eq!(replaced.id, trigger.id);
    lab.shell("insert into t values (3, 3);").unwrap();
    assert_eq!(lab.events().await[2], r#"INSERT - > {"k":3}"#);
    assert_eq!(lab.store.triggers().await.unwrap()[0], replaced);

    lab.store.drop_trigger(&replaced).await.unwrap();
    let again = lab.store.drop_trigger(&replaced).await.unwrap_err();
    assert_eq!(again.kind(), Kind::NotFound);
    lab.shell("insert into t values (4, 4);").unwrap();
    let log = lab.log().await;
    assert_eq!(log.len(), 3);
    assert!(log.iter().all(|e| e.status == EventStatus::Archived));
    assert_eq!(log[0].event.trigger.as_str(), "all");
    // What was under way comes too late.
    let late = lab
        .store
        .finish_events(&[finished(&held, Verdict::Delivered)])
        .await
        .unwrap();
    assert_eq!(late.len(), 1);
    let refused = lab
        .store
        .redeliver(&Redelivery::Event(held.event.id), key())
        .await
        .unwrap_err();
    assert!(refused.message().contains("dropped"), "{refused:?}");
    let all = EventFilter::default();
    assert_eq!(
        lab.store
            .redeliver(&Redelivery::Matching(all), key())
            .await
            .unwrap(),
        0
    );

    let new = lab.trigger(&everything("t")).await;
    assert_ne!(new.id, trigger.id);
    assert!(lab.store.trigger_states().await.unwrap()[0].pending == 0);
}

#[tokio::test]
async fn events_by_hand() {
    let lab = lab().await;
    let trigger = lab.trigger(&everything("t")).await;
    let payload = RawValue::from_string(r#"{"any": [1, 2.50]}"#.to_owned()).unwrap();
    let refused = lab
        .store
        .invoke_trigger(&trigger, &payload, changefeed_core::Uuid::from_u128(1))
        .await
        .unwrap_err();
    assert!(refused.message().contains("by hand"), "{refused:?}");
    let mut definition = everything("t");
    definition.name = "manual".parse().unwrap();
    definition.capture = changefeed_core::Capture {
        manual: true,
        order_by: Some(OrderBy::Key),
        ..Default::default()
    };
    let manual = lab.trigger(&definition).await;
    lab.shell("insert into t values (1, 1);").unwrap();
    let id = lab
        .store
        .invoke_trigger(&manual, &payload, changefeed_core::Uuid::from_u128(2))
        .await
        .unwrap();
    let held = lab.claim(&manual, 5).await.remove(0);
    assert_eq!((held.event.id, held.event.op), (id, Operation::Manual));
    assert_eq!(held.event.new.unwrap().get(), r#"{"any": [1, 2.50]}"#);
    assert!(held.event.old.is_none());
}

#[tokio::test]
async fn the_log_is_filtered() {
    let lab = lab().await;
    let trigger = lab.trigger(&everything("t")).await;
    let mut other = everything("t");
    other.name = "other".parse().unwrap();
    other.capture.update = Updates::Ignored;
    lab.trigger(&other).await;
    lab.shell("insert into t values (1, 1), (2, 2), (3, 3), (4, 4);")
        .unwrap();
    let held = lab.claim(&trigger, 3).await;
    let after = Duration::ZERO;
    let verdicts = [
        Verdict::Delivered,
        Verdict::GiveUp,
        Verdict::Retry { after },
    ];
    let done: Vec<_> = held
        .iter()
        .zip(verdicts)
        .map(|(e, v)| finished(e, v))
        .collect();
    lab.store.finish_events(&done).await.unwrap();
    let name = Some("all".parse().unwrap());
    let of = |filter: EventFilter| {
        let store = lab.store.clone();
        async move { store.events(&filter, 100).await.unwrap().len() }
    };
    let none = EventFilter::default;
    let hour = Duration::from_secs(3600);
    let some = [
        (none(), 8),
        (
            EventFilter {
                trigger: name.clone(),
                ..none()
            },
            4,
        ),
        (
            EventFilter {
                status: Some(EventStatus::Pending),
                ..none()
            },
            6,
        ),
        (
            EventFilter {
                status: Some(EventStatus::Delivered),
                ..none()
            },
            1,
        ),
        (
            EventFilter {
                trigger: name.clone(),
                status: Some(EventStatus::Pending),
                ..none()
            },
            2,
        ),
        (
            EventFilter {
                http_status: Some(500),
                ..none()
            },
            2,
        ),
        (
            EventFilter {
                error: Some("ANSWERED 5".into()),
                ..none()
            },
            2,
        ),
        (
            EventFilter {
                error: Some("answered".into()),
                status: Some(EventStatus::DeadLetter),
                ..none()
            },
            1,
        ),
        (
            EventFilter {
                since: Some(SystemTime::now() - hour),
                ..none()
            },
            8,
        ),
        (
            EventFilter {
                until: Some(SystemTime::now() - hour),
                ..none()
            },
            0,
        ),
        (
            EventFilter {
                before: Some(lab.log().await[2].event.change_id),
                ..none()
            },
            2,
        ),
    ];
    for (n, (filter, expected)) in some.into_iter().enumerate() {
        assert_eq!(of(filter).await, expected, "{n}");
    }
    let newest = lab.store.events(&none(), 3).await.unwrap();
    let ids: Vec<i64> = newest.iter().map(|e| e.event.change_id).collect();
    assert!(ids.windows(2).all(|two| two[0] > two[1]), "{ids:?}");
    let unknown = EventFilter {
        trigger: Some("nobody".parse().unwrap()),
        ..none()
    };
    assert_eq!(
        lab.store.events(&unknown, 1).await.unwrap_err().kind(),
        Kind::NotFound
    );
}

#[tokio::test]
async fn one_event_is_delivered_again_unless_it_is_on_its_way() {
    let lab = lab().await;
    let trigger = lab.trigger(&everything("t")).await;
    lab.shell("insert into t values (1, 1);").unwrap();
    let held = lab.claim(&trigger, 1).await.remove(0);
    let id = held.event.id;
    let busy = lab
        .store
        .redeliver(&Redelivery::Event(id), key())
        .await
        .unwrap_err();
    assert_eq!(busy.kind(), Kind::Busy);
    lab.store
        .finish_events(&[finished(&held, Verdict::Delivered)])
        .await
        .unwrap();
    assert_eq!(
        lab.store
            .redeliver(&Redelivery::Event(id), key())
            .await
            .unwrap(),
        1
    );
    let again = claim(&lab.store, &wanted(&trigger, 1), Duration::ZERO)
        .await
        .remove(0);
    assert!(again.generation > held.generation);
    // Its holder is gone: what it began is written down.
    lab.store
        .redeliver(&Redelivery::Event(id), key())
        .await
        .unwrap();
    let (event, attempts) = lab.store.event(id).await.unwrap().unwrap();
    assert_eq!((event.tries, attempts.len()), (0, 2));
    let foreign = "0038d7ea-4c68-8000-8123-456789abcdef".parse().unwrap();
    assert!(lab.store.event(foreign).await.unwrap().is_none());
    let unknown = lab
        .store
        .redeliver(&Redelivery::Event(foreign), key())
        .await
        .unwrap_err();
    assert_eq!(unknown.kind(), Kind::NotFound);
}

#[tokio::test]
async fn many_events_are_delivered_again_and_cleaned_up_in_batches() {
    let lab = lab().await;
    let trigger = lab.trigger(&everything("t")).await;
    lab.app()
        .execute_batch(
            "insert into t with recursive n (n) as (values (1) union all select n + 1 from n \
             where n < 12000) select n, n from n; \
             update changefeed_event set state = 'e', due_at = null, tries = 3; \
             update changefeed_event set state = 'd' where change_id % 2 = 0",
        )
        .unwrap();
    let dead = EventFilter {
        trigger: Some("all".parse().unwrap()),
        status: Some(EventStatus::DeadLetter),
        ..EventFilter::default()
    };
    let again = Redelivery::Matching(dead.clone());
    assert_eq!(lab.store.redeliver(&again, key()).await.unwrap(), 6000);
    assert_eq!(lab.store.redeliver(&again, key()).await.unwrap(), 0);
    let held = lab.claim(&trigger, 2).await;
    let done = [
        finished(&held[0], Verdict::GiveUp),
        finished(&held[1], Verdict::Delivered),
    ];
    lab.store.finish_events(&done).await.unwrap();

    let keep = CleanUp {
        after: Duration::from_secs(3600),
        dead_letters: true,
    };
    let none = lab
        .store
        .clean_up_events(Some(&trigger), keep, 100)
        .await
        .unwrap();
    assert_eq!((none.events, none.more), (0, false));
    let some = lab
        .store
        .clean_up_events(Some(&trigger), ALL, 4000)
        .await
        .unwrap();
    assert_eq!((some.events, some.more), (4000, true));
    let rest = lab.store.clean_up_events(None, ALL, 4000).await.unwrap();
    assert_eq!((rest.events, rest.attempts, rest.more), (2001, 1, false));
    let with_dead = CleanUp {
        dead_letters: true,
        ..ALL
    };
    let dead = lab
        .store
        .clean_up_events(None, with_dead, 4000)
        .await
        .unwrap();
    assert_eq!((dead.events, dead.attempts), (1, 1));
    assert_eq!(lab.store.trigger_states().await.unwrap()[0].pending, 5998);
    assert_eq!(
        lab.shell("select count(*) from changefeed_event_attempt;")
            .unwrap(),
        "0\n"
    );
}

#[tokio::test]
async fn existing_rows_become_events_in_batches() {
    for table in [
        "create table big (id integer primary key, k)",
        "create table big (id, k)",
        "create table big (id integer, k, primary key (k, id)) without rowid",
    ] {
        let lab = Lab::new().await;
        lab.shell(&format!(
            "{table}; insert into big with recursive n (n) as (values (1) union all \
             select n + 1 from n where n < 1000) select n, n % 7 from n;"
        ))
        .unwrap();
        let mut definition = everything("big");
        definition.capture.condition = Some("new.k <> 0 and old.k is null".into());
        let trigger = lab.trigger(&definition).await;
        let (mut added, mut steps) = (0, 0);
        loop {
            // Another process goes on where this one stopped.
            let store = lab.other().await;
            let step = store.backfill_trigger(&trigger, 300).await.unwrap();
            assert_eq!(step.total, 1000);
            added += step.added;
            steps += 1;
            if step.finished {
                assert_eq!(step.done, 1000);
                break;
            }
        }
        assert_eq!((added, steps), (1000 - 142, 4), "{table}");
        let log = lab.log().await;
        let rows: std::collections::BTreeSet<&str> = log
            .iter()
            .map(|e| e.event.new.as_ref().unwrap().get())
            .collect();
        assert_eq!(rows.len(), 858);
        assert!(log.iter().all(|e| e.event.op == Operation::Insert));
        let over = lab.store.backfill_trigger(&trigger, 300).await.unwrap();
        assert!(over.finished && over.added == 0);
    }
}

#[tokio::test]
async fn events_enter_a_feed() {
    let lab = lab().await;
    let feed = lab
        .create(NewFeed {
            shards: 4,
            source: Some(Source::Events),
            ..named("sharded")
        })
        .await;
    let mut definition = everything("t");
    let bind = |feed: &str, column: Option<&str>| {
        Some(FeedBinding {
            feed: feed.parse().unwrap(),
            shard_by: column.map(str::to_owned),
        })
    };
    definition.capture.feed = bind("sharded", None);
    let error = lab
        .store
        .create_trigger(&definition, false)
        .await
        .unwrap_err();
    assert!(error.message().contains("4 shards"), "{error:?}");
    definition.capture.feed = bind("sharded", Some("K"));
    let trigger = lab.trigger(&definition).await;
    lab.shell(
        "insert into t values (1, 'one'), (2, 'two'); replace into t values (1, 'three');
         update t set k = 'four' where id = 2; delete from t where id = 2;",
    )
    .unwrap();
    let log = lab.log().await;
    assert_eq!(log.len(), 6);
    let mut seen = Vec::new();
    for shard in 0..4 {
        for change in lab.page(&feed, shard, After::First, 100).await.changes {
            let Content::Images { old, new } = change.content else {
                panic!("{change:?}");
            };
            let row = new.as_ref().or(old.as_ref()).unwrap().get().to_owned();
            let key = row.rsplit('"').nth(1).unwrap().to_owned();
            assert_eq!(shard, shard_of(ShardValue::Text(&key), 4));
            seen.push((change.change_id.unwrap(), change.op.unwrap()));
        }
    }
    seen.sort_by_key(|(id, _)| *id);
    let expected: Vec<_> = log
        .iter()
        .map(|e| (e.event.change_id, Op::from(e.event.op)))
        .collect();
    assert_eq!(seen, expected);

    let refused = lab.store.drop_feed(&feed).await.unwrap_err();
    assert!(
        refused.message().contains("'all' writes to feed"),
        "{refused:?}"
    );
    let refused = lab.store.backfill(&feed, 10).await.unwrap_err();
    assert!(
        refused.message().contains("events of triggers"),
        "{refused:?}"
    );
    lab.store.drop_trigger(&trigger).await.unwrap();
    assert_eq!(
        lab.numbers(&feed, 0).await.len()
            + lab.numbers(&feed, 1).await.len()
            + lab.numbers(&feed, 2).await.len()
            + lab.numbers(&feed, 3).await.len(),
        6
    );
    lab.store.drop_feed(&feed).await.unwrap();
}

#[tokio::test]
async fn a_feed_is_created_and_what_its_consumers_have_not_read_is_kept() {
    let lab = lab().await;
    let captured = lab.captured("t", None, 1).await;
    let mut definition = everything("t");
    definition.capture.feed = Some(FeedBinding {
        feed: captured.name.clone(),
        shard_by: None,
    });
    let refused = lab
        .store
        .create_trigger(&definition, false)
        .await
        .unwrap_err();
    assert!(
        refused.message().contains("already made from t"),
        "{refused:?}"
    );
    // A feed that knew nothing of its rows becomes one of events.
    let plain = lab.feed(77, 1).await;
    definition.capture.feed = Some(FeedBinding {
        feed: plain.name.clone(),
        shard_by: None,
    });
    definition.name = "plain".parse().unwrap();
    lab.trigger(&definition).await;
    definition.name = "new".parse().unwrap();
    definition.capture.feed = Some(FeedBinding {
        feed: "fresh".parse().unwrap(),
        shard_by: None,
    });
    let trigger = lab.trigger(&definition).await;
    let feeds = lab.store.feeds().await.unwrap();
    let fresh = feeds.iter().find(|f| f.name.as_str() == "fresh").unwrap();
    assert_eq!(
        (fresh.shards.len(), &fresh.source),
        (1, &Some(Source::Events))
    );
    assert!(
        feeds
            .iter()
            .any(|f| f.id == plain.id && f.source == Some(Source::Events))
    );

    lab.shell("insert into t values (1, 1), (2, 2), (3, 3);")
        .unwrap();
    let held = claim(&lab.store, &wanted(&trigger, 10), LEASE).await;
    let done: Vec<_> = held
        .iter()
        .map(|e| finished(e, Verdict::Delivered))
        .collect();
    lab.store.finish_events(&done).await.unwrap();
    let page = lab.page(fresh, 0, After::First, 2).await;
    let reader = "reader".parse().unwrap();
    let store = &lab.store;
    store
        .store_cursor(&reader, fresh, ShardId(0), None, page.changes[0].cursor)
        .await
        .unwrap();
    let cleaned = store
        .clean_up_events(Some(&trigger), ALL, 100)
        .await
        .unwrap();
    assert_eq!((cleaned.events, cleaned.more), (1, false));
    let page = lab.page(fresh, 0, After::First, 10).await;
    assert_eq!(page.changes[0].content, Content::Gone);
    assert_eq!(page.changes[1].op, Some(Op::Insert));
    let last: Cursor = page.next;
    store
        .store_cursor(
            &reader,
            fresh,
            ShardId(0),
            Some(page.changes[0].cursor),
            last,
        )
        .await
        .unwrap();
    let cleaned = store
        .clean_up_events(Some(&trigger), ALL, 100)
        .await
        .unwrap();
    assert_eq!(cleaned.events, 2);
}

#[tokio::test]
async fn a_transaction_says_who_it_is_and_nobody_else_is_taken_for_it() {
    let lab = lab().await;
    let trigger = lab.trigger(&everything("t")).await;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    lab.shell(&format!(
        "insert into t values (1, 1);
         begin immediate;
         insert into changefeed_session values ('{{\"user\":\"7\"}}', '{parent}');
         insert into t values (2, 2); update t set k = 3 where id = 2;
         delete from changefeed_session;
         insert into t values (3, 3);
         commit;
         begin immediate;
         insert into changefeed_session (session_variables) values ('{{\"user\":\"rolled back\"}}');
         insert into t values (9, 9);
         rollback;
         -- This one forgets to say that it is done.
         begin immediate;
         insert into changefeed_session (session_variables) values ('{{\"user\":\"8\"}}');
         insert into t values (4, 4);
         commit;
         insert into t values (5, 5);"
    ))
    .unwrap();
    let findings = lab.store.capture_findings().await.unwrap();
    assert!(
        findings.iter().any(|f| f.subject == "changefeed_session"),
        "{findings:?}"
    );
    let said = lab
        .shell(
            "select coalesce(session_variables, '-'), coalesce(trace_context, '-')
               from changefeed_event_log order by change_id;",
        )
        .unwrap();
    let told = format!("{{\"user\":\"7\"}}|{{\"traceparent\":\"{parent}\"}}\n");
    assert_eq!(said, format!("-|-\n{told}{told}-|-\n-|-\n-|-\n"));
    // Whoever looks for work closes what was left open.
    let held = lab.claim(&trigger, 10).await;
    assert_eq!(held.len(), 6);
    assert_eq!(
        held[1].event.session_variables.as_ref().unwrap().get(),
        "{\"user\":\"7\"}"
    );
    lab.shell("insert into t values (6, 6); delete from changefeed_session;")
        .unwrap();
    assert!(lab.log().await[6].event.session_variables.is_none());
    let refused = lab
        .shell("insert into changefeed_session (session_variables) values ('[1]');")
        .unwrap_err();
    assert!(refused.contains("must be a JSON object"), "{refused}");
}

/// The stock shell sends events by hand, in its own transaction.
#[tokio::test]
async fn an_event_by_hand_is_an_insert_into_a_view() {
    let lab = lab().await;
    let mut definition = everything("t");
    definition.capture.manual = true;
    definition.capture.feed = Some(FeedBinding {
        feed: "f".parse().unwrap(),
        shard_by: None,
    });
    let trigger = lab.trigger(&definition).await;
    lab.shell(
        "begin immediate; insert into changefeed_invoke (trigger_name, payload) values ('all', '1'); rollback;
         begin immediate;
         insert into changefeed_session (session_variables) values ('{\"x-user\":\"7\"}');
         insert into t values (1, 1);
         insert into changefeed_invoke (trigger_name, payload) values ('all', '{\"to\":2.50}');
         delete from changefeed_session;
         commit;
         insert into changefeed_invoke (trigger_name) values ('all');",
    )
    .unwrap();
    assert_eq!(
        lab.events().await,
        [
            "INSERT - > {\"id\":1,\"k\":1}",
            "MANUAL - > {\"to\":2.50}",
            "MANUAL - > {}"
        ]
    );
    let log = lab.log().await;
    assert!(log[1].event.session_variables.is_some() && log[2].event.session_variables.is_none());
    assert_eq!(lab.claim(&trigger, 10).await.len(), 3);
    let numbered = lab
        .shell("select count(*) from changefeed_numbered")
        .unwrap();
    assert_eq!(numbered.trim(), "3", "it enters the feed, too");
    for (sql, sentence) in [
        ("values ('nothing', '1')", "no event trigger"),
        ("values ('all', 'oops')", "must be JSON"),
    ] {
        let error = lab
            .shell(&format!(
                "insert into changefeed_invoke (trigger_name, payload) {sql};"
            ))
            .unwrap_err();
        assert!(error.to_string().contains(sentence), "{error}");
    }
    definition.capture.manual = false;
    lab.store.create_trigger(&definition, true).await.unwrap();
    lab.shell("insert into changefeed_invoke (trigger_name) values ('all');")
        .unwrap_err();
}
