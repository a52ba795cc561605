//! A full disk and a failing one (rules W2, W7), by plan and for real where this machine allows it.

use super::harness::*;
use crate::wal::disk::RealDisk;
use crate::wal::sim::{Faults, SimDisk};
use crate::wal::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Appends until there is no room; every append that got room is acknowledged. Answers how many did.
fn fill(client: &mut Client, of: PartitionId) -> usize {
    let mut appended = 0;
    while client.append(of, 1, 2000) {
        appended += 1;
        assert!(client.sync(), "what got room is written");
    }
    appended
}

#[test]
fn a_full_log_refuses_batches_serves_reads_and_takes_batches_again_after_a_trim() {
    let disk = SimDisk::new(1);
    let (wal, _) = open(&disk, &small(), 1).expect("opens");
    let mut client = Client::new(&wal);
    let of = partition(0);
    // Room may come for a while yet, as files are made.
    while wal.usage().free_bytes > 8000 {
        fill(&mut client, of);
        std::thread::yield_now();
    }
    check(&client, &wal);
    // What needs no permit is still written: epochs, truncations, high watermarks.
    client.control(WalRecord::EpochSeen { partition: of, epoch: LeaderEpoch(5) });
    assert!(client.sync());
    let end = client.end(of);
    client.trim(of, end - 20);
    assert!(client.append_when_there_is_room(of, 1, 2000) && client.sync());
    check(&client, &wal);
}

#[test]
fn a_full_disk_is_retriable_survives_a_restart_and_ends_by_itself() {
    let disk = SimDisk::new(2);
    let full = || disk.fail(Faults { bytes_max: Some(6 * (64 << 10)), ..Faults::default() });
    full();
    let (wal, _) = open(&disk, &small(), 1).expect("opens");
    let mut client = Client::new(&wal);
    let of = partition(0);
    while wal.usage().free_bytes > 8000 {
        fill(&mut client, of);
        std::thread::yield_now();
    }
    assert!(wal.usage().file_bytes < small().bytes_max, "it is the disk that is full");
    check(&client, &wal);
    // Case: killed with the disk full, again and again. A start needs no new space.
    for _ in 0..10 {
        drop(wal.clone());
        disk.kill();
        full();
        let (again, found) = open(&disk, &small(), 2).expect("opens on a full disk");
        assert!(!found.fresh && found.damage.is_empty());
        again.set_incarnation(Incarnation(9)).expect("is written on a full disk");
        check(&client, &again);
        let mut next = Client::resume(&again, client.logs.clone());
        next.control(WalRecord::EpochSeen { partition: of, epoch: LeaderEpoch(5) });
        assert!(next.sync(), "an epoch is written on a full disk");
        again.close().expect("closes");
    }
    let (wal, _) = open(&disk, &small(), 3).expect("opens");
    let mut client = Client::resume(&wal, client.logs.clone());
    disk.fail(Faults::default());
    assert!(client.append_when_there_is_room(of, 1, 2000) && client.sync(), "space came back, and nobody did anything");
    check(&client, &wal);
}

/// A small file system of its own, gone with this value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(dir: &Path, bytes: u64) -> Result<SmallDisk, String> {
        let options = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "millpond-test"]).arg(dir);
        match mount.output() {
            Ok(done) if done.status.success() => Ok(SmallDisk(dir.to_owned())),
            Ok(done) => Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, since a failed test may still have files open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_real_disk_that_is_full_refuses_batches_restarts_and_recovers_by_itself() {
    let dir = tempfile::tempdir().expect("a directory is made");
    let mounted = match SmallDisk::mount(dir.path(), 4 << 20) {
        Ok(mounted) => mounted,
        Err(reason) => return println!("SKIPPED: a small file system needs root and mount: {reason}"),
    };
    let options =
        WalOptions { dir: dir.path().join("wal"), bytes_max: 64 << 20, file_bytes: 256 << 10, memory_bytes: 1 << 20 };
    // Somebody else has half of the disk.
    let hog = dir.path().join("hog");
    std::fs::write(&hog, vec![1; 2 << 20]).expect("there is room");
    let (wal, _) = open_on(Arc::new(RealDisk), &options, 1).expect("opens");
    let mut client = Client::new(&wal);
    let of = partition(0);
    while wal.usage().free_bytes > 8000 {
        fill(&mut client, of);
        std::thread::yield_now();
    }
    assert!(wal.usage().file_bytes < 4 << 20);
    check(&client, &wal);
    wal.close().expect("closes");
    for _ in 0..3 {
        let (wal, found) = open_on(Arc::new(RealDisk), &options, 2).expect("opens on a full disk");
        assert!(!found.fresh && found.damage.is_empty());
        check(&client, &wal);
        wal.close().expect("closes");
    }
    let (wal, _) = open_on(Arc::new(RealDisk), &options, 2).expect("opens on a full disk");
    let mut client = Client::resume(&wal, client.logs.clone());
    std::fs::remove_file(&hog).expect("is removed");
    assert!(client.append_when_there_is_room(of, 1, 2000) && client.sync());
    check(&client, &wal);
    wal.close().expect("closes");
    drop(mounted);
}

/// Tells the test below that it is the child, and where to write.
const CHILD: &str = "MILLPOND_TEST_WAL_CHILD";

#[test]
fn a_real_sync_that_fails_ends_all_acknowledging() {
    if let Some(dir) = std::env::var_os(CHILD) {
        return append_until_poisoned(Path::new(&dir));
    }
    let dir = tempfile::tempdir().expect("a directory is made");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"]);
    // Counted for each thread: late enough that only the writer gets there.
    traced.args(["-e", "inject=fdatasync:error=EIO:when=40"]);
    traced.arg(std::env::current_exe().expect("the test is a program"));
    traced.args(["--exact", "--nocapture", "wal::tests::full::a_real_sync_that_fails_ends_all_acknowledging"]);
    let done = match traced.env(CHILD, dir.path()).output() {
        Ok(done) => done,
        Err(error) => return println!("SKIPPED: needs strace: {error}"),
    };
    let said = String::from_utf8_lossy(&done.stdout);
    if !done.status.success() && String::from_utf8_lossy(&done.stderr).contains("ptrace") {
        return println!("SKIPPED: strace may not trace here");
    }
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let acknowledged: u64 = said
        .lines()
        .find_map(|line| line.split_once("acknowledged ")?.1.parse().ok())
        .unwrap_or_else(|| panic!("the child says what was acknowledged: {said}"));
    assert!((20..40).contains(&acknowledged), "{acknowledged}");
    let options = WalOptions { dir: dir.path().join("wal"), ..small() };
    let (wal, found) = open_on(Arc::new(RealDisk), &options, 9).expect("opens");
    assert!(found.fresh && found.identity.wal_gen == WalGen(9), "rule W2: the next start is another replica");
    let held = read_all(&wal, partition(0)).expect("reads");
    assert!(held.len() as u64 >= acknowledged, "{} of {acknowledged}", held.len());
}

fn append_until_poisoned(dir: &Path) {
    let options = WalOptions { dir: dir.join("wal"), bytes_max: 64 << 20, ..small() };
    let (wal, _) = open_on(Arc::new(RealDisk), &options, 1).expect("opens");
    let mut client = Client::new(&wal);
    while client.append_when_there_is_room(partition(0), 1, 100) && client.sync() {}
    let reason = client.poisoned.clone().expect("it ends by the error");
    assert!(reason.contains("os error 5"), "{reason}");
    println!("acknowledged {}", client.synced);
}
