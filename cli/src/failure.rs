//! How a command ends when it fails: one line that says what to do, and the exit code. Knows nothing of any command.

use std::fmt;
use std::process::ExitCode;

/// Why a command failed, in one line for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    message: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Work,
    Usage,
    ReaderGone,
}

impl Failure {
    /// The work failed: exit code 1.
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), kind: Kind::Work }
    }

    /// The command line or a setting is wrong: exit code 2.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), kind: Kind::Usage }
    }

    /// Whoever read our output has gone, as `head` does. There is nobody to tell, and nothing went wrong.
    pub(crate) fn reader_gone() -> Failure {
        Failure { message: "nobody reads the output any more".to_owned(), kind: Kind::ReaderGone }
    }

    /// Says what is wrong in one line on standard error, and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self.kind {
            Kind::ReaderGone => return ExitCode::SUCCESS,
            Kind::Work | Kind::Usage => eprintln!("error: {self}"),
        }
        if self.kind == Kind::Usage { ExitCode::from(2) } else { ExitCode::FAILURE }
    }
}

impl fmt::Display for Failure {
    /// One line, whatever the causes said.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, line) in self.message.lines().map(str::trim).filter(|line| !line.is_empty()).enumerate() {
            let joint = if number == 0 { "" } else { "; " };
            write!(f, "{joint}{line}")?;
        }
        Ok(())
    }
}

/// Adds what was being done to an error of the world.
pub(crate) trait Doing<T> {
    /// `what: cause`, as a failure of the work.
    fn doing(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|cause| Failure::new(format!("{what}: {cause}")))
    }
}

/// An error with what caused it, each cause once: some errors tell theirs themselves.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !message.ends_with(&said) {
            message = format!("{message}: {said}");
        }
        source = cause.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{said}")]
        struct Told {
            said: &'static str,
            source: Option<Box<Told>>,
        }
        let told = |said, source: Option<Told>| Told { said, source: source.map(Box::new) };
        let inner = || told("no such file", None);
        assert_eq!(causes(&told("cannot open", Some(inner()))), "cannot open: no such file");
        assert_eq!(causes(&told("cannot open: no such file", Some(inner()))), "cannot open: no such file");
    }

    #[test]
    fn failures_are_one_line() {
        let cause: Result<(), &str> = Err("no such file\n\n  try another");
        let failure = cause.doing("cannot read `x`").expect_err("it failed");
        assert_eq!(failure.to_string(), "cannot read `x`: no such file; try another");
    }
}
