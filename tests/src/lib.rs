//! What the test programs under `tests/` share: where the tools are that `tests/run` installs, and how a test says that
//! it could not run. No assertions and no product code.

pub mod broker;
pub mod brokers;
pub mod etcd;
pub mod fleet;
pub mod gate;
pub mod http;
pub mod otlp;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod s3;
pub mod tools;
