//! Where a broker's metadata are: told apart by URL, opened, and what is wrong said with the flag that mends it.
//! Shows no secret.

use crate::failure::{Doing, Failure};
use millpond_metadata::clock::SystemClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::etcd::{ConnectError, Etcd, EtcdOptions, Files, Problem, Secret, Tls, User};
use millpond_metadata::keys::Keys;
use millpond_metadata::kv::Kv;
use serde::Deserialize;
use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// `NAME` or `NAME:PASSWORD`, as somebody wrote it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Login(String);

impl FromStr for Login {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Login, Infallible> {
        Ok(Login(text.to_owned()))
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Where the metadata are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Metadata {
    /// A store of this broker's own, in a folder.
    Embedded(PathBuf),
    /// etcd.
    Etcd(Box<EtcdSettings>),
}

/// An etcd and the files that it takes to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EtcdSettings {
    pub(crate) options: EtcdOptions,
    pub(crate) files: EtcdFiles,
}

/// What `--etcd-…` say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EtcdFiles {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) user: Option<Login>,
    pub(crate) password_file: Option<PathBuf>,
}

/// An open metadata store.
pub(crate) struct Opened {
    pub(crate) kv: Arc<dyn Kv>,
    pub(crate) keys: Keys,
    embedded: Option<Embedded>,
}

impl Metadata {
    /// Reads `embedded:DIR` or `etcd://…`; opens nothing.
    pub(crate) fn parse(url: &str, cluster: &str, files: EtcdFiles) -> Result<Metadata, Failure> {
        if let Some(folder) = url.strip_prefix("embedded:").filter(|folder| !folder.is_empty()) {
            return match files == EtcdFiles::default() {
                true => Ok(Metadata::Embedded(folder.into())),
                false => {
                    Err(Failure::usage("the --etcd-… settings go with --metadata etcd://…, not with embedded:DIR"))
                }
            };
        }
        if !url.starts_with("etcd:") {
            let shown = without_user(url);
            return Err(Failure::usage(format!("--metadata `{shown}` is neither embedded:DIR nor etcd://HOST:PORT")));
        }
        // The URL is not repeated: somebody may have put a password there.
        let options = EtcdOptions::parse(url, &format!("/millpond/{cluster}"))
            .map_err(|error| Failure::usage(format!("--metadata etcd://…: {error}; a user goes to --etcd-user")))?;
        files.check()?;
        Ok(Metadata::Etcd(Box::new(EtcdSettings { options, files })))
    }

    /// Opens the store, or connects to it.
    pub(crate) async fn open(&self, cluster: &str) -> Result<Opened, Failure> {
        match self {
            Metadata::Embedded(folder) => {
                let opened = format!("cannot open the metadata in `{}`", folder.display());
                let store = Embedded::open(folder, Arc::new(SystemClock::start())).doing(opened)?;
                let kv = Arc::new(store.clone()) as Arc<dyn Kv>;
                Ok(Opened { kv, keys: Keys::for_cluster(cluster), embedded: Some(store) })
            }
            Metadata::Etcd(settings) => {
                let mut options = settings.options.clone();
                options.tls = settings.files.tls()?;
                options.user = settings.files.user()?;
                options.files = settings.files.reread();
                let keys = Keys::under(&options.prefix);
                let etcd = Etcd::connect(options).await.map_err(|error| explain(&error))?;
                Ok(Opened { kv: Arc::new(etcd), keys, embedded: None })
            }
        }
    }
}

impl Opened {
    /// Closes what was opened; etcd needs no closing.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        match self.embedded {
            Some(embedded) => embedded.close().await.doing("cannot close the metadata"),
            None => Ok(()),
        }
    }
}

impl EtcdFiles {
    fn check(&self) -> Result<(), Failure> {
        if self.cert.is_some() != self.key.is_some() {
            return Err(Failure::usage("--etcd-cert and --etcd-key go together"));
        }
        if self.cert.is_some() && self.ca.is_none() {
            return Err(Failure::usage(
                "--etcd-cert needs --etcd-ca, the certificate of the CA that signed etcd's own",
            ));
        }
        let name = self.user.as_ref().map(|Login(text)| text.split(':').next().unwrap_or_default());
        let password = self.user.as_ref().is_some_and(|Login(text)| text.contains(':'));
        match (name, password, self.password_file.is_some()) {
            (None, _, true) => Err(Failure::usage("--etcd-password-file needs --etcd-user NAME")),
            (Some(""), ..) => Err(Failure::usage("--etcd-user has no name before its colon")),
            (Some(_), false, false) => {
                Err(Failure::usage("--etcd-user needs a password: NAME:PASSWORD, or --etcd-password-file FILE"))
            }
            (Some(_), true, true) => {
                Err(Failure::usage("--etcd-user holds a password, and --etcd-password-file another one; give one"))
            }
            _ => Ok(()),
        }
    }

    /// What is read again for each connection.
    fn reread(&self) -> Files {
        let identity = self.cert.clone().zip(self.key.clone());
        Files { ca: self.ca.clone(), identity, password: self.password_file.clone() }
    }

    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((read("--etcd-cert", cert)?, Secret::new(read("--etcd-key", key)?))),
            _ => None,
        };
        Ok(Some(Tls { ca: read("--etcd-ca", ca)?, identity }))
    }

    fn user(&self) -> Result<Option<User>, Failure> {
        let Some(Login(text)) = &self.user else { return Ok(None) };
        let (name, password) = match (text.split_once(':'), &self.password_file) {
            (Some((name, password)), _) => (name, Secret::new(password)),
            (None, Some(file)) => (text.as_str(), Secret::line(read("--etcd-password-file", file)?)),
            (None, None) => (text.as_str(), Secret::new("")),
        };
        Ok(Some(User { name: name.to_owned(), password }))
    }
}

/// The URL without a user and a password, which some write before its host.
fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (&url[..scheme.len() + 3], rest));
    rest.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, host)| format!("{scheme}…@{host}"))
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).doing(format!("{flag}: cannot read `{}`", path.display()))
}

/// The problem and the flag that mends it.
fn explain(error: &ConnectError) -> Failure {
    let flags = match error.problem {
        Problem::Unreachable | Problem::Silent | Problem::NotEtcd => "see --metadata",
        Problem::WantsTls => "see --etcd-ca, --etcd-cert and --etcd-key",
        Problem::NoTls | Problem::UnknownCa | Problem::BadCertificate | Problem::BadPem => "see --etcd-ca",
        Problem::WantsUser | Problem::NoUsers | Problem::WrongPassword => "see --etcd-user",
        Problem::NotPermitted | Problem::NoLeader | Problem::Restored => return Failure::new(error.to_string()),
    };
    Failure::new(format!("{error}; {flags}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(text: &str) -> Option<Login> {
        Some(Login(text.to_owned()))
    }

    #[test]
    fn urls_are_told_apart() {
        let parse = |url: &str| Metadata::parse(url, "c", EtcdFiles::default());
        assert_eq!(parse("embedded:/m"), Ok(Metadata::Embedded("/m".into())));
        let Ok(Metadata::Etcd(etcd)) = parse("etcd://h1:1,h2") else { panic!("it is an etcd") };
        assert_eq!((etcd.options.endpoints.len(), etcd.options.prefix.as_str()), (2, "/millpond/c"));
        let Ok(Metadata::Etcd(etcd)) = parse("etcd://h1/own") else { panic!("it is an etcd") };
        assert_eq!(etcd.options.prefix, "/own");
        for (url, part) in [
            ("embedded:", "neither"),
            ("redis://h", "neither"),
            ("etcd://", "HOST:PORT"),
            ("etcd://root:geheim@h:1", "--etcd-user"),
            ("https://root:geheim@h:1", "`https://…@h:1` is neither"),
            ("https://root:g@geheim@h:1/p", "`https://…@h:1/p` is neither"),
            ("root:geheim@h:1", "`…@h:1` is neither"),
        ] {
            let failure = parse(url).expect_err(url).to_string();
            assert!(failure.contains(part) && !failure.contains("geheim"), "{failure}");
        }
    }

    #[test]
    fn settings_that_do_not_go_together_are_refused() {
        let check = |files: EtcdFiles, part: &str| {
            let failure = Metadata::parse("etcd://h", "c", files).expect_err(part).to_string();
            assert!(failure.contains(part) && !failure.contains("geheim"), "{failure}");
        };
        let some = || Some(PathBuf::from("/f"));
        check(EtcdFiles { cert: some(), ca: some(), ..EtcdFiles::default() }, "go together");
        check(EtcdFiles { cert: some(), key: some(), ..EtcdFiles::default() }, "--etcd-ca");
        check(EtcdFiles { user: login("root"), ..EtcdFiles::default() }, "needs a password");
        check(EtcdFiles { user: login(":geheim"), ..EtcdFiles::default() }, "no name");
        check(EtcdFiles { user: login("a:geheim"), password_file: some(), ..EtcdFiles::default() }, "give one");
        check(EtcdFiles { password_file: some(), ..EtcdFiles::default() }, "--etcd-user");
        let failure = Metadata::parse("embedded:/m", "c", EtcdFiles { ca: some(), ..EtcdFiles::default() });
        assert!(failure.expect_err("no etcd").to_string().contains("--etcd-"));
    }

    #[test]
    fn passwords_are_read_and_never_shown() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("password");
        std::fs::write(&file, "geheim:1\n").expect("the folder can be written");
        let told = EtcdFiles { user: login("root:geheim:1"), ..EtcdFiles::default() };
        let filed = EtcdFiles { user: login("root"), password_file: Some(file), ..EtcdFiles::default() };
        assert_eq!(told.user(), filed.user());
        assert_eq!(told.user().expect("no file").expect("a user").name, "root");
        assert!(!format!("{told:?} {filed:?}").contains("geheim"));
        let missing = EtcdFiles { ca: Some("/no/such/file".into()), ..EtcdFiles::default() };
        assert!(missing.tls().expect_err("no file").to_string().contains("--etcd-ca"));
    }
}
