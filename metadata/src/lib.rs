//! The metadata of a cluster: the only crate that knows where it is kept, and how it is changed.
//!
//! `kv` is the waist, `embedded` and `etcd` implement it, and `serve` makes an etcd of the embedded store. `keys` is the key
//! space, and `store` holds every transition as one named transaction. Not the data path: no record passes here.

pub mod clock;
pub mod embedded;
pub mod etcd;
pub mod keys;
pub mod kv;
#[cfg(any(test, feature = "testing"))]
pub mod properties;
pub mod serve;
pub mod store;
