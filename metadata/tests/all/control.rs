//! What every implementation of the store owes to controllers and to whoever ends another's session. Each promise has keys of its own.

use millpond_core::records::{DrainRecord, Leader, SessionRecord};
use millpond_log::{BrokerId, Incarnation, Lsn, PartitionId, TopicId, WalGen};
use millpond_metadata::keys::Keys;
use millpond_metadata::kv::{Kv, Revision};
use millpond_metadata::store::{
    CreateOutcome, Forgotten, Held, NewTopic, Outcome, Placement, Registered, Registration, Session, Store,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Runs them all over one store. No lease ends meanwhile, so what outlives a session is there to be seen.
pub(crate) async fn promises(kv: &Arc<dyn Kv>) {
    one_broker_controls_while_its_session_stands(&fresh(kv, "one")).await;
    control_is_taken_from_an_ended_session(&fresh(kv, "ended")).await;
    control_is_taken_anew_after_a_quick_restart(&fresh(kv, "restart")).await;
    control_is_given_up(&fresh(kv, "given")).await;
    whoever_waits_for_control_wakes_when_it_is_free(&fresh(kv, "waits")).await;
    whoever_controls_hears_that_it_is_lost(&fresh(kv, "lost")).await;
    a_session_is_ended_once_and_no_later_one(&fresh(kv, "session")).await;
    disks_are_given_up(&fresh(kv, "given-up")).await;
    let founded = fresh(kv, "drain");
    founded.init_cluster("drain").await.expect("founded");
    brokers_are_left_and_forgotten(&founded).await;
}

pub(crate) fn fresh(kv: &Arc<dyn Kv>, name: &str) -> Store {
    Store::new(Arc::clone(kv), Keys::for_cluster(name))
}

fn registration(broker: u32, disk_inc: Incarnation) -> Registration {
    let at = |port: u32| format!("127.0.0.1:{}", port + broker);
    let wal_gen = WalGen(100 + u64::from(broker));
    let (grpc, kafka, http, kafka_listeners) = (at(7400), at(9092), at(7480), BTreeMap::new());
    let record = SessionRecord { wal_gen, grpc, kafka, kafka_listeners, http, internal: None, rack: None };
    let (broker, durable_lsn, ttl) = (BrokerId(broker), Lsn(0), Duration::from_secs(60));
    Registration { broker, record, disk_inc, durable_lsn, ttl }
}

pub(crate) async fn register(store: &Store, broker: u32, disk_inc: Incarnation) -> Session {
    match store.register_broker(&registration(broker, disk_inc)).await {
        Ok(Registered::Session(session)) => session,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn committed(outcome: &Outcome) -> Revision {
    match outcome {
        Outcome::Committed { revision } => *revision,
        other => panic!("{other:?}"),
    }
}

async fn take(store: &Store, actor: &Session) -> Outcome {
    store.take_control(actor).await.expect("up")
}

async fn end(store: &Store, actor: &Session, of: &Session) -> Outcome {
    store.end_session(actor, of.rid.broker, of.inc).await.expect("up")
}

async fn controller(store: &Store) -> Option<(Leader, Revision)> {
    store.controller().await.expect("up").map(|seen| (seen.value, seen.revision))
}

fn leader(session: &Session) -> Leader {
    Leader { rid: session.rid, inc: session.inc }
}

async fn one_broker_controls_while_its_session_stands(store: &Store) {
    let (me, peer) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    let mine = committed(&take(store, &me).await);
    assert_eq!(take(store, &peer).await, Outcome::Conflict);
    assert_eq!(committed(&take(store, &me).await), mine, "taking it twice changes nothing");
    assert_eq!(controller(store).await, Some((leader(&me), mine)));
    store.leave(&me).await.expect("up");
    assert_eq!(controller(store).await, None, "it goes with the lease");
    assert_eq!(take(store, &me).await, Outcome::Fenced, "rule K4");
    assert!(committed(&take(store, &peer).await) > mine);
}

async fn control_is_taken_from_an_ended_session(store: &Store) {
    let (me, peer) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    let mine = committed(&take(store, &me).await);
    committed(&end(store, &peer, &me).await);
    assert_eq!(controller(store).await, Some((leader(&me), mine)), "its lease lives on");
    let theirs = committed(&take(store, &peer).await);
    assert_eq!(controller(store).await, Some((leader(&peer), theirs)));
    store.kv().revoke(me.lease).await.expect("up");
    assert_eq!(controller(store).await, Some((leader(&peer), theirs)), "the old lease does not take it along");
    assert_eq!(store.release_control(&peer, mine).await, Ok(Outcome::Fenced), "that revision has passed");
}

async fn control_is_taken_anew_after_a_quick_restart(store: &Store) {
    let first = register(store, 1, Incarnation(0)).await;
    committed(&take(store, &first).await);
    let peer = register(store, 2, Incarnation(0)).await;
    let second = register(store, 1, first.inc).await;
    let again = committed(&take(store, &second).await);
    assert_eq!(controller(store).await, Some((leader(&second), again)));
    assert_eq!(take(store, &peer).await, Outcome::Conflict);
    assert_eq!(take(store, &first).await, Outcome::Conflict, "a session that was replaced takes nothing");
}

async fn control_is_given_up(store: &Store) {
    let (me, peer) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    let mine = committed(&take(store, &me).await);
    committed(&store.release_control(&me, mine).await.expect("up"));
    assert_eq!(controller(store).await, None);
    let theirs = committed(&take(store, &peer).await);
    assert_eq!(store.release_control(&me, mine).await, Ok(Outcome::Fenced));
    assert_eq!(controller(store).await, Some((leader(&peer), theirs)));
}

async fn whoever_waits_for_control_wakes_when_it_is_free(store: &Store) {
    let (me, peer) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    assert_eq!(store.acting_controller().await, Ok(None));
    // The session ends, the key stays.
    committed(&take(store, &me).await);
    let holder = leader(&me);
    assert_eq!(store.acting_controller().await, Ok(Some(holder)));
    let (woken, ended) = tokio::join!(store.control_ended(&holder), end(store, &peer, &me));
    woken.expect("its session has ended");
    assert_eq!(store.acting_controller().await, Ok(None));
    committed(&ended);
    // The key goes, the session stays.
    let theirs = committed(&take(store, &peer).await);
    let holder = leader(&peer);
    let (woken, released) = tokio::join!(store.control_ended(&holder), store.release_control(&peer, theirs));
    woken.expect("it was given up");
    committed(&released.expect("up"));
    store.control_ended(&holder).await.expect("it has ended already");
}

async fn whoever_controls_hears_that_it_is_lost(store: &Store) {
    let (me, peer) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    let mine = committed(&take(store, &me).await);
    let takes = async {
        end(store, &peer, &me).await;
        take(store, &peer).await
    };
    let (lost, taken) = tokio::join!(store.control_lost(mine), takes);
    lost.expect("another has it");
    let theirs = committed(&taken);
    let (lost, left) = tokio::join!(store.control_lost(theirs), store.leave(&peer));
    lost.expect("it went with its lease");
    left.expect("up");
    store.control_lost(theirs).await.expect("it has gone already");
}

async fn a_session_is_ended_once_and_no_later_one(store: &Store) {
    let (me, peer) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    let (ended, noticed) = tokio::join!(end(store, &me, &peer), store.session_ended(&peer));
    committed(&ended);
    noticed.expect("rule B3: it notices");
    assert_eq!(end(store, &me, &peer).await, Outcome::Conflict);
    let sessions = store.sessions().await.expect("up");
    assert_eq!(sessions.keys().collect::<Vec<_>>(), [&BrokerId(1)]);
    assert_eq!(sessions[&BrokerId(1)].revision.0, me.inc.0);
    let again = register(store, 2, peer.inc).await;
    assert_eq!(end(store, &me, &peer).await, Outcome::Conflict, "another incarnation is left alone");
    assert!(store.holds(&again).await.expect("up"));
    assert_eq!(end(store, &peer, &me).await, Outcome::Fenced, "rule K4");
    assert!(store.holds(&me).await.expect("up"));
}

/// Rule B4 by an operator's word: the disk counts as lost, and comes back as another one or not at all.
async fn disks_are_given_up(store: &Store) {
    let (me, peer) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    let give_up = async || store.give_disk_up(&me, BrokerId(2)).await.expect("up");
    let disk = async || store.read_disk(BrokerId(2)).await.expect("up").expect("it registered").value;
    assert_eq!(give_up().await, Outcome::Conflict, "it runs");
    assert_eq!(disk().await.wal_gen, peer.rid.wal_gen);
    assert_eq!(store.hosts().await.expect("up").absent, BTreeMap::new());
    store.leave(&peer).await.expect("up");
    let revision = store.read_disk(BrokerId(2)).await.expect("up").expect("it registered").revision;
    assert_eq!(store.hosts().await.expect("up").absent, BTreeMap::from([(BrokerId(2), revision)]));
    assert_eq!(store.give_disk_up(&peer, BrokerId(2)).await, Ok(Outcome::Fenced), "rule K4");
    committed(&give_up().await);
    assert_eq!(disk().await.wal_gen, WalGen::LOST);
    // It takes nothing new any more, also from whoever has not heard of it.
    assert_eq!(store.hosts().await.expect("up").absent, BTreeMap::new());
    let topic = NewTopic {
        name: "late".parse().expect("a name"),
        id: TopicId(8),
        buried: Revision::ABSENT,
        replication_factor: 2,
        config: BTreeMap::new(),
        placements: vec![Placement {
            replicas: vec![BrokerId(1), BrokerId(2)],
            isr: vec![me.rid],
            leader: None,
            min_isr: 1,
            absent: vec![(BrokerId(2), revision)],
        }],
    };
    assert_eq!(store.create_topic(&me, &topic).await, Ok(CreateOutcome::Conflict));
    committed(&give_up().await);
    committed(&store.give_disk_up(&me, BrokerId(9)).await.expect("up"));
    assert_eq!(store.read_disk(BrokerId(9)).await, Ok(None), "of an unknown broker nothing is put on record");
    // The disk itself is an old one now; another is welcome.
    let registration = registration(2, peer.inc);
    let refused = store.register_broker(&registration).await.expect("up");
    assert!(matches!(refused, Registered::StaleDisk { .. }), "{refused:?}");
    let wal_gen = WalGen(4_321);
    let record = SessionRecord { wal_gen, ..registration.record.clone() };
    let fresh = Registration { record, disk_inc: Incarnation(0), ..registration };
    let registered = store.register_broker(&fresh).await.expect("up");
    assert!(matches!(registered, Registered::Session(_)), "{registered:?}");
    assert_eq!(disk().await.wal_gen, wal_gen);
}

async fn brokers_are_left_and_forgotten(store: &Store) {
    let (me, peer) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    let hosts = async || store.hosts().await.expect("up").live.into_keys().map(|broker| broker.0).collect::<Vec<u32>>();
    let (stops, leaves) = (DrainRecord { replicas: false }, DrainRecord { replicas: true });
    // Who stops marks itself, until its session ends.
    committed(&store.drain(&peer, BrokerId(2), &stops, true).await.expect("up"));
    assert_eq!(hosts().await, [1]);
    store.leave(&peer).await.expect("up");
    let drains = store.load().await.expect("up").drains;
    assert_eq!(drains.len(), 0, "the mark goes with the lease");
    // An operator's mark stays, whatever the broker says of itself.
    let peer = register(store, 2, peer.inc).await;
    committed(&store.drain(&me, BrokerId(2), &leaves, false).await.expect("up"));
    committed(&store.drain(&peer, BrokerId(2), &stops, true).await.expect("up"));
    assert_eq!(store.forget_broker(&me, BrokerId(2)).await, Ok(Forgotten::Alive));
    store.leave(&peer).await.expect("up");
    assert_eq!(store.load().await.expect("up").drains[&BrokerId(2)].value, leaves);
    assert_eq!(store.drain(&peer, BrokerId(1), &leaves, false).await, Ok(Outcome::Fenced), "rule K4");

    let placement =
        Placement { replicas: vec![BrokerId(2)], isr: vec![peer.rid], leader: None, min_isr: 1, absent: Vec::new() };
    let topic = NewTopic {
        name: "held".parse().expect("a name"),
        id: TopicId(9),
        buried: Revision::ABSENT,
        replication_factor: 1,
        config: std::collections::BTreeMap::new(),
        placements: vec![placement],
    };
    let created = store.create_topic(&me, &topic).await;
    assert!(matches!(created, Ok(CreateOutcome::Created { .. })), "{created:?}");
    let only = vec![PartitionId { topic: TopicId(9), index: 0 }];
    let held = Forgotten::Holds(Held { partitions: only.clone(), last_copies: only });
    assert_eq!(store.forget_broker(&me, BrokerId(2)).await, Ok(held), "rule K6");
    let seen = store.topic(TopicId(9)).await.expect("up").expect("created");
    committed(&store.delete_topic(&me, &seen).await.expect("up"));
    assert_eq!(store.forget_broker(&me, BrokerId(2)).await, Ok(Forgotten::Done));
    assert_eq!(store.read_disk(BrokerId(2)).await, Ok(None));
    assert_eq!(store.forget_broker(&me, BrokerId(2)).await, Ok(Forgotten::Done), "it is gone already");
    assert!(store.load().await.expect("up").drains.is_empty());
    committed(&store.undrain(&me, BrokerId(2)).await.expect("up"));
}
