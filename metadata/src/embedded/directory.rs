//! The directory of an embedded store: its lock, its format, its one database file.
//!
//! It never changes a directory that it does not understand, and starts over only what was never finished.

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

/// What follows the version until the database was made: nothing was acknowledged from such a directory.
const UNFINISHED: &str = " unfinished";

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

/// A locked directory. The lock goes when this is dropped.
pub(super) struct Directory {
    dir: PathBuf,
    _lock: File,
}

impl Directory {
    /// Locks the directory and checks its format; a new one is unfinished until `finish`.
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
        directory.check()?;
        Ok(directory)
    }

    /// Opens the database file, and makes its name durable.
    pub(super) fn file(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).read(true).write(true).open(self.database())?;
        self.sync()?;
        Ok(file)
    }

    /// Says that the database is made. From now on it has to be there.
    pub(super) fn finish(&self) -> Result<(), OpenError> {
        self.write_format("").map_err(|source| self.io(source))
    }

    /// What went wrong with the database file.
    pub(super) fn storage(&self, error: redb::Error) -> OpenError {
        match error {
            redb::Error::DatabaseAlreadyOpen => OpenError::InUse { dir: self.dir.clone() },
            redb::Error::Io(source) => self.io(source),
            other => self.damaged(other.to_string()),
        }
    }

    fn check(&self) -> Result<(), OpenError> {
        let database_is_there = self.database().exists();
        let text = match fs::read_to_string(self.dir.join(FORMAT_FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if database_is_there {
                    return Err(self.damaged(format!("`{DATABASE_FILE}` is there without `{FORMAT_FILE}`")));
                }
                return self.write_format(UNFINISHED).map_err(|source| self.io(source));
            }
            Err(source) => return Err(self.io(source)),
        };
        let Some((version, rest)) = version(&text) else {
            return Err(self.damaged(format!("`{FORMAT_FILE}` holds {text:?}")));
        };
        match (version, rest) {
            (FORMAT, UNFINISHED) if database_is_there => {
                fs::remove_file(self.database()).map_err(|source| self.io(source))
            }
            (FORMAT, UNFINISHED) => Ok(()),
            (FORMAT, "") if database_is_there => Ok(()),
            (FORMAT, "") => Err(self.damaged(format!("`{DATABASE_FILE}` is gone"))),
            (found, _) if found > FORMAT => Err(OpenError::NewerFormat { dir: self.dir.clone(), found }),
            _ => Err(self.damaged(format!("`{FORMAT_FILE}` holds {text:?}"))),
        }
    }

    fn database(&self) -> PathBuf {
        self.dir.join(DATABASE_FILE)
    }

    /// Whole or not at all (rule W5); a checksum would add nothing to a file whose every byte is compared.
    fn write_format(&self, rest: &str) -> io::Result<()> {
        let path = self.dir.join(FORMAT_FILE);
        let temporary = path.with_extension("new");
        let mut file = File::create(&temporary)?;
        writeln!(file, "{FORMAT_TAG}{FORMAT}{rest}")?;
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

/// The version in a format file, and what follows it.
fn version(text: &str) -> Option<(u32, &str)> {
    let numbered = text.strip_prefix(FORMAT_TAG)?.strip_suffix('\n')?;
    let digits = numbered.find(|c: char| !c.is_ascii_digit()).unwrap_or(numbered.len());
    Some((numbered[..digits].parse().ok()?, &numbered[digits..]))
}
