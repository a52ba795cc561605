//! The directory of an embedded store: its lock, its format, its one database file.
//!
//! It never changes a directory that it does not understand, and never starts over what it cannot read.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Version of what is on disk. A newer one is refused.
const FORMAT: u32 = 1;

const LOCK_FILE: &str = "lock";
const FORMAT_FILE: &str = "format";
const DATABASE_FILE: &str = "metadata.redb";

/// What the format file starts with; the version follows.
const FORMAT_TAG: &str = "millpond metadata ";

/// Why an embedded store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is open elsewhere.
    #[error("metadata directory `{}` is in use by another process; stop it, or choose another directory", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// A newer version wrote it.
    #[error(
        "metadata directory `{}` has format {found}, this version reads up to {FORMAT}: start it with the newer version",
        dir.display()
    )]
    NewerFormat {
        /// The directory.
        dir: PathBuf,
        /// Its format.
        found: u32,
    },
    /// It is not what this version wrote.
    #[error("metadata directory `{}` is damaged: {reason}; restore it from a copy", dir.display())]
    Damaged {
        /// The directory.
        dir: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system's error.
    #[error("metadata directory `{}` cannot be opened", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// The error of a database that cannot be opened or written.
    pub(super) fn storage(dir: &Path, error: &redb::Error) -> OpenError {
        OpenError::Damaged { dir: dir.to_owned(), reason: error.to_string() }
    }
}

/// A locked directory. The lock goes when this is dropped.
pub(super) struct Directory {
    dir: PathBuf,
    _lock: File,
}

impl Directory {
    pub(super) fn open(dir: &Path) -> Result<Directory, OpenError> {
        let io = |source| OpenError::Io { dir: dir.to_owned(), source };
        fs::create_dir_all(dir).map_err(io)?;
        let mut options = OpenOptions::new();
        let lock = options.create(true).truncate(false).write(true).open(dir.join(LOCK_FILE)).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { dir: dir.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let directory = Directory { dir: dir.to_owned(), _lock: lock };
        directory.check_format()?;
        Ok(directory)
    }

    pub(super) fn database(&self, cache_bytes: usize) -> Result<redb::Database, OpenError> {
        let opened = redb::Builder::new().set_cache_size(cache_bytes).create(self.dir.join(DATABASE_FILE));
        let database = opened.map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => OpenError::InUse { dir: self.dir.clone() },
            redb::DatabaseError::Storage(redb::StorageError::Io(source)) => self.io(source),
            other => self.damaged(other.to_string()),
        })?;
        // A new file's name has to survive a power cut too (rule W1).
        self.sync().map_err(|source| self.io(source))?;
        Ok(database)
    }

    fn check_format(&self) -> Result<(), OpenError> {
        let path = self.dir.join(FORMAT_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.dir.join(DATABASE_FILE).exists() {
                    return Err(self.damaged(format!("`{DATABASE_FILE}` is there without `{FORMAT_FILE}`")));
                }
                return self.write_format(&path).map_err(|source| self.io(source));
            }
            Err(source) => return Err(self.io(source)),
        };
        let version = text.strip_prefix(FORMAT_TAG).and_then(|rest| rest.trim_end().parse::<u32>().ok());
        match version {
            Some(FORMAT) => Ok(()),
            Some(found) if found > FORMAT => Err(OpenError::NewerFormat { dir: self.dir.clone(), found }),
            _ => Err(self.damaged(format!("`{FORMAT_FILE}` holds {text:?}"))),
        }
    }

    /// Whole or not at all (rule W5); a checksum would add nothing to a file whose every byte is compared.
    fn write_format(&self, path: &Path) -> io::Result<()> {
        let temporary = path.with_extension("new");
        let mut file = File::create(&temporary)?;
        writeln!(file, "{FORMAT_TAG}{FORMAT}")?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn io(&self, source: io::Error) -> OpenError {
        OpenError::Io { dir: self.dir.clone(), source }
    }

    fn damaged(&self, reason: String) -> OpenError {
        OpenError::Damaged { dir: self.dir.clone(), reason }
    }
}
