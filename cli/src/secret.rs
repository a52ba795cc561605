//! The cluster's secret as it was given: in a file or in a variable. Shows neither.

use crate::failure::{Doing, Failure};
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
}
