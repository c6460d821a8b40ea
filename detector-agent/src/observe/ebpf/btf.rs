//! Offsets of members in the kernel's structs, from the kernel's type information (BTF).
//!
//! A minimal reader: the type section is walked once, names are compared in place, nothing is copied. The format is described
//! in the kernel's `Documentation/bpf/btf.rst`.

use std::collections::BTreeMap;

/// Why a member's offset could not be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BtfError {
    /// The data is not BTF, in another byte order, or truncated.
    #[error("not valid BTF: {0}")]
    Malformed(&'static str),
    /// There is no such struct.
    #[error("`struct {0}` is missing")]
    NoStruct(String),
    /// A struct has no such member.
    #[error("`struct {0}` has no member `{1}`")]
    NoMember(String, String),
    /// A member does not start at a byte.
    #[error("`{1}` of `struct {0}` is a bit field")]
    BitField(String, String),
    /// There is no such tracepoint.
    #[error("the kernel has no tracepoint {0}")]
    NoTracepoint(String),
}

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
/// Length of the header, and offset of the types behind it.
const HEADER: u32 = 24;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FORWARD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const TYPE_TAG: u32 = 18;
/// Maximum nesting of anonymous structs and of type modifiers, against malformed input.
const DEPTH: u32 = 16;
/// Maximum number of members visited by one search: in malformed input a struct may contain itself repeatedly.
const STEPS: u32 = 100_000;

/// The type information of a kernel.
pub(super) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type in `types`; type ids start at 1.
    starts: Vec<u32>,
}

/// The fixed part of a type.
#[derive(Clone, Copy)]
struct BtfType {
    start: usize,
    name: u32,
    info: u32,
    /// Size, or id of the referenced type.
    size_or_type: u32,
}

impl BtfType {
    fn kind(self) -> u32 {
        (self.info >> 24) & 0x1f
    }

    fn members(self) -> usize {
        (self.info & 0xffff) as usize
    }

    fn has_bit_fields(self) -> bool {
        self.info >> 31 != 0
    }

    fn is_aggregate(self) -> bool {
        matches!(self.kind(), STRUCT | UNION)
    }

    /// Bytes that follow the fixed part.
    fn extra(self) -> Result<usize, BtfError> {
        let many = self.members();
        Ok(match self.kind() {
            1 | 14 | 17 => 4,
            2 | 7..=12 | 16 | 18 => 0,
            3 => 12,
            4 | 5 | 15 | 19 => many * 12,
            6 | 13 => many * 8,
            _ => return Err(BtfError::Malformed("unknown kind of type")),
        })
    }
}

const FIXED: usize = 12;

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes
        .get(offset..)?
        .first_chunk()
        .copied()
        .map(u32::from_ne_bytes)
}

fn section(bytes: &[u8], start: u32, length: u32) -> Option<&[u8]> {
    bytes.get(start as usize..)?.get(..length as usize)
}

impl<'a> Btf<'a> {
    /// Reads the type section.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        const SHORT: BtfError = BtfError::Malformed("truncated");
        let magic = bytes
            .first_chunk()
            .copied()
            .map(u16::from_ne_bytes)
            .ok_or(SHORT)?;
        if magic != MAGIC {
            return Err(BtfError::Malformed("wrong magic number"));
        }
        let field = |index: usize| word(bytes, 4 + 4 * index).ok_or(SHORT);
        let body = bytes.get(field(0)? as usize..).ok_or(SHORT)?;
        let types = section(body, field(1)?, field(2)?).ok_or(SHORT)?;
        let strings = section(body, field(3)?, field(4)?).ok_or(SHORT)?;
        let mut this = Self {
            types,
            strings,
            starts: Vec::with_capacity(types.len() / 24),
        };
        let mut start = 0;
        while start < types.len() {
            let found = this.at(start).ok_or(SHORT)?;
            this.starts.push(u32::try_from(start).map_err(|_| SHORT)?);
            start += FIXED + found.extra()?;
        }
        Ok(this)
    }

    /// Offset in bytes of the member at the end of `path` within `struct name`; the path may lead through nested structs.
    pub(super) fn offset(&self, name: &str, path: &[&str]) -> Result<u32, BtfError> {
        let no_struct = || BtfError::NoStruct(name.to_owned());
        let no_member = || BtfError::NoMember(name.to_owned(), path.join("."));
        let mut parent = self.structure(name).ok_or_else(no_struct)?;
        let mut bits = 0_u32;
        let mut steps = STEPS;
        for (index, member) in path.iter().enumerate() {
            let (at, member_type) = self
                .member(parent, member, DEPTH, &mut steps)
                .ok_or_else(no_member)?;
            bits = bits.checked_add(at).ok_or_else(no_member)?;
            if index + 1 < path.len() {
                parent = self.aggregate(member_type).ok_or_else(no_member)?;
            }
        }
        if !bits.is_multiple_of(8) {
            return Err(BtfError::BitField(name.to_owned(), path.join(".")));
        }
        Ok(bits / 8)
    }

    /// BTF in which the typedefs `btf_trace_<name>` of these tracepoints have the ids that they have here, with placeholders for the
    /// types between them: the loading library looks only for those ids, and would need 13 MiB and 20 ms more to parse all types.
    pub(super) fn only_tracepoints(&self, names: &[&str]) -> Result<Vec<u8>, BtfError> {
        // Behind the empty string, which is the name of all others.
        let mut strings = vec![0];
        let mut found = BTreeMap::new();
        for name in names {
            let no_tracepoint = || BtfError::NoTracepoint((*name).to_owned());
            let typedef = format!("btf_trace_{name}");
            let index = self
                .all()
                .position(|found| found.kind() == TYPEDEF && self.is_named(found.name, &typedef))
                .ok_or_else(no_tracepoint)?;
            found.insert(index, u32::try_from(strings.len()).unwrap_or(0));
            strings.extend(typedef.bytes().chain([0]));
        }
        let count = found.last_key_value().map_or(0, |(last, _)| last + 1);
        let types = (0..count).flat_map(|index| match found.get(&index) {
            // Of `void`, which has no entry.
            Some(name) => [*name, TYPEDEF << 24, 0],
            None => [0, FORWARD << 24, 0],
        });
        let types: Vec<u8> = types.flat_map(u32::to_ne_bytes).collect();
        let [magic, more_magic] = MAGIC.to_ne_bytes();
        let length = |section: &[u8]| u32::try_from(section.len()).unwrap_or(0);
        let header = [
            u32::from_ne_bytes([magic, more_magic, VERSION, 0]),
            HEADER,
            0,
            length(&types),
            length(&types),
            length(&strings),
        ];
        let header: Vec<u8> = header.into_iter().flat_map(u32::to_ne_bytes).collect();
        Ok([header, types, strings].concat())
    }

    fn all(&self) -> impl Iterator<Item = BtfType> {
        self.starts
            .iter()
            .filter_map(|start| self.at(*start as usize))
    }

    fn at(&self, start: usize) -> Option<BtfType> {
        Some(BtfType {
            start,
            name: word(self.types, start)?,
            info: word(self.types, start + 4)?,
            size_or_type: word(self.types, start + 8)?,
        })
    }

    fn by_id(&self, id: u32) -> Option<BtfType> {
        let start = self.starts.get(usize::try_from(id.checked_sub(1)?).ok()?)?;
        self.at(*start as usize)
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        self.strings
            .get(offset as usize..)
            .and_then(|rest| rest.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    fn structure(&self, name: &str) -> Option<BtfType> {
        self.all().find(|found| {
            found.kind() == STRUCT && found.members() > 0 && self.is_named(found.name, name)
        })
    }

    /// The struct or union behind typedefs and qualifiers.
    fn aggregate(&self, mut id: u32) -> Option<BtfType> {
        for _ in 0..DEPTH {
            let found = self.by_id(id)?;
            match found.kind() {
                STRUCT | UNION => return Some(found),
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => id = found.size_or_type,
                _ => return None,
            }
        }
        None
    }

    /// Offset in bits and type of the member `name` of `parent`, which may be inside an anonymous struct or union.
    fn member(
        &self,
        parent: BtfType,
        name: &str,
        depth: u32,
        steps: &mut u32,
    ) -> Option<(u32, u32)> {
        let depth = depth.checked_sub(1)?;
        for index in 0..parent.members() {
            *steps = steps.checked_sub(1)?;
            let start = parent.start + FIXED + index * FIXED;
            let member_name = word(self.types, start)?;
            let member_type = word(self.types, start + 4)?;
            let offset = word(self.types, start + 8)?;
            // In a struct with bit fields, the top byte of every member's offset is the width in bits.
            let bits = if parent.has_bit_fields() {
                offset & 0x00ff_ffff
            } else {
                offset
            };
            if self.is_named(member_name, name) {
                return Some((bits, member_type));
            }
            if self.is_named(member_name, "")
                && let Some(inner) = self.aggregate(member_type)
                && inner.is_aggregate()
                && let Some((inside, found)) = self.member(inner, name, depth, steps)
            {
                return Some((bits.checked_add(inside)?, found));
            }
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests;
