//! Opens a WAL: lock, identity, recovery, then the threads. Decides when the contents need a new `wal_gen` (rule B4).
//!
//! Nothing is acknowledged, and no frame written, before all that was recovered is durable (rule W3a).

use super::disk::{Disk, DiskLock, is_full};
use super::file::WalFile;
use super::files::{self, Files};
use super::index_file::Growing;
use super::queue::Queue;
use super::recovery::{self, Log, Refused, Source};
use super::shared::{DAMAGE_NAME, Listeners, Shared, lock};
use super::space::{FILES_READY, Space};
use super::state_file::{self, Bad, CLUSTER_BYTES_MAX, Found, Label, LabelFile};
use super::tail::{Freed, frame_bytes};
use super::tails::Tails;
use super::writer::{Ended, Writer};
use super::{Damage, Guard, Recovered, RecoveredPartition, Wal, WalError, WalIdentity, WalOptions};
use millpond_log::frame::BLOCK_BYTES;
use millpond_log::{BrokerId, Incarnation, Lsn, Offset, WalGen};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

/// Names of the identity file and of the lock.
const LABEL_NAME: &str = "identity";
const LOCK_NAME: &str = "lock";

/// Least files of a WAL: one being written, two of ballast, one that permits can count on.
const FILES_MIN: u64 = 4;

impl Wal {
    /// Locks the directory, recovers what is in it and starts the writer. Blocks.
    ///
    /// `fresh_wal_gen` is random. It becomes the identity of the contents when the directory is empty, or when what is in it
    /// can no longer be trusted (rule B4); `Recovered` says so.
    ///
    /// # Errors
    /// Each `WalError`. The directory is as it was, or better: opening it again is safe.
    pub fn open(
        options: WalOptions,
        disk: Arc<dyn Disk>,
        cluster: &str,
        broker: BrokerId,
        fresh_wal_gen: WalGen,
    ) -> Result<(Wal, Recovered), WalError> {
        check(&options, cluster)?;
        disk.create_dir(&options.dir)?;
        let held = disk.lock(&options.dir.join(LOCK_NAME)).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => WalError::Locked { dir: options.dir.clone() },
            _ => error.into(),
        })?;
        let listed = list(disk.as_ref(), &options)?;
        let label_path = options.dir.join(LABEL_NAME);
        let (label_file, found) = LabelFile::open(disk.as_ref(), &label_path)?;
        disk.sync_dir(&options.dir)?;
        let mut opening = Opening::new(found, &label_path, !listed.is_empty(), cluster, broker, fresh_wal_gen)?;
        let source = Source {
            disk: disk.as_ref(),
            dir: &options.dir,
            files: listed,
            wal_gen: opening.label.identity.wal_gen,
            settled: opening.label.settled,
            clean_end: (opening.label.clean_end > Lsn(0)).then_some(opening.label.clean_end),
        };
        let mut log = recovery::recover(&source).map_err(|refused| match refused {
            Refused::Io(error) => WalError::Io(error),
            Refused::OtherFormat { path, format } => WalError::OtherFormat { file: path, format },
        })?;
        opening.bad.append(&mut log.bad);
        if !opening.bad.is_empty() {
            opening.fresh = true;
        }
        log.make_durable()?;
        opening.label.boot = opening.label.boot.max(log.cursor.boot) + 1;
        opening.label.clean_end = Lsn(0);
        opening.label.poisoned = false;
        if opening.fresh {
            opening.label.identity.wal_gen = fresh_wal_gen;
            opening.label.identity.incarnation = Incarnation(0);
        }
        label_file.write(&opening.label)?;
        start(options, disk, held, label_file, opening, log)
    }
}

impl Wal {
    /// Whether another process has the directory. Changes nothing, and holds nothing afterwards. Blocks.
    pub fn is_locked(dir: &Path, disk: &dyn Disk) -> bool {
        disk.lock(&dir.join(LOCK_NAME)).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Whose directory `dir` is, `None` if it is nobody's yet. Changes nothing and waits for nobody. Blocks.
    ///
    /// # Errors
    /// `Unlabelled`: there is data in it, and no telling whose.
    pub fn owner(dir: &Path, disk: &dyn Disk) -> Result<Option<WalIdentity>, WalError> {
        let path = dir.join(LABEL_NAME);
        match LabelFile::peek(disk, &path)? {
            Found::Label(label) => Ok(Some(label.identity)),
            Found::OtherFormat(format) => Err(WalError::OtherFormat { file: path, format }),
            Found::Nothing if !holds_files(dir, disk)? => Ok(None),
            Found::Nothing | Found::Unreadable => Err(WalError::Unlabelled { file: path }),
        }
    }
}

fn holds_files(dir: &Path, disk: &dyn Disk) -> io::Result<bool> {
    match disk.list(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        listed => Ok(listed?.iter().any(|name| name != LABEL_NAME && name != LOCK_NAME)),
    }
}

/// What is known about the directory while it is being opened.
struct Opening {
    label: Label,
    fresh: bool,
    bad: Vec<Bad>,
}

impl Opening {
    fn new(
        found: Found,
        path: &Path,
        has_files: bool,
        cluster: &str,
        broker: BrokerId,
        fresh_wal_gen: WalGen,
    ) -> Result<Opening, WalError> {
        let identity =
            WalIdentity { cluster: cluster.to_owned(), broker, wal_gen: fresh_wal_gen, incarnation: Incarnation(0) };
        let new = Label { identity, boot: 0, settled: Lsn(0), clean_end: Lsn(0), poisoned: false };
        match found {
            Found::OtherFormat(format) => Err(WalError::OtherFormat { file: path.to_owned(), format }),
            Found::Label(label) => {
                if label.identity.cluster != cluster || label.identity.broker != broker {
                    let wanted = format!("broker {broker} of cluster `{cluster}`");
                    return Err(WalError::OtherOwner { found: Box::new(label.identity), wanted });
                }
                // Rule W2: after a failed write or sync nothing on this disk counts as it did.
                Ok(Opening { fresh: label.poisoned, label, bad: Vec::new() })
            }
            Found::Nothing if !has_files => Ok(Opening { label: new, fresh: true, bad: Vec::new() }),
            Found::Nothing | Found::Unreadable => {
                let bad = vec![Bad { file: path.to_owned(), position: 0, partition: None, known_end: Offset(0) }];
                Ok(Opening { label: new, fresh: true, bad })
            }
        }
    }
}

fn check(options: &WalOptions, cluster: &str) -> Result<(), WalError> {
    if !options.file_bytes.is_multiple_of(BLOCK_BYTES) || options.file_bytes < 4 * BLOCK_BYTES {
        return Err(WalError::Options("the size of a file is a multiple of 4 KiB, and at least 16 KiB"));
    }
    if options.bytes_max / options.file_bytes < FILES_MIN {
        return Err(WalError::Options("the WAL has room for at least four files"));
    }
    if cluster.len() > CLUSTER_BYTES_MAX {
        return Err(WalError::Options("a cluster id has at most 1024 bytes"));
    }
    Ok(())
}

/// The WAL files by number; leftovers of files that were being made are removed.
fn list(disk: &dyn Disk, options: &WalOptions) -> Result<Vec<(u64, PathBuf)>, WalError> {
    let mut listed = Vec::new();
    for name in disk.list(&options.dir)? {
        let path = options.dir.join(&name);
        if name == files::NEW_NAME || name.ends_with(".new") {
            disk.remove(&path)?;
        } else if let Some(number) = files::number_of(&name) {
            listed.push((number, path));
        }
    }
    listed.sort();
    Ok(listed)
}

/// Sets up the accounts, mends what damage left, and starts the threads.
fn start(
    options: WalOptions,
    disk: Arc<dyn Disk>,
    held: Box<dyn DiskLock>,
    label_file: LabelFile,
    opening: Opening,
    mut log: Log,
) -> Result<(Wal, Recovered), WalError> {
    let identity = opening.label.identity.clone();
    let files = Files {
        disk: disk.clone(),
        dir: options.dir.clone(),
        file_bytes: options.file_bytes,
        wal_gen: identity.wal_gen,
    };
    prepare(&files, &options, &mut log)?;
    let file = log.in_use.last().cloned().expect("one file is in use");
    let left = file.bytes.saturating_sub(log.position.max(BLOCK_BYTES));
    let oldest = log.in_use[0].number;
    let mut live: Vec<Freed> = Vec::new();
    let mut partitions: Vec<RecoveredPartition> = Vec::new();
    for (partition, tail) in &mut log.tails {
        if tail.dropped {
            continue;
        }
        tail.oldest_file = Some(oldest);
        let places = tail.batches_from(Offset(0)).filter_map(|(held, _)| Some((held.place?, held.entry)));
        live.extend(places.map(|(place, entry)| Freed { file: place.file, bytes: frame_bytes(&entry) }));
        partitions.push(tail.report(*partition));
    }
    let files_max = (options.bytes_max / options.file_bytes) as usize;
    let sealed: VecDeque<Arc<WalFile>> = log
        .in_use
        .iter()
        .filter(|used| log.unindexed.contains(&used.number) && used.number != file.number)
        .cloned()
        .collect();
    let space = Space::new(options.file_bytes, files_max, log.in_use, log.ready, left);
    live.iter().for_each(|live| space.add_live(live.file, live.bytes));
    space.seal(sealed);
    let next_lsn = Lsn(log.cursor.next_lsn.unwrap_or(1));
    let remembered = state_file::load(disk.as_ref(), &options.dir.join(DAMAGE_NAME)).unwrap_or_default();
    let shared = Arc::new(Shared {
        options,
        disk,
        tails: Tails::new(log.tails),
        space,
        queue: Queue::default(),
        found_lsn: Lsn(next_lsn.0 - 1),
        durable_lsn: AtomicU64::new(next_lsn.0 - 1),
        label: Mutex::new((label_file, opening.label.clone())),
        damage: Mutex::new(state_file::decode_damage(&remembered)),
        listeners: Mutex::new(Listeners::default()),
        meters: OnceLock::new(),
    });
    let number = file.number;
    let mut writer = Writer {
        shared: shared.clone(),
        file,
        position: log.position,
        next_lsn,
        prev_crc: log.cursor.prev_crc.unwrap_or_default(),
        boot: opening.label.boot,
        copies: log.copies,
        marked: log.cursor.proven + 1 >= next_lsn.0,
        evictable: VecDeque::new(),
        evictable_bytes: 0,
        index: (log.position == 0).then(|| Growing::new(number)),
        copying: None,
    };
    let files = spawn_files(shared.clone(), files)?;
    if !opening.bad.is_empty()
        && let Err(error) = mend(&shared, &mut writer, &opening.bad)
    {
        shared.space.stop();
        join(files);
        return Err(error);
    }
    let recovered = {
        let bad = lock(&shared.damage);
        note_known_ends(&mut partitions, &bad);
        Recovered { identity, fresh: opening.fresh, partitions, damage: damage(&bad) }
    };
    let thread = spawn_writer(writer, files, held)?;
    let guard = Guard { shared: shared.clone(), writer: Mutex::new(Some(thread)) };
    Ok((Wal { shared, guard: Arc::new(guard) }, recovered))
}

/// Makes the first file, and what is to follow if the disk has room: permits are given from the start.
fn prepare(files: &Files, options: &WalOptions, log: &mut Log) -> Result<(), WalError> {
    let fits = |file: &Arc<WalFile>| file.bytes == options.file_bytes;
    for odd in log.ready.iter().filter(|file| !fits(file)) {
        files.disk.remove(&odd.path)?;
    }
    log.ready.retain(fits);
    let mut number = log.in_use.iter().chain(&log.ready).map(|file| file.number).max().unwrap_or(0);
    if log.in_use.is_empty() {
        number += 1;
        log.in_use.push(Arc::new(files.create(number)?));
        log.position = 0;
    }
    if let Some(begun) = log.in_use.last_mut().filter(|last| log.position == 0 && last.bytes < options.file_bytes) {
        // Cut short, or made under other settings: no file of the log is empty, so the writer could not leave it for one in
        // which the next batch fits.
        *begun = Arc::new(files.lengthen(begun)?);
    }
    let files_max = (options.bytes_max / options.file_bytes) as usize;
    while log.ready.len() < FILES_READY && log.in_use.len() + log.ready.len() < files_max {
        number += 1;
        match files.create(number) {
            Ok(file) => log.ready.push(Arc::new(file)),
            Err(error) if is_full(&error) => {
                tracing::warn!("no room for another WAL file; produce may be refused");
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Puts the good part of every partition on record, so that what lies after damage stays void; then the damage is settled.
/// A crash before the end finds the damage again.
fn mend(shared: &Shared, writer: &mut Writer, bad: &[Bad]) -> Result<(), WalError> {
    writer.restate()?;
    if let Err(error) =
        shared.remember(|damage| damage.extend(bad.iter().filter(|bad| bad.partition.is_some()).cloned()))
    {
        tracing::warn!(%error, "the damage is reported at this start only");
    }
    let nameless = bad.iter().filter(|bad| bad.partition.is_none()).cloned();
    lock(&shared.damage).extend(nameless);
    shared.relabel(|label| label.settled = writer.next_lsn)?;
    Ok(())
}

/// What the frames told of each damaged log before its good part was put on record alone.
pub(super) fn note_known_ends(partitions: &mut [RecoveredPartition], bad: &[Bad]) {
    for held in partitions {
        let of = bad.iter().filter(|bad| bad.partition.is_some_and(|(partition, _)| partition == held.partition));
        held.known_end = of.map(|bad| bad.known_end).fold(held.end, Offset::max);
    }
}

/// Damage by place.
fn damage(bad: &[Bad]) -> Vec<Damage> {
    let mut places: BTreeMap<(PathBuf, u64), Vec<_>> = BTreeMap::new();
    for bad in bad {
        places.entry((bad.file.clone(), bad.position)).or_default().extend(bad.partition);
    }
    let damage = places.into_iter().map(|((file, position), mut partitions)| {
        partitions.sort();
        partitions.dedup();
        Damage { file, position, partitions }
    });
    damage.collect()
}

fn spawn_files(shared: Arc<Shared>, files: Files) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("wal-files".to_owned()).spawn(move || {
        let run = std::panic::catch_unwind(AssertUnwindSafe(|| files.run(&shared)));
        end(&shared, run, "files");
    })
}

/// Starts the writer, which in the end waits for the files thread and gives the lock back.
fn spawn_writer(mut writer: Writer, files: JoinHandle<()>, held: Box<dyn DiskLock>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("wal-writer".to_owned()).spawn(move || {
        let shared = writer.shared.clone();
        let run = std::panic::catch_unwind(AssertUnwindSafe(|| writer.run()));
        let clean = matches!(run, Ok(Ok(Ended::Clean)));
        end(&shared, run, "writer");
        if clean && let Err(error) = shared.relabel(|label| label.clean_end = writer.next_lsn) {
            tracing::warn!(%error, "the WAL was closed, but not marked clean");
        }
        shared.space.stop();
        join(files);
        drop(held);
    })
}

fn join(files: JoinHandle<()>) {
    if files.join().is_err() {
        tracing::error!("the WAL's files thread panicked");
    }
}

/// A thread that ends by an error or a panic takes the WAL with it: neither is ever silently gone.
fn end<T>(shared: &Shared, run: std::thread::Result<io::Result<T>>, thread: &str) {
    match run {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => shared.poison(&error.to_string()),
        Err(_) => shared.poison(&format!("the {thread} thread panicked")),
    }
}
