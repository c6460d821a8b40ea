//! The records of the ring buffer and their decoder.

use core::mem::{MaybeUninit, offset_of};

/// Discriminant of a [`FrameRecord`] from ARP.
pub const TAG_ARP: u8 = 1;
/// Discriminant of a [`FrameRecord`] from Neighbour Discovery.
pub const TAG_NDP: u8 = 2;
/// Discriminant of a [`NeighbourRecord`] of an entry that exists.
pub const NEIGHBOUR_UPDATE: u8 = 3;
/// Discriminant of a [`NeighbourRecord`] of an entry that was removed.
pub const NEIGHBOUR_GONE: u8 = 4;
/// Discriminant of an [`UnansweredProbeRecord`] from ARP.
pub const UNANSWERED_ARP: u8 = 5;
/// Discriminant of an [`UnansweredProbeRecord`] from Neighbour Discovery.
pub const UNANSWERED_NDP: u8 = 6;

/// A claim as it was made in a frame. The kernel program also compares and hashes it as words, so it has no padding and
/// every byte is initialised.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RawClaim {
    /// [`TAG_ARP`] or [`TAG_NDP`].
    pub tag: u8,
    /// 1 for an ARP probe or a DAD solicitation, else 0.
    pub tentative: u8,
    /// VLAN id of the only or the outer tag; 0 if absent.
    pub vlan_outer: u16,
    /// The device the frame came in on.
    pub ifindex: u32,
    /// The claimed address in network order; for ARP the first four bytes, the rest zero.
    pub address: [u8; 16],
    /// The hardware address claimed for it.
    pub mac: [u8; 6],
    /// The frame's Ethernet source.
    pub ether_source: [u8; 6],
    /// VLAN id of the inner of two tags; 0 if absent.
    pub vlan_inner: u16,
    /// 1 for a router advertisement, else 0.
    pub router: u8,
    /// Padding, always zero.
    pub reserved: u8,
}

/// An address as a key of the tables that both address families share. The family comes first: no IPv6 address is equal to
/// an IPv4 one; see [`address_key`].
pub type AddressKey = [u8; 20];

/// Bits of an [`AddressKey`] before the address.
pub const FAMILY_BITS: u32 = 32;

/// The key of an address; `tag` and `address` as in [`RawClaim`].
#[must_use]
#[inline(always)]
pub const fn address_key(tag: u8, address: [u8; 16]) -> AddressKey {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address;
    [tag, 0, 0, 0, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

/// A claim and the time of its frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRecord {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub at: u64,
    /// The claim.
    pub claim: RawClaim,
}

/// A neighbour entry of the agent's network namespace that was added, changed or removed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourRecord {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub at: u64,
    /// [`NEIGHBOUR_UPDATE`] or [`NEIGHBOUR_GONE`].
    pub tag: u8,
    /// The IP version, 4 or 6.
    pub ip_version: u8,
    /// `neighbour.nud_state`.
    pub state: u8,
    /// 1 if `lladdr` holds an address, else 0.
    pub has_lladdr: u8,
    /// The entry's device.
    pub ifindex: u32,
    /// The neighbour's address in network order; for IPv4 the first four bytes, the rest zero.
    pub address: [u8; 16],
    /// Its hardware address.
    pub lladdr: [u8; 6],
    /// Padding, always zero.
    pub reserved: u16,
}

impl NeighbourRecord {
    /// The tag of claims of its address: [`TAG_ARP`] or [`TAG_NDP`].
    #[must_use]
    #[inline(always)]
    pub fn claim_tag(&self) -> u8 {
        if self.ip_version == 4 {
            TAG_ARP
        } else {
            TAG_NDP
        }
    }
}

/// An address that a pod repeatedly requested by broadcast or multicast, as a stack does if it gets no answer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnansweredProbeRecord {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub at: u64,
    /// [`UNANSWERED_ARP`] or [`UNANSWERED_NDP`].
    pub tag: u8,
    /// Padding, always zero.
    pub reserved: u8,
    /// As in [`RawClaim`].
    pub vlan_outer: u16,
    /// The device the frame came in on.
    pub ifindex: u32,
    /// The requested address, in network order; for ARP the first four bytes, the rest zero.
    pub target: [u8; 16],
    /// The requesting pod's address.
    pub sender: [u8; 16],
    /// As in [`RawClaim`].
    pub vlan_inner: u16,
    /// Number of requests within the counting interval.
    pub times: u16,
    /// Padding, always zero.
    pub reserved_too: u32,
}

impl RawClaim {
    /// Sets every byte to zero, in volatile words: the BPF backend turns other forms into a call of a byte loop.
    #[inline(always)]
    pub(crate) fn zeroed(place: &mut MaybeUninit<Self>) -> &mut Self {
        let words = place.as_mut_ptr().cast::<u64>();
        for index in 0..size_of::<Self>() / size_of::<u64>() {
            // SAFETY: a claim consists of exactly these words (size and alignment are asserted below).
            unsafe { words.add(index).write_volatile(0) };
        }
        // SAFETY: every byte is initialised, and all fields are integers, for which zero is valid.
        unsafe { place.assume_init_mut() }
    }
}

const _: () = {
    assert!(size_of::<RawClaim>() == 40 && align_of::<RawClaim>() == 8);
    assert!(
        offset_of!(RawClaim, tag) == 0
            && offset_of!(RawClaim, tentative) == 1
            && offset_of!(RawClaim, vlan_outer) == 2
    );
    assert!(
        offset_of!(RawClaim, ifindex) == 4
            && offset_of!(RawClaim, address) == 8
            && offset_of!(RawClaim, mac) == 24
    );
    assert!(offset_of!(RawClaim, ether_source) == 30 && offset_of!(RawClaim, vlan_inner) == 36);
    assert!(offset_of!(RawClaim, router) == 38 && offset_of!(RawClaim, reserved) == 39);
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
    assert!(size_of::<UnansweredProbeRecord>() == 56 && align_of::<UnansweredProbeRecord>() == 8);
    assert!(
        offset_of!(UnansweredProbeRecord, tag) == 8
            && offset_of!(UnansweredProbeRecord, vlan_outer) == 10
    );
    assert!(
        offset_of!(UnansweredProbeRecord, ifindex) == 12
            && offset_of!(UnansweredProbeRecord, target) == 16
    );
    assert!(
        offset_of!(UnansweredProbeRecord, sender) == 32
            && offset_of!(UnansweredProbeRecord, vlan_inner) == 48
    );
    assert!(
        offset_of!(UnansweredProbeRecord, times) == 50
            && offset_of!(UnansweredProbeRecord, reserved_too) == 52
    );
};

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingRecord {
    /// A frame's claim.
    Frame(FrameRecord),
    /// A neighbour entry.
    Neighbour(NeighbourRecord),
    /// An address that was requested repeatedly.
    UnansweredProbe(UnansweredProbeRecord),
}

/// Why bytes from the ring buffer are not a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The length does not match the discriminant, or is too short for one.
    Length(usize),
    /// The discriminant is unknown.
    Tag(u8),
    /// A field has an invalid value.
    Field(&'static str),
}

impl core::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length(length) => {
                write!(f, "kernel record has an invalid length of {length} bytes")
            }
            Self::Tag(tag) => write!(f, "kernel record has the unknown type {tag}"),
            Self::Field(name) => write!(f, "kernel record has an invalid value in field `{name}`"),
        }
    }
}

impl core::error::Error for DecodeError {}

impl RingRecord {
    /// Decodes the bytes of one record.
    ///
    /// # Errors
    /// [`DecodeError`] if the kernel programs cannot have written these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let tag = *bytes.get(8).ok_or(DecodeError::Length(bytes.len()))?;
        match tag {
            TAG_ARP | TAG_NDP => frame(bytes).map(Self::Frame),
            NEIGHBOUR_UPDATE | NEIGHBOUR_GONE => neighbour(bytes).map(Self::Neighbour),
            UNANSWERED_ARP | UNANSWERED_NDP => unanswered_probe(bytes).map(Self::UnansweredProbe),
            _ => Err(DecodeError::Tag(tag)),
        }
    }
}

/// `N` bytes at `offset`. The callers have checked the length, so the error cannot occur.
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
    let [router, reserved] = at(bytes, 46)?;
    let record = FrameRecord {
        at: u64::from_ne_bytes(at(bytes, 0)?),
        claim: RawClaim {
            tag,
            tentative,
            vlan_outer: u16::from_ne_bytes(at(bytes, 10)?),
            ifindex: u32::from_ne_bytes(at(bytes, 12)?),
            address: at(bytes, 16)?,
            mac: at(bytes, 32)?,
            ether_source: at(bytes, 38)?,
            vlan_inner: u16::from_ne_bytes(at(bytes, 44)?),
            router,
            reserved,
        },
    };
    let claim = &record.claim;
    if claim.tentative > 1 {
        return Err(DecodeError::Field("tentative"));
    }
    if claim.router > u8::from(claim.tag == TAG_NDP) {
        return Err(DecodeError::Field("router"));
    }
    if !is_valid_vlan(claim.vlan_outer, claim.vlan_inner) {
        return Err(DecodeError::Field("vlan"));
    }
    if claim.ifindex == 0 {
        return Err(DecodeError::Field("ifindex"));
    }
    Ok(record)
}

fn is_valid_vlan(outer: u16, inner: u16) -> bool {
    outer <= 4094 && inner <= 4094 && (inner == 0 || outer != 0)
}

fn unanswered_probe(bytes: &[u8]) -> Result<UnansweredProbeRecord, DecodeError> {
    if bytes.len() != size_of::<UnansweredProbeRecord>() {
        return Err(DecodeError::Length(bytes.len()));
    }
    let [tag, reserved] = at(bytes, 8)?;
    let record = UnansweredProbeRecord {
        at: u64::from_ne_bytes(at(bytes, 0)?),
        tag,
        reserved,
        vlan_outer: u16::from_ne_bytes(at(bytes, 10)?),
        ifindex: u32::from_ne_bytes(at(bytes, 12)?),
        target: at(bytes, 16)?,
        sender: at(bytes, 32)?,
        vlan_inner: u16::from_ne_bytes(at(bytes, 48)?),
        times: u16::from_ne_bytes(at(bytes, 50)?),
        reserved_too: u32::from_ne_bytes(at(bytes, 52)?),
    };
    if !is_valid_vlan(record.vlan_outer, record.vlan_inner) {
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
