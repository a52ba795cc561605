//! Stores that fail, stall and lie; readers that give up. Time is virtual: it moves only when every task waits.

use crate::store::{Act, PAGE, Script, far, open, options, page, until};
use millpond_cache::{CacheError, Fault, Hint, Object};
use object_store::path::Path;
use std::error::Error;
use std::time::Duration;
use tokio::time::Instant;

fn within(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

#[tokio::test(start_paused = true)]
async fn transient_faults_are_retried_until_the_read_succeeds() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 50_000).await;
    let cache = open(options(), &store).await;
    let acts =
        vec![Act::Busy, Act::Busy, Act::Hang, Act::Cut(10), Act::Break(0), Act::Pad(7), Act::Less(1), Act::Stall(3)];
    let faults = acts.len() as u64;
    store.next(acts);
    let bytes = cache.read_whole(&object, 10..9000, Hint::Normal, far()).await.unwrap();
    assert_eq!(bytes, contents.slice(10..9000));
    assert_eq!((cache.counters().gets, cache.counters().get_faults), (faults + 1, faults));
    // Nothing of the wrong answers stayed.
    assert_eq!(cache.read_whole(&object, 0..50_000, Hint::Scan, far()).await.unwrap(), contents);
}

#[tokio::test(start_paused = true)]
async fn broken_get_is_taken_up_where_it_ended() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 10 * PAGE as usize).await;
    let cache = open(options(), &store).await;
    let broken = 2 * PAGE as usize + 100;
    store.next([Act::Break(broken), Act::Cut(broken), Act::Stall(broken)]);
    assert_eq!(cache.read_whole(&object, 0..object.size, Hint::Normal, far()).await.unwrap(), contents);
    assert_eq!(store.gets(), [0..object.size, 2 * PAGE..object.size, 4 * PAGE..object.size, 6 * PAGE..object.size]);
}

/// Case F4: a stalled store must not keep a fetch from answering.
#[tokio::test(start_paused = true)]
async fn stalled_store_is_answered_by_the_deadline() {
    let store = Script::in_memory();
    let (object, _) = store.object("a", 50_000).await;
    let cache = open(options(), &store).await;
    for act in [Act::Hang, Act::Busy, Act::Stall(10), Act::Cut(10)] {
        store.always(act.clone());
        let start = Instant::now();
        let results =
            futures::future::join_all((0..10).map(|_| cache.read(&object, page(1), Hint::Normal, within(500)))).await;
        assert_eq!(start.elapsed(), Duration::from_millis(500), "{act:?}");
        for result in results {
            let error = result.unwrap_err();
            assert!(error.is_retriable() && matches!(error, CacheError::Unavailable { .. }), "{act:?}: {error}");
        }
    }
    store.always(Act::Pass);
    cache.read(&object, page(1), Hint::Normal, far()).await.unwrap();
    assert_eq!(cache.counters().pages_in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn late_error_names_the_last_fault() {
    let store = Script::in_memory();
    let (object, _) = store.object("a", 50_000).await;
    let cache = open(options(), &store).await;
    store.always(Act::Cut(10));
    let error = cache.read(&object, page(1), Hint::Normal, within(60_000)).await.unwrap_err();
    let cause = error.source().unwrap().downcast_ref::<std::sync::Arc<Fault>>().map(|fault| fault.to_string());
    let cause = cause.or_else(|| error.source().map(ToString::to_string)).unwrap();
    assert_eq!(cause, "the answer has 10 bytes where 4096 were asked for");
}

#[tokio::test(start_paused = true)]
async fn fetch_outlives_a_reader_whose_deadline_passed() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 50_000).await;
    let cache = open(options(), &store).await;
    store.always(Act::Gate);
    assert!(cache.read(&object, page(2), Hint::Normal, within(500)).await.unwrap_err().is_retriable());
    store.open_gate(1);
    assert_eq!(
        cache.read_whole(&object, page(2), Hint::Normal, within(500)).await.unwrap(),
        contents.slice(2 * 4096..3 * 4096)
    );
    assert_eq!(store.gets().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn fetch_outlives_a_cancelled_reader() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 50_000).await;
    let cache = open(options(), &store).await;
    store.always(Act::Gate);
    let reader = tokio::spawn({
        let (cache, object) = (cache.clone(), object.clone());
        async move { cache.read(&object, page(2), Hint::Normal, far()).await }
    });
    until(|| store.gets().len() == 1).await;
    reader.abort();
    assert!(reader.await.unwrap_err().is_cancelled());
    store.open_gate(1);
    until(|| cache.counters().pages_in_flight == 0).await;
    assert_eq!(
        cache.read_whole(&object, page(2), Hint::Normal, within(0)).await.unwrap(),
        contents.slice(2 * 4096..3 * 4096)
    );
    assert_eq!(store.gets().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn expired_deadline_still_reads_from_memory() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 50_000).await;
    let cache = open(options(), &store).await;
    cache.read(&object, page(0), Hint::Normal, far()).await.unwrap();
    assert_eq!(cache.read_whole(&object, page(0), Hint::Normal, within(0)).await.unwrap(), contents.slice(..4096));
}

/// Case S1: the pauses grow, tries are not counted while someone waits, and nobody is asked for what nobody wants.
#[tokio::test(start_paused = true)]
async fn outage_is_retried_gently_and_only_while_someone_waits() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 50_000).await;
    let cache = open(options(), &store).await;
    store.always(Act::Busy);
    let waiting = tokio::spawn({
        let (cache, object) = (cache.clone(), object.clone());
        async move { cache.read_whole(&object, page(1), Hint::Normal, within(600_000)).await }
    });
    tokio::time::sleep(Duration::from_secs(300)).await;
    let gets = store.take_gets().len();
    assert!((30..=70).contains(&gets), "{gets} GETs in 300 s, the longest pause being 10 s");
    store.always(Act::Pass);
    assert_eq!(waiting.await.unwrap().unwrap(), contents.slice(4096..8192));

    store.always(Act::Busy);
    store.take_gets();
    cache.read(&object, page(9), Hint::Normal, within(1)).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(store.take_gets().len() <= 5);
    assert_eq!(cache.counters().pages_in_flight, 0);
}

/// Rule G4 needs a missing object told from a failing store, at once.
#[tokio::test(start_paused = true)]
async fn final_answers_come_at_once() {
    let store = Script::in_memory();
    let (object, _) = store.object("a", 50_000).await;
    let cache = open(options(), &store).await;
    let start = Instant::now();
    let missing = Object { path: Path::from("none"), size: 10_000 };
    let error = cache.read(&missing, 0..1, Hint::Normal, far()).await.unwrap_err();
    assert!(matches!(error, CacheError::NotFound { .. }) && !error.is_retriable());
    store.next([Act::Deny]);
    let error = cache.read(&object, 0..1, Hint::Normal, far()).await.unwrap_err();
    assert!(matches!(error, CacheError::Refused { .. }) && !error.is_retriable());
    for size in [49_999, 50_001] {
        let other = Object { path: object.path.clone(), size };
        let error = cache.read(&other, 0..1, Hint::Normal, far()).await.unwrap_err();
        assert!(matches!(error, CacheError::WrongSize { found: 50_000, .. }) && !error.is_retriable());
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    // None of it sticks.
    cache.read(&object, 0..1, Hint::Normal, far()).await.unwrap();
    store.delete_object(&object).await;
    let error = cache.read(&object, page(5), Hint::Normal, far()).await.unwrap_err();
    assert!(matches!(error, CacheError::NotFound { .. }));
}

/// A store answers a range behind the end of a cut object with an error that looks like any other (S13).
#[tokio::test(start_paused = true)]
async fn cut_object_is_told_from_a_failing_store() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 50_000).await;
    let cache = open(options(), &store).await;
    store.overwrite(&object, &contents[..100]).await;
    store.always(Act::Busy);
    let error = cache.read(&object, page(5), Hint::Normal, far()).await.unwrap_err();
    assert!(matches!(error, CacheError::WrongSize { expected: 50_000, found: 100, .. }), "{error}");
    assert_eq!((cache.counters().gets, cache.counters().heads), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn closing_ends_readers_that_wait() {
    let store = Script::in_memory();
    let (object, _) = store.object("a", 50_000).await;
    let cache = open(options(), &store).await;
    store.always(Act::Hang);
    let reader = tokio::spawn({
        let (cache, object) = (cache.clone(), object.clone());
        async move { cache.read(&object, page(2), Hint::Normal, far()).await }
    });
    until(|| store.gets().len() == 1).await;
    cache.close().await;
    assert!(matches!(reader.await.unwrap(), Err(CacheError::Closed)));
    assert!(matches!(cache.read(&object, page(3), Hint::Normal, far()).await, Err(CacheError::Closed)));
    assert_eq!(cache.counters().pages_in_flight, 0);
}

/// Case S9: bytes that the caller's checksum refuses are got again from the store, not served from the cache a second time.
#[tokio::test(start_paused = true)]
async fn forgotten_pages_are_fetched_again() {
    let store = Script::in_memory();
    let (object, good) = store.object("a", 5 * PAGE as usize).await;
    let mut bad = good.to_vec();
    bad[3 * 4096 + 7] ^= 1;
    store.overwrite(&object, &bad).await;
    for hint in [Hint::Normal, Hint::Scan] {
        let cache = open(options(), &store).await;
        assert_eq!(cache.read_whole(&object, 0..object.size, hint, far()).await.unwrap(), bad);
        store.overwrite(&object, &good).await;
        assert_eq!(cache.read_whole(&object, 0..object.size, hint, far()).await.unwrap(), bad);
        store.take_gets();
        cache.forget(&object, 3 * PAGE + 7..3 * PAGE + 8);
        assert_eq!(cache.read_whole(&object, 0..object.size, hint, far()).await.unwrap(), good);
        assert_eq!(store.take_gets(), [page(3)]);
        store.overwrite(&object, &bad).await;
    }
}
