//! etcd that dies, stalls, forgets and answers nobody: what the client says of each request is true, and it goes on by itself.

use super::{VERSIONS, cluster, connect, get, key, options, put, put_if, put_leased, settle, under, write};
use millpond_metadata::etcd::Etcd;
use millpond_metadata::kv::{Compare, Event, Kv, KvError, Range, Revision, Txn, TxnOutcome, Watch};
use millpond_tests::proxy::{Mode, Proxy};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Every version, each with its own name in a skipped test's line.
macro_rules! each_version {
    ($test:ident, $size:expr) => {
        #[tokio::test]
        async fn $test() {
            for tool in VERSIONS {
                if let Some(cluster) = cluster(stringify!($test), tool, $size).await {
                    checks::$test(cluster).await;
                }
            }
        }
    };
}

each_version!(ended_lease_fences_its_owner, 1);
each_version!(lost_answer_is_unknown_and_settled_once, 1);
each_version!(late_request_is_unknown_and_settled_once, 1);
each_version!(dead_etcd_ends_every_call_by_its_deadline, 1);
each_version!(watch_goes_on_over_compaction, 1);
each_version!(wiped_etcd_is_not_the_one_it_was, 1);
each_version!(who_is_heard_and_does_not_hear_holds_no_lease, 1);
each_version!(slow_answers_do_not_age_the_lease, 1);
each_version!(slow_etcd_is_connected_to, 1);
each_version!(stalled_member_does_not_end_the_lease, 3);
each_version!(killed_leader_does_not_end_the_lease, 3);
each_version!(watch_moves_to_another_member, 3);
each_version!(increments_count_once_while_leaders_are_killed, 3);

mod checks {
    use super::*;
    use millpond_tests::etcd::EtcdCluster;

    /// How late an etcd answers that is slow, and no slower than a keep-alive may be answered.
    const SLOW: Duration = Duration::from_millis(1500);

    /// Rules B3, K4: what the owner of an ended lease sends does nothing.
    pub(super) async fn ended_lease_fences_its_owner(cluster: EtcdCluster) {
        let kv = connect(&cluster.url()).await;
        let lease = kv.grant(Duration::from_secs(2)).await.expect("granted");
        let inc = write(&kv, vec![put_leased("sess", lease.id)]).await;
        assert!(kv.keep_alive(lease.id).await.expect("etcd is up").is_some());
        let owned = |value: &str| Txn {
            compares: vec![Compare::ModRevision { key: key("sess"), is: inc }],
            then: vec![put("owned", value)],
            or_else: Vec::new(),
        };
        assert!(matches!(kv.txn(owned("1")).await, Ok(TxnOutcome::Succeeded { .. })));
        // Nobody renews it any more.
        let mut watch = kv.watch(under("sess"), inc.next()).await.expect("etcd is up");
        let batch = watch.next().await.expect("the lease ends");
        assert!(matches!(batch.events.as_slice(), [Event::Delete { .. }]), "{batch:?}");
        assert!(matches!(kv.txn(owned("2")).await, Ok(TxnOutcome::Failed { .. })));
        assert_eq!(get(&kv, "owned").await.map(|(value, _)| value).as_deref(), Some("1"));
        assert_eq!(kv.keep_alive(lease.id).await, Ok(None));
    }

    /// Rule K5: the answer is lost, the transaction happened.
    pub(super) async fn lost_answer_is_unknown_and_settled_once(cluster: EtcdCluster) {
        let (proxy, through, direct) = proxied(&cluster).await;
        let seen = write(&direct, vec![put("a", "0")]).await;
        proxy.set(Mode::CutAnswers);
        let lost = through.txn(put_if("a", seen, "1")).await;
        assert!(matches!(lost, Err(KvError::Unknown(_))), "{lost:?}");
        proxy.set(Mode::Pass);
        let written = get(&direct, "a").await;
        assert_eq!(written, Some(("1".to_owned(), seen.next())), "it had been forwarded");
        assert!(settle(&through, "a", seen, "1").await);
        assert_eq!(get(&direct, "a").await, written, "sent again, and done once");
    }

    /// Rule K5: the unchanged key proves nothing, since the transaction is still under way.
    pub(super) async fn late_request_is_unknown_and_settled_once(cluster: EtcdCluster) {
        let (proxy, through, direct) = proxied(&cluster).await;
        let seen = write(&direct, vec![put("a", "0")]).await;
        proxy.set(Mode::HoldRequests);
        let held = through.txn(put_if("a", seen, "1")).await;
        assert!(matches!(held, Err(KvError::Unknown(_))), "{held:?}");
        assert_eq!(get(&direct, "a").await, Some(("0".to_owned(), seen)));
        let mut watch = direct.watch(under("a"), seen.next()).await.expect("etcd is up");
        proxy.set(Mode::Pass);
        // It arrives long after its sender gave it up.
        let batch = watch.next().await.expect("it takes effect");
        assert_eq!(batch.revision, seen.next());
        assert!(settle(&through, "a", seen, "1").await);
        assert_eq!(get(&direct, "a").await, Some(("1".to_owned(), seen.next())));
    }

    /// Ten seconds without etcd: each call ends with an error that may be retried, and the same handle works afterwards.
    pub(super) async fn dead_etcd_ends_every_call_by_its_deadline(mut cluster: EtcdCluster) {
        let mut options = options(&cluster.url());
        options.deadline = Duration::from_secs(2);
        let latest = options.deadline + Duration::from_secs(1);
        let kv = Etcd::connect(options).await.expect("etcd is up");
        let lease = kv.grant(Duration::from_secs(60)).await.expect("granted").id;
        let start = write(&kv, vec![put("a", "0"), put_leased("b", lease)]).await;
        assert!(kv.keep_alive(lease).await.expect("etcd is up").is_some());
        let mut watch = kv.watch(under("a"), start.next()).await.expect("etcd is up");
        cluster.kill(0);
        let dead = Instant::now();
        let mut ended = 0;
        while dead.elapsed() < Duration::from_secs(10) {
            let asked = Instant::now();
            let range = kv.range(Range::key(&key("a"))).await.map(drop);
            assert!(matches!(range, Err(KvError::Unavailable(_))), "{range:?}");
            assert!(asked.elapsed() < latest, "{:?}", asked.elapsed());
            let asked = Instant::now();
            let (txn, granted, revoked, kept, watched) = tokio::join!(
                kv.txn(put_if("a", start, "never")),
                kv.grant(Duration::from_secs(5)),
                kv.revoke(lease),
                kv.keep_alive(lease),
                watch.next(),
            );
            let errors = [txn.err(), granted.err(), revoked.err(), kept.err(), watched.err()];
            for error in errors {
                let error = error.expect("nobody can have answered");
                assert!(matches!(error, KvError::Unavailable(_) | KvError::Unknown(_)), "{error:?}");
                ended += 1;
            }
            assert!(asked.elapsed() < latest, "{:?}", asked.elapsed());
        }
        assert!(ended >= 10, "{ended}");
        cluster.restart(0).await;
        assert_eq!(get(&kv, "a").await, Some(("0".to_owned(), start)));
        assert!(kv.keep_alive(lease).await.expect("etcd is up").is_some(), "silence did not end the lease");
        write(&kv, vec![put("a", "1")]).await;
        assert_eq!(watch.next().await.expect("the watch stands").revision, start.next());
    }

    /// Rule Z2: list at R, watch from R + 1: nothing is missed, nothing comes twice.
    pub(super) async fn watch_goes_on_over_compaction(cluster: EtcdCluster) {
        let kv = connect(&cluster.url()).await;
        let first = write(&kv, vec![put("w/0", "0")]).await;
        let mut revisions = vec![first];
        for i in 1..40 {
            revisions.push(write(&kv, vec![put(&format!("w/{}", i % 7), &i.to_string())]).await);
        }
        let mut watch = kv.watch(under("w/"), first).await.expect("etcd is up");
        let mut seen = Vec::new();
        while seen.len() < 20 {
            seen.extend(watch.next().await.expect("history is there").events.iter().map(Event::mod_revision));
        }
        let last = *seen.last().expect("twenty");
        drop(watch);
        // While nobody looks, more is written, and the history that was not read is cut.
        let missed = write(&kv, vec![put("w/missed", "1")]).await;
        kv.compact(missed).await.expect("it is history");
        let mut watch = kv.watch(under("w/"), last.next()).await.expect("etcd is up");
        if last.next() < missed {
            assert_eq!(watch.next().await, Err(KvError::Compacted(missed)));
        }
        let listed = kv.range(Range { keys: under("w/"), limit: 100 }).await.expect("etcd is up");
        assert!(listed.found.iter().any(|kv| kv.mod_revision == missed));
        let mut watch = kv.watch(under("w/"), listed.revision.next()).await.expect("etcd is up");
        let after = [write(&kv, vec![put("w/1", "x")]).await, write(&kv, vec![put("w/2", "x")]).await];
        let mut got = Vec::new();
        while got.len() < after.len() {
            got.extend(watch.next().await.expect("the watch stands").events.iter().map(Event::mod_revision));
        }
        assert_eq!(got, after);
    }

    /// Rule K7: a store whose revisions start anew is not written to.
    pub(super) async fn wiped_etcd_is_not_the_one_it_was(mut cluster: EtcdCluster) {
        let kv = connect(&cluster.url()).await;
        for i in 0..5 {
            write(&kv, vec![put("a", &i.to_string())]).await;
        }
        cluster.kill(0);
        cluster.wipe(0);
        cluster.restart(0).await;
        let answers = [
            kv.range(Range::key(&key("a"))).await.map(drop),
            kv.txn(put_if("a", Revision::ABSENT, "1")).await.map(drop),
            kv.position().await.map(drop),
        ];
        for answer in answers {
            assert!(matches!(answer, Err(KvError::Restored(_))), "{answer:?}");
        }
        // Whoever did not know the old one may use the new one, where nothing was written.
        assert_eq!(get(&connect(&cluster.url()).await, "a").await, None);
    }

    /// Rule Z4: a broker that hears nothing of etcd does not hold its lease, however well etcd hears it.
    pub(super) async fn who_is_heard_and_does_not_hear_holds_no_lease(cluster: EtcdCluster) {
        let ttl = Duration::from_secs(10);
        let (proxy, deaf, direct) = proxied(&cluster).await;
        let leased = async |name: &str, kv: &Etcd, ttl| {
            let lease = kv.grant(ttl).await.expect("granted").id;
            (lease, write(kv, vec![put_leased(name, lease)]).await)
        };
        let (witness, _) = leased("lease/witness", &direct, ttl).await;
        let (held, _) = leased("lease/deaf", &deaf, ttl).await;
        assert!(deaf.keep_alive(held).await.expect("etcd is up").is_some());
        let start = write(&direct, Vec::new()).await;
        let mut watch = direct.watch(under("lease/"), start.next()).await.expect("etcd is up");
        let mut ended = async || loop {
            let events = watch.next().await.expect("leases end").events;
            let ends = events.iter().filter(|event| matches!(event, Event::Delete { .. }));
            let ends: Vec<String> = ends.map(|event| String::from_utf8_lossy(event.key()).into_owned()).collect();
            if !ends.is_empty() {
                break ends;
            }
        };
        // Between the last renewal of one, that of the other and the attempt at a third so much time passes that etcd cannot take one for
        // the next.
        leased("lease/hourglass", &direct, Duration::from_secs(2)).await;
        assert_eq!(ended().await, ["lease/hourglass"]);
        assert!(direct.keep_alive(witness).await.expect("etcd is up").is_some());
        leased("lease/hourglass", &direct, Duration::from_secs(2)).await;
        assert_eq!(ended().await, ["lease/hourglass"]);
        proxy.set(Mode::Deafen);
        // As often as a broker does.
        let try_on = async {
            let mut pause = tokio::time::interval(Duration::from_millis(200));
            loop {
                pause.tick().await;
                let renewed = deaf.keep_alive(held).await;
                assert!(matches!(renewed, Err(KvError::Unknown(_) | KvError::Unavailable(_))), "{renewed:?}");
            }
        };
        let first = tokio::select! {
            first = ended() => first,
            () = try_on => unreachable!("it tries on"),
        };
        assert_eq!(first, ["lease/deaf"], "the witness was renewed after it, by one that hears");
    }

    /// Rules Z4 and B5: what is said of when a keep-alive was sent is true, and leaves out what it took to hear etcd before.
    pub(super) async fn slow_answers_do_not_age_the_lease(cluster: EtcdCluster) {
        let (proxy, slow, _) = proxied(&cluster).await;
        let lease = slow.grant(Duration::from_secs(6)).await.expect("granted").id;
        assert!(slow.keep_alive(lease).await.expect("etcd is up").is_some());
        proxy.set(Mode::Delay(SLOW));
        let renew = async || {
            let asked = Instant::now();
            let renewal = slow.keep_alive(lease).await.expect("etcd answers").expect("it lives");
            (renewal, asked.elapsed())
        };
        // The first may come right after the one before.
        renew().await;
        for _ in 0..3 {
            let (renewal, took) = renew().await;
            assert!(renewal.sent_after < SLOW && took >= SLOW, "the answer before is heard: {renewal:?} in {took:?}");
            // This takes an answer too, of another connection.
            get(&slow, "sess").await;
            let (renewal, took) = renew().await;
            assert!(renewal.sent_after >= SLOW, "another answer is heard first: {renewal:?}");
            assert!(
                took >= renewal.sent_after + SLOW,
                "nor is it said that it was sent later: {renewal:?} in {took:?}"
            );
        }
    }

    /// Rule Z4: a keep-alive gets a connection to an etcd that answers later than the next member would be tried.
    pub(super) async fn slow_etcd_is_connected_to(cluster: EtcdCluster) {
        let (proxy, slow, _) = proxied(&cluster).await;
        let lease = slow.grant(Duration::from_secs(60)).await.expect("granted").id;
        proxy.set(Mode::Delay(SLOW));
        let asked = Instant::now();
        assert!(slow.keep_alive(lease).await.expect("it is connected to at once").is_some());
        assert!(asked.elapsed() >= SLOW * 3, "to connect, to hear it, and to open a stream: {:?}", asked.elapsed());
    }

    /// Rule Z4: an election of etcd, which breaks the connections of its leader, costs no lease.
    pub(super) async fn killed_leader_does_not_end_the_lease(mut cluster: EtcdCluster) {
        let kv = connect(&cluster.url()).await;
        let lease = kv.grant(Duration::from_secs(6)).await.expect("granted");
        write(&kv, vec![put_leased("sess", lease.id)]).await;
        let mut took = Vec::new();
        for _ in 0..cluster.size() {
            assert!(kv.keep_alive(lease.id).await.expect("etcd is up").is_some());
            let victim = cluster.leader().await;
            cluster.kill(victim);
            let killed = Instant::now();
            loop {
                match kv.keep_alive(lease.id).await {
                    Ok(left) => break assert!(left.is_some(), "the lease ended with its leader killed"),
                    Err(KvError::Unknown(_) | KvError::Unavailable(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            took.push(killed.elapsed());
            assert!(killed.elapsed() < lease.ttl, "{took:?}");
            cluster.restart(victim).await;
        }
        assert!(get(&kv, "sess").await.is_some());
        eprintln!("renewed {took:?} after the leader was killed");
    }

    /// Rule Z4: a keep-alive that meets silence goes to another member before the lease ends.
    pub(super) async fn stalled_member_does_not_end_the_lease(cluster: EtcdCluster) {
        let kv = connect(&cluster.url()).await;
        let lease = kv.grant(Duration::from_secs(6)).await.expect("granted");
        write(&kv, vec![put_leased("sess", lease.id)]).await;
        // Each in turn, the one in use and the leader among them.
        for member in 0..cluster.size() {
            assert!(kv.keep_alive(lease.id).await.expect("etcd is up").is_some());
            cluster.pause(member);
            let renewed = Instant::now();
            loop {
                match kv.keep_alive(lease.id).await {
                    Ok(left) => break assert!(left.is_some(), "the lease ended with member {member} stalled"),
                    Err(KvError::Unknown(_) | KvError::Unavailable(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(renewed.elapsed() < lease.ttl, "{:?}", renewed.elapsed());
            assert!(get(&kv, "sess").await.is_some(), "reads go on elsewhere too");
            cluster.resume(member);
        }
    }

    /// Rule Z3, and a change of leader: the watch stands, and hands out each event once.
    pub(super) async fn watch_moves_to_another_member(mut cluster: EtcdCluster) {
        let kv = connect(&cluster.url()).await;
        let start = write(&kv, vec![put("w", "0")]).await;
        let mut watch: Box<dyn Watch> = kv.watch(under("w"), start.next()).await.expect("etcd is up");
        let (mut written, mut got) = (start, Vec::new());
        for round in 0..cluster.size() {
            let victim = cluster.leader().await;
            cluster.kill(victim);
            let value = format!("{round}");
            assert!(settle(&kv, "w", written, &value).await, "nobody else writes");
            written = get(&kv, "w").await.expect("just written").1;
            let batch = watch.next().await.expect("the watch stands");
            got.extend(batch.events.iter().map(Event::mod_revision));
            assert_eq!(got.last(), Some(&written), "{got:?}");
            cluster.restart(victim).await;
        }
        assert_eq!(got.len(), cluster.size());
    }

    /// Rule K5 under fire: every increment whose outcome was unknown is settled by sending it again.
    pub(super) async fn increments_count_once_while_leaders_are_killed(mut cluster: EtcdCluster) {
        const TASKS: u32 = 4;
        const INCREMENTS: u32 = 60;
        const KILLS: u32 = 8;
        let kv: Arc<Etcd> = Arc::new(connect(&cluster.url()).await);
        write(&*kv, vec![put("count", "0")]).await;
        let increments = |task: u32| {
            let kv = Arc::clone(&kv);
            async move {
                let mut unknown = 0;
                for number in 0..INCREMENTS {
                    unknown += increment(&kv, &format!("mark/{task}/{number}")).await;
                }
                unknown
            }
        };
        let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(increments(task))).collect();
        for _ in 0..KILLS {
            let victim = cluster.leader().await;
            cluster.kill(victim);
            cluster.restart(victim).await;
        }
        let mut unknown = 0;
        for task in tasks {
            unknown += task.await.expect("no increment panics");
        }
        let count = get(&*kv, "count").await.expect("written").0;
        eprintln!("{} increments, {unknown} unknown outcomes, {KILLS} kills", TASKS * INCREMENTS);
        assert_eq!(count, (TASKS * INCREMENTS).to_string());
    }

    /// One increment; returns how often its outcome was unknown.
    async fn increment(kv: &Etcd, mark: &str) -> u32 {
        let mut unknown = 0;
        loop {
            let Ok(mut seen) = kv.range(Range::key(&key("count"))).await else { continue };
            let seen = seen.found.pop().expect("written");
            let count: u32 = std::str::from_utf8(&seen.value).expect("text").parse().expect("a number");
            let txn = Txn {
                compares: vec![Compare::ModRevision { key: key("count"), is: seen.mod_revision }],
                then: vec![put("count", &(count + 1).to_string()), put(mark, "1")],
                or_else: vec![Range::key(&key(mark))],
            };
            loop {
                match kv.txn(txn.clone()).await {
                    Ok(TxnOutcome::Succeeded { .. }) => return unknown,
                    // The key moved: by this very transaction, or by another's.
                    Ok(TxnOutcome::Failed { found, .. }) if found[0].found.is_empty() => break,
                    Ok(TxnOutcome::Failed { .. }) => return unknown,
                    Err(KvError::Unknown(_)) => unknown += 1,
                    Err(KvError::Unavailable(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    async fn proxied(cluster: &EtcdCluster) -> (Proxy, Etcd, Etcd) {
        let port = cluster.address(0).rsplit(':').next().and_then(|port| port.parse().ok()).expect("host:port");
        let proxy = Proxy::start(port).await;
        let through = connect(&format!("etcd://{}", proxy.address())).await;
        (proxy, through, connect(&cluster.url()).await)
    }
}
