//! The client against a scripted broker on a loopback port.

mod consume;
mod produce;
mod scripted;
