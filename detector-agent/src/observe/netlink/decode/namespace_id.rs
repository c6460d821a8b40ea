//! `RTM_NEWNSID` and `RTM_DELNSID`.

use detector_engine::NsId;
use netlink_packet_core::parse_i32;

use super::Undecodable;
use crate::observe::netlink::wire::for_each_attribute;

/// `struct rtgenmsg`, padded to the alignment of attributes.
const HEADER: usize = 4;
/// `linux/net_namespace.h`; neither libc nor netlink-packet-route has it.
const NETNSA_NSID: u16 = 1;

/// The id in the message; `None` if it has none, or if none is assigned (-1).
pub(in super::super) fn assigned(payload: &[u8]) -> Result<Option<NsId>, Undecodable> {
    let mut nsid = None;
    for_each_attribute(payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        if kind == NETNSA_NSID {
            nsid = Some(parse_i32(value)?).filter(|nsid| *nsid >= 0);
        }
        Ok(())
    })?;
    Ok(nsid)
}
