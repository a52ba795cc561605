//! The secret that the brokers of a local fleet share: drawn once, and kept in the fleet's folder for its owner alone.

use crate::failure::{Doing, Failure};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const NAME: &str = "cluster-secret";

/// Random bytes of a secret.
const BYTES: usize = 32;

/// The file with the secret of the fleet in `dir`; made if it is not there.
pub(super) fn of(dir: &Path) -> Result<PathBuf, Failure> {
    let path = dir.join(NAME);
    if !path.exists() {
        make(dir, &path).doing(format!("cannot write `{}`", path.display()))?;
    }
    Ok(path)
}

/// Whole or not at all.
fn make(dir: &Path, path: &Path) -> io::Result<()> {
    let bytes: [u8; BYTES] = rand::random();
    let mut text = String::with_capacity(2 * BYTES + 1);
    for byte in bytes {
        write!(text, "{byte:02x}").map_err(io::Error::other)?;
    }
    text.push('\n');
    let new = path.with_extension("new");
    // One that was left behind half written.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_secret_is_drawn_once_and_for_its_owner() {
        let [folder, other] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        fs::write(folder.path().join("cluster-secret.new"), "half").expect("the folder can be written");
        let path = of(folder.path()).expect("the folder can be written");
        let secret = fs::read_to_string(&path).expect("it is there");
        assert_eq!((secret.trim_end().len(), secret.ends_with('\n')), (2 * BYTES, true));
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        of(folder.path()).expect("it is there");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), secret);
        let theirs = fs::read_to_string(of(other.path()).expect("the folder can be written")).expect("it is there");
        assert_ne!(theirs, secret);
    }
}
