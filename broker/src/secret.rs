//! The secret that the brokers of a cluster share. It is shown by nothing: not by `Debug`, not in an error, not in the log.

use std::fmt;
use std::sync::Arc;

/// Least bytes of a secret: what 128 random bits take.
pub const SECRET_BYTES_MIN: usize = 16;

/// What brokers of one cluster know, and nobody else.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

/// The secret is too short to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cluster's secret has {0} bytes, and needs at least {SECRET_BYTES_MIN}; make one with `openssl rand -hex 32`"
)]
pub struct SecretTooShort(pub usize);

impl Secret {
    /// Takes the bytes as they are, less the white space around them: a file ends with a line's end.
    ///
    /// # Errors
    /// Fewer than `SECRET_BYTES_MIN` bytes are left.
    pub fn new(bytes: &[u8]) -> Result<Secret, SecretTooShort> {
        let bytes = bytes.trim_ascii();
        if bytes.len() < SECRET_BYTES_MIN { Err(SecretTooShort(bytes.len())) } else { Ok(Secret(bytes.into())) }
    }

    /// The bytes, for whoever computes with them.
    pub(crate) fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_long_enough_and_shows_nothing() {
        assert_eq!(Secret::new(b" fifteen bytes..\n"), Err(SecretTooShort(15)));
        assert_eq!(Secret::new(b"\n \n"), Err(SecretTooShort(0)));
        let secret = Secret::new(b"sixteen bytes ..\n").expect("it is long enough");
        assert_eq!(secret.expose(), b"sixteen bytes ..");
        assert_eq!(format!("{secret:?}"), "(secret)");
    }
}
