//! The doors of a broker as its settings say them: Kafka listeners with names, and the certificates of those that speak TLS.

use super::{Door, HTTP_PORT, KAFKA_PORT, Safety, door, loopback};
use crate::failure::Failure;
use millpond_broker::config::{DoorTls, KafkaListener};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// A Kafka listener with a name: `NAME=IP:PORT[,advertise=HOST:PORT][,tls]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct NamedListener {
    name: String,
    listen: SocketAddr,
    advertise: Option<String>,
    tls: bool,
}

impl FromStr for NamedListener {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedListener, String> {
        let (name, rest) = text.split_once('=').ok_or("expected NAME=IP:PORT[,advertise=HOST:PORT][,tls]")?;
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
        if name.is_empty() || !is_word(name) {
            return Err(format!("`{name}` is no name of a listener; use letters, digits, `_`, `-` and `.`"));
        }
        let mut parts = rest.split(',');
        let listen = parts.next().unwrap_or_default();
        let listen = listen.parse().map_err(|_| format!("`{listen}` is not IP:PORT"))?;
        let mut listener = NamedListener { name: name.to_owned(), listen, advertise: None, tls: false };
        for part in parts {
            match part.split_once('=') {
                None if part == "tls" => listener.tls = true,
                None if part == "sasl" => {
                    return Err(
                        "passwords (sasl) are not there yet; ask for certificates with --tls-client-ca".to_owned()
                    );
                }
                Some(("advertise", address)) if is_address(address) => listener.advertise = Some(address.to_owned()),
                Some(("advertise", address)) => return Err(format!("`{address}` is not HOST:PORT")),
                _ => return Err(format!("`{part}` is none of advertise=HOST:PORT and tls")),
            }
        }
        Ok(listener)
    }
}

impl TryFrom<String> for NamedListener {
    type Error = String;

    fn try_from(text: String) -> Result<NamedListener, String> {
        text.parse()
    }
}

/// Whether a client can be told this address.
pub(super) fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// The certificate and its key, which go together.
pub(super) fn certificates(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
) -> Result<Option<DoorTls>, Failure> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(DoorTls::new(certificate, key, client_ca))),
        (None, None) if client_ca.is_none() => Ok(None),
        (None, None) => {
            Err(Failure::usage("--tls-client-ca is for doors that speak TLS; give --tls-cert and --tls-key too"))
        }
        _ => Err(Failure::usage("--tls-cert and --tls-key go together")),
    }
}

/// The listeners of the Kafka door: that without a name, unless only others were asked for, and those with one.
pub(super) fn kafka(
    listen: Option<SocketAddr>,
    advertise: Option<String>,
    named: Vec<NamedListener>,
    safe: Safety,
) -> Result<Vec<(String, Door)>, Failure> {
    let mut listeners = Vec::with_capacity(1 + named.len());
    if named.is_empty() || listen.is_some() || advertise.is_some() {
        let default = door("kafka", listen, KAFKA_PORT, advertise, safe)?;
        listeners.push((KafkaListener::DEFAULT.to_owned(), default));
    }
    for NamedListener { name, listen, advertise, tls } in named {
        let wrong = |what: &str| Failure::usage(format!("--kafka-listener {name}={listen}{what}"));
        if tls && !safe.tls {
            return Err(wrong(",tls has no certificate to show; give --tls-cert and --tls-key"));
        }
        if !listen.ip().is_loopback() && !tls && !safe.insecure {
            return Err(wrong(
                " can be reached by others, without TLS or password; add `,tls`, or say --insecure if that is meant",
            ));
        }
        if listen.ip().is_unspecified() && advertise.is_none() {
            return Err(wrong(": clients cannot connect to that address; add `,advertise=HOST:PORT`"));
        }
        listeners.push((name, Door { listen, advertise, tls }));
    }
    let mut names = BTreeSet::new();
    match listeners.iter().find(|(name, _)| !names.insert(name)) {
        Some((twice, _)) => Err(Failure::usage(format!("two Kafka listeners are named `{twice}`"))),
        None => Ok(listeners),
    }
}

/// The HTTP door. It tells of health and figures only, so it needs no `--insecure`.
pub(super) fn http(listen: Option<SocketAddr>, tls: Option<bool>, safe: Safety) -> Result<Door, Failure> {
    let tls = tls.unwrap_or(false);
    if tls && !safe.tls {
        return Err(Failure::usage("--http-tls has no certificate to show; give --tls-cert and --tls-key"));
    }
    Ok(Door { listen: listen.unwrap_or(loopback(HTTP_PORT)), advertise: None, tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Safety = Safety { tls: false, insecure: false };
    const TLS: Safety = Safety { tls: true, insecure: false };

    fn named(texts: &[&str]) -> Vec<NamedListener> {
        texts.iter().map(|text| text.parse().expect(text)).collect()
    }

    #[test]
    fn named_listeners_are_read() {
        let check = |text: &str, advertise: Option<&str>, tls| {
            let advertise = advertise.map(str::to_owned);
            let listen = "10.0.0.1:9093".parse().expect("an address");
            assert_eq!(text.parse(), Ok(NamedListener { name: "OUT-1".to_owned(), listen, advertise, tls }), "{text}");
        };
        check("OUT-1=10.0.0.1:9093", None, false);
        check("OUT-1=10.0.0.1:9093,tls", None, true);
        check("OUT-1=10.0.0.1:9093,advertise=k:1,tls", Some("k:1"), true);
        check("OUT-1=10.0.0.1:9093,tls,advertise=[::1]:1", Some("[::1]:1"), true);
        for (text, part) in [
            ("10.0.0.1:9093", "NAME="),
            ("=10.0.0.1:9093", "no name"),
            ("a b=10.0.0.1:9093", "no name"),
            ("a=localhost:9093", "not IP:PORT"),
            ("a=10.0.0.1:9093,advertise=k", "not HOST:PORT"),
            ("a=10.0.0.1:9093,ssl", "none of"),
            ("a=10.0.0.1:9093,tls,sasl", "not there yet"),
        ] {
            let error = text.parse::<NamedListener>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn listener_without_a_name_is_there_unless_only_others_are_asked_for() {
        let names = |listen, texts: &[&str], safe| {
            let listeners = kafka(listen, None, named(texts), safe).expect("they can work");
            let of = |(name, door): (String, Door)| (name, door.listen.port(), door.tls);
            listeners.into_iter().map(of).collect::<Vec<_>>()
        };
        let of = |name: &str, port, tls| (name.to_owned(), port, tls);
        assert_eq!(names(None, &[], PLAIN), [of("default", 9092, false)]);
        assert_eq!(names(None, &[], TLS), [of("default", 9092, true)]);
        let texts = ["in=127.0.0.1:1", "out=127.0.0.1:2,tls"];
        assert_eq!(names(None, &texts, TLS), [of("in", 1, false), of("out", 2, true)]);
        let beside = [of("default", 3, true), of("in", 1, false), of("out", 2, true)];
        assert_eq!(names(Some(loopback(3)), &texts, TLS), beside);
    }

    #[test]
    fn listeners_that_cannot_work_are_refused() {
        let check = |texts: &[&str], safe, part: &str| {
            let error = kafka(None, None, named(texts), safe).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        };
        check(&["a=127.0.0.1:1,tls"], PLAIN, "--tls-cert");
        check(&["a=10.0.0.1:1"], TLS, "--insecure");
        check(&["a=0.0.0.0:1,tls"], TLS, "advertise=HOST:PORT");
        check(&["a=127.0.0.1:1", "a=127.0.0.1:2"], PLAIN, "two Kafka listeners");
        let insecure = Safety { tls: false, insecure: true };
        assert!(kafka(None, None, named(&["a=10.0.0.1:1"]), insecure).is_ok());
        assert!(kafka(None, None, named(&["a=10.0.0.1:1,tls"]), TLS).is_ok());
        assert!(http(None, Some(true), PLAIN).is_err());
        assert!(http(None, Some(true), TLS).is_ok_and(|door| door.tls));
    }

    #[test]
    fn certificates_go_with_their_key() {
        let file = |there: bool| there.then(|| PathBuf::from("/f"));
        let read = |certificate, key, ca| certificates(file(certificate), file(key), file(ca));
        assert_eq!(read(false, false, false).expect("none is fine"), None);
        assert!(read(true, true, false).expect("both").is_some_and(|tls| tls.client_ca.is_none()));
        assert!(read(true, true, true).expect("all").is_some_and(|tls| tls.client_ca.is_some()));
        for (certificate, key, ca) in [(true, false, false), (false, true, true), (false, false, true)] {
            assert!(read(certificate, key, ca).is_err());
        }
    }
}
