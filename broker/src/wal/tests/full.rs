//! A full disk and a failing one (rules W2, W7, B4), by plan and for real where this machine allows it.

use super::harness::*;
use crate::wal::disk::RealDisk;
use crate::wal::sim::{Faults, SimDisk};
use crate::wal::*;
use std::io::Write;
use std::path::Path;
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
struct SmallDisk {
    dir: tempfile::TempDir,
}

const SMALL_DISK_BYTES: u64 = 12 << 20;

impl SmallDisk {
    /// One in memory.
    fn tmpfs() -> Result<SmallDisk, String> {
        let size = format!("size={SMALL_DISK_BYTES}");
        SmallDisk::mount(["-t", "tmpfs", "-o", &size, "millpond-test"])
    }

    /// One in a file, as it is on a disk.
    fn ext4(image: &Path) -> Result<SmallDisk, String> {
        let made = std::fs::File::create(image).and_then(|file| file.set_len(SMALL_DISK_BYTES));
        made.map_err(|error| error.to_string())?;
        let image = image.to_str().ok_or("the temporary directory has an odd name")?;
        call("mkfs.ext4", &["-q", "-F", "-m", "0", image])?;
        SmallDisk::mount(["-t", "ext4", "-o", "loop", image])
    }

    fn mount<const N: usize>(args: [&str; N]) -> Result<SmallDisk, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let at = dir.path().to_str().ok_or("the temporary directory has an odd name")?;
        let all: Vec<&str> = args.into_iter().chain([at]).collect();
        call("mount", &all)?;
        Ok(SmallDisk { dir })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, since a failed test may still have files open.
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
    }
}

fn call(program: &str, args: &[&str]) -> Result<(), String> {
    let done = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    let said = || format!("{program}: {}", String::from_utf8_lossy(&done.stderr).trim());
    done.status.success().then_some(()).ok_or_else(said)
}

/// Says so on standard error itself, since the harness keeps back what a passing test prints; CI fails on it.
fn skip(test: &str, why: &str) {
    writeln!(std::io::stderr(), "SKIPPED {test}: {why}").expect("standard error is open");
}

#[test]
fn a_full_tmpfs_refuses_batches_serves_reads_restarts_and_recovers_by_itself() {
    match SmallDisk::tmpfs() {
        Ok(disk) => full_and_free_again(disk.dir.path()),
        Err(reason) => skip("a full tmpfs", &reason),
    }
}

#[test]
fn a_full_ext4_refuses_batches_serves_reads_restarts_and_recovers_by_itself() {
    let images = tempfile::tempdir().expect("a directory is made");
    match SmallDisk::ext4(&images.path().join("ext4")) {
        Ok(disk) => full_and_free_again(disk.dir.path()),
        Err(reason) => skip("a full ext4", &reason),
    }
}

/// Case O1: the disk fills up under the WAL, the broker restarts on it, somebody makes room.
fn full_and_free_again(dir: &Path) {
    let options =
        WalOptions { dir: dir.join("wal"), bytes_max: 64 << 20, file_bytes: 256 << 10, memory_bytes: 1 << 20 };
    // Somebody else has most of the disk.
    let hog = dir.join("hog");
    std::fs::write(&hog, vec![1; 8 << 20]).expect("there is room");
    let (wal, _) = open_on(Arc::new(RealDisk), &options, 1).expect("opens");
    let mut client = Client::new(&wal);
    let of = partition(0);
    while wal.usage().free_bytes > 8000 {
        fill(&mut client, of);
        std::thread::yield_now();
    }
    let refused = std::fs::write(dir.join("more"), vec![1; 1 << 20]).map_err(|error| error.kind());
    assert_eq!(refused, Err(std::io::ErrorKind::StorageFull), "it is the disk that is full, for everybody");
    check(&client, &wal);
    client.control(WalRecord::EpochSeen { partition: of, epoch: LeaderEpoch(5) });
    assert!(client.sync(), "what needs no permit is still written");
    wal.close().expect("closes");
    for _ in 0..3 {
        let (wal, found) = open_on(Arc::new(RealDisk), &options, 2).expect("opens on a full disk");
        assert!(!found.fresh && found.damage.is_empty());
        check(&client, &wal);
        client = Client::resume(&wal, client.logs.clone());
        // What is dead is given up for new batches, and then there is an end to it again (rule W7).
        fill(&mut client, of);
        check(&client, &wal);
        wal.close().expect("closes");
    }
    let (wal, _) = open_on(Arc::new(RealDisk), &options, 2).expect("opens on a full disk");
    client = Client::resume(&wal, client.logs.clone());
    std::fs::remove_file(dir.join("more")).expect("is removed");
    std::fs::remove_file(&hog).expect("is removed");
    let held = wal.usage().file_bytes;
    while wal.usage().file_bytes < held + (1 << 20) {
        assert!(client.append_when_there_is_room(of, 1, 2000) && client.sync(), "nobody did anything but make room");
    }
    check(&client, &wal);
    wal.close().expect("closes");
}

/// Tells the test below that it is the child, and where to write.
const CHILD: &str = "MILLPOND_TEST_WAL_CHILD";

#[test]
fn a_real_sync_that_fails_once_ends_all_acknowledging() {
    eio("40", "a_real_sync_that_fails_once_ends_all_acknowledging");
}

#[test]
fn a_real_disk_that_syncs_no_more_ends_all_acknowledging() {
    eio("40+", "a_real_disk_that_syncs_no_more_ends_all_acknowledging");
}

/// Runs this test's own program under strace, which lets each thread's syncs from the 40th on fail as `when` says, until the WAL
/// is poisoned and the process ends; then opens what it left.
fn eio(when: &str, test: &str) {
    if let Some(dir) = std::env::var_os(CHILD) {
        return append_until_poisoned(Path::new(&dir));
    }
    let dir = tempfile::tempdir().expect("a directory is made");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"]);
    // Counted for each thread: late enough that only the writer gets there first.
    traced.args(["-e", &format!("inject=fdatasync:error=EIO:when={when}")]);
    traced.arg(std::env::current_exe().expect("the test is a program"));
    traced.args(["--exact", "--nocapture", &format!("wal::tests::full::{test}")]);
    let done = match traced.env(CHILD, dir.path()).output() {
        Ok(done) => done,
        Err(error) => return skip("a sync that fails", &format!("strace: {error}")),
    };
    let said = String::from_utf8_lossy(&done.stdout);
    if !done.status.success() && String::from_utf8_lossy(&done.stderr).contains("ptrace") {
        return skip("a sync that fails", "strace may not trace here");
    }
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let acknowledged: u64 = said
        .lines()
        .find_map(|line| line.split_once("acknowledged ")?.1.parse().ok())
        .unwrap_or_else(|| panic!("the child says what was acknowledged: {said}"));
    assert!((20..40).contains(&acknowledged), "{acknowledged}");
    let options = WalOptions { dir: dir.path().join("wal"), ..small() };
    let (wal, found) = open_on(Arc::new(RealDisk), &options, 9).expect("opens");
    assert!(found.fresh && found.identity.wal_gen == WalGen(9), "rules W2 and B4: the next start is another replica");
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
    let acknowledged = client.synced;
    // Nothing more is taken, and nothing more is told: `Client` fails on a ticket after the poison.
    assert!(!client.append(partition(0), 1, 100), "no room is given any more");
    client.control(WalRecord::EpochSeen { partition: partition(0), epoch: LeaderEpoch(2) });
    assert!(!client.sync());
    drop(wal.close());
    client.poll();
    assert_eq!(client.synced, acknowledged);
    println!("acknowledged {acknowledged}");
}
