//! The client against a scripted broker on a loopback port.

mod connecting;
mod consume;
mod coordinator;
mod members;
mod produce;
mod scripted;
