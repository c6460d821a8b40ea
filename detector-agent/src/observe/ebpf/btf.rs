//! Offsets of members in the kernel's structs, from the kernel's type information (BTF).
//!
//! A minimal reader: the type section is walked once, names are compared in place, nothing is copied. The format is described
//! in the kernel's `Documentation/bpf/btf.rst`.

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
}

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
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

    /// Whether the kernel has this tracepoint, for which it has a typedef `btf_trace_<name>`.
    pub(super) fn has_tracepoint(&self, name: &str) -> bool {
        let name = format!("btf_trace_{name}");
        self.all()
            .any(|found| found.kind() == TYPEDEF && self.is_named(found.name, &name))
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INT: u32 = 1;
    const BIT_FIELDS: u32 = 1 << 31;

    /// Builds BTF for tests.
    struct BtfBuilder {
        types: Vec<u8>,
        strings: Vec<u8>,
        count: u32,
    }

    impl BtfBuilder {
        fn new() -> Self {
            Self {
                types: Vec::new(),
                strings: vec![0],
                count: 0,
            }
        }

        fn name(&mut self, name: &str) -> u32 {
            if name.is_empty() {
                return 0;
            }
            let at = u32::try_from(self.strings.len()).unwrap();
            self.strings.extend(name.bytes().chain([0]));
            at
        }

        fn words(&mut self, words: &[u32]) {
            self.types
                .extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        }

        /// A type without members; gives its id.
        fn plain(&mut self, name: &str, kind: u32, size_or_type: u32, extra: &[u32]) -> u32 {
            let name = self.name(name);
            self.words(&[name, kind << 24, size_or_type]);
            self.words(extra);
            self.count += 1;
            self.count
        }

        /// A struct or union of (name, type, offset in bits).
        fn aggregate(&mut self, name: &str, kind: u32, members: &[(&str, u32, u32)]) -> u32 {
            let name = self.name(name);
            self.words(&[name, kind << 24 | u32::try_from(members.len()).unwrap(), 64]);
            for (member, id, offset) in members {
                let member = self.name(member);
                self.words(&[member, *id, *offset]);
            }
            self.count += 1;
            self.count
        }

        fn bytes(&self) -> Vec<u8> {
            let mut bytes = MAGIC.to_ne_bytes().to_vec();
            bytes.extend([1, 0]);
            let types = u32::try_from(self.types.len()).unwrap();
            let strings = u32::try_from(self.strings.len()).unwrap();
            for word in [24, 0, types, types, strings] {
                bytes.extend(u32::to_ne_bytes(word));
            }
            bytes.extend(&self.types);
            bytes.extend(&self.strings);
            bytes
        }
    }

    /// `struct net_device` with members in an anonymous struct in an anonymous union, behind a typedef.
    fn net_device() -> BtfBuilder {
        let mut btf = BtfBuilder::new();
        let int = btf.plain("int", INT, 4, &[32]);
        let pointer = btf.plain("", 2, 0, &[]);
        let possible = btf.aggregate("", STRUCT, &[("net", pointer, 0)]);
        let typedef = btf.plain("possible_net_t", TYPEDEF, possible, &[]);
        let constant = btf.plain("", CONST, typedef, &[]);
        let inner = btf.aggregate("", STRUCT, &[("pad", int, 0), ("nd_net", constant, 64)]);
        let union = btf.aggregate("", UNION, &[("other", int, 0), ("", inner, 0)]);
        // A forward declaration of the same name must be skipped.
        btf.aggregate("net_device", STRUCT, &[]);
        btf.aggregate(
            "net_device",
            STRUCT,
            &[("ifindex", int, 32), ("", union, 128)],
        );
        btf.plain("btf_trace_neigh_update_done", TYPEDEF, pointer, &[]);
        btf
    }

    #[test]
    fn finds_members_in_nested_and_anonymous_structs() {
        let bytes = net_device().bytes();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.offset("net_device", &["ifindex"]), Ok(4));
        assert_eq!(btf.offset("net_device", &["other"]), Ok(16));
        assert_eq!(btf.offset("net_device", &["nd_net"]), Ok(24));
        assert_eq!(btf.offset("net_device", &["nd_net", "net"]), Ok(24));
    }

    #[test]
    fn missing_structs_and_members_are_named() {
        let bytes = net_device().bytes();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(
            btf.offset("net", &["ns"]),
            Err(BtfError::NoStruct("net".to_owned()))
        );
        for path in [&["nd"][..], &["nd_net", "ns"], &["ifindex", "x"]] {
            let error = BtfError::NoMember("net_device".to_owned(), path.join("."));
            assert_eq!(btf.offset("net_device", path), Err(error));
        }
        assert!(btf.has_tracepoint("neigh_update_done"));
        assert!(!btf.has_tracepoint("neigh_update"));
    }

    #[test]
    fn bit_field_width_is_not_part_of_the_offset() {
        let mut btf = BtfBuilder::new();
        let int = btf.plain("int", INT, 4, &[32]);
        let name = btf.name("neighbour");
        btf.words(&[name, BIT_FIELDS | STRUCT << 24 | 2, 8]);
        let (flag, state) = (btf.name("flag"), btf.name("nud_state"));
        btf.words(&[flag, int, 3 << 24 | 5, state, int, 32]);
        let bytes = btf.bytes();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.offset("neighbour", &["nud_state"]), Ok(4));
        let error = BtfError::BitField("neighbour".to_owned(), "flag".to_owned());
        assert_eq!(btf.offset("neighbour", &["flag"]), Err(error));
    }

    #[test]
    fn struct_that_contains_itself_ends_the_search() {
        let mut btf = BtfBuilder::new();
        btf.aggregate("net", STRUCT, &[("", 1, 0), ("", 1, 0)]);
        let bytes = btf.bytes();
        let found = Btf::parse(&bytes).unwrap().offset("net", &["ns"]);
        assert_eq!(
            found,
            Err(BtfError::NoMember("net".to_owned(), "ns".to_owned()))
        );
    }

    #[test]
    fn truncated_or_byte_swapped_btf_is_rejected() {
        let complete = net_device().bytes();
        for length in 0..complete.len() {
            let cut = complete.get(..length).unwrap();
            assert!(
                Btf::parse(cut).is_err(),
                "{length} of {} bytes",
                complete.len()
            );
        }
        let mut other_order = complete.clone();
        other_order.swap(0, 1);
        assert!(Btf::parse(&other_order).is_err());
    }

    proptest! {
        #[test]
        fn malformed_btf_neither_panics_nor_loops(
            mut bytes in prop::collection::vec(any::<u8>(), 0..300),
            changes in prop::collection::vec((0_usize..400, any::<u8>()), 0..8),
        ) {
            let mut broken = net_device().bytes();
            for (at, byte) in changes {
                if let Some(byte_at) = broken.get_mut(at) {
                    *byte_at = byte;
                }
            }
            if let Some(start) = bytes.first_chunk_mut() {
                *start = MAGIC.to_ne_bytes();
            }
            for bytes in [bytes, broken] {
                if let Ok(btf) = Btf::parse(&bytes) {
                    let _ = btf.offset("net_device", &["nd_net", "net"]);
                    let _ = btf.has_tracepoint("neigh_update_done");
                }
            }
        }
    }
}
