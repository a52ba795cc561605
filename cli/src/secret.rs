//! What the brokers of a cluster prove to each other, as it was given: the secret, in a file or in a variable, and certificates. Shows
//! none of it.

use crate::failure::{Doing, Failure};
use millpond_broker::config::InternalTls;
use millpond_broker::secret::Secret;
use serde::Deserialize;
use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The secret itself, as somebody wrote it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Written(String);

impl FromStr for Written {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Written, Infallible> {
        Ok(Written(text.to_owned()))
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Reads the secret from where it is, if it is anywhere.
pub(crate) fn read(file: Option<&Path>, written: Option<&Written>) -> Result<Option<Secret>, Failure> {
    let bytes = match (file, written) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(Failure::usage(
                "--cluster-secret-file and MILLPOND_CLUSTER_SECRET both say the secret; give one",
            ));
        }
        (Some(file), None) => {
            let doing = || format!("cannot read the cluster's secret in `{}`", file.display());
            std::fs::read(file).doing(doing())?
        }
        (None, Some(written)) => written.0.clone().into_bytes(),
    };
    Secret::new(&bytes).map(Some).map_err(|error| Failure::usage(error.to_string()))
}

/// Looks at the certificates of the internal door: the authority's, the broker's own, and its key. All of them or none. They are read
/// again for each connection.
pub(crate) fn read_tls(files: [Option<&Path>; 3]) -> Result<Option<InternalTls>, Failure> {
    let [Some(ca), Some(certificate), Some(key)] = files else {
        return match files {
            [None, None, None] => Ok(None),
            _ => Err(Failure::usage("--internal-tls-ca, --internal-tls-cert and --internal-tls-key go together")),
        };
    };
    // A key may say of which kind it is before these words.
    let check = |file: &Path, words: &str| {
        let bytes = std::fs::read(file).doing(format!("cannot read `{}`", file.display()))?;
        match String::from_utf8_lossy(&bytes).contains(&format!("{words}-----")) {
            true => Ok(file.to_owned()),
            false => Err(Failure::usage(format!("`{}` holds no {} in PEM", file.display(), words.to_lowercase()))),
        }
    };
    let (ca, certificate) = (check(ca, "CERTIFICATE")?, check(certificate, "CERTIFICATE")?);
    Ok(Some(InternalTls::new(ca, certificate, check(key, "PRIVATE KEY")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_read_from_one_place_and_said_nowhere() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("secret");
        std::fs::write(&file, "hunter2 hunter2 hunter2\n").expect("the folder can be written");
        let written: Written = "hunter2 hunter2 hunter2".parse().expect("any text will do");
        let both = [read(Some(&file), None), read(None, Some(&written))].map(|read| read.expect("it is there"));
        assert!(both[0].is_some() && both[0] == both[1]);
        assert_eq!(read(None, None).expect("none is fine"), None);
        assert_eq!(format!("{written:?} {both:?}"), "(secret) [Some((secret)), Some((secret))]");
        let refused = |file: Option<&Path>, written: Option<&str>| {
            let written = written.map(|text| text.parse().expect("any text will do"));
            let failure = read(file, written.as_ref()).expect_err("refused").to_string();
            assert!(!failure.contains("hunter2"), "{failure}");
            failure
        };
        assert!(refused(Some(&file), Some("hunter2")).contains("give one"));
        assert!(refused(None, Some("hunter2")).contains("at least 16"));
        assert!(refused(Some(&folder.path().join("none")), None).contains("none"));
    }
    #[test]
    fn certificates_are_read_together_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).expect("the folder can be written");
            file
        };
        let certificate = file("cert", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n");
        let key = file("key", "-----BEGIN EC PRIVATE KEY-----\nx\n-----END EC PRIVATE KEY-----\n");
        let (certificate, key) = (Some(certificate.as_path()), Some(key.as_path()));
        assert_eq!(read_tls([None; 3]).expect("none is fine"), None);
        let all = read_tls([certificate, certificate, key]).expect("they are there").expect("all of them");
        assert_eq!((Some(all.certificate.as_path()), Some(all.key.as_path())), (certificate, key));
        let refused = |files| read_tls(files).expect_err("refused").to_string();
        assert!(refused([certificate, None, key]).contains("go together"));
        assert!(refused([certificate, key, key]).contains("no certificate in PEM"));
        assert!(refused([certificate, certificate, certificate]).contains("no private key in PEM"));
    }
}
