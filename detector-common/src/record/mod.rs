//! The records of the ring buffer, and their decoding.

use core::mem::{MaybeUninit, offset_of};

/// Discriminant of a [`FrameRecord`] that ARP made.
pub const TAG_ARP: u8 = 1;
/// Discriminant of a [`FrameRecord`] that Neighbour Discovery made.
pub const TAG_NDP: u8 = 2;
/// Discriminant of a [`NeighbourRecord`] of an entry that exists.
pub const NEIGHBOUR_UPDATE: u8 = 3;
/// Discriminant of a [`NeighbourRecord`] of an entry the kernel removed.
pub const NEIGHBOUR_GONE: u8 = 4;

/// Discriminant of a [`QuestionRecord`] that ARP made.
pub const QUESTION_ARP: u8 = 5;
/// Discriminant of a [`QuestionRecord`] that Neighbour Discovery made.
pub const QUESTION_NDP: u8 = 6;

/// A claim as a frame made it. It is also the key under which the kernel remembers what it published, so there is no
/// padding in it and every byte is set.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Claim {
    /// [`TAG_ARP`] or [`TAG_NDP`].
    pub tag: u8,
    /// 1 for an ARP probe or a DAD solicitation, else 0.
    pub tentative: u8,
    /// VLAN id of the only or the outer tag; 0 where there is none.
    pub vlan_outer: u16,
    /// The device the frame came in on.
    pub ifindex: u32,
    /// The claimed address in network order; for ARP the first four bytes, the rest zero.
    pub address: [u8; 16],
    /// The hardware address claimed for it.
    pub mac: [u8; 6],
    /// The frame's Ethernet source.
    pub ether_source: [u8; 6],
    /// VLAN id of the inner of two tags; 0 where there is none.
    pub vlan_inner: u16,
    /// Zero.
    pub reserved: u16,
}

/// A claimed address as the networks of shared addresses are looked up: the kind of address first, since both kinds
/// stand in one table; see [`shared_address`].
pub type SharedAddress = [u8; 20];

/// Bits of a [`SharedAddress`] before those of the address.
pub const SHARED_KIND_BITS: u32 = 32;

/// `tag` and `address` as in [`Claim`].
#[must_use]
#[inline(always)]
pub const fn shared_address(tag: u8, address: [u8; 16]) -> SharedAddress {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address;
    [tag, 0, 0, 0, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

/// A claim and when it was seen.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRecord {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub at: u64,
    /// The claim.
    pub claim: Claim,
}

/// A neighbour entry of the agent's network namespace that changed or went.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourRecord {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub at: u64,
    /// [`NEIGHBOUR_UPDATE`] or [`NEIGHBOUR_GONE`].
    pub tag: u8,
    /// 4 or 6.
    pub ip_version: u8,
    /// `neighbour.nud_state`.
    pub state: u8,
    /// 1 where `lladdr` holds an address, else 0.
    pub has_lladdr: u8,
    /// The device the entry stands on.
    pub ifindex: u32,
    /// The neighbour's address in network order; for IPv4 the first four bytes, the rest zero.
    pub address: [u8; 16],
    /// Its hardware address.
    pub lladdr: [u8; 6],
    /// Zero.
    pub reserved: u16,
}

/// That a pod asked everybody for one address again and again.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuestionRecord {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub at: u64,
    /// [`QUESTION_ARP`] or [`QUESTION_NDP`].
    pub tag: u8,
    /// Zero.
    pub reserved: u8,
    /// As in [`Claim`].
    pub vlan_outer: u16,
    /// The device the frame came in on.
    pub ifindex: u32,
    /// The address asked for, in network order; for ARP the first four bytes, the rest zero.
    pub target: [u8; 16],
    /// The address that asks.
    pub asker: [u8; 16],
    /// As in [`Claim`].
    pub vlan_inner: u16,
    /// How often it was asked for within the time that counts.
    pub times: u16,
    /// Zero.
    pub reserved_too: u32,
}

impl Claim {
    /// Sets every byte to zero, word by word: of anything else a compiler for the kernel makes a call of a loop.
    #[inline(always)]
    pub(crate) fn cleared(place: &mut MaybeUninit<Self>) -> &mut Self {
        let words = place.as_mut_ptr().cast::<u64>();
        for index in 0..size_of::<Self>() / size_of::<u64>() {
            // SAFETY: a claim consists of so many words (its size and alignment are asserted below).
            unsafe { words.add(index).write_volatile(0) };
        }
        // SAFETY: every byte is initialised, and zeros are a claim.
        unsafe { place.assume_init_mut() }
    }
}

const _: () = {
    assert!(size_of::<Claim>() == 40 && align_of::<Claim>() == 8);
    assert!(
        offset_of!(Claim, tag) == 0
            && offset_of!(Claim, tentative) == 1
            && offset_of!(Claim, vlan_outer) == 2
    );
    assert!(
        offset_of!(Claim, ifindex) == 4
            && offset_of!(Claim, address) == 8
            && offset_of!(Claim, mac) == 24
    );
    assert!(offset_of!(Claim, ether_source) == 30 && offset_of!(Claim, vlan_inner) == 36);
    assert!(offset_of!(Claim, reserved) == 38);
    assert!(size_of::<FrameRecord>() == 48 && align_of::<FrameRecord>() == 8);
    assert!(offset_of!(FrameRecord, at) == 0 && offset_of!(FrameRecord, claim) == 8);
    assert!(size_of::<NeighbourRecord>() == 40 && align_of::<NeighbourRecord>() == 8);
    assert!(offset_of!(NeighbourRecord, at) == 0 && offset_of!(NeighbourRecord, tag) == 8);
    assert!(
        offset_of!(NeighbourRecord, ip_version) == 9 && offset_of!(NeighbourRecord, state) == 10
    );
    assert!(
        offset_of!(NeighbourRecord, has_lladdr) == 11 && offset_of!(NeighbourRecord, ifindex) == 12
    );
    assert!(
        offset_of!(NeighbourRecord, address) == 16 && offset_of!(NeighbourRecord, lladdr) == 32
    );
    assert!(offset_of!(NeighbourRecord, reserved) == 38);
    assert!(size_of::<QuestionRecord>() == 56 && align_of::<QuestionRecord>() == 8);
    assert!(offset_of!(QuestionRecord, tag) == 8 && offset_of!(QuestionRecord, vlan_outer) == 10);
    assert!(offset_of!(QuestionRecord, ifindex) == 12 && offset_of!(QuestionRecord, target) == 16);
    assert!(
        offset_of!(QuestionRecord, asker) == 32 && offset_of!(QuestionRecord, vlan_inner) == 48
    );
    assert!(
        offset_of!(QuestionRecord, times) == 50 && offset_of!(QuestionRecord, reserved_too) == 52
    );
};

/// A record that was checked: its discriminants are ones this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A frame's claim.
    Frame(FrameRecord),
    /// A neighbour entry.
    Neighbour(NeighbourRecord),
    /// A question that was asked again and again.
    Question(QuestionRecord),
}

/// Why bytes of the ring buffer are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The length is not the one its discriminant asks for, or too short to have one.
    Length(usize),
    /// No record has this discriminant.
    Tag(u8),
    /// A field holds a value it cannot have.
    Field(&'static str),
}

impl core::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length(length) => write!(f, "a kernel record cannot be {length} bytes long"),
            Self::Tag(tag) => write!(f, "a kernel record cannot be of type {tag}"),
            Self::Field(name) => write!(
                f,
                "a kernel record's field `{name}` holds a value it cannot have"
            ),
        }
    }
}

impl core::error::Error for DecodeError {}

impl Record {
    /// Decodes the bytes of one record.
    ///
    /// # Errors
    /// Where length, discriminant or a field is not one the kernel programs write.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let tag = *bytes.get(8).ok_or(DecodeError::Length(bytes.len()))?;
        match tag {
            TAG_ARP | TAG_NDP => frame(bytes).map(Self::Frame),
            NEIGHBOUR_UPDATE | NEIGHBOUR_GONE => neighbour(bytes).map(Self::Neighbour),
            QUESTION_ARP | QUESTION_NDP => question(bytes).map(Self::Question),
            _ => Err(DecodeError::Tag(tag)),
        }
    }
}

/// `N` bytes at `offset` of a record whose length was checked; the length error repeats the check for the compiler.
fn at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], DecodeError> {
    bytes
        .get(offset..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .ok_or(DecodeError::Length(bytes.len()))
}

fn frame(bytes: &[u8]) -> Result<FrameRecord, DecodeError> {
    if bytes.len() != size_of::<FrameRecord>() {
        return Err(DecodeError::Length(bytes.len()));
    }
    let [tag, tentative] = at(bytes, 8)?;
    let record = FrameRecord {
        at: u64::from_ne_bytes(at(bytes, 0)?),
        claim: Claim {
            tag,
            tentative,
            vlan_outer: u16::from_ne_bytes(at(bytes, 10)?),
            ifindex: u32::from_ne_bytes(at(bytes, 12)?),
            address: at(bytes, 16)?,
            mac: at(bytes, 32)?,
            ether_source: at(bytes, 38)?,
            vlan_inner: u16::from_ne_bytes(at(bytes, 44)?),
            reserved: u16::from_ne_bytes(at(bytes, 46)?),
        },
    };
    let claim = &record.claim;
    if claim.tentative > 1 {
        return Err(DecodeError::Field("tentative"));
    }
    if !are_tags(claim.vlan_outer, claim.vlan_inner) {
        return Err(DecodeError::Field("vlan"));
    }
    if claim.ifindex == 0 {
        return Err(DecodeError::Field("ifindex"));
    }
    Ok(record)
}

fn are_tags(outer: u16, inner: u16) -> bool {
    outer <= 4094 && inner <= 4094 && (inner == 0 || outer != 0)
}

fn question(bytes: &[u8]) -> Result<QuestionRecord, DecodeError> {
    if bytes.len() != size_of::<QuestionRecord>() {
        return Err(DecodeError::Length(bytes.len()));
    }
    let [tag, reserved] = at(bytes, 8)?;
    let record = QuestionRecord {
        at: u64::from_ne_bytes(at(bytes, 0)?),
        tag,
        reserved,
        vlan_outer: u16::from_ne_bytes(at(bytes, 10)?),
        ifindex: u32::from_ne_bytes(at(bytes, 12)?),
        target: at(bytes, 16)?,
        asker: at(bytes, 32)?,
        vlan_inner: u16::from_ne_bytes(at(bytes, 48)?),
        times: u16::from_ne_bytes(at(bytes, 50)?),
        reserved_too: u32::from_ne_bytes(at(bytes, 52)?),
    };
    if !are_tags(record.vlan_outer, record.vlan_inner) {
        return Err(DecodeError::Field("vlan"));
    }
    if record.ifindex == 0 {
        return Err(DecodeError::Field("ifindex"));
    }
    Ok(record)
}

fn neighbour(bytes: &[u8]) -> Result<NeighbourRecord, DecodeError> {
    if bytes.len() != size_of::<NeighbourRecord>() {
        return Err(DecodeError::Length(bytes.len()));
    }
    let [tag, ip_version, state, has_lladdr] = at(bytes, 8)?;
    let record = NeighbourRecord {
        at: u64::from_ne_bytes(at(bytes, 0)?),
        tag,
        ip_version,
        state,
        has_lladdr,
        ifindex: u32::from_ne_bytes(at(bytes, 12)?),
        address: at(bytes, 16)?,
        lladdr: at(bytes, 32)?,
        reserved: u16::from_ne_bytes(at(bytes, 38)?),
    };
    if !matches!(record.ip_version, 4 | 6) {
        return Err(DecodeError::Field("ip_version"));
    }
    if record.has_lladdr > 1 {
        return Err(DecodeError::Field("has_lladdr"));
    }
    if record.ifindex == 0 {
        return Err(DecodeError::Field("ifindex"));
    }
    Ok(record)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests;
