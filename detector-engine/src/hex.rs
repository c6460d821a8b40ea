//! Hexadecimal digits without the machinery of formatting: an event contains some two hundred.

/// The two lower-case digits of a byte.
pub(crate) fn hex(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [byte >> 4, byte & 0xf].map(|digit| DIGITS[usize::from(digit)])
}
