//! The disk part: it survives a restart, and whatever happens to its files no wrong byte is served (S13).

use crate::store::{PAGE, Script, far, open, options, page};
use bytes::Bytes;
use millpond_cache::{Cache, CacheOptions, DiskOptions, Hint, Object};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DISK_BYTES: u64 = 4 << 20;

fn with_disk(dir: &Path) -> CacheOptions {
    CacheOptions { disk: Some(DiskOptions { dir: dir.into(), bytes: DISK_BYTES }), ..options() }
}

async fn read(cache: &Cache, object: &Object) -> Bytes {
    cache.read_whole(object, 0..object.size, Hint::Normal, far()).await.unwrap()
}

/// An object of 50 pages, and a directory that holds all of them as `kill -9` leaves it: written, but never closed.
async fn filled(dir: &Path) -> (Arc<Script>, Object, Bytes, PathBuf) {
    let store = Script::in_memory();
    let (object, contents) = store.object("some/object", 50 * PAGE as usize - 1000).await;
    let cache = open(with_disk(&dir.join("live")), &store).await;
    assert_eq!(read(&cache, &object).await, contents);
    cache.flush().await;
    assert_eq!(cache.counters().disk_writes, 50);
    let killed = copy(&dir.join("live"), &dir.join("killed"));
    cache.close().await;
    store.take_gets();
    (store, object, contents, killed)
}

fn copy(from: &Path, to: &Path) -> PathBuf {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    to.into()
}

#[tokio::test]
async fn restart_keeps_the_disk_part() {
    let dir = tempfile::tempdir().unwrap();
    let (store, object, contents, killed) = filled(dir.path()).await;
    let cache = open(with_disk(&killed), &store).await;
    assert_eq!(read(&cache, &object).await, contents);
    let counters = cache.counters();
    assert_eq!((counters.gets, counters.disk_hits, counters.disk_writes, counters.corrupt_pages), (0, 50, 0, 0));
    // And once more after a clean end; what is not on disk is still fetched.
    cache.close().await;
    let (other, bytes) = store.object("other", 10_000).await;
    let cache = open(with_disk(&killed), &store).await;
    assert_eq!(read(&cache, &object).await, contents);
    assert!(store.take_gets().is_empty());
    assert_eq!(read(&cache, &other).await, bytes);
    assert_eq!(store.take_gets().len(), 1);
}

#[tokio::test]
async fn pages_pushed_out_of_memory_are_read_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = Script::in_memory();
    let cache = open(with_disk(dir.path()), &store).await;
    let mut objects = Vec::new();
    for index in 0..10 {
        let (object, contents) = store.object(&format!("{index}"), 30 * PAGE as usize).await;
        assert_eq!(read(&cache, &object).await, contents);
        cache.flush().await;
        objects.push((object, contents));
    }
    assert!(cache.counters().evictions > 0);
    store.take_gets();
    for (object, contents) in &objects {
        assert_eq!(read(&cache, object).await, *contents);
    }
    assert!(store.take_gets().is_empty());
    assert!(cache.counters().memory_bytes <= options().memory_bytes);
}

#[tokio::test]
async fn uploaded_object_survives_a_restart_on_disk_and_a_scan_does_not_go_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = Script::in_memory();
    let (uploaded, contents) = store.object("uploaded", 200 * PAGE as usize).await;
    let (scanned, _) = store.object("scanned", 200 * PAGE as usize).await;
    let cache = open(with_disk(dir.path()), &store).await;
    cache.insert(&uploaded, &contents).await;
    cache.read(&scanned, 0..scanned.size, Hint::Scan, far()).await.unwrap();
    cache.close().await;
    store.take_gets();
    let cache = open(with_disk(dir.path()), &store).await;
    assert!(read(&cache, &uploaded).await == contents);
    assert!(store.take_gets().is_empty());
    cache.read(&scanned, page(7), Hint::Normal, far()).await.unwrap();
    assert_eq!(store.take_gets().len(), 1);
}

/// More pages at once than the writer's buffer holds: none may be lost on the way.
#[tokio::test]
async fn large_upload_reaches_the_disk_whole() {
    const PAGE_BYTES: u64 = 128 << 10;
    let dir = tempfile::tempdir().unwrap();
    let store = Script::in_memory();
    let (object, contents) = store.object("large", 150 * PAGE_BYTES as usize).await;
    let disk = Some(DiskOptions { dir: dir.path().into(), bytes: 64 << 20 });
    let options = CacheOptions { disk, page_bytes: PAGE_BYTES, read_ahead_bytes_max: 16 * PAGE_BYTES, ..options() };
    let cache = open(options.clone(), &store).await;
    cache.insert(&object, &contents).await;
    cache.close().await;
    let cache = open(options, &store).await;
    assert!(read(&cache, &object).await == contents);
    assert_eq!((cache.counters().gets, cache.counters().disk_hits), (0, 150));
}

#[tokio::test]
async fn flipped_byte_on_disk_is_dropped_and_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, object, contents, killed) = filled(dir.path()).await;
    // Page 20 is the only place where its stamp occurs.
    let stamp = &contents[20 * 4096..20 * 4096 + 300];
    let mut flipped = 0;
    for file in fs::read_dir(&killed).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(stamp.len()).position(|window| window == stamp) {
            bytes[at + 2000] ^= 0x10;
            fs::write(&path, bytes).unwrap();
            flipped += 1;
        }
    }
    assert_eq!(flipped, 1);
    let cache = open(with_disk(&killed), &store).await;
    assert_eq!(read(&cache, &object).await, contents);
    assert_eq!(store.take_gets(), [page(20)]);
    let counters = cache.counters();
    assert_eq!((counters.corrupt_pages, counters.disk_hits), (1, 49));
    // The good copy takes its place on disk.
    cache.close().await;
    let cache = open(with_disk(&killed), &store).await;
    assert_eq!(read(&cache, &object).await, contents);
    assert!(store.take_gets().is_empty());
}

/// Every kind of place in the files: indexes, headers, keys, pages, padding.
#[tokio::test]
async fn damage_anywhere_on_disk_never_changes_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (store, object, contents, killed) = filled(dir.path()).await;
    let mut refetched = 0;
    for round in 0..40_usize {
        let damaged = copy(&killed, &dir.path().join(format!("{round}")));
        for file in fs::read_dir(&damaged).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            // 1031 is prime and below a block's unit, so that the rounds fall on all kinds of places.
            for at in (round * 97..bytes.len()).step_by(if round < 20 { 1031 * 37 } else { 1031 * 4 }) {
                bytes[at] ^= 1 << (round % 8);
            }
            fs::write(&path, bytes).unwrap();
        }
        let cache = open(with_disk(&damaged), &store).await;
        assert_eq!(read(&cache, &object).await, contents, "round {round}");
        refetched += store.take_gets().len();
        cache.close().await;
        fs::remove_dir_all(&damaged).unwrap();
    }
    assert!(refetched > 40, "the damage was met");
}

#[tokio::test]
async fn forgotten_page_does_not_come_back_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (store, object, contents, killed) = filled(dir.path()).await;
    let cache = open(with_disk(&killed), &store).await;
    cache.forget(&object, page(3));
    assert_eq!(read(&cache, &object).await, contents);
    assert_eq!(store.take_gets(), [page(3)]);
    // Also not when it is still on its way to the disk.
    let (fresh, _) = store.object("fresh", 100).await;
    read(&cache, &fresh).await;
    cache.forget(&fresh, 0..100);
    cache.flush().await;
    store.take_gets();
    read(&cache, &fresh).await;
    assert_eq!(store.take_gets().len(), 1);
}

#[tokio::test]
async fn directory_that_cannot_be_used_costs_hits_but_no_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (store, object, contents, killed) = filled(dir.path()).await;
    let held = open(with_disk(&killed), &store).await;
    let file = dir.path().join("file");
    fs::write(&file, b"not a directory").unwrap();
    let locked = with_disk(&killed);
    let beneath_a_file = with_disk(&file.join("cache"));
    let mut too_small = with_disk(&dir.path().join("c"));
    too_small.disk.as_mut().unwrap().bytes = 10_000;
    let mut off = with_disk(&dir.path().join("d"));
    off.disk.as_mut().unwrap().bytes = 0;
    for options in [locked, beneath_a_file, too_small, off] {
        let cache = open(options, &store).await;
        assert_eq!(read(&cache, &object).await, contents);
        cache.flush().await;
        assert_eq!((store.take_gets().is_empty(), cache.counters().disk_writes), (false, 0));
        cache.close().await;
    }
    assert!(!dir.path().join("d").exists());
    held.close().await;
    let cache = open(with_disk(&killed), &store).await;
    assert_eq!(read(&cache, &object).await, contents);
    assert!(store.take_gets().is_empty(), "a closed cache gives its directory free");
}

/// The same page number means other bytes under another page size.
#[tokio::test]
async fn other_settings_start_with_an_empty_disk_and_touch_no_foreign_file() {
    let dir = tempfile::tempdir().unwrap();
    let (store, object, contents, killed) = filled(dir.path()).await;
    fs::write(killed.join("notes"), b"mine").unwrap();
    let cache = open(CacheOptions { page_bytes: 2 * PAGE, ..with_disk(&killed) }, &store).await;
    assert_eq!(read(&cache, &object).await, contents);
    assert!(!store.take_gets().is_empty());
    assert_eq!(fs::read(killed.join("notes")).unwrap(), b"mine");
}

#[tokio::test]
async fn files_are_not_filled_in_advance_and_stay_within_their_limit() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let store = Script::in_memory();
    let cache = open(with_disk(dir.path()), &store).await;
    let used =
        || fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum::<u64>();
    assert!(used() < 100_000, "{} bytes when empty", used());
    for index in 0..40 {
        let (object, contents) = store.object(&format!("{index}"), 60 * PAGE as usize).await;
        assert!(read(&cache, &object).await == contents);
        cache.flush().await;
    }
    assert!((DISK_BYTES / 2..DISK_BYTES + 100_000).contains(&used()), "{} bytes when full", used());
}
