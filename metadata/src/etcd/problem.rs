//! Why an etcd cannot be used, in words that say what to do. Holds no secret.

use std::fmt;

/// What is wrong. Of several members' problems the greatest is told: it is the one that waiting does not mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// Nothing listens there, or the name is unknown.
    Unreachable,
    /// It is connected and does not answer.
    Silent,
    /// The members have not elected a leader.
    NoLeader,
    /// Something else listens there.
    NotEtcd,
    /// It speaks TLS only, or asks for a client's certificate.
    WantsTls,
    /// It speaks in the clear only.
    NoTls,
    /// Its certificate is signed by another authority.
    UnknownCa,
    /// Its certificate is for another name, or not valid now.
    BadCertificate,
    /// The certificates or the key given are no PEM.
    BadPem,
    /// Requests need a user.
    WantsUser,
    /// A user was given, and it has none.
    NoUsers,
    /// Name or password are wrong.
    WrongPassword,
    /// The user may not read and write our keys.
    NotPermitted,
    /// It is not the store it was (rule K7).
    Restored,
}

impl Problem {
    /// Whether it may pass without anybody's doing. A connection that breaks looks like the wrong port or a want of TLS.
    #[must_use]
    pub fn passes(self) -> bool {
        self <= Problem::WantsTls
    }

    /// Reads it off what the libraries below say.
    pub(super) fn of(said: &str) -> Problem {
        let says = |part: &str| said.contains(part);
        let table = [
            (says("authentication failed, invalid user ID or password"), Problem::WrongPassword),
            (says("authentication is not enabled"), Problem::NoUsers),
            (says("user name is empty"), Problem::WantsUser),
            (says("PermissionDenied") || says("permission denied"), Problem::NotPermitted),
            // The second, where another authority has the same name.
            (says("UnknownIssuer") || says("BadSignature"), Problem::UnknownCa),
            (says("received fatal alert"), Problem::WantsTls),
            (says("invalid peer certificate"), Problem::BadCertificate),
            (says("InvalidContentType") || says("corrupt message") || says("handshake eof"), Problem::NoTls),
            (says("private key"), Problem::BadPem),
            (says("Connection refused") || says("dns error") || says("tcp connect error"), Problem::Unreachable),
            (says("etcdserver: "), Problem::Unreachable),
            // A TLS port that is spoken to in the clear closes the connection, as does one that wants a certificate. How that
            // shows depends on who is faster.
            (says("connection closed") || says("broken pipe") || says("connection broke"), Problem::WantsTls),
            (says("reset by peer") || says("connection reset"), Problem::WantsTls),
            (says("http2 error") || says("protocol error") || says("Unimplemented"), Problem::NotEtcd),
            (says("frame") || says("invalid compression flag") || says("grpc-status"), Problem::NotEtcd),
        ];
        table.iter().find(|(holds, _)| *holds).map_or(Problem::Unreachable, |(_, problem)| *problem)
    }

    fn advice(self) -> &'static str {
        match self {
            Problem::Unreachable => "is etcd running, and is this its client port?",
            Problem::Silent => "is it stopped, or is this another server's port?",
            Problem::NoLeader => "start the other members",
            Problem::NotEtcd => "this is not the client port of an etcd",
            Problem::WantsTls => {
                "it wants TLS, or this is not the client port of an etcd; give the CA, and a certificate if it asks for one"
            }
            Problem::NoTls => "it does not speak TLS; give no CA, or another port",
            Problem::UnknownCa => "its certificate is not signed by the CA that was given; give the one that signed it",
            Problem::BadCertificate => "its certificate is for another name, or is not valid now",
            Problem::BadPem => "the CA, the certificate or the key is not PEM",
            Problem::WantsUser => "it has users; give a name and its password",
            Problem::NoUsers => "it has no users; give none, or turn its authentication on",
            Problem::WrongPassword => "name or password is wrong",
            Problem::NotPermitted => "grant the user read and write on the prefix of the keys",
            Problem::Restored => "it was restored from a backup, or is another cluster's; nothing was changed",
        }
    }
}

/// An etcd that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    /// Which member.
    pub endpoint: String,
    /// What is wrong.
    pub problem: Problem,
    /// How it showed.
    pub detail: String,
}

impl ConnectError {
    pub(super) fn new(endpoint: &str, problem: Problem, detail: &str) -> ConnectError {
        ConnectError { endpoint: endpoint.to_owned(), problem, detail: detail.to_owned() }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd at `{}`: {} ({})", self.endpoint, self.problem.advice(), self.detail)
    }
}

impl std::error::Error for ConnectError {}
