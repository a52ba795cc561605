//! What a broker holds for its clients is bounded, and whatever they send, it lives on and serves others.

pub(crate) mod attack;
mod dropped;
mod garbage;
mod http2;
