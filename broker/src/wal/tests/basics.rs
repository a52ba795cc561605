//! Append, acknowledge, read, trim, close, open again; whose directory it is.

use super::harness::*;
use crate::wal::disk::RealDisk;
use crate::wal::sim::SimDisk;
use crate::wal::*;

#[test]
fn what_was_appended_is_read_back_from_memory_and_from_disk_and_after_a_restart() {
    let disk = SimDisk::new(1);
    let (wal, first) = open(&disk, &small(), 11).expect("opens");
    assert!(first.fresh && first.partitions.is_empty() && first.damage.is_empty());
    let mut client = Client::new(&wal);
    for round in 0..60 {
        for index in 0..3 {
            assert!(client.append_when_there_is_room(partition(index), 1 + round % 4, 300));
        }
        client.sync();
    }
    check(&client, &wal);
    assert!(wal.usage().live_bytes > small().memory_bytes, "most of it was read from disk");
    wal.clone().close().expect("closes");

    let (wal, again) = open(&disk, &small(), 12).expect("opens again");
    assert!(!again.fresh && again.damage.is_empty());
    assert_eq!(again.identity.wal_gen, WalGen(11));
    check(&client, &wal);
    for index in 0..3 {
        let found = recovered(&again, partition(index));
        assert_eq!((found.start.0, found.end.0), (0, client.end(partition(index))));
        assert_eq!(found.prefix_hash, client.logs[&partition(index)].last().map(|last| last.hash));
    }
}

/// What a leader pushes is the log with all that is kept beside it, from memory and from the files, unsynced or not.
#[test]
fn placed_batches_are_read_with_all_that_is_kept_beside_them() {
    let disk = SimDisk::new(3);
    let (mut wal, _) = open(&disk, &small(), 11).expect("opens");
    let mut client = Client::new(&wal);
    let of = partition(0);
    for phase in 0..2 {
        for round in 0..60 {
            assert!(client.append_when_there_is_room(of, 1 + round % 4, 300));
            let newest = client.logs[&of].last().expect("it has batches").base;
            let read = runtime().block_on(wal.read_placed(of, Offset(newest), Offset(u64::MAX), 1));
            assert_eq!(read.expect("what is not synced is in memory").len(), 1);
        }
        let ahead = |from| wal.ahead(of, Offset(from)).expect("it is here");
        let entries = wal.entries(of, Offset(0), Offset(u64::MAX));
        assert!(!ahead(0).in_memory, "most of it is in files");
        for (at, entry) in entries.iter().enumerate() {
            let left = entries[at..].iter().map(|entry| u64::from(entry.size)).sum::<u64>();
            assert_eq!((ahead(entry.base.0).bytes, ahead(entry.base.0).next), (left, entry.size), "{entry:?}");
        }
        let end = client.end(of);
        assert_eq!(ahead(end), Ahead { bytes: 0, next: 0, in_memory: true });
        client.sync();
        let read = runtime().block_on(wal.read_placed(of, Offset(0), Offset(u64::MAX), usize::MAX));
        let read: Vec<Written> = read.expect("it can be read").iter().map(written).collect();
        assert!(read == client.logs[&of], "phase {phase}");
        if phase == 0 {
            wal.clone().close().expect("closes");
            wal = open(&disk, &small(), 12).expect("opens again").0;
            client = Client::resume(&wal, client.logs);
        }
    }
    assert_eq!(wal.ahead(partition(9), Offset(0)), None);
}

fn written(placed: &Placed) -> Written {
    let base = placed.batch.base_offset().0;
    assert_eq!(placed.latest, latest_of(base));
    Written {
        base,
        end: placed.batch.end_offset().0,
        bytes: bytes_of(&placed.batch),
        append_time: placed.append_time.0,
        hash: placed.prefix_hash,
    }
}

/// Against the list of all batches, through trims, truncations and restarts.
#[test]
fn a_summary_says_what_the_batches_add_up_to() {
    let disk = SimDisk::new(6);
    let (mut wal, _) = open(&disk, &small(), 1).expect("opens");
    let mut client = Client::new(&wal);
    let of = partition(0);
    for phase in 0..4 {
        for records in [3, 1, 2, 5, 1, 4] {
            assert!(client.append_when_there_is_room(of, records, 100 + 40 * records as usize));
        }
        client.sync();
        let entries = wal.entries(of, Offset(0), Offset(u64::MAX));
        let total: u64 = entries.iter().map(|entry| u64::from(entry.size)).sum();
        for from in 0..client.end(of) + 2 {
            for to in from..client.end(of) + 2 {
                for bytes_max in [0, 1, 300, 700, total, u64::MAX] {
                    let expected = added_up(&entries, Offset(from), Offset(to), bytes_max);
                    let found = wal.summary(of, Offset(from), Offset(to), bytes_max);
                    assert_eq!(found, expected, "phase {phase}: {bytes_max} bytes of {from}..{to}");
                }
            }
        }
        match phase {
            0 => client.trim(of, 6),
            1 => client.truncate(of, entries[entries.len() - 2].base.0),
            _ => {
                client.sync();
                wal.clone().close().expect("closes");
                wal = open(&disk, &small(), 2 + phase).expect("opens again").0;
                client = Client::resume(&wal, client.logs);
            }
        }
        client.sync();
    }
    assert_eq!(wal.summary(partition(9), Offset(0), Offset(9), 9), None);
}

fn added_up(entries: &[TailEntry], from: Offset, to: Offset, bytes_max: u64) -> Option<TailSummary> {
    let below: Vec<&TailEntry> =
        entries.iter().skip_while(|entry| entry.base < from).take_while(|entry| entry.end <= to).collect();
    let first = below.first().filter(|first| first.base == from)?;
    let mut summary =
        TailSummary { end: first.end, bytes: first.size.into(), oldest: first.append_time, more: below.len() > 1 };
    for (at, entry) in below.iter().enumerate().skip(1) {
        if summary.bytes + u64::from(entry.size) > bytes_max {
            break;
        }
        summary.bytes += u64::from(entry.size);
        (summary.end, summary.more) = (entry.end, at + 1 < below.len());
    }
    Some(summary)
}

#[test]
fn a_read_gives_whole_batches_within_its_bounds() {
    let disk = SimDisk::new(2);
    let (wal, _) = open(&disk, &small(), 1).expect("opens");
    let mut client = Client::new(&wal);
    let of = partition(0);
    (0..20).for_each(|_| assert!(client.append(of, 3, 100)));
    client.sync();
    let size = client.logs[&of][0].bytes.len();
    let bases = |from: u64, to: u64, bytes: usize| -> Vec<u64> {
        let read = runtime().block_on(wal.read(of, Offset(from), Offset(to), bytes)).expect("reads");
        read.iter().map(|(batch, _)| batch.base_offset().0).collect()
    };
    assert_eq!(bases(4, 60, 1), [3], "the first contains the offset, and comes however large it is");
    assert_eq!(bases(3, 60, 2 * size + 10), [3, 6]);
    assert_eq!(bases(0, 7, usize::MAX), [0, 3, 6]);
    assert_eq!(bases(0, 6, usize::MAX), [0, 3]);
    assert!(bases(60, 60, 1000).is_empty());
    assert!(matches!(runtime().block_on(wal.read(partition(9), Offset(0), Offset(1), 1)), Err(TailReadError::Unknown)));
    let entries = wal.entries(of, Offset(4), Offset(7));
    assert_eq!(entries.iter().map(|entry| entry.base.0).collect::<Vec<u64>>(), [3, 6]);
    assert_eq!(entries[0].append_time, TimestampMs(5_003));
    assert_eq!(wal.partition_bytes(of), 20 * size as u64);
    wal.trim(of, Offset(7));
    assert_eq!(wal.partition_bytes(of), 18 * size as u64);
}

#[test]
fn everything_but_batches_is_remembered_too() {
    let disk = SimDisk::new(3);
    let (wal, _) = open(&disk, &small(), 1).expect("opens");
    let mut client = Client::new(&wal);
    let (a, b, c) = (partition(0), partition(1), partition(2));
    (0..6).for_each(|_| assert!(client.append(a, 2, 50)));
    client.control(WalRecord::EpochSeen { partition: a, epoch: LeaderEpoch(9) });
    client.truncate(a, 8);
    client.control(WalRecord::HighWatermark { partition: a, hw: Offset(6) });
    assert!(client.append(a, 2, 70));
    client.control(WalRecord::Reset { partition: b, at: Offset(100), prefix_hash: 42 });
    (0..2).for_each(|_| assert!(client.append(c, 1, 10)));
    client.control(WalRecord::Drop { partition: c });
    assert!(client.sync());
    wal.set_incarnation(Incarnation(77)).expect("is written");
    wal.close().expect("closes");
    let (wal, found) = open(&disk, &small(), 2).expect("opens");
    assert_eq!(found.identity.incarnation, Incarnation(77));
    assert_eq!(found.partitions.len(), 2, "the dropped one is gone");
    let at = recovered(&found, a);
    assert_eq!((at.epoch_seen, at.end, at.hw), (LeaderEpoch(9), Offset(10), Offset(6)));
    let at = recovered(&found, b);
    assert_eq!((at.start, at.end, at.hw, at.prefix_hash), (Offset(100), Offset(100), Offset(100), Some(42)));
    client.logs.remove(&c);
    check(&client, &wal);
    assert!(wal.bounds(c).is_none());
}

#[test]
fn a_directory_belongs_to_one_process_one_broker_and_one_cluster() {
    let disk: Arc<dyn disk::Disk> = Arc::new(SimDisk::new(4));
    let open = |cluster: &str, broker: u32| Wal::open(small(), disk.clone(), cluster, BrokerId(broker), WalGen(5));
    let (wal, _) = open("a", 1).expect("opens");
    assert!(matches!(open("a", 1), Err(WalError::Locked { .. })));
    wal.close().expect("closes");
    assert!(matches!(open("b", 1), Err(WalError::OtherOwner { .. })));
    let wrong = open("a", 2).err().expect("is refused").to_string();
    assert_eq!(wrong, "the WAL holds data of broker 1 of cluster `a`, not of broker 2 of cluster `a`");
    open("a", 1).expect("still opens").0.close().expect("closes");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let refused = |change: &dyn Fn(&mut WalOptions)| {
        let mut options = small();
        change(&mut options);
        matches!(open(&SimDisk::new(5), &options, 1), Err(WalError::Options(_)))
    };
    assert!(refused(&|options| options.file_bytes = 5000));
    assert!(refused(&|options| options.bytes_max = options.file_bytes * 3));
    assert!(!refused(&|options| options.bytes_max = options.file_bytes * 4));
}

#[test]
fn an_error_of_write_or_sync_ends_all_acknowledging_and_the_next_start_is_another_replica() {
    for fault in [
        sim::Faults { sync_error_at: Some(3), ..Default::default() },
        sim::Faults { write_error_at: Some(3), ..Default::default() },
    ] {
        let disk = SimDisk::new(6);
        let (wal, _) = open(&disk, &small(), 1).expect("opens");
        let mut client = Client::new(&wal);
        assert!(client.append(partition(0), 1, 100) && client.sync());
        disk.fail(fault);
        // Rule W2: from the error on nothing is acknowledged, whoever asks.
        while client.poisoned.is_none() {
            if client.append(partition(0), 1, 100) {
                client.sync();
            } else {
                client.poll();
            }
        }
        let acknowledged = client.synced;
        assert!(wal.reserve(10).is_none());
        client.control(WalRecord::EpochSeen { partition: partition(0), epoch: LeaderEpoch(4) });
        let mut late = Client::new(&wal);
        late.poll();
        assert!(late.poisoned.is_some(), "an appender that comes later is told at once");
        assert!(matches!(wal.close(), Err(WalError::Poisoned(_))));
        client.poll();
        assert_eq!(client.synced, acknowledged);

        disk.power_cut();
        let (wal, found) = open(&disk, &small(), 2).expect("opens");
        assert!(found.fresh && found.identity.wal_gen == WalGen(2), "rule B4: another wal_gen");
        assert_eq!(found.damage, []);
        check(&client, &wal);
    }
}

#[test]
fn it_works_on_the_real_disk() {
    let dir = tempfile::tempdir().expect("a directory is made");
    let options = WalOptions { dir: dir.path().join("a/wal"), ..small() };
    let (wal, _) = open_on(Arc::new(RealDisk), &options, 1).expect("opens");
    assert!(matches!(open_on(Arc::new(RealDisk), &options, 1), Err(WalError::Locked { .. })));
    let mut client = Client::new(&wal);
    // More buffers than one vectored write takes, and several files.
    for _ in 0..600 {
        client.append_when_there_is_room(partition(0), 1, 20);
        client.append_when_there_is_room(partition(1), 1, 200);
    }
    assert!(client.sync());
    check(&client, &wal);
    wal.close().expect("closes");
    let (wal, found) = open_on(Arc::new(RealDisk), &options, 2).expect("opens again");
    assert!(!found.fresh && found.damage.is_empty());
    check(&client, &wal);
}
