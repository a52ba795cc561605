//! Lines from a file or standard input, read ahead on a thread of their own, so that waiting for a keyboard holds up nothing.

use crate::failure::{Doing, Failure};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use tokio::sync::mpsc;

/// Bytes of lines handed over at once, at most, unless a single line is longer. Two such portions wait at most.
const PORTION_BYTES: usize = 64 << 10;

/// A longer line is an error, not an allocation: no broker takes a record of this size.
const LINE_BYTES_MAX: usize = 64 << 20;

/// Some lines, without their newlines, and the number of the first, from 1.
pub(crate) struct Portion {
    pub(crate) first: u64,
    pub(crate) lines: Vec<Vec<u8>>,
}

/// Starts reading `path`, or standard input for `-`. The channel closes at the end of the input, or after an error.
///
/// The thread ends with the input, or when the channel is dropped and the next portion is there.
pub(crate) fn lines(path: &Path) -> Result<mpsc::Receiver<Result<Portion, Failure>>, Failure> {
    let input: Box<dyn Read + Send> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path).doing(format!("cannot read `{}`", path.display()))?),
    };
    let (sender, receiver) = mpsc::channel(2);
    let name = path.display().to_string();
    std::thread::spawn(move || {
        let mut input = BufReader::with_capacity(PORTION_BYTES, input);
        let mut next = 1;
        loop {
            let portion = portion(&mut input, next).doing(format!("cannot read `{name}`"));
            let end = match &portion {
                Ok(portion) => portion.lines.is_empty(),
                Err(_) => false,
            };
            next += portion.as_ref().map_or(0, |portion| portion.lines.len() as u64);
            let failed = portion.is_err();
            if end || sender.blocking_send(portion).is_err() || failed {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Reads at least one line, and more as long as they are in the buffer. Empty at the end of the input.
fn portion(input: &mut BufReader<impl Read>, first: u64) -> io::Result<Portion> {
    let mut lines = Vec::new();
    let mut size = 0;
    loop {
        let mut line = Vec::new();
        let read = input.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if read > LINE_BYTES_MAX {
            let message = format!("line {} is longer than 64 MiB", first + lines.len() as u64);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        size += line.len();
        lines.push(line);
        if size >= PORTION_BYTES || !input.buffer().contains(&b'\n') {
            break;
        }
    }
    Ok(Portion { first, lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &[u8], expected: &[&[u8]]) {
        let mut input = BufReader::new(text);
        let mut lines = Vec::new();
        loop {
            let portion = portion(&mut input, lines.len() as u64 + 1).expect("memory can be read");
            if portion.lines.is_empty() {
                break;
            }
            assert_eq!(portion.first, lines.len() as u64 + 1);
            lines.extend(portion.lines);
        }
        assert_eq!(lines, expected, "{text:?}");
    }

    #[test]
    fn lines_end_at_newlines_and_at_the_end() {
        check(b"", &[]);
        check(b"\n", &[b""]);
        check(b"a\nb\n", &[b"a", b"b"]);
        check(b"a\n\nb", &[b"a", b"", b"b"]);
        check(b"a\r\n\xff\0", &[b"a\r", b"\xff\0"]);
    }

    #[test]
    fn endless_lines_are_refused() {
        let mut input = BufReader::new(io::repeat(b'x'));
        let error = portion(&mut input, 7).err().expect("no newline ever comes");
        assert!(error.to_string().contains("line 7"), "{error}");
    }
}
