//! `consume --format`: the letters that kcat and rpk know. Parsed once, then each record is written without allocation.

use super::Shown;
use super::escape::unescape;
use std::io::{self, Write};
use std::str::FromStr;

/// A parsed format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Topic,
    Partition,
    Offset,
    Timestamp,
    Key,
    KeyLen,
    Value,
    ValueLen,
    Headers,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                plain.push(c);
                continue;
            }
            let piece = match rest.next() {
                Some('%') => {
                    plain.push('%');
                    continue;
                }
                Some('t') => Piece::Topic,
                Some('p') => Piece::Partition,
                Some('o') => Piece::Offset,
                Some('T' | 'd') => Piece::Timestamp,
                Some('k') => Piece::Key,
                Some('K') => Piece::KeyLen,
                Some('v' | 's') => Piece::Value,
                Some('S') => Piece::ValueLen,
                Some('h') => Piece::Headers,
                Some(other) => {
                    return Err(format!("`%{other}` is no letter of a format; use %t %p %o %k %v %T %h %K %S %%"));
                }
                None => return Err("the format ends in `%`; write `%%` for a per cent sign".to_owned()),
            };
            if !plain.is_empty() {
                pieces.push(Piece::Text(unescape(&std::mem::take(&mut plain))?));
            }
            pieces.push(piece);
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(unescape(&plain)?));
        }
        Ok(Format(pieces))
    }
}

impl Format {
    /// Writes one record. A null key or value is written as nothing, and its length as -1, which tells it from an empty one.
    pub(crate) fn write(&self, record: &Shown<'_>, out: &mut impl Write) -> io::Result<()> {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.write_all(text)?,
                Piece::Topic => out.write_all(record.topic.as_bytes())?,
                Piece::Partition => write!(out, "{}", record.partition)?,
                Piece::Offset => write!(out, "{}", record.offset)?,
                Piece::Timestamp => write!(out, "{}", record.timestamp_ms)?,
                Piece::Key => out.write_all(record.key.unwrap_or_default())?,
                Piece::KeyLen => write_len(record.key, out)?,
                Piece::Value => out.write_all(record.value.unwrap_or_default())?,
                Piece::ValueLen => write_len(record.value, out)?,
                Piece::Headers => write_headers(record, out)?,
            }
        }
        Ok(())
    }
}

fn write_len(bytes: Option<&[u8]>, out: &mut impl Write) -> io::Result<()> {
    match bytes {
        Some(bytes) => write!(out, "{}", bytes.len()),
        None => write!(out, "-1"),
    }
}

/// `name=value,name=value`, as kcat does; a null value as `NULL`.
fn write_headers(record: &Shown<'_>, out: &mut impl Write) -> io::Result<()> {
    for (number, header) in record.headers.iter().enumerate() {
        if number > 0 {
            out.write_all(b",")?;
        }
        out.write_all(&header.name)?;
        out.write_all(b"=")?;
        out.write_all(header.value.as_deref().unwrap_or(b"NULL"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use millpond_log::batch::Header;

    fn check(format: &str, expected: &str) {
        let headers = [
            Header { name: Bytes::from_static(b"a"), value: Some(Bytes::from_static(b"1")) },
            Header { name: Bytes::from_static(b"a"), value: None },
        ];
        let record = Shown {
            topic: "orders",
            partition: 3,
            offset: 42,
            timestamp_ms: 1_700_000_000_123,
            timestamp_type: "CreateTime",
            key: None,
            value: Some(b"pear"),
            headers: &headers,
        };
        let mut out = Vec::new();
        let format: Format = format.parse().expect("the format is valid");
        format.write(&record, &mut out).expect("memory takes all bytes");
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn every_letter_is_written() {
        check("%v\\n", "pear\n");
        check("%s", "pear");
        check("%t/%p@%o", "orders/3@42");
        check("%T %d", "1700000000123 1700000000123");
        check("[%k] %K %S", "[] -1 4");
        check("%h", "a=1,a=NULL");
        check("100%%\\t%o", "100%\t42");
        check("", "");
    }

    #[test]
    fn unknown_letters_are_refused() {
        for bad in ["%", "%o%", "%q", "%v\\q"] {
            assert!(bad.parse::<Format>().is_err(), "{bad}");
        }
    }
}
