//! Offsets in BTF built by hand, and malformed BTF.

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
}

#[test]
fn only_tracepoints_are_left_under_their_ids() {
    let mut btf = BtfBuilder::new();
    let int = btf.plain("int", INT, 4, &[32]);
    btf.aggregate("neighbour", STRUCT, &[("ha", int, 0), ("dev", int, 32)]);
    let update = btf.plain("btf_trace_neigh_update_done", TYPEDEF, int, &[]);
    btf.aggregate("net", STRUCT, &[("ns", int, 0)]);
    let timer = btf.plain("btf_trace_neigh_timer_handler", TYPEDEF, int, &[]);
    btf.plain("btf_trace_neigh_update", TYPEDEF, int, &[]);
    let bytes = btf.bytes();
    let btf = Btf::parse(&bytes).unwrap();

    let names = ["neigh_timer_handler", "neigh_update_done"];
    let left = btf.only_tracepoints(&names).unwrap();
    assert!(aya::Btf::parse(&left, aya::Endianness::default()).is_ok());
    let left = Btf::parse(&left).unwrap();
    let typedefs: Vec<_> = (1..=timer)
        .filter(|id| left.by_id(*id).unwrap().kind() == TYPEDEF)
        .collect();
    assert_eq!(typedefs, [update, timer]);
    for (id, name) in [
        (update, "btf_trace_neigh_update_done"),
        (timer, "btf_trace_neigh_timer_handler"),
    ] {
        assert!(left.is_named(left.by_id(id).unwrap().name, name), "{name}");
    }
    assert_eq!(left.by_id(timer + 1).map(BtfType::kind), None);

    let missing = btf.only_tracepoints(&["neigh_update_done", "neigh_cleanup"]);
    let expected = BtfError::NoTracepoint("neigh_cleanup".to_owned());
    assert_eq!(missing, Err(expected));
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
                let _ = btf.only_tracepoints(&["neigh_update_done"]);
            }
        }
    }
}
