//! Backslash escapes in arguments, where a shell passes `\n` and `\t` on as they are.

/// Reads `\n`, `\r`, `\t`, `\0`, `\\` and `\xHH`.
pub(crate) fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'\\' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let (byte, read) = match after {
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b't', ..] => (b'\t', 1),
            [b'0', ..] => (0, 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', high, low, ..] => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 3),
                _ => return Err(format!("`{text}`: write \\xHH with two hexadecimal digits")),
            },
            _ => return Err(format!("`{text}`: only \\n, \\r, \\t, \\0, \\\\ and \\xHH are known")),
        };
        bytes.push(byte);
        rest = &after[read..];
    }
    Ok(bytes)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_become_bytes() {
        let check = |text: &str, bytes: Option<&[u8]>| assert_eq!(unescape(text).ok().as_deref(), bytes, "{text}");
        check("", Some(b""));
        check("a:b", Some(b"a:b"));
        check(r"\t", Some(b"\t"));
        check(r"a\n\r\0\\b", Some(b"a\n\r\0\\b"));
        check(r"\x1Fz", Some(b"\x1fz"));
        check(r"\xff", Some(b"\xff"));
        check("ü", Some("ü".as_bytes()));
        for bad in [r"\", r"\q", r"\x", r"\x1", r"\xgg"] {
            check(bad, None);
        }
    }
}
