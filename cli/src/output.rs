//! What commands print on standard output: results only, as text for people or JSON for scripts.

use crate::failure::{Doing, Failure};
use serde::Serialize;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// For scripts: fields are only ever added.
    Json,
}

/// The argument that chooses.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// How results are printed
    #[arg(long, env = "MILLPOND_OUTPUT", value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: Format,
}

/// Standard output, buffered. `flush` before waiting for anything.
pub(crate) struct Out {
    writer: BufWriter<StdoutLock<'static>>,
}

impl Out {
    /// Takes standard output.
    pub(crate) fn new() -> Out {
        Out { writer: BufWriter::with_capacity(64 << 10, io::stdout().lock()) }
    }

    /// Writes through `write`.
    pub(crate) fn with(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        checked(write(&mut self.writer))
    }

    /// Hands everything over to the reader.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        checked(self.writer.flush())
    }
}

fn checked(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::reader_gone()),
        other => other.doing("cannot write to standard output"),
    }
}

/// Prints one line or several.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    let mut out = Out::new();
    out.with(|out| writeln!(out, "{text}"))?;
    out.flush()
}

/// Prints one result as a JSON document on one line.
pub(crate) fn json(result: &impl Serialize) -> Result<(), Failure> {
    text(&serde_json::to_string(result).doing("cannot write the result as JSON")?)
}

/// A table: a heading and rows, columns as wide as their widest cell, numbers to the right.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heading[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let numeric: Vec<bool> = (0..heading.len()).map(|column| rows.iter().all(|row| is_number(&row[column]))).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, cell) in cells.enumerate() {
            let space = " ".repeat(widths[column] - cell.chars().count());
            let (before, after) = if numeric[column] { (space.as_str(), "") } else { ("", space.as_str()) };
            line.push_str(if column == 0 { "" } else { "  " });
            line.extend([before, cell, after]);
        }
        line.trim_end().to_owned()
    };
    let mut lines = vec![line(&mut heading.iter().copied())];
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

fn is_number(cell: &str) -> bool {
    cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["orders", "4", "1.50 MiB"], ["ü", "128", "-"]];
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|&cell| cell.to_owned()).collect()).collect();
        let expected = "TOPIC   PARTITIONS      SIZE\norders           4  1.50 MiB\nü              128         -";
        assert_eq!(table(&["TOPIC", "PARTITIONS", "SIZE"], &rows), expected);
        assert_eq!(table(&["A", "B"], &[]), "A  B");
    }
}
