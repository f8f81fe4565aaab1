//! A clock that was set back. What it leaves behind is made by hand: times that lie ahead by as much
//! as the step was. A clock that was set forward is one that was last seen long ago.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{BatchOutcome, LeasedEvent, Store, Verdict, WatchSettings};
use tokio::task::JoinSet;

use crate::backend::{Backend, Session};
use crate::events::{captured_orders, claim, everything, finish};
use crate::eventually;
use crate::watching::{Scene, quick, take};

const STEP: Duration = Duration::from_secs(600);

/// An SQL expression for the time that the clock showed before it was set back.
async fn before_the_step(backend: &dyn Backend, store: &dyn Store) -> String {
    store.lease("before", "nobody", STEP).await.unwrap();
    let lease = backend.words().our("lease");
    format!("(select b.expires_at from {lease} b where b.name = 'before')")
}

/// Makes the clock one that was set back since somebody last looked.
async fn set_back(backend: &dyn Backend, session: &dyn Session, store: &dyn Store) -> String {
    let before = before_the_step(backend, store).await;
    let clock = backend.words().our("clock");
    session
        .run(&format!("update {clock} set latest = {before}"))
        .await;
    before
}

/// It lasted for as long as the step was.
pub async fn the_lease_of_a_dead_owner_ends_all_the_same(backend: Arc<dyn Backend>) {
    let (a, b) = (backend.installed().await, backend.store().await);
    let session = backend.session().await;
    let ttl = Duration::from_millis(400);
    let first = a.lease("l", "a", ttl).await.unwrap().unwrap();
    let before = before_the_step(&*backend, &*a).await;
    let lease = backend.words().our("lease");
    let step = format!("update {lease} set expires_at = {before} where name = 'l'");
    session.run(&step).await;
    let asked = Instant::now();
    let second = eventually("b takes over", || async {
        b.lease("l", "b", STEP).await.unwrap()
    })
    .await;
    assert!(asked.elapsed() >= ttl, "taken before it was over");
    assert!(second.generation > first.generation);
    assert_eq!(a.lease("l", "a", ttl).await.unwrap(), None);
}

/// Whoever renews is not dead, whatever the clock says.
pub async fn the_lease_of_a_living_owner_is_left_alone(backend: Arc<dyn Backend>) {
    let (a, b) = (backend.installed().await, backend.store().await);
    let ttl = Duration::from_millis(900);
    let first = a.lease("l", "a", ttl).await.unwrap().unwrap();
    let began = Instant::now();
    let mut renewed = began;
    while began.elapsed() < ttl * 3 {
        assert_eq!(b.lease("l", "b", STEP).await.unwrap(), None);
        if renewed.elapsed() > ttl / 3 {
            let again = a.lease("l", "a", ttl).await.unwrap().unwrap();
            // Where the machine was busy for too long, it was lost fairly, and this proves nothing.
            if again.generation != first.generation {
                return;
            }
            renewed = Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// All notice at once; one of them does something about it.
pub async fn a_step_is_noticed_once(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    assert_eq!(store.keep_time().await.unwrap(), None);
    set_back(&*backend, &*session, &*store).await;
    let mut all = JoinSet::new();
    for _ in 0..20 {
        let store = backend.store().await;
        all.spawn(async move { store.keep_time().await.unwrap() });
    }
    let mut noticed = Vec::new();
    while let Some(step) = all.join_next().await {
        noticed.extend(step.unwrap());
    }
    assert_eq!(noticed.len(), 1, "{noticed:?}");
    assert!(noticed[0] > STEP / 2 && noticed[0] <= STEP, "{noticed:?}");
    assert_eq!(store.keep_time().await.unwrap(), None);
}

/// What a dead instance held, what was to be tried again, and what was due, comes in time; what
/// somebody has taken since then stays theirs.
pub async fn events_of_before_a_step_back_come_in_time(backend: Arc<dyn Backend>) {
    let columns = "id integer primary key, customer text, total integer";
    let (store, session, trigger) = captured_orders(&*backend, columns).await;
    session
        .run("insert into orders values (1, 'held', 1), (2, 'waiting', 2)")
        .await;
    let lease = Duration::from_secs(30);
    assert_eq!(claim(&*store, &trigger, 1, "dead", lease).await.len(), 1);
    let before = set_back(&*backend, &*session, &*store).await;
    let event = backend.words().our("event");
    session
        .run(&format!("update {event} set due_at = {before}"))
        .await;
    session.run("insert into orders values (3, 'new', 3)").await;
    let mine = eventually("the new one", || async {
        let mine = claim(&*store, &trigger, 5, "living", lease).await;
        (!mine.is_empty()).then_some(mine)
    })
    .await;
    assert_eq!(mine.len(), 1, "the others lie ahead");
    assert!(store.keep_time().await.unwrap().is_some());
    let mut left = 2;
    while left > 0 {
        let due = eventually("what was brought back", || async {
            let due = claim(&*store, &trigger, 5, "other", lease).await;
            (!due.is_empty()).then_some(due)
        })
        .await;
        assert!(
            due.iter()
                .all(|e| e.event.change_id != mine[0].event.change_id)
        );
        left -= due.len();
    }
    // Still the living one's.
    finish(&*store, &mine[0], Verdict::Delivered).await;
}

/// The same for rows.
pub async fn rows_of_before_a_step_back_come_in_time(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let settings = WatchSettings {
        lease: Duration::from_secs(30),
        ..quick()
    };
    scene.app.run("insert into orders values (1, 'a')").await;
    assert!(scene.take("dead", &settings).await.is_some());
    let before = set_back(&*scene.backend, &*scene.app, &*scene.store).await;
    scene
        .app
        .run(&format!(
            "update {} set _changefeed_lease_expiration_time = {before}",
            scene.watch.leases_table
        ))
        .await;
    scene.app.run("insert into orders values (2, 'a')").await;
    let mine = scene.take("living", &settings).await.unwrap();
    let other = scene.backend.store().await;
    assert!(take(&*other, &scene.watch, "b", &settings).await.is_none());
    assert!(other.keep_time().await.unwrap().is_some());
    let back = eventually("the row that the dead one held", || async {
        take(&*other, &scene.watch, "b", &settings).await
    })
    .await;
    assert_eq!(crate::watching::ids(&back), [1]);
    assert_eq!(scene.settle(&mine, BatchOutcome::Done).await, 1);
}

/// As if nobody had looked at the clock for years, or as if it had been set forward by years.
async fn set_forward(backend: &dyn Backend, session: &dyn Session) {
    let words = backend.words();
    let (clock, long_ago) = (words.our("clock"), words.long_ago);
    session
        .run(&format!("update {clock} set latest = {long_ago}"))
        .await;
}

/// Whether somebody has written down what the clock shows since then.
async fn is_noted(backend: &dyn Backend, session: &dyn Session) -> bool {
    let words = backend.words();
    let (clock, long_ago) = (words.our("clock"), words.long_ago);
    let unseen = format!("select count(*) from {clock} where latest = {long_ago}");
    session.number(&unseen).await == 0
}

/// The clock was set forward, and back before anybody had looked: nothing but the events themselves
/// tells of it.
pub async fn events_captured_in_a_step_that_nobody_saw_come_in_time(backend: Arc<dyn Backend>) {
    let columns = "id integer primary key, customer text, total integer";
    let (store, session, trigger) = captured_orders(&*backend, columns).await;
    let before = before_the_step(&*backend, &*store).await;
    let event = backend.words().our("event");
    session
        .run("insert into orders values (1, 'retried', 1)")
        .await;
    let later = Verdict::Retry { after: STEP };
    let retried = claim(&*store, &trigger, 1, "a", STEP).await;
    finish(&*store, &retried[0], later).await;
    session
        .run("insert into orders values (2, 'astray', 2), (3, 'astray', 3)")
        .await;
    session
        .run(&format!(
            "update {event} set created_at = {before}, due_at = {before} where generation = 0"
        ))
        .await;
    assert!(claim(&*store, &trigger, 5, "a", STEP).await.is_empty());
    set_forward(&*backend, &*session).await;
    // No step: the clock is where it was at the last look, and later.
    assert_eq!(store.keep_time().await.unwrap(), None);
    let due = eventually("what was captured in the step", || async {
        let due = claim(&*store, &trigger, 5, "a", STEP).await;
        (!due.is_empty()).then_some(due)
    })
    .await;
    // In order, and without what waits for good reason.
    assert_eq!(due.len(), 2);
    assert!(due[0].event.change_id > retried[0].event.change_id);
    assert!(due[0].event.change_id < due[1].event.change_id);
}

/// So that the step is known when it is taken back, whoever looks then.
pub async fn what_is_put_off_or_held_writes_down_the_time(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend.clone()).await;
    let (store, session) = (&*scene.store, &*scene.app);
    let trigger = store
        .create_trigger(&everything("t", "orders"), false)
        .await
        .unwrap();
    let noted = async |what: &str| {
        assert!(is_noted(&*backend, session).await, "{what}");
        set_forward(&*backend, session).await;
    };
    set_forward(&*backend, session).await;
    session
        .run("insert into orders values (1, 'a'), (2, 'b')")
        .await;
    let held = claim(store, &trigger, 2, "a", STEP).await;
    noted("claimed").await;
    let claims: Vec<_> = held.iter().map(LeasedEvent::claim).collect();
    assert_eq!(store.renew_events(&claims, STEP).await.unwrap(), claims);
    noted("renewed").await;
    finish(store, &held[0], Verdict::Retry { after: STEP }).await;
    noted("put off").await;
    store.release_events(&claims[1..]).await.unwrap();
    noted("given back").await;
    let batch = scene.take("a", &quick()).await.unwrap();
    noted("taken").await;
    assert_eq!(
        store
            .renew(&scene.watch, &batch, quick().lease)
            .await
            .unwrap(),
        2
    );
    noted("renewed rows").await;
    let error = "no".to_owned();
    assert_eq!(
        scene.settle(&batch, BatchOutcome::Failed { error }).await,
        2
    );
    noted("failed").await;
}
