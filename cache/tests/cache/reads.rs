//! What reads cost: GETs, counted at the store.

use crate::store::{Act, PAGE, Script, contents, far, open, options, page, until};
use bytes::Bytes;
use millpond_cache::{Cache, CacheError, CacheOptions, Hint, Object, Reader};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use std::sync::Arc;

async fn read(cache: &Cache, object: &Object, range: std::ops::Range<u64>, hint: Hint) -> Bytes {
    cache.read_whole(object, range, hint, far()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn hundred_readers_cost_one_get() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 40_000).await;
    let cache = open(options(), &store).await;
    store.always(Act::Gate);
    let readers: Vec<_> = (0..100)
        .map(|_| {
            let (cache, object) = (cache.clone(), object.clone());
            tokio::spawn(async move { read(&cache, &object, 5000..15_000, Hint::Normal).await })
        })
        .collect();
    // Pages 1 to 3.
    until(|| cache.counters().misses == 300).await;
    store.open_gate(1);
    for reader in readers {
        assert_eq!(reader.await.unwrap(), contents.slice(5000..15_000));
    }
    let gets = store.gets();
    assert_eq!((gets.len(), gets.first()), (1, Some(&(PAGE..4 * PAGE))));
    assert_eq!(cache.counters().gets, 1);
    assert_eq!(cache.counters().pages_in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn cold_random_read_costs_one_get_and_a_warm_one_none() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 1 << 20).await;
    let cache = open(options(), &store).await;
    for start in [700_000, 100_001, 412_345, 3, 900_000] {
        let range = start..start + 3 * PAGE;
        for cost in [1, 0] {
            assert_eq!(
                read(&cache, &object, range.clone(), Hint::Normal).await,
                contents.slice(start as usize..range.end as usize)
            );
            assert_eq!(store.take_gets().len(), cost, "{range:?}");
        }
    }
    assert_eq!(cache.counters().read_ahead_pages, 0);
}

#[tokio::test(start_paused = true)]
async fn readers_of_overlapping_ranges_share_pages() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 1 << 20).await;
    let cache = open(options(), &store).await;
    store.always(Act::Gate);
    let spawn = |range: std::ops::Range<u64>| {
        let (cache, object) = (cache.clone(), object.clone());
        tokio::spawn(async move { read(&cache, &object, range, Hint::Normal).await })
    };
    let first = spawn(0..6 * PAGE);
    until(|| store.gets().len() == 1).await;
    let second = spawn(4 * PAGE..8 * PAGE);
    until(|| store.gets().len() == 2).await;
    store.open_gate(2);
    assert_eq!(first.await.unwrap(), contents.slice(..6 * 4096));
    assert_eq!(second.await.unwrap(), contents.slice(4 * 4096..8 * 4096));
    // The second waits for the pages under way and gets the others only, and read-ahead of one page with them.
    assert_eq!(store.gets(), [0..6 * PAGE, 6 * PAGE..9 * PAGE]);
}

/// 256 MiB at the default settings.
#[tokio::test(start_paused = true)]
async fn sequential_scan_costs_at_most_one_get_per_4_mib() {
    const SIZE: usize = 256 << 20;
    let store = Script::in_memory();
    let (object, contents) = store.object("a", SIZE).await;
    for scan in [true, false] {
        let memory_bytes = 64 << 20;
        let cache = open(CacheOptions { memory_bytes, ..CacheOptions::default() }, &store).await;
        if scan {
            let mut reader = Reader::new(cache.clone(), object.clone(), 0..object.size);
            let mut position = 0;
            while let Some(piece) = reader.next(far()).await.unwrap() {
                assert!(piece == contents[position..position + piece.len()], "at {position}");
                position += piece.len();
                assert_eq!(reader.position(), position as u64);
            }
            assert_eq!(position, SIZE);
        } else {
            // A fetch loop that knows nothing of read-ahead.
            for start in (0..object.size).step_by(500_000) {
                let end = (start + 500_000).min(object.size);
                let bytes = read(&cache, &object, start..end, Hint::Normal).await;
                assert!(bytes == contents[start as usize..end as usize], "at {start}");
            }
        }
        let gets = store.take_gets();
        assert!(gets.len() <= SIZE / (4 << 20), "{} GETs", gets.len());
        assert_eq!(gets.iter().map(|range| range.end - range.start).sum::<u64>(), SIZE as u64, "each byte once");
        assert!(cache.counters().memory_bytes <= memory_bytes);
    }
}

/// Objects no larger than a few GETs, as bundles of small tails are, cost no more by the byte.
#[tokio::test(start_paused = true)]
async fn scan_of_a_short_object_starts_with_a_large_get() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 5 << 20).await;
    let cache = open(CacheOptions::default(), &store).await;
    let mut reader = Reader::new(cache, object, 0..5 << 20);
    let mut all = Vec::new();
    while let Some(piece) = reader.next(far()).await.unwrap() {
        all.extend_from_slice(&piece);
    }
    assert!(all == contents);
    assert_eq!(store.gets().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn scan_does_not_evict_hot_pages() {
    // As a Normal reader, the same scan does: so the hint is what protects.
    for (hint, hot_pages_kept) in [(Hint::Scan, true), (Hint::Normal, false)] {
        let store = Script::in_memory();
        let (hot, _) = store.object("hot", 40 * PAGE as usize).await;
        let (cold, contents) = store.object("cold", 500 * PAGE as usize).await;
        let cache = open(options(), &store).await;
        read(&cache, &hot, 0..hot.size, Hint::Normal).await;
        store.take_gets();
        for index in 0..500 {
            let bytes = read(&cache, &cold, page(index), hint).await;
            assert_eq!(bytes, contents.slice(index as usize * 4096..(index as usize + 1) * 4096));
        }
        let scanned: u64 = store.take_gets().iter().map(|range| range.end - range.start).sum();
        assert_eq!(scanned, cold.size, "read-ahead is not pushed out before it is read");
        read(&cache, &hot, 0..hot.size, Hint::Normal).await;
        assert_eq!(store.take_gets().is_empty(), hot_pages_kept, "{hint:?}");
        assert!(cache.counters().memory_bytes <= options().memory_bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn page_read_by_a_scan_becomes_hot_when_it_is_read_again() {
    let store = Script::in_memory();
    let (first, _) = store.object("first", 8 * PAGE as usize).await;
    let (second, _) = store.object("second", 500 * PAGE as usize).await;
    let cache = open(options(), &store).await;
    read(&cache, &first, 0..first.size, Hint::Scan).await;
    read(&cache, &first, page(3), Hint::Normal).await;
    let mut reader = Reader::new(cache.clone(), second, 0..500 * PAGE);
    while reader.next(far()).await.unwrap().is_some() {}
    store.take_gets();
    read(&cache, &first, page(3), Hint::Normal).await;
    assert!(store.take_gets().is_empty());
    read(&cache, &first, page(4), Hint::Scan).await;
    assert_eq!(store.take_gets().len(), 1, "the others have gone through the window");
}

#[tokio::test(start_paused = true)]
async fn uploaded_object_is_read_without_a_get_and_evicts_nothing_hot() {
    let store = Script::in_memory();
    let (hot, _) = store.object("hot", 40 * PAGE as usize).await;
    let cache = open(options(), &store).await;
    read(&cache, &hot, 0..hot.size, Hint::Normal).await;
    let (small, bytes) = store.object("small", 10_000).await;
    cache.insert(&small, &bytes).await;
    store.take_gets();
    assert_eq!(read(&cache, &small, 0..10_000, Hint::Normal).await, bytes);
    let (large, bytes) = store.object("large", 300 * PAGE as usize).await;
    cache.insert(&large, &bytes).await;
    read(&cache, &hot, 0..hot.size, Hint::Normal).await;
    assert!(store.take_gets().is_empty());
    // What no longer fits is simply fetched.
    assert!(read(&cache, &large, 0..large.size, Hint::Scan).await == bytes);
    assert!(cache.counters().memory_bytes <= options().memory_bytes);
}

#[tokio::test(start_paused = true)]
async fn empty_and_impossible_ranges_cost_nothing() {
    let store = Script::in_memory();
    let (object, _) = store.object("a", 10_000).await;
    let cache = open(options(), &store).await;
    for empty in [0..0, 4096..4096, 10_000..10_000] {
        assert!(cache.read(&object, empty, Hint::Normal, far()).await.unwrap().is_empty());
    }
    let huge = Object { path: object.path.clone(), size: u64::MAX };
    #[expect(clippy::reversed_empty_ranges, reason = "that is the case")]
    let impossible = [
        (&object, 0..10_001),
        (&object, 20_000..20_001),
        (&object, 7..3),
        (&object, u64::MAX - 1..u64::MAX),
        (&huge, 0..1),
    ];
    for (object, range) in impossible {
        let result = cache.read(object, range.clone(), Hint::Normal, far()).await;
        assert!(matches!(result, Err(CacheError::OutOfBounds { .. })), "{range:?}");
    }
    assert!(store.gets().is_empty());
}

/// Without memory there is nothing to read ahead into, and each read is a GET.
#[tokio::test(start_paused = true)]
async fn cache_without_memory_still_reads() {
    let store = Script::in_memory();
    let (object, contents) = store.object("a", 20 * PAGE as usize).await;
    let cache = open(CacheOptions { memory_bytes: 0, ..options() }, &store).await;
    for (index, hint) in (0..20).zip([Hint::Normal, Hint::Scan].into_iter().cycle()) {
        let start = index as usize * 4096;
        assert_eq!(read(&cache, &object, page(index), hint).await, contents.slice(start..start + 4096));
    }
    assert_eq!(store.gets().len(), 20);
    assert!(cache.counters().memory_bytes < 3 * PAGE, "each part keeps its newest page at most");
}

#[tokio::test(start_paused = true)]
async fn no_more_gets_at_a_time_than_allowed() {
    let store = Script::in_memory();
    let cache = open(CacheOptions { fetch_concurrency: 3, ..options() }, &store).await;
    store.always(Act::Gate);
    let mut readers = Vec::new();
    for index in 0..20 {
        let (object, contents) = store.object(&format!("{index}"), 5000).await;
        let cache = cache.clone();
        readers.push(tokio::spawn(async move {
            assert_eq!(read(&cache, &object, 0..5000, Hint::Normal).await, contents);
        }));
    }
    until(|| store.gets().len() == 3 && cache.counters().pages_in_flight == 40).await;
    store.open_gate(20);
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!((store.gets().len(), store.in_flight_max()), (20, 3));
}

/// The path of a local store: it answers with files, not streams.
#[tokio::test]
async fn files_of_a_local_store_read_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = Script::new(Arc::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap()));
    let (object, contents) = store.object("deep/er/object", 100_000).await;
    let cache = open(options(), &store).await;
    assert_eq!(read(&cache, &object, 12_345..90_001, Hint::Normal).await, contents.slice(12_345..90_001));
    assert_eq!(read(&cache, &object, 0..100_000, Hint::Scan).await, contents);
    let missing = Object { path: Path::from("deep/er/other"), size: 5 };
    assert!(matches!(cache.read(&missing, 0..5, Hint::Normal, far()).await, Err(CacheError::NotFound { .. })));
    // Cut short by a crash, within and before the range.
    for size in [50_000, 100] {
        let object = Object { path: Path::from(format!("cut{size}")), size: 100_000 };
        store.overwrite(&object, &contents_of(size)).await;
        let result = cache.read(&object, 40_000..60_000, Hint::Normal, far()).await;
        assert!(
            matches!(result, Err(CacheError::WrongSize { expected: 100_000, found, .. }) if found == size as u64),
            "{result:?}"
        );
    }
}

fn contents_of(size: usize) -> Bytes {
    contents("cut", size)
}
