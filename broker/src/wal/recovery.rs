//! Finds the end of the log in the files of a directory and rebuilds the tails (rules W3, W3a, W4).
//!
//! Reads only, until it has decided; then it makes durable what it decided on. It never drops a frame that was proved synced
//! without saying so.

use super::disk::Disk;
use super::file::WalFile;
use super::index_file::{self, FileIndex};
use super::replay::{Frames, Hole};
use super::scan::{Cursor, Found, Reader};
use super::state_file::Bad;
use super::tail::Tail;
use millpond_log::frame::{BLOCK_BYTES, FRAME_ALIGN, FileHead, FrameKind, align_up};
use millpond_log::{Lsn, Offset, PartitionId, WalGen};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files synced at the same time: a disk takes many syncs together for little more than the price of one, and a large WAL has
/// hundreds of files.
const SYNCS_AT_ONCE: usize = 16;

/// What a start finds before it knows whose the files are.
pub(super) struct Source<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) dir: &'a Path,
    /// Every file, by number.
    pub(super) files: Vec<(u64, PathBuf)>,
    /// The directory's own `wal_gen`.
    pub(super) wal_gen: WalGen,
    /// Damage below this was reported before.
    pub(super) settled: Lsn,
    /// The log ended here when it was closed, if it was.
    pub(super) clean_end: Option<Lsn>,
}

/// What recovery found.
pub(super) struct Log {
    /// Files of the log in order; the last one is to be written on.
    pub(super) in_use: Vec<Arc<WalFile>>,
    /// Those of them that were read because they have no index.
    pub(super) unindexed: BTreeSet<u64>,
    /// Files after the log's end.
    pub(super) ready: Vec<Arc<WalFile>>,
    /// Where the next group goes in the last file of the log; 0 in a file without a head.
    pub(super) position: u64,
    pub(super) cursor: Cursor,
    /// Copies and states in the last file.
    pub(super) copies: u32,
    pub(super) tails: BTreeMap<PartitionId, Tail>,
    /// New damage.
    pub(super) bad: Vec<Bad>,
    /// Bytes of the last file that are read but not proved durable.
    unproven: Option<(u64, u64)>,
}

/// Why recovery stops.
pub(super) enum Refused {
    Io(io::Error),
    /// Another version wrote the file.
    OtherFormat {
        path: PathBuf,
        format: u32,
    },
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused::Io(error)
    }
}

/// A bad stretch and where it is.
struct BadPlace {
    file: PathBuf,
    position: u64,
    hole: Hole,
    /// The partition of the one frame lost, if its head could be read.
    partition: Option<PartitionId>,
    /// The log of that partition reached at least to here: after the first record of a batch whose head could be read.
    known_end: Offset,
}

struct Scan<'a> {
    source: &'a Source<'a>,
    files: Vec<Arc<WalFile>>,
    frames: BTreeMap<PartitionId, Frames>,
    bad: Vec<BadPlace>,
    cursor: Cursor,
    copies: u32,
    /// The index of the file to be read next, where it is known to continue the log.
    peeked: Option<(usize, FileIndex)>,
    /// First frame of the group read last: in which file, where, and which it is.
    last_group: (usize, u64, u64),
}

/// Reads the log.
pub(super) fn recover(source: &Source<'_>) -> Result<Log, Refused> {
    let files = open_files(source)?;
    let mut scan = Scan {
        source,
        files,
        frames: BTreeMap::new(),
        bad: Vec::new(),
        cursor: Cursor { next_lsn: None, prev_crc: None, boot: 0, proven: 0 },
        copies: 0,
        peeked: None,
        last_group: (0, 0, 0),
    };
    let mut unindexed = BTreeSet::new();
    let (end_file, position) = scan.run(&mut unindexed)?;
    Ok(scan.finish(end_file, position, unindexed))
}

/// Opens every file and finds the seed of each.
fn open_files(source: &Source<'_>) -> Result<Vec<Arc<WalFile>>, Refused> {
    let mut heads = Vec::new();
    for (number, path) in &source.files {
        let file = source.disk.open(path)?;
        let mut block = vec![0; BLOCK_BYTES as usize];
        // A head that cannot be read is a bad head: the frames speak for themselves.
        let readable = file.read_at(&mut block, 0).is_ok();
        let head = FileHead::decode(if readable { &block } else { &[] })
            .map_err(|format| Refused::OtherFormat { path: path.clone(), format })?;
        let bytes = file.len()? / BLOCK_BYTES * BLOCK_BYTES;
        heads.push((*number, path.clone(), file, bytes, head.filter(|head| head.file == *number)));
    }
    let gens: BTreeSet<WalGen> = heads.iter().filter_map(|(_, _, _, _, head)| Some(head.as_ref()?.wal_gen)).collect();
    let mut files = Vec::new();
    for (number, path, file, bytes, head) in heads {
        let with = |wal_gen| WalFile { number, wal_gen, path: path.clone(), file: file.clone(), bytes };
        let begun = |wal_gen: &WalGen| Reader::new(&with(*wal_gen)).frame(BLOCK_BYTES).is_some();
        let wal_gen = match head {
            Some(head) => head.wal_gen,
            None => gens.iter().copied().find(begun).unwrap_or(source.wal_gen),
        };
        files.push(Arc::new(with(wal_gen)));
    }
    Ok(files)
}

impl Scan<'_> {
    /// Reads to the log's end: which file, and where in it the next group goes.
    fn run(&mut self, unindexed: &mut BTreeSet<u64>) -> io::Result<(usize, u64)> {
        let Some((mut at_file, mut at)) = self.begin() else {
            self.nothing_left();
            return Ok((0, 0));
        };
        let mut proof = None;
        loop {
            let file = self.files[at_file].clone();
            if at == BLOCK_BYTES {
                match self.by_index(at_file) {
                    Some(end) => {
                        self.last_group = (at_file, end, self.cursor.next_lsn.unwrap_or_default());
                        at = end;
                        if self.continues(at_file + 1) {
                            (at_file, at, self.copies) = (at_file + 1, BLOCK_BYTES, 0);
                            continue;
                        }
                    }
                    None => _ = unindexed.insert(file.number),
                }
            }
            let mut reader = Reader::new(&file);
            while let Some((group, end, after)) = reader.group(at, self.cursor) {
                self.last_group = (at_file, at, group[0].frame.lsn.0);
                group.iter().for_each(|found| self.take(file.number, found));
                (at, self.cursor) = (end, after);
            }
            if self.continues(at_file + 1) {
                (at_file, at, self.copies) = (at_file + 1, BLOCK_BYTES, 0);
                continue;
            }
            // The log ends here, or has a bad place: rule W4 asks whether anything later was written after this was synced.
            let failed = reader.failed.as_ref().is_some_and(|(bad_at, _)| *bad_at <= at);
            if !failed
                && self.source.clean_end.is_some()
                && self.source.clean_end.map(|end| end.0) == self.cursor.next_lsn
            {
                // It was closed here.
                return Ok((at_file, at));
            }
            let proof = *proof.get_or_insert_with(|| self.proof(at_file, at));
            let expected = self.expected();
            if !failed && proof.is_none_or(|proof| proof < expected) {
                return Ok((at_file, at));
            }
            match self.skip_bad(at_file, at, proof.unwrap_or(expected)) {
                Some(next) => (at_file, at) = next,
                None => return Ok((at_file, at)),
            }
        }
    }

    /// The oldest file that holds a frame. None does in a WAL that was never written.
    fn begin(&mut self) -> Option<(usize, u64)> {
        let begun = |at_file: usize| {
            let mut reader = Reader::new(&self.files[at_file]);
            matches!(self.head(at_file), Ok(Some(_))) || reader.proof_if_begun(0).is_some()
        };
        let first = (0..self.files.len()).find(|at_file| begun(*at_file))?;
        let head = self.head(first);
        if first > 0 {
            // Files are begun in the order of their numbers, so the ones before this held frames.
            let to = head.as_ref().ok().and_then(|head| Some(head.as_ref()?.first_lsn)).unwrap_or(Lsn(1));
            let hole = Hole { from: Lsn(1), to: to.max(Lsn(2)), seq: None, copies: true };
            let file = self.files[0].path.clone();
            self.bad.push(BadPlace { file, position: 0, hole, partition: None, known_end: Offset(0) });
        }
        if let Ok(Some(head)) = head {
            self.cursor.next_lsn = Some(head.first_lsn.0);
        }
        Some((first, BLOCK_BYTES))
    }

    /// No file holds a frame. That is damage if the log was closed with some.
    fn nothing_left(&mut self) {
        let Some(end) = self.source.clean_end.filter(|end| *end > Lsn(1)) else { return };
        let file = self.files.first().map_or_else(|| self.source.dir.to_owned(), |file| file.path.clone());
        let hole = Hole { from: Lsn(1), to: end, seq: None, copies: true };
        self.bad.push(BadPlace { file, position: 0, hole, partition: None, known_end: Offset(0) });
        self.cursor.next_lsn = Some(end.0);
    }

    /// Number of the next frame. Before the first one is read, in a file whose head is lost, that of the first frame there is: so
    /// what proves nothing durable (0) is no proof against a torn first group.
    fn expected(&self) -> u64 {
        self.cursor.next_lsn.unwrap_or(1)
    }

    fn head(&self, at_file: usize) -> io::Result<Option<FileHead>> {
        let mut block = vec![0; BLOCK_BYTES as usize];
        let file = &self.files[at_file];
        file.file.read_at(&mut block, 0)?;
        Ok(FileHead::decode(&block).ok().flatten().filter(|head| head.file == file.number))
    }

    /// The index of a file, if it continues the log.
    fn index_of(&self, file: &WalFile) -> Option<FileIndex> {
        let index = index_file::load(self.source.disk, self.source.dir, file)?;
        if self.cursor.next_lsn.is_some_and(|lsn| lsn != index.first_lsn.0) {
            return None;
        }
        let first = index.frames.first()?;
        if self.cursor.prev_crc.is_some_and(|crc| crc != first.frame.prev_crc) {
            return None;
        }
        Some(index)
    }

    /// Takes the whole file from its index, if it has one. Returns where the file's last group ends.
    fn by_index(&mut self, at_file: usize) -> Option<u64> {
        let file = Arc::clone(&self.files[at_file]);
        let index = match self.peeked.take() {
            Some((peeked, index)) if peeked == at_file => index,
            _ => self.index_of(&file)?,
        };
        let last = index.frames.last()?;
        let end = align_up(last.position + last.frame.size(), BLOCK_BYTES);
        index.frames.iter().for_each(|found| self.take(file.number, found));
        self.cursor = Cursor { proven: self.cursor.proven.max(index.end.proven), ..index.end };
        Some(end)
    }

    fn take(&mut self, number: u64, found: &Found) {
        if found.frame.copied || found.frame.kind == FrameKind::State {
            self.copies = found.frame.copies + 1;
        } else {
            self.copies = found.frame.copies;
        }
        if found.frame.kind != FrameKind::SyncMark {
            self.frames.entry(found.frame.partition).or_default().add(number, found);
        }
    }

    /// Whether the first group of this file continues the log.
    fn continues(&mut self, at_file: usize) -> bool {
        let Some(file) = self.files.get(at_file) else { return false };
        self.peeked = self.index_of(file).map(|index| (at_file, index));
        if self.peeked.is_some() {
            return true;
        }
        Reader::new(file).group(BLOCK_BYTES, self.cursor).is_some()
    }

    /// The newest frame that anything after this place calls durable.
    fn proof(&self, at_file: usize, at: u64) -> Option<u64> {
        let boot = self.cursor.boot;
        let clean = self.source.clean_end.map(|end| end.0.saturating_sub(1));
        let mut proof = Reader::new(&self.files[at_file]).proof(at, boot).max(clean);
        for (later, file) in self.files.iter().enumerate().skip(at_file + 1) {
            proof = proof.max(Reader::new(file).proof_if_begun(boot));
            if let Ok(Some(head)) = self.head(later) {
                proof = proof.max(Some(head.first_lsn.0 - 1));
            }
        }
        proof
    }

    /// Notes the bad place and finds the next good frame, which it takes with the rest of its group. `None` when there is none.
    fn skip_bad(&mut self, at_file: usize, at: u64, proof: u64) -> Option<(usize, u64)> {
        let expected = self.expected();
        let (boot, copies) = (self.cursor.boot, self.copies);
        let mut bad = BadPlace {
            file: self.files[at_file].path.clone(),
            position: at,
            hole: Hole { from: Lsn(expected), to: Lsn(proof + 1), seq: None, copies: true },
            partition: None,
            known_end: Offset(0),
        };
        for later in at_file..self.files.len() {
            let file = self.files[later].clone();
            let mut reader = Reader::new(&file);
            let from = if later == at_file { at } else { BLOCK_BYTES };
            let Some(position) = reader.resync(from, expected, boot) else { continue };
            let (frame, _, _) = reader.frame(position)?;
            if frame.lsn.0 > expected {
                // The copies of a later file are counted anew, so whether any is lost in between is not known.
                let copies = later != at_file || frame.copies != copies;
                bad.hole = Hole { to: frame.lsn, copies, ..bad.hole };
                self.bad.push(bad);
            }
            self.cursor.next_lsn = Some(frame.lsn.0);
            self.cursor.prev_crc = None;
            let next = self.take_rest(&mut reader, position, proof);
            return ((later, next) != (at_file, at)).then_some((later, next));
        }
        self.bad.push(bad);
        None
    }

    /// Takes the frames of a group of which some are bad, as far as their heads can be read. Returns where to go on.
    fn take_rest(&mut self, reader: &mut Reader<'_>, from: u64, proof: u64) -> u64 {
        let mut at = from;
        while let Some((frame, crc, found)) = reader.frame(at) {
            let follows = self.cursor.next_lsn.is_none_or(|lsn| lsn == frame.lsn.0) && frame.boot >= self.cursor.boot;
            if !follows {
                break;
            }
            match &found {
                Some(found) => self.take(reader.file.number, found),
                // A torn group after the damage is no damage.
                None if frame.lsn.0 > proof => break,
                None => self.bad.push(BadPlace {
                    file: reader.file.path.clone(),
                    position: at,
                    hole: Hole { from: frame.lsn, to: Lsn(frame.lsn.0 + 1), seq: Some(frame.seq), copies: false },
                    partition: (frame.kind != FrameKind::SyncMark).then_some(frame.partition),
                    known_end: if frame.kind == FrameKind::Batch { frame.base_offset.plus(1) } else { Offset(0) },
                }),
            }
            self.cursor = self.cursor.after(&frame, crc);
            at += frame.size();
            if frame.group_end {
                return align_up(at, BLOCK_BYTES);
            }
            at = align_up(at, FRAME_ALIGN);
        }
        at
    }

    fn finish(self, end_file: usize, position: u64, unindexed: BTreeSet<u64>) -> Log {
        let settled = self.source.settled;
        // A lost sync mark is no loss.
        let mattered = |bad: &&BadPlace| bad.hole.to > settled && (bad.hole.seq.is_none() || bad.partition.is_some());
        let fresh: Vec<&BadPlace> = self.bad.iter().filter(mattered).collect();
        let mut bad = Vec::new();
        let mut tails = BTreeMap::new();
        for (partition, frames) in self.frames {
            let touches = |bad: &&&BadPlace| bad.partition.is_none_or(|lost| lost == partition);
            let lost: Vec<&&BadPlace> =
                fresh.iter().filter(touches).filter(|bad| frames.may_have_lost(&bad.hole)).collect();
            let replayed = frames.replay();
            let end = replayed.tail.end();
            let gone = replayed.tail.dropped;
            let known_end = lost.iter().map(|place| place.known_end).fold(replayed.known_end, Offset::max);
            for place in &lost {
                if !gone {
                    bad.push(Bad {
                        file: place.file.clone(),
                        position: place.position,
                        partition: Some((partition, end)),
                        known_end,
                    });
                }
            }
            if replayed.cut && lost.is_empty() {
                // Frames are missing and no bad place accounts for it: the end of the log is where they are not.
                let file = self.files[end_file].path.clone();
                bad.push(Bad { file, position, partition: Some((partition, end)), known_end });
            }
            tails.insert(partition, replayed.tail);
        }
        for place in fresh {
            let said = |bad: &Bad| bad.file == place.file && bad.position == place.position;
            if !bad.iter().any(said) {
                bad.push(Bad {
                    file: place.file.clone(),
                    position: place.position,
                    partition: place.partition.map(|partition| (partition, Offset(0))),
                    known_end: place.known_end,
                });
            }
        }
        let (last_file, last_at, last_lsn) = self.last_group;
        // Rule W3a: whatever nothing later proves may be in the page cache only.
        let unproven =
            (last_file == end_file && last_at > 0 && last_lsn > self.cursor.proven).then_some((last_at, position));
        let count = if self.files.is_empty() { 0 } else { end_file + 1 };
        let ready = self.files[count..].to_vec();
        // Files before the first frame were given up and not yet renamed when the broker ended; they are read as empty.
        let in_use = self.files[..count].to_vec();
        Log {
            in_use,
            unindexed,
            ready,
            // A file without a group gets its head again.
            position: if position == BLOCK_BYTES { 0 } else { align_up(position, BLOCK_BYTES) },
            cursor: self.cursor,
            copies: self.copies,
            tails,
            bad,
            unproven,
        }
    }
}

impl Log {
    /// Makes all of it durable (rule W3a): what nothing proves durable is written again, then every file is synced.
    pub(super) fn make_durable(&self) -> io::Result<()> {
        if let (Some((from, to)), Some(file)) = (self.unproven, self.in_use.last()) {
            // After a failed sync the kernel calls its pages clean: only a new write brings them to the disk.
            let mut bytes = vec![0; (to - from) as usize];
            file.file.read_at(&mut bytes, from)?;
            file.file.write_vectored_at(&mut [IoSlice::new(&bytes)], from)?;
        }
        let files: Vec<&WalFile> = self.in_use.iter().chain(&self.ready).map(Arc::as_ref).collect();
        let sync = |files: &[&WalFile]| files.iter().try_for_each(|file| file.file.sync_data());
        std::thread::scope(|scope| {
            let parts = files.chunks(files.len().div_ceil(SYNCS_AT_ONCE).max(1));
            let syncs: Vec<_> = parts.map(|files| scope.spawn(move || sync(files))).collect();
            syncs.into_iter().try_for_each(|sync| sync.join().expect("a sync does not panic"))
        })
    }
}
