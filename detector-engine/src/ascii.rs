//! ASCII texts without the machinery of formatting: an event contains some fifteen.

use serde::{Serialize, Serializer, ser::Error as _};

/// The two lower-case digits of a byte.
pub(crate) fn hex(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [byte >> 4, byte & 0xf].map(|digit| DIGITS[usize::from(digit)])
}

/// The name of the newtype that [`serialize_ascii`] serialises. A serializer that is not human-readable within it gets bytes.
pub const ASCII: &str = "detector_engine::ASCII";

/// Serialises a text that is known to be printable ASCII, without quotation marks and backslashes.
///
/// # Errors
/// Those of the serializer; or it is not text.
pub fn serialize_ascii<S: Serializer>(text: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_newtype_struct(ASCII, &Ascii(text))
}

struct Ascii<'t>(&'t [u8]);

impl Serialize for Ascii<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(str::from_utf8(self.0).map_err(S::Error::custom)?)
        } else {
            serializer.serialize_bytes(self.0)
        }
    }
}
