//! Small files beside the log, each with its checksum: the identity, the damage not yet accepted, the indexes of full files.
//!
//! Rule W5: a reader finds the old contents or the new, never a mixture.

use super::WalIdentity;
use super::disk::{Disk, DiskFile};
use millpond_log::frame::WAL_FORMAT;
use millpond_log::{BrokerId, Incarnation, Lsn, Offset, PartitionId, TopicId, WalGen};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of one copy of the identity: one block.
pub(super) const SLOT_BYTES: usize = 4096;
/// Magic, format, length, checksum.
const SLOT_HEAD: usize = 8 + 4 + 4 + 4;
const SLOT_MAGIC: [u8; 8] = *b"MPwal-id";

/// Longest cluster id, in bytes, so that the identity fits its slot.
pub(super) const CLUSTER_BYTES_MAX: usize = 1024;

/// The identity and what else a start has to know before it reads the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) identity: WalIdentity,
    /// Counts the starts on this directory.
    pub(super) boot: u32,
    /// Damage to frames below this was reported and answered with a new `wal_gen` (rule B4).
    pub(super) settled: Lsn,
    /// The log ended before this frame when it was closed cleanly; 0 while it is open.
    pub(super) clean_end: Lsn,
    /// A write or sync failed (rule W2): the next start takes a new `wal_gen`.
    pub(super) poisoned: bool,
}

/// What the identity file holds.
pub(super) enum Found {
    /// No file, or one that was never completed.
    Nothing,
    /// A file without a whole copy in it.
    Unreadable,
    /// The newest copy.
    Label(Label),
    /// A copy of another format.
    OtherFormat(u32),
}

/// The identity file: two copies, written in place one after the other. It never needs new space, so that a start on a full
/// disk succeeds, and one of the copies is whole at each moment (rule W5).
pub(super) struct LabelFile(Arc<dyn DiskFile>);

impl LabelFile {
    /// What the file says, without making or locking anything; `Nothing` if there is none.
    pub(super) fn peek(disk: &dyn Disk, path: &Path) -> io::Result<Found> {
        match disk.open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Found::Nothing),
            opened => {
                let file = opened?;
                if file.len()? < 2 * SLOT_BYTES as u64 { Ok(Found::Nothing) } else { read(file.as_ref()) }
            }
        }
    }

    /// Opens the file, or makes it, and reads it.
    pub(super) fn open(disk: &dyn Disk, path: &Path) -> io::Result<(LabelFile, Found)> {
        let file = match disk.open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => disk.create(path)?,
            opened => opened?,
        };
        let len = file.len()?;
        if len < 2 * SLOT_BYTES as u64 {
            file.preallocate(2 * SLOT_BYTES as u64)?;
            file.sync_data()?;
        }
        let found = read(file.as_ref())?;
        Ok((LabelFile(file), found))
    }

    /// Replaces the label; durable when it returns.
    pub(super) fn write(&self, label: &Label) -> io::Result<()> {
        let slot = encode_slot(label);
        for copy in 0..2 {
            self.0.write_vectored_at(&mut [IoSlice::new(&slot)], copy * SLOT_BYTES as u64)?;
            self.0.sync_data()?;
        }
        Ok(())
    }
}

/// The newest copy in a file of full length.
fn read(file: &dyn DiskFile) -> io::Result<Found> {
    let mut slots = vec![0; 2 * SLOT_BYTES];
    file.read_at(&mut slots, 0)?;
    let found = slots.chunks(SLOT_BYTES).map(decode_slot).collect::<Vec<Found>>();
    Ok(match <[Found; 2]>::try_from(found).ok() {
        Some([Found::OtherFormat(format), _] | [_, Found::OtherFormat(format)]) => Found::OtherFormat(format),
        // The first copy is written first, so it is the newer one where they differ.
        Some([Found::Label(label), _] | [_, Found::Label(label)]) => Found::Label(label),
        Some([Found::Nothing, Found::Nothing]) => Found::Nothing,
        _ => Found::Unreadable,
    })
}

pub(super) fn encode_slot(label: &Label) -> Vec<u8> {
    let identity = &label.identity;
    let mut body = Vec::new();
    body.extend(identity.wal_gen.0.to_le_bytes());
    body.extend(identity.incarnation.0.to_le_bytes());
    body.extend(label.settled.0.to_le_bytes());
    body.extend(label.clean_end.0.to_le_bytes());
    body.extend(identity.broker.0.to_le_bytes());
    body.extend(label.boot.to_le_bytes());
    body.push(u8::from(label.poisoned));
    body.extend(identity.cluster.as_bytes());
    let mut slot = Vec::from(SLOT_MAGIC);
    slot.extend(WAL_FORMAT.to_le_bytes());
    slot.extend((body.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&slot), &body);
    slot.extend(crc.to_le_bytes());
    slot.extend(body);
    slot.resize(SLOT_BYTES, 0);
    slot
}

pub(super) fn decode_slot(slot: &[u8]) -> Found {
    if slot.iter().all(|byte| *byte == 0) {
        return Found::Nothing;
    }
    let len = u32::from_le_bytes(field(slot, 12)) as usize;
    let Some(body) = slot.get(SLOT_HEAD..SLOT_HEAD.saturating_add(len)) else { return Found::Unreadable };
    let crc = crc32c::crc32c_append(crc32c::crc32c(&slot[..16]), body);
    if !slot.starts_with(&SLOT_MAGIC) || crc != u32::from_le_bytes(field(slot, 16)) {
        return Found::Unreadable;
    }
    match u32::from_le_bytes(field(slot, 8)) {
        WAL_FORMAT if len >= 41 => {}
        WAL_FORMAT => return Found::Unreadable,
        other => return Found::OtherFormat(other),
    }
    let Ok(cluster) = std::str::from_utf8(&body[41..]) else { return Found::Unreadable };
    Found::Label(Label {
        identity: WalIdentity {
            cluster: cluster.to_owned(),
            broker: BrokerId(u32::from_le_bytes(field(body, 32))),
            wal_gen: WalGen(u64::from_le_bytes(field(body, 0))),
            incarnation: Incarnation(u64::from_le_bytes(field(body, 8))),
        },
        settled: Lsn(u64::from_le_bytes(field(body, 16))),
        clean_end: Lsn(u64::from_le_bytes(field(body, 24))),
        boot: u32::from_le_bytes(field(body, 36)),
        poisoned: body[40] != 0,
    })
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("the caller checked the length")
}

/// Replaces `name` in `dir` by these bytes and their checksum (rule W5).
pub(crate) fn replace(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.new"));
    let written = (|| {
        let file = disk.create(&temporary)?;
        let crc = crc32c::crc32c(bytes).to_le_bytes();
        file.write_vectored_at(&mut [IoSlice::new(bytes), IoSlice::new(&crc)], 0)?;
        file.sync_data()?;
        disk.rename(&temporary, &dir.join(name))?;
        disk.sync_dir(dir)
    })();
    if written.is_err() {
        // Whatever it took goes back; a second error says nothing new.
        let _ = disk.remove(&temporary);
    }
    written
}

/// Reads what `replace` wrote; `None` if it is missing, cut or damaged.
pub(crate) fn load(disk: &dyn Disk, path: &Path) -> Option<Vec<u8>> {
    let file = disk.open(path).ok()?;
    let mut bytes = vec![0; usize::try_from(file.len().ok()?).ok()?];
    file.read_at(&mut bytes, 0).ok()?;
    let crc = bytes.split_off(bytes.len().checked_sub(4)?);
    (crc == crc32c::crc32c(&bytes).to_le_bytes()).then_some(bytes)
}

/// One bad place, and at most one partition that lost something there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bad {
    pub(super) file: PathBuf,
    pub(super) position: u64,
    /// The partition, and where its good part ends.
    pub(super) partition: Option<(PartitionId, Offset)>,
    /// How far that partition's log is known to have reached.
    pub(super) known_end: Offset,
}

/// Damage as the directory remembers it, until each of its partitions is settled: one line per partition.
pub(super) fn encode_damage(damage: &[Bad]) -> Vec<u8> {
    let line = |bad: &Bad| {
        let (file, lost) = (bad.file.display(), bad.partition);
        let whose = lost.map_or("-".to_owned(), |(partition, end)| {
            format!("{}/{}/{end}/{}", partition.topic, partition.index, bad.known_end)
        });
        format!("{} {whose} {file}\n", bad.position)
    };
    damage.iter().map(line).collect::<String>().into_bytes()
}

/// Reads what `encode_damage` wrote. Lines that say nothing are left out.
pub(super) fn decode_damage(bytes: &[u8]) -> Vec<Bad> {
    let line = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let position = words.next()?.parse().ok()?;
        let whose = words.next()?;
        let file = PathBuf::from(words.next()?);
        let (partition, known_end) = match whose {
            "-" => (None, Offset(0)),
            whose => {
                let mut parts = whose.split('/');
                let topic: TopicId = parts.next()?.parse().ok()?;
                let index = parts.next()?.parse().ok()?;
                let end = Offset(parts.next()?.parse().ok()?);
                let known_end = Offset(parts.next()?.parse().ok()?);
                (Some((PartitionId { topic, index }, end)), known_end)
            }
        };
        Some(Bad { file, position, partition, known_end })
    };
    String::from_utf8_lossy(bytes).lines().filter_map(line).collect()
}
