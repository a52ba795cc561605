//! What it takes to use an etcd: its addresses and the prefix of our keys, from one URL, and the secrets. Connects to nothing.
//!
//! No secret shows in `Debug` or in an error.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// etcd's port for clients.
const CLIENT_PORT: u16 = 2379;

/// How long a call may take before it ends with an error. etcd itself gives a request up after 7 s.
const DEADLINE: Duration = Duration::from_secs(5);

/// What every PEM text holds.
const PEM: &[u8] = b"-----BEGIN ";

/// Bytes that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Keeps them.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Secret {
        Secret(bytes.into())
    }

    /// Keeps the text of a file without its last line breaks: an editor's are no part of it.
    #[must_use]
    pub fn line(mut bytes: Vec<u8>) -> Secret {
        while bytes.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            bytes.pop();
        }
        Secret(bytes)
    }

    pub(super) fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// A name and its password.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The name.
    pub name: String,
    /// The password, UTF-8.
    pub password: Secret,
}

/// TLS to etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    /// Certificates of the authorities that sign etcd's own, PEM.
    pub ca: Vec<u8>,
    /// Our certificate chain and its key, PEM, where etcd asks clients for one.
    pub identity: Option<(Vec<u8>, Secret)>,
}

impl Tls {
    /// Whether each part begins as PEM does: a library below takes what does not for no certificates at all.
    pub(super) fn is_pem(&self) -> bool {
        let begins = |bytes: &[u8]| bytes.windows(PEM.len()).any(|window| window == PEM);
        let identity = self.identity.as_ref();
        begins(&self.ca) && identity.is_none_or(|(chain, key)| begins(chain) && begins(key.reveal()))
    }
}

/// Files that hold parts of it, where they are files: they are read again for every connection, since certificates and passwords are
/// replaced under way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Files {
    /// `Tls::ca`.
    pub ca: Option<PathBuf>,
    /// Both parts of `Tls::identity`.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// `User::password`.
    pub password: Option<PathBuf>,
}

/// How to reach an etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdOptions {
    /// `host:port` of each member's client port.
    pub endpoints: Vec<String>,
    /// What our keys start with; connections are tried with a read below it.
    pub prefix: String,
    /// `None` speaks in the clear.
    pub tls: Option<Tls>,
    /// `None` where etcd has no users.
    pub user: Option<User>,
    /// Files of the two; none, if what they hold never changes.
    pub files: Files,
    /// How long a call may take.
    pub deadline: Duration,
}

/// What is wrong with an `etcd://` URL. Holds no part of it, since somebody may have put a password there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme.
    #[error("not of the form etcd://HOST:PORT,HOST:PORT/PREFIX")]
    Form,
    /// No host, or a port that is no number.
    #[error("one of its addresses is not HOST:PORT")]
    Address,
    /// A user before the host.
    #[error("a user and a password do not belong into the URL")]
    User,
}

impl EtcdOptions {
    /// Reads `etcd://h1:2379,h2:2379[/PREFIX]`; `prefix` is taken where the URL has none. A missing port is 2379.
    ///
    /// # Errors
    /// The URL is not of that form.
    pub fn parse(url: &str, prefix: &str) -> Result<EtcdOptions, UrlError> {
        let rest = url.strip_prefix("etcd://").ok_or(UrlError::Form)?;
        let (hosts, own_prefix) = match rest.split_once('/') {
            Some((hosts, own)) if !own.trim_matches('/').is_empty() => (hosts, format!("/{}", own.trim_matches('/'))),
            Some((hosts, _)) => (hosts, prefix.to_owned()),
            None => (rest, prefix.to_owned()),
        };
        if rest.contains('@') {
            return Err(UrlError::User);
        }
        let endpoints = hosts.split(',').map(address).collect::<Result<Vec<String>, UrlError>>()?;
        let files = Files::default();
        Ok(EtcdOptions { endpoints, prefix: own_prefix, tls: None, user: None, files, deadline: DEADLINE })
    }

    /// TLS and user as the files say now; what cannot be read stays as it was. Blocks.
    pub(super) fn reread(&self) -> (Option<Tls>, Option<User>) {
        let read = |path: &PathBuf| {
            let failed =
                |error: &io::Error| tracing::warn!(path = %path.display(), %error, "it stays as it was read before");
            std::fs::read(path).inspect_err(failed).ok()
        };
        let Files { ca, identity, password } = &self.files;
        let (mut tls, mut user) = (self.tls.clone(), self.user.clone());
        if let Some(tls) = &mut tls {
            if let Some(ca) = ca.as_ref().and_then(read) {
                tls.ca = ca;
            }
            let pair = identity.as_ref().and_then(|(chain, key)| Some((read(chain)?, Secret::new(read(key)?))));
            if pair.is_some() {
                tls.identity = pair;
            }
        }
        if let (Some(user), Some(password)) = (&mut user, password.as_ref().and_then(read)) {
            user.password = Secret::line(password);
        }
        (tls, user)
    }
}

fn address(text: &str) -> Result<String, UrlError> {
    let text = text.trim();
    // The port is what follows the last colon, unless that lies inside an IPv6 address.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| UrlError::Address)?),
        _ => (text, CLIENT_PORT),
    };
    let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let valid = bracketed || (!host.is_empty() && host.chars().all(plain));
    if valid { Ok(format!("{host}:{port}")) } else { Err(UrlError::Address) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_files_hold_is_read_again_and_what_cannot_be_read_stays() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str| dir.path().join(name);
        let write = |name: &str, text: &str| std::fs::write(file(name), text).expect("the folder can be written");
        let tls =
            |ca: &str, chain: &str, key: &str| Tls { ca: ca.into(), identity: Some((chain.into(), Secret::new(key))) };
        let user = |password: &str| User { name: "pond".to_owned(), password: Secret::new(password) };
        let mut options = EtcdOptions::parse("etcd://h", "/p").expect("it is one");
        let (ca, identity, password) = (Some(file("ca")), Some((file("chain"), file("key"))), Some(file("password")));
        options.files = Files { ca, identity, password };
        write("password", "two\r\n");
        assert_eq!(options.reread(), (None, None), "files alone ask for nothing");
        (options.tls, options.user) = (Some(tls("a", "b", "c")), Some(user("one")));
        write("chain", "new");
        assert_eq!(options.reread(), (Some(tls("a", "b", "c")), Some(user("two"))), "a chain without its key is none");
        write("key", "new key");
        write("ca", "new ca");
        assert_eq!(options.reread(), (Some(tls("new ca", "new", "new key")), Some(user("two"))));
        options.files = Files::default();
        assert_eq!(options.reread(), (options.tls.clone(), options.user.clone()));
    }

    #[test]
    fn urls_are_read() {
        let check = |url: &str, endpoints: &[&str], prefix: &str| {
            let options = EtcdOptions::parse(url, "/default").expect(url);
            assert_eq!(options.endpoints, endpoints, "{url}");
            assert_eq!(options.prefix, prefix, "{url}");
        };
        check("etcd://h:1", &["h:1"], "/default");
        check("etcd://h", &["h:2379"], "/default");
        check("etcd://h1:1,h2.x-y:22/", &["h1:1", "h2.x-y:22"], "/default");
        check("etcd://10.0.0.1:1/a", &["10.0.0.1:1"], "/a");
        check("etcd://[::1]:1,[fe80::1]/a/b/", &["[::1]:1", "[fe80::1]:2379"], "/a/b");
    }

    #[test]
    fn wrong_urls_are_refused() {
        let check = |url: &str, error| assert_eq!(EtcdOptions::parse(url, "/p"), Err(error), "{url}");
        check("http://h:1", UrlError::Form);
        check("etcd:h:1", UrlError::Form);
        check("etcd://", UrlError::Address);
        check("etcd:///p", UrlError::Address);
        check("etcd://h:1,", UrlError::Address);
        check("etcd://h:x", UrlError::Address);
        check("etcd://h:70000", UrlError::Address);
        check("etcd://h 1:1", UrlError::Address);
        check("etcd://::1", UrlError::Address);
        check("etcd://root:geheim@h:1", UrlError::User);
    }

    #[test]
    fn secrets_do_not_show() {
        let mut options = EtcdOptions::parse("etcd://h", "/p").expect("valid");
        options.user = Some(User { name: "root".to_owned(), password: Secret::new("geheim") });
        options.tls = Some(Tls { ca: Vec::new(), identity: Some((Vec::new(), Secret::new("geheim"))) });
        let shown = format!("{options:?}");
        assert!(shown.contains("root") && !shown.contains("geheim"), "{shown}");
        let bytes = format!("{:?}", b"geheim");
        assert!(!shown.contains(&bytes), "{shown}");
    }
}
