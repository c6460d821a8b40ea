//! Offsets in the kernel's structs that the programs read, each in a global.

use super::btf::{Btf, BtfError};

/// Global, struct, path of members.
const OFFSETS: [(&str, &str, &[&str]); 10] = [
    ("OFFSET_NEIGHBOUR_DEV", "neighbour", &["dev"]),
    ("OFFSET_NEIGHBOUR_TBL", "neighbour", &["tbl"]),
    ("OFFSET_NEIGHBOUR_NUD_STATE", "neighbour", &["nud_state"]),
    ("OFFSET_NEIGHBOUR_HA", "neighbour", &["ha"]),
    (
        "OFFSET_NEIGHBOUR_PRIMARY_KEY",
        "neighbour",
        &["primary_key"],
    ),
    ("OFFSET_NEIGH_TABLE_FAMILY", "neigh_table", &["family"]),
    ("OFFSET_NET_DEVICE_IFINDEX", "net_device", &["ifindex"]),
    ("OFFSET_NET_DEVICE_ADDR_LEN", "net_device", &["addr_len"]),
    ("OFFSET_NET_DEVICE_NET", "net_device", &["nd_net", "net"]),
    ("OFFSET_NET_INODE", "net", &["ns", "inum"]),
];

/// The value of each global, for the kernel that `btf` describes.
pub(super) fn find(btf: &Btf<'_>) -> Result<[(&'static str, u32); OFFSETS.len()], BtfError> {
    let mut found = [("", 0); OFFSETS.len()];
    for (slot, (global, name, path)) in found.iter_mut().zip(OFFSETS) {
        *slot = (global, btf.offset(name, path)?);
    }
    Ok(found)
}
