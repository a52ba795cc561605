//! How brokers prove to each other that they know the cluster's secret: an HMAC over who they are and what the other one drew.
//! The secret never crosses the wire. A proof hides nothing and guards no byte that follows it: that is what TLS is for.

use crate::secret::Secret;
use hmac::{Hmac, KeyInit, Mac};
use millpond_log::BrokerId;
use sha2::Sha256;

/// Bytes of a challenge, a nonce and a proof.
pub(super) const PROOF_BYTES: usize = 32;

/// Who calls whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) caller: BrokerId,
    pub(super) callee: BrokerId,
}

/// Makes and checks the proofs of one cluster.
#[derive(Clone)]
pub(super) struct Prover {
    secret: Secret,
    cluster: String,
}

impl Prover {
    pub(super) fn new(secret: Secret, cluster: String) -> Prover {
        Prover { secret, cluster }
    }

    /// What a call carries: for every call until the callee draws another challenge, which it does when it starts.
    pub(super) fn of_caller(&self, pair: Pair, challenge: &[u8]) -> [u8; PROOF_BYTES] {
        self.mac("millpond caller", pair, [challenge, &[]]).finalize().into_bytes().into()
    }

    /// What comes with a challenge: whoever calls knows before it says anything that it talks to its cluster.
    pub(super) fn of_callee(&self, pair: Pair, nonce: &[u8], challenge: &[u8]) -> [u8; PROOF_BYTES] {
        self.mac("millpond callee", pair, [challenge, nonce]).finalize().into_bytes().into()
    }

    /// Takes the same time for every wrong proof.
    pub(super) fn caller_is_proven(&self, pair: Pair, challenge: &[u8], proof: &[u8]) -> bool {
        self.mac("millpond caller", pair, [challenge, &[]]).verify_slice(proof).is_ok()
    }

    /// Takes the same time for every wrong proof.
    pub(super) fn callee_is_proven(&self, pair: Pair, nonce: &[u8], challenge: &[u8], proof: &[u8]) -> bool {
        self.mac("millpond callee", pair, [challenge, nonce]).verify_slice(proof).is_ok()
    }

    /// Each part with its length, so that no two lists of parts look alike.
    fn mac(&self, role: &str, pair: Pair, drawn: [&[u8]; 2]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256>>::new_from_slice(self.secret.expose()).expect("HMAC takes keys of any length");
        let (caller, callee) = (pair.caller.0.to_be_bytes(), pair.callee.0.to_be_bytes());
        for part in [role.as_bytes(), self.cluster.as_bytes(), &caller, &callee, drawn[0], drawn[1]] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prover(secret: &str, cluster: &str) -> Prover {
        Prover::new(Secret::new(secret.as_bytes()).expect("it is long enough"), cluster.to_owned())
    }

    #[test]
    fn proof_holds_for_one_cluster_one_pair_and_one_challenge() {
        let (us, pair) = (prover("a secret of ours", "c"), Pair { caller: BrokerId(1), callee: BrokerId(2) });
        let proof = us.of_caller(pair, b"challenge");
        assert!(us.caller_is_proven(pair, b"challenge", &proof));
        assert!(!us.caller_is_proven(pair, b"another", &proof));
        assert!(!us.caller_is_proven(Pair { caller: BrokerId(3), ..pair }, b"challenge", &proof));
        assert!(!us.caller_is_proven(Pair { caller: pair.callee, callee: pair.caller }, b"challenge", &proof));
        assert!(!prover("a secret of ours", "d").caller_is_proven(pair, b"challenge", &proof));
        assert!(!prover("a secret: theirs", "c").caller_is_proven(pair, b"challenge", &proof));
        assert!(!us.caller_is_proven(pair, b"challenge", &proof[..31]));
        assert!(!us.caller_is_proven(pair, b"challenge", &[]));
    }

    #[test]
    fn answer_to_a_challenge_is_no_proof_of_a_caller() {
        // Whoever asks for challenges chooses the nonce, and gets proofs over it from anybody.
        let (us, pair) = (prover("a secret of ours", "c"), Pair { caller: BrokerId(1), callee: BrokerId(2) });
        let answer = us.of_callee(pair, b"nonce", b"challenge");
        assert!(us.callee_is_proven(pair, b"nonce", b"challenge", &answer));
        assert!(!us.callee_is_proven(pair, b"nonc", b"echallenge", &answer));
        for (nonce, challenge) in [(&b"nonce"[..], &b"challenge"[..]), (b"", b"challenge"), (b"challenge", b"")] {
            let answer = us.of_callee(pair, nonce, challenge);
            assert!(!us.caller_is_proven(pair, challenge, &answer) && !us.caller_is_proven(pair, nonce, &answer));
        }
    }
}
