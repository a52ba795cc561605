//! Files in their later lives (rules W3, W8, W8a), and the indexes that make a start cheap (rule W6).

use super::cuts::{Choices, first_seed};
use super::harness::*;
use crate::wal::sim::{Faults, SimDisk};
use crate::wal::*;

/// Appends to `of` and trims behind, until the log has gone through its files `rounds` times.
fn go_round(client: &mut Client, of: PartitionId, rounds: u64) {
    let mut bytes = 0;
    while bytes < rounds * small().bytes_max {
        assert!(client.append_when_there_is_room(of, 1, 2000));
        bytes += 2000;
        if bytes % 10_000 == 0 {
            assert!(client.sync());
            let end = client.end(of);
            client.trim(of, end.saturating_sub(10));
        }
    }
    assert!(client.sync());
}

fn numbers(disk: &SimDisk) -> Vec<u64> {
    let name = |path: &std::path::PathBuf| path.file_stem()?.to_string_lossy().parse().ok();
    wal_files(disk).iter().filter_map(name).collect()
}

/// Waits until the log has at most `most` files, while its newest partition is written to and trimmed.
fn until_files_are(disk: &SimDisk, client: &mut Client, of: PartitionId, most: usize) {
    // Each round goes through a file at least.
    for _ in 0..200 {
        for _ in 0..40 {
            assert!(client.append_when_there_is_room(of, 1, 2000));
        }
        assert!(client.sync());
        let end = client.end(of);
        client.trim(of, end);
        if wal_files(disk).len() <= most {
            return;
        }
    }
    panic!("there are {} files, and {most} may be", wal_files(disk).len());
}

#[test]
fn a_limit_that_is_lowered_takes_files_away_as_they_are_freed_and_loses_nothing() {
    let (small, of) = (small(), partition(0));
    let grown = WalOptions { bytes_max: 24 * small.file_bytes, ..small.clone() };
    let lowered = WalOptions { bytes_max: 6 * small.file_bytes, ..small };
    // Full of what is needed, or of nothing that is.
    for (seed, trimmed) in [(11, false), (12, true)] {
        let disk = SimDisk::new(seed);
        let (wal, _) = open(&disk, &grown, 1).expect("opens");
        let mut client = Client::new(&wal);
        while wal_files(&disk).len() < 20 {
            assert!(client.append_when_there_is_room(of, 1, 2000) && client.sync());
        }
        if trimmed {
            let end = client.end(of);
            client.trim(of, end);
            // So that what was trimmed is on record.
            assert!(client.append_when_there_is_room(of, 1, 2000) && client.sync());
        }
        check(&client, &wal);
        let logs = client.logs.clone();
        let was_trimmed = client.trimmed.clone();
        drop(client);
        wal.close().expect("closes");
        let (wal, found) = open(&disk, &lowered, 2).expect("opens");
        assert!(found.damage.is_empty() && !found.fresh);
        let mut client = Client::resume(&wal, logs);
        client.trimmed = was_trimmed;
        check(&client, &wal);
        let end = client.end(of);
        client.trim(of, end);
        until_files_are(&disk, &mut client, of, 6);
        let numbers = numbers(&disk);
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
        check(&client, &wal);
        drop(client);
        wal.close().expect("closes");
        let (wal, found) = open(&disk, &lowered, 3).expect("opens");
        assert!(found.damage.is_empty() && !found.fresh && wal_files(&disk).len() <= 6);
        wal.close().expect("closes");
    }
}

#[test]
fn files_are_reused_and_their_earlier_lives_never_come_back() {
    let disk = SimDisk::new(1);
    let (wal, _) = open(&disk, &small(), 1).expect("opens");
    let mut client = Client::new(&wal);
    go_round(&mut client, partition(0), 3);
    let numbers = numbers(&disk);
    assert!(numbers.len() <= 12, "{numbers:?}");
    assert!(numbers[0] > 12, "each file is in its third life: {numbers:?}");
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
    // Every cut finds the newest life only.
    drop(wal);
    for seed in 0..20 {
        let fork = disk.fork(seed);
        fork.power_cut();
        let (wal, found) = open(&fork, &small(), 2).expect("opens");
        assert!(found.damage.is_empty() && !found.fresh);
        check(&client, &wal);
        wal.close().expect("closes");
    }
}

#[test]
fn a_slow_partition_does_not_pin_the_log_and_loses_nothing_when_it_is_copied_forward() {
    let disk = SimDisk::new(2);
    let (wal, _) = open(&disk, &small(), 1).expect("opens");
    let mut client = Client::new(&wal);
    let (slow, busy) = (partition(1), partition(0));
    for _ in 0..5 {
        assert!(client.append_when_there_is_room(slow, 2, 300));
    }
    client.control(WalRecord::EpochSeen { partition: slow, epoch: LeaderEpoch(8) });
    client.truncate(slow, 8);
    assert!(client.append_when_there_is_room(slow, 1, 30) && client.sync());
    client.control(WalRecord::HighWatermark { partition: slow, hw: Offset(7) });
    go_round(&mut client, busy, 4);
    assert!(numbers(&disk)[0] > 12, "the file it began in is long reused");
    check(&client, &wal);
    wal.close().expect("closes");
    let (wal, found) = open(&disk, &small(), 2).expect("opens");
    let of = recovered(&found, slow);
    assert_eq!((of.epoch_seen, of.start, of.end, of.hw), (LeaderEpoch(8), Offset(0), Offset(9), Offset(7)));
    assert_eq!(of.prefix_hash, client.logs[&slow].last().map(|last| last.hash));
    check(&client, &wal);
}

/// Rules S6 and R12: what a log that was reset says of everything below it outlives the file that says so, trims and restarts.
#[test]
fn the_hash_where_a_log_begins_is_copied_forward_with_it() {
    let disk = SimDisk::new(8);
    let (wal, _) = open(&disk, &small(), 1).expect("opens");
    let mut client = Client::new(&wal);
    let (idle, trimmed, busy) = (partition(1), partition(2), partition(0));
    client.control(WalRecord::Reset { partition: idle, at: Offset(70), prefix_hash: 4242 });
    (0..4).for_each(|_| assert!(client.append_when_there_is_room(trimmed, 1, 300)));
    let hash = client.logs[&trimmed][3].hash;
    client.trim(trimmed, 4);
    go_round(&mut client, busy, 4);
    assert_eq!(
        (wal.bounds(trimmed), wal.prefix_hash_at(trimmed, Offset(4))),
        (Some((Offset(4), Offset(4))), Some(hash))
    );
    wal.close().expect("closes");
    for life in 2..4 {
        let (wal, found) = open(&disk, &small(), life).expect("opens");
        let of = recovered(&found, idle);
        assert_eq!((of.start, of.end, of.prefix_hash), (Offset(70), Offset(70), Some(4242)), "life {life}");
        assert_eq!(recovered(&found, trimmed).prefix_hash, Some(hash), "life {life}");
        assert_eq!(wal.prefix_hash_at(idle, Offset(70)), Some(4242));
        assert_eq!(wal.prefix_hash_at(idle, Offset(69)), None);
        wal.close().expect("closes");
    }
}

#[test]
fn copying_forward_keeps_everything_across_power_cuts() {
    for seed in first_seed()..first_seed() + 40 {
        let disk = SimDisk::new(seed);
        let mut choices = Choices(seed);
        let mut logs = std::collections::BTreeMap::new();
        let mut trimmed = std::collections::BTreeMap::new();
        for life in 0..4 {
            let (wal, found) = open(&disk, &small(), 1 + life).expect("opens");
            assert!(found.damage.is_empty(), "SEED={seed} life {life}: {:?}", found.damage);
            let mut client = Client::resume(&wal, logs.clone());
            client.trimmed.clone_from(&trimmed);
            check(&client, &wal);
            disk.fail(Faults { stop_at: Some(100 + choices.below(150)), ..Faults::default() });
            // Slow partitions trickle, so that their batches lie in every file; the busy one is trimmed at once.
            while client.poisoned.is_none() {
                let slow = partition(1 + choices.below(4) as u32);
                if choices.below(12) == 0 && client.end(slow) < 30 {
                    client.append_when_there_is_room(slow, 1, 200);
                }
                client.append_when_there_is_room(partition(0), 1, 3000);
                client.sync();
                let end = client.acknowledged(partition(0)).last().map_or(0, |last| last.end);
                client.trim(partition(0), end);
            }
            drop(wal.close());
            disk.power_cut();
            let (wal, found) = open(&disk, &small(), 1 + life).expect("opens");
            assert!(found.damage.is_empty(), "SEED={seed} life {life}: {:?}", found.damage);
            let known: Vec<PartitionId> = client.logs.keys().copied().collect();
            let held = |of: PartitionId| {
                let held =
                    state_held(&client, &wal, of).unwrap_or_else(|fault| panic!("SEED={seed} life {life}: {fault}"));
                (of, held)
            };
            logs = known.into_iter().map(held).collect();
            trimmed.clone_from(&client.trimmed);
            wal.close().expect("closes");
        }
        let reused = numbers(&disk)[0] > 1;
        assert!(reused, "SEED={seed}: no file was ever given up");
    }
}

#[test]
fn trimmed_batches_stay_readable_until_their_space_is_needed() {
    let disk = SimDisk::new(4);
    let (wal, _) = open(&disk, &small(), 1).expect("opens");
    let mut client = Client::new(&wal);
    let of = partition(0);
    (0..20).for_each(|_| assert!(client.append_when_there_is_room(of, 1, 500)));
    assert!(client.sync());
    wal.trim(of, Offset(15));
    assert_eq!((wal.bounds(of), wal.partition_bytes(of) > 0), (Some((Offset(0), Offset(20))), true));
    let needed = wal.entries(of, Offset(15), Offset(20));
    assert_eq!(wal.usage().live_bytes, needed.iter().map(tail::frame_bytes).sum::<u64>());
    go_round(&mut client, partition(1), 2);
    let start = wal.bounds(of).expect("it is held").0;
    assert_eq!(start, Offset(15), "given up with its file; the rest was copied");
    assert!(matches!(
        runtime().block_on(wal.read(of, Offset(3), Offset(20), 1)),
        Err(TailReadError::Trimmed { start: Offset(15) })
    ));
}

#[test]
fn a_dropped_partition_leaves_nothing_and_may_begin_again() {
    let disk = SimDisk::new(5);
    let (wal, _) = open(&disk, &small(), 1).expect("opens");
    let mut client = Client::new(&wal);
    let of = partition(1);
    (0..5).for_each(|_| assert!(client.append_when_there_is_room(of, 1, 500)));
    client.control(WalRecord::Drop { partition: of });
    assert!(client.sync());
    assert_eq!((wal.usage().live_bytes, wal.bounds(of), wal.partition_bytes(of)), (0, None, 0));
    client.logs.remove(&of);
    wal.close().expect("closes");
    let (wal, found) = open(&disk, &small(), 2).expect("opens");
    assert_eq!(found.partitions.len(), 0);
    let mut client = Client::new(&wal);
    client.control(WalRecord::Reset { partition: of, at: Offset(0), prefix_hash: 0 });
    assert!(client.append_when_there_is_room(of, 3, 100) && client.sync());
    wal.close().expect("closes");
    let (wal, found) = open(&disk, &small(), 3).expect("opens");
    assert_eq!(recovered(&found, of).end, Offset(3));
    check(&client, &wal);
}

/// Settings for a log over several files.
fn long(file_bytes: u64) -> WalOptions {
    WalOptions { bytes_max: 64 << 20, file_bytes, ..small() }
}

/// A closed log of so many bytes, in batches of 1 % of a file.
fn several_files(options: &WalOptions, bytes: u64) -> (SimDisk, Client) {
    let disk = SimDisk::new(6);
    let (wal, _) = open(&disk, options, 1).expect("opens");
    let mut client = Client::new(&wal);
    let (mut written, batch) = (0, options.file_bytes / 100);
    while written < bytes {
        assert!(client.append_when_there_is_room(partition((written % 3) as u32), 1, batch as usize));
        written += batch;
    }
    assert!(client.sync());
    // Another thread writes the indexes.
    while (indexes(&disk).len() as u64 + 1) * options.file_bytes < wal.usage().file_bytes {
        std::thread::yield_now();
    }
    wal.close().expect("closes");
    (disk, client)
}

fn indexes(disk: &SimDisk) -> Vec<std::path::PathBuf> {
    disk.paths().into_iter().filter(|path| path.extension() == Some("index".as_ref())).collect()
}

/// What a start finds, and how much it reads for that.
fn start(disk: &SimDisk, options: &WalOptions, client: &Client) -> (Vec<RecoveredPartition>, u64) {
    disk.fail(Faults::default());
    let (wal, found) = open(disk, options, 2).expect("opens");
    let read = disk.bytes_read();
    assert!(found.damage.is_empty() && !found.fresh);
    check(client, &wal);
    wal.close().expect("closes");
    (found.partitions, read)
}

#[test]
fn a_start_reads_the_newest_file_and_indexes_however_large_the_log_is() {
    let options = long(1 << 20);
    let costs = [5 << 20, 15 << 20].map(|bytes| {
        let (disk, client) = several_files(&options, bytes);
        let index_bytes: u64 = indexes(&disk).iter().filter_map(|path| Some(disk.bytes(path)?.len() as u64)).sum();
        start(&disk, &options, &client).1 - index_bytes
    });
    // Ten files more cost a few blocks each; how full the newest file is may differ.
    assert!(costs[1] < costs[0] + 10 * (16 << 10) + 2 * options.file_bytes, "{costs:?}");
    assert!(costs[1] < 5 * options.file_bytes, "{costs:?}");
}

#[test]
fn a_missing_or_bad_index_changes_nothing() {
    let (disk, client) = several_files(&long(64 << 10), 400_000);
    let expected = start(&disk, &long(64 << 10), &client).0;
    let all = indexes(&disk);
    assert!(all.len() >= 3, "{all:?}");
    for path in &all {
        let len = disk.bytes(path).expect("it exists").len() as u64;
        for bit in [0, len * 4, len * 8 - 1] {
            let fork = disk.fork(bit);
            fork.flip(path, bit);
            assert_eq!(start(&fork, &long(64 << 10), &client).0.len(), expected.len());
        }
        let fork = disk.fork(1);
        fork.cut(path, len / 2);
        start(&fork, &long(64 << 10), &client);
        crate::wal::disk::Disk::remove(&fork, path).expect("is removed");
        let found = start(&fork, &long(64 << 10), &client).0;
        assert!(
            found.iter().zip(&expected).all(|(a, b)| (a.partition, a.start, a.end) == (b.partition, b.start, b.end))
        );
    }
    // The index of another file, or of an earlier life, is no index.
    let fork = disk.fork(2);
    let other = disk.bytes(&all[1]).expect("it exists");
    fork.cut(&all[0], 0);
    crate::wal::disk::Disk::remove(&fork, &all[0]).expect("is removed");
    let file = crate::wal::disk::Disk::create(&fork, &all[0]).expect("is made");
    file.write_vectored_at(&mut [std::io::IoSlice::new(&other)], 0).expect("is written");
    start(&fork, &long(64 << 10), &client);
}

#[test]
fn a_wal_opens_with_other_settings_than_it_was_made_with() {
    let (disk, client) = several_files(&long(64 << 10), 400_000);
    let options = long(128 << 10);
    let (wal, found) = open(&disk, &options, 2).expect("opens");
    assert!(found.damage.is_empty() && !found.fresh);
    check(&client, &wal);
    let mut client = Client::resume(&wal, client.logs.clone());
    (0..200).for_each(|_| assert!(client.append_when_there_is_room(partition(0), 1, 1000)));
    assert!(client.sync());
    wal.close().expect("closes");
    let (wal, _) = open(&disk, &options, 3).expect("opens");
    check(&client, &wal);
    // A file that was made and never begun is too short for the batches of the new settings.
    let disk = SimDisk::new(7);
    open(&disk, &long(64 << 10), 1).expect("opens").0.close().expect("closes");
    let (wal, _) = open(&disk, &long(1 << 20), 2).expect("opens");
    let mut client = Client::new(&wal);
    assert!(client.append_when_there_is_room(partition(0), 1, 200_000) && client.sync());
    check(&client, &wal);
}
