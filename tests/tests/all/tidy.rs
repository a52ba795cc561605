//! Rules about the source text that no compiler checks: who may depend on whom, how files open, what may not be written.
//! Reads the checkout; never the build output.

mod edges;
mod fuzz;
mod modules;
mod rules;
mod source;
mod words;
